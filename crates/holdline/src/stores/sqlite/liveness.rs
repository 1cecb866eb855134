//! Who lives: a file for each process, locked for as long as the process does.
//!
//! The kernel frees the lock at the process's end, however it ends. Places carry the process's
//! number; whoever waits behind one tries the lock of that file, and if it is free the process is
//! dead, for good: numbers are random, and no liveness lock is ever taken again.
//!
//! A liveness lock that is *missing* says nothing: somebody may have emptied the folder, or the
//! same database is mounted elsewhere without it. Then only the lease decides.

use super::rows::Process;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The folder of the liveness locks and sockets.
#[derive(Debug)]
pub(super) struct LivenessDir {
    path: PathBuf,
    folder: OwnedFd,
    /// Whether files in it can be named by way of the open folder.
    by_folder: bool,
}

/// This process's own liveness lock. Its lock is freed when it is dropped.
#[derive(Debug)]
pub(super) struct OwnLock {
    pub(super) process: Process,
    file: OwnedFd,
}

/// another process's liveness lock, kept open to look at it often.
#[derive(Debug)]
pub(super) struct PeerLock(OwnedFd);

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

/// Whether any process lives that has its liveness lock in this folder.
pub(super) fn any_lit(path: &Path) -> io::Result<bool> {
    let liveness_dir = match LivenessDir::find(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        liveness_dir => liveness_dir?,
    };
    for entry in fs::read_dir(path)? {
        if let Ok(name) = entry?.file_name().into_string()
            && let Some((process, "lock")) = read_name(&name)
            && liveness_dir.own_lock(process)?.is_some_and(|peer| !peer.is_free())
        {
            return Ok(true);
        }
    }
    Ok(false)
}

impl LivenessDir {
    /// Opens the folder, and makes it if need be, for this user only.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        match LivenessDir::find(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => LivenessDir::find(path),
        }
    }

    /// Opens the folder if it is there.
    pub(super) fn find(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        let by_folder = Path::new("/proc/self/fd").exists();
        Ok(LivenessDir { path: path.to_owned(), folder, by_folder })
    }

    /// Lights a liveness lock.
    pub(super) fn create_own(&self) -> io::Result<OwnLock> {
        loop {
            let process = getrandom::u64().map_err(io::Error::other)?;
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            let file = match rustix::fs::openat(&self.folder, lock_name(process), flags, mode) {
                Err(Errno::EXIST | Errno::INTR) => continue,
                opened => opened?,
            };
            // Somebody who sweeps may have come before the lock, taken the liveness lock for a dead
            // process's, and removed it.
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let own_lock = OwnLock { process, file };
            if own_lock.is_linked() {
                return Ok(own_lock);
            }
        }
    }

    /// Finds another process's liveness lock, if it is there and can be opened.
    pub(super) fn peer(&self, process: Process) -> Option<PeerLock> {
        self.own_lock(process).ok().flatten()
    }

    /// Finds another process's liveness lock, if it is there.
    fn own_lock(&self, process: Process) -> io::Result<Option<PeerLock>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.folder, lock_name(process), flags, Mode::empty()) {
            Ok(file) => Ok(Some(PeerLock(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the files of a process that is dead, and no others: while they go, its liveness lock
    /// is locked, so that nobody can light it who was about to.
    pub(super) fn clear(&self, process: Process) {
        match self.peer(process) {
            Some(peer) => peer.if_free(|| self.remove(process)),
            None => self.remove(process),
        }
    }

    /// Removes the files of this process, whose liveness lock is still held so that nobody else
    /// does.
    pub(super) fn remove(&self, process: Process) {
        // The socket first: whoever finds a socket without a liveness lock may remove it.
        let _ = rustix::fs::unlinkat(&self.folder, socket_name(process), AtFlags::empty());
        let _ = rustix::fs::unlinkat(&self.folder, lock_name(process), AtFlags::empty());
    }

    /// The processes that are dead and left their liveness locks behind; and those of which there
    /// is only a socket, which may be alive.
    pub(super) fn stale_locks(&self) -> (Vec<Process>, Vec<Process>) {
        let (mut dead, mut orphan_sockets) = (Vec::new(), Vec::new());
        let Ok(entries) = fs::read_dir(&self.path) else { return (dead, orphan_sockets) };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        for name in names {
            match read_name(&name) {
                Some((process, "lock")) if self.peer(process).is_some_and(|it| it.is_free()) => {
                    dead.push(process);
                }
                Some((process, "sock")) if self.peer(process).is_none() => {
                    orphan_sockets.push(process);
                }
                _ => {}
            }
        }
        (dead, orphan_sockets)
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

impl OwnLock {
    /// Whether others can see it: the file has not been removed.
    pub(super) fn is_linked(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|about| about.st_nlink > 0)
    }
}

impl Drop for OwnLock {
    fn drop(&mut self) {
        // Not by closing alone: a child of another thread's may have a copy until it has started.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl PeerLock {
    /// Whether the process is dead, or has not lit it yet.
    pub(super) fn is_free(&self) -> bool {
        let mut dark = false;
        self.if_free(|| dark = true);
        dark
    }

    /// Does something while nobody can light it, unless it is lit.
    fn if_free(&self, work: impl FnOnce()) {
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
    fn a_lock_is_seen_until_it_goes_out() {
        let folder = tempfile::tempdir().unwrap();
        let liveness_dir = LivenessDir::open(&folder.path().join("live")).unwrap();
        let own_lock = liveness_dir.create_own().unwrap();
        let peer = liveness_dir.peer(own_lock.process).unwrap();
        assert!(!peer.is_free());
        assert!(any_lit(&folder.path().join("live")).unwrap());
        assert_eq!(liveness_dir.stale_locks(), (vec![], vec![]));
        let process = own_lock.process;
        drop(own_lock);
        assert!(peer.is_free());
        assert!(!any_lit(&folder.path().join("live")).unwrap());
        assert!(!any_lit(&folder.path().join("nowhere")).unwrap());
        assert_eq!(liveness_dir.stale_locks(), (vec![process], vec![]));
        liveness_dir.clear(process);
        assert!(liveness_dir.peer(process).is_none());
    }

    #[test]
    fn a_removed_lock_knows_it() {
        let folder = tempfile::tempdir().unwrap();
        let liveness_dir = LivenessDir::open(folder.path()).unwrap();
        let own_lock = liveness_dir.create_own().unwrap();
        assert!(own_lock.is_linked());
        fs::remove_file(folder.path().join(lock_name(own_lock.process))).unwrap();
        assert!(!own_lock.is_linked());
    }
}
