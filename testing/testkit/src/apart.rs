//! Servers that only another release of Debian has. apt fetches the package from there, with what
//! it needs unless this release has that, in folders of its own, and checks the signatures; all is
//! unpacked into the target folder. Programs are run with their own loader and libraries. Nothing
//! is installed.

use crate::program::in_path;
use crate::{Outcome, target};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Fetches and unpacks.
const APT_UNPACK: &str = include_str!("apt-unpack.sh");

/// A program of a package of another release.
#[derive(Debug)]
pub struct OtherRelease {
    /// The release.
    pub suite: &'static str,
    /// The package.
    pub package: &'static str,
    /// The program's file in it.
    pub binary: &'static str,
    /// A text in the version of a different program that may be installed under this name.
    pub other: Option<&'static str>,
    /// Its first arguments, or its jars in order; `{files}` is where the package was unpacked.
    pub args: &'static [&'static str],
    /// Whether all that the package needs is fetched with it.
    pub whole: bool,
}

impl OtherRelease {
    /// Whether the installed program of this name is a different one.
    pub(crate) fn is_other(&self, binary: &Path) -> bool {
        let says = Command::new(binary).arg("--version").output();
        let says = says.map(|output| String::from_utf8_lossy(&output.stdout).to_lowercase());
        says.map_or(true, |text| self.other.is_some_and(|other| text.contains(other)))
    }

    fn folder(&self) -> PathBuf {
        target().join("debs").join(format!("{}-{}", self.package, self.suite))
    }

    /// The program's file, once the package has been unpacked.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        Some(self.files().join(self.binary)).filter(|file| file.is_file())
    }

    fn files(&self) -> PathBuf {
        self.folder().join("files")
    }

    /// Its first arguments.
    pub(crate) fn args(&self) -> impl Iterator<Item = String> {
        let files = self.files();
        self.args.iter().map(move |arg| arg.replace("{files}", &files.to_string_lossy()))
    }

    /// The loader and its first arguments, once the package has been unpacked.
    pub fn find(&self) -> Option<(PathBuf, Vec<String>)> {
        let libraries = self.files().join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        let loader = std::fs::read_dir(&libraries)
            .ok()?
            .flatten()
            .find(|entry| entry.file_name().to_string_lossy().starts_with("ld-linux"))?;
        let binary = self.file()?;
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let mut args = vec!["--library-path".to_owned(), text(&libraries), text(&binary)];
        args.extend(self.args());
        Some((loader.path(), args))
    }

    /// Fetches it, if there is an apt.
    ///
    /// # Errors
    ///
    /// A sentence.
    pub fn fetch(&self) -> Outcome<()> {
        if in_path("apt-get").is_none() {
            return Err("there is no apt-get here.".to_owned());
        }
        let output = Command::new("sh")
            .args(["-c", APT_UNPACK, "apt-unpack.sh", self.suite, self.package])
            .arg(self.folder())
            .arg(if self.whole { "whole" } else { "alone" })
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("sh could not be started: {e}."))?;
        if output.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        Err(format!("apt-get or dpkg-deb failed ({}): {}", output.status, words.trim()))
    }
}
