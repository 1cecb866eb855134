//! Who lives: a file for each process, locked for as long as the process does.
//!
//! The kernel frees the lock at the process's end, however it ends. Places carry the process's
//! number; whoever waits behind one tries the lock of that file, and if it is free the process is
//! dead, for good: numbers are random, and no beacon is ever lit again.
//!
//! A beacon that is *missing* says nothing: somebody may have emptied the folder, or the same
//! database is mounted elsewhere without it. Then only the lease decides.

use super::rows::Process;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The folder of the beacons and sockets.
#[derive(Debug)]
pub(super) struct Shore {
    path: PathBuf,
    folder: OwnedFd,
    /// Whether files in it can be named by way of the open folder.
    by_folder: bool,
}

/// This process's own beacon. Its lock is freed when it is dropped.
#[derive(Debug)]
pub(super) struct Beacon {
    pub(super) process: Process,
    file: OwnedFd,
}

/// Another process's beacon, kept open to look at it often.
#[derive(Debug)]
pub(super) struct Sight(OwnedFd);

fn lock_name(process: Process) -> String {
    format!("{process:016x}.lock")
}

fn socket_name(process: Process) -> String {
    format!("{process:016x}.sock")
}

/// Reads the name of a file in the folder: the process, and the ending.
fn read_name(name: &str) -> Option<(Process, &str)> {
    let (stem, ending) = name.split_once('.')?;
    if stem.len() != 16 {
        return None;
    }
    Some((Process::from_str_radix(stem, 16).ok()?, ending))
}

/// Whether any process lives that has its beacon in this folder.
pub(super) fn any_lit(path: &Path) -> io::Result<bool> {
    let shore = match Shore::find(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        shore => shore?,
    };
    for entry in fs::read_dir(path)? {
        if let Ok(name) = entry?.file_name().into_string()
            && let Some((process, "lock")) = read_name(&name)
            && shore.beacon(process)?.is_some_and(|sight| !sight.dark())
        {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Shore {
    /// Opens the folder, and makes it if need be, for this user only.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        match Shore::find(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Shore::find(path),
        }
    }

    /// Opens the folder if it is there.
    pub(super) fn find(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        let by_folder = Path::new("/proc/self/fd").exists();
        Ok(Shore { path: path.to_owned(), folder, by_folder })
    }

    /// Lights a beacon.
    pub(super) fn light(&self) -> io::Result<Beacon> {
        loop {
            let process = getrandom::u64().map_err(io::Error::other)?;
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            let file = match rustix::fs::openat(&self.folder, lock_name(process), flags, mode) {
                Err(Errno::EXIST | Errno::INTR) => continue,
                opened => opened?,
            };
            // Somebody who sweeps may have come before the lock, taken the beacon for a dead
            // process's, and removed it.
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let beacon = Beacon { process, file };
            if beacon.shines() {
                return Ok(beacon);
            }
        }
    }

    /// Finds another process's beacon, if it is there and can be opened.
    pub(super) fn sight(&self, process: Process) -> Option<Sight> {
        self.beacon(process).ok().flatten()
    }

    /// Finds another process's beacon, if it is there.
    fn beacon(&self, process: Process) -> io::Result<Option<Sight>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.folder, lock_name(process), flags, Mode::empty()) {
            Ok(file) => Ok(Some(Sight(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the files of a process that is dead, and no others: while they go, its beacon is
    /// locked, so that nobody can light it who was about to.
    pub(super) fn clear(&self, process: Process) {
        match self.sight(process) {
            Some(sight) => sight.if_dark(|| self.remove(process)),
            None => self.remove(process),
        }
    }

    /// Removes the files of this process, whose beacon is still lit so that nobody else does.
    pub(super) fn remove(&self, process: Process) {
        // The socket first: whoever finds a socket without a beacon may remove it.
        let _ = rustix::fs::unlinkat(&self.folder, socket_name(process), AtFlags::empty());
        let _ = rustix::fs::unlinkat(&self.folder, lock_name(process), AtFlags::empty());
    }

    /// The processes that are dead and left their beacons behind; and those of which there is only
    /// a socket, which may be alive.
    pub(super) fn wrecks(&self) -> (Vec<Process>, Vec<Process>) {
        let (mut dead, mut flotsam) = (Vec::new(), Vec::new());
        let Ok(entries) = fs::read_dir(&self.path) else { return (dead, flotsam) };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        for name in names {
            match read_name(&name) {
                Some((process, "lock")) if self.sight(process).is_some_and(|it| it.dark()) => {
                    dead.push(process);
                }
                Some((process, "sock")) if self.sight(process).is_none() => flotsam.push(process),
                _ => {}
            }
        }
        (dead, flotsam)
    }

    /// The address of a process's socket. By way of the open folder, because the address of a
    /// socket may have only 108 bytes.
    pub(super) fn socket(&self, process: Process) -> PathBuf {
        let name = socket_name(process);
        if self.by_folder {
            PathBuf::from(format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd()))
        } else {
            self.path.join(name)
        }
    }
}

impl Beacon {
    /// Whether others can see it: the file has not been removed.
    pub(super) fn shines(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|about| about.st_nlink > 0)
    }
}

impl Drop for Beacon {
    fn drop(&mut self) {
        // Not by closing alone: a child of another thread's may have a copy until it has started.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Sight {
    /// Whether the process is dead, or has not lit it yet.
    pub(super) fn dark(&self) -> bool {
        let mut dark = false;
        self.if_dark(|| dark = true);
        dark
    }

    /// Does something while nobody can light it, unless it is lit.
    fn if_dark(&self, work: impl FnOnce()) {
        if rustix::fs::flock(&self.0, FlockOperation::NonBlockingLockShared).is_ok() {
            work();
            let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beacon_is_seen_until_it_goes_out() {
        let folder = tempfile::tempdir().unwrap();
        let shore = Shore::open(&folder.path().join("live")).unwrap();
        let beacon = shore.light().unwrap();
        let sight = shore.sight(beacon.process).unwrap();
        assert!(!sight.dark());
        assert!(any_lit(&folder.path().join("live")).unwrap());
        assert_eq!(shore.wrecks(), (vec![], vec![]));
        let process = beacon.process;
        drop(beacon);
        assert!(sight.dark());
        assert!(!any_lit(&folder.path().join("live")).unwrap());
        assert!(!any_lit(&folder.path().join("nowhere")).unwrap());
        assert_eq!(shore.wrecks(), (vec![process], vec![]));
        shore.clear(process);
        assert!(shore.sight(process).is_none());
    }

    #[test]
    fn a_removed_beacon_knows_it() {
        let folder = tempfile::tempdir().unwrap();
        let shore = Shore::open(folder.path()).unwrap();
        let beacon = shore.light().unwrap();
        assert!(beacon.shines());
        fs::remove_file(folder.path().join(lock_name(beacon.process))).unwrap();
        assert!(!beacon.shines());
    }
}
