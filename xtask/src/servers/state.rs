//! The record of what was started, so that another run of this program can stop it.
//!
//! One file per topology under `target/servers/`. It is written *before* and during the start, so
//! that an interrupted start can be cleaned up too.
//!
//! It names its checkout. A `target` folder copied along with another checkout contains that one's
//! files: they are not ours, and the servers in them are left alone.

use crate::{Outcome, workspace};
use holdline_testkit::Process;
use rustix::fs::{FlockOperation, flock};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// One topology that was started, or is being started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Running {
    /// The topology's name.
    pub(crate) name: String,
    /// The root of the checkout that started it.
    pub(crate) root: PathBuf,
    /// The first of the private ports when it was started.
    pub(crate) base: u16,
    /// The folder with all of its data.
    pub(crate) dir: PathBuf,
    /// The address for tests.
    pub(crate) url: String,
    /// Its processes.
    pub(crate) processes: Vec<Process>,
    /// Whether it has ever answered.
    pub(crate) ready: bool,
}

impl Running {
    /// Whether all of its processes still run, after a complete start.
    pub(crate) fn is_whole(&self) -> bool {
        self.ready && self.processes.iter().all(Process::runs)
    }

    /// Writes the record.
    pub(crate) fn save(&self) -> Outcome<()> {
        let file = state_file(&self.name);
        fs::write(&file, self.to_text()).map_err(|e| cannot("write", &file, &e))
    }

    /// This checkout's record of a topology, if any.
    pub(crate) fn load(name: &str) -> Outcome<Option<Self>> {
        Ok(Self::read(name)?.filter(|running| running.root == workspace::root()))
    }

    /// The checkout whose record is in place of ours, if it is another one.
    pub(crate) fn other_checkout(name: &str) -> Outcome<Option<PathBuf>> {
        let root = Self::read(name)?.map(|running| running.root);
        Ok(root.filter(|root| *root != workspace::root()))
    }

    fn read(name: &str) -> Outcome<Option<Self>> {
        let file = state_file(name);
        match fs::read_to_string(&file) {
            Ok(text) => Ok(Some(Self::from_text(name, &text))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(cannot("read", &file, &e)),
        }
    }

    /// Kills its processes, then removes its data and its record.
    pub(crate) fn stop(self) -> Outcome<()> {
        for process in &self.processes {
            if !process.kill() {
                return Err(format!(
                    "{}: process {} does not end, though it was killed. Look at it with \
                     `ps -p {}`, and stop again.",
                    self.name, process.pid, process.pid
                ));
            }
        }
        match fs::remove_dir_all(&self.dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(cannot("remove", &self.dir, &e));
            }
            _ => {}
        }
        let file = state_file(&self.name);
        fs::remove_file(&file).map_err(|e| cannot("remove", &file, &e))
    }

    fn to_text(&self) -> String {
        let (root, dir) = (self.root.display(), self.dir.display());
        let mut text = format!("root {root}\nbase {}\ndir {dir}\nurl {}\n", self.base, self.url);
        for process in &self.processes {
            let _ = writeln!(text, "process {process}");
        }
        if self.ready {
            text.push_str("ready yes\n");
        }
        text
    }

    fn from_text(name: &str, text: &str) -> Self {
        let values = |key: &'static str| {
            text.lines().filter_map(move |line| line.split_once(' ').filter(|(k, _)| *k == key))
        };
        let first = |key| values(key).next().map_or("", |(_, value)| value);
        Self {
            name: name.to_owned(),
            root: PathBuf::from(first("root")),
            base: first("base").parse().unwrap_or_default(),
            dir: PathBuf::from(first("dir")),
            url: first("url").to_owned(),
            processes: values("process").filter_map(|(_, text)| Process::parse(text)).collect(),
            ready: first("ready") == "yes",
        }
    }
}

/// Held while servers are started or stopped, so that no two runs do so at the same time. The
/// system releases it when this program ends, however it ends.
pub(crate) struct OneAtATime(File);

impl OneAtATime {
    /// Waits for the other run, if there is one.
    pub(crate) fn acquire() -> Outcome<Self> {
        let dir = folder();
        fs::create_dir_all(&dir).map_err(|e| cannot("create", &dir, &e))?;
        let path = dir.join("lock");
        let file = File::create(&path).map_err(|e| cannot("create", &path, &e))?;
        flock(&file, FlockOperation::LockExclusive)
            .map_err(|e| cannot("lock", &path, &e.into()))?;
        Ok(Self(file))
    }
}

impl Drop for OneAtATime {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Below the checkout itself, because several checkouts may share one `CARGO_TARGET_DIR`.
fn folder() -> PathBuf {
    workspace::root().join("target/servers")
}

fn state_file(name: &str) -> PathBuf {
    folder().join(format!("{name}.state"))
}

/// The error for a failed operation on a file.
pub(super) fn cannot(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("I cannot {what} {}: {error}.", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let process = Process::find(std::process::id().cast_signed()).unwrap();
        let running = Running {
            name: "redis-single".to_owned(),
            root: PathBuf::from("/home/a checkout"),
            base: 21_000,
            dir: PathBuf::from("/tmp/with a space"),
            url: "redis://127.0.0.1:1".to_owned(),
            processes: vec![process.clone(), process],
            ready: true,
        };
        assert_eq!(Running::from_text("redis-single", &running.to_text()), running);
        assert!(running.is_whole());
    }

    /// Servers in a copied record may be in use where it was copied from.
    #[test]
    fn what_another_checkout_started_is_not_ours() {
        let name = "of-a-test";
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::find(child.id().cast_signed()).unwrap();
        let folder_of_theirs = temporary_folder();
        let theirs = |root: PathBuf| Running {
            name: name.to_owned(),
            root,
            base: 21_000,
            dir: folder_of_theirs.clone(),
            url: "redis://127.0.0.1:1".to_owned(),
            processes: vec![process.clone()],
            ready: true,
        };
        fs::create_dir_all(folder()).unwrap();
        let elsewhere = PathBuf::from("/home/another/checkout");
        theirs(elsewhere.clone()).save().unwrap();
        assert_eq!(Running::load(name).unwrap(), None);
        assert_eq!(Running::other_checkout(name).unwrap(), Some(elsewhere));
        assert!(!crate::servers::runs(name).unwrap());
        assert!(!crate::servers::stop(name).unwrap());
        assert!(process.runs() && folder_of_theirs.is_dir());
        // A record without a checkout belongs to none.
        fs::write(state_file(name), "dir /tmp/x\nurl u\n").unwrap();
        assert_eq!(Running::load(name).unwrap(), None);
        // The same record from here is ours.
        theirs(workspace::root()).save().unwrap();
        assert_eq!(Running::other_checkout(name).unwrap(), None);
        assert!(Running::load(name).unwrap().unwrap().is_whole());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(crate::servers::stop(name).unwrap());
        assert!(!folder_of_theirs.exists() && !state_file(name).exists());
    }

    fn temporary_folder() -> PathBuf {
        let dir = std::env::temp_dir().join(format!("holdline-xtask-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn half_a_start_is_not_whole() {
        let running = Running::from_text("x", "dir /tmp/x\nurl u\nprocess 1");
        assert_eq!(running.dir, Path::new("/tmp/x"));
        assert!(!running.is_whole());
    }
}
