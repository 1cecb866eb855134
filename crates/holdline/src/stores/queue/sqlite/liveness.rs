//! Liveness locks: one file per process, locked for as long as the process runs.
//!
//! The kernel frees the lock when the process ends, however it ends. Places carry the number of
//! their process. A process that waits behind one tries to lock that file; if the lock is free, the
//! owner is dead for good: numbers are random, and no liveness lock is ever taken again.
//!
//! A *missing* liveness lock proves nothing: the folder may have been emptied, or the database is
//! mounted elsewhere without it. Then only the lease decides. Nor does a *copy*, which nobody has
//! locked. So each file contains the numbers of its inode and its device: a copy has another inode
//! or, if a disk was copied by blocks, another device, as the first one is still in use.

use super::database::pause;
use super::rows::Process;
use super::sharing::{Owner, Sharing};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// The most attempts to open a folder that is just being created, which takes some 100 ms; and to
/// create a file in it that no other process removes.
const TRIES: u32 = 500;

/// The folder of the liveness locks and sockets.
#[derive(Debug)]
pub(super) struct LivenessDir {
    path: PathBuf,
    folder: OwnedFd,
    /// Whether its files can be named through the open folder descriptor.
    by_folder: bool,
    /// The users that share the files, if there are others than this one.
    sharing: Option<Sharing>,
    /// The user who must own the files, if this one is root.
    owner: Option<Owner>,
}

/// This process's own liveness lock, freed when it is dropped.
#[derive(Debug)]
pub(super) struct OwnLock {
    pub(super) process: Process,
    file: OwnedFd,
    path: PathBuf,
    /// The process that took it.
    pid: u32,
}

/// Another process's liveness lock, kept open because it is checked often.
#[derive(Debug)]
pub(super) struct PeerLock(OwnedFd);

fn lock_name(process: Process) -> String {
    format!("{process:016x}.lock")
}

fn socket_name(process: Process) -> String {
    format!("{process:016x}.sock")
}

/// Parses the name of a file in the folder: the process, and the suffix.
fn read_name(name: &str) -> Option<(Process, &str)> {
    let (stem, ending) = name.split_once('.')?;
    if stem.len() != 16 {
        return None;
    }
    Some((Process::from_str_radix(stem, 16).ok()?, ending))
}

/// The content of a liveness lock: the numbers of its inode and its device.
fn numbers(file: &OwnedFd) -> io::Result<[u8; 32]> {
    let about = rustix::fs::fstat(file)?;
    let digits = format!("{:016x}{:016x}", about.st_ino, about.st_dev);
    digits.as_bytes().try_into().map_err(io::Error::other)
}

/// Whether a liveness lock was copied. One without numbers was not: its process has not written
/// them yet, or could not.
fn is_copy(file: &OwnedFd) -> io::Result<bool> {
    let mut content = [0; 32];
    let length = rustix::io::pread(file, &mut content, 0).unwrap_or(0);
    Ok(length == content.len() && content != numbers(file)?)
}

/// Whether any liveness lock in this folder is held.
pub(super) fn any_held(path: &Path) -> io::Result<bool> {
    let liveness_dir = match LivenessDir::find(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        liveness_dir => liveness_dir?,
    };
    for entry in fs::read_dir(path)? {
        if let Ok(name) = entry?.file_name().into_string()
            && let Some((process, "lock")) = read_name(&name)
            && liveness_dir.open_peer(process)?.is_some_and(|peer| !peer.is_free())
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Creates the folder. Its owner gains nothing by replacing it meanwhile: a link is not followed,
/// and a folder that is not empty stays root's.
fn create(path: &Path, owner: Option<Owner>) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    let Some(owner) = owner else { return Ok(()) };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    let mut entries = rustix::fs::Dir::read_from(&folder)?.flatten();
    if entries.all(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")) {
        owner.give(&folder);
    }
    Ok(())
}

impl LivenessDir {
    /// Opens the folder, and creates it if necessary, for the users that share the database, or for
    /// its owner.
    pub(super) fn open(
        path: &Path,
        sharing: Option<Sharing>,
        owner: Option<Owner>,
    ) -> io::Result<Self> {
        let mut tries = 0;
        let found = loop {
            let error = match LivenessDir::find(path) {
                Ok(found) => break found,
                Err(error) => error,
            };
            tries += 1;
            match error.kind() {
                io::ErrorKind::NotFound => create(path, owner)?,
                // Another user may have just created it, and not yet opened it to others.
                io::ErrorKind::PermissionDenied if sharing.is_some() && tries < TRIES => pause(),
                _ => return Err(error),
            }
        };
        if let Some(sharing) = sharing {
            sharing.apply_to(path, sharing.folder_mode())?;
        }
        Ok(LivenessDir { sharing, owner, ..found })
    }

    /// Opens a file of this process to the users that share the database.
    fn share(&self, name: &str, mode: impl Fn(Sharing) -> Mode) -> io::Result<()> {
        let Some(sharing) = self.sharing else { return Ok(()) };
        sharing.apply(&self.folder, Path::new(name), mode(sharing))
    }

    /// Creates this process's socket, for the users that share the database, in place of one that
    /// an earlier attempt has left.
    pub(super) fn bind_socket(&self, process: Process) -> io::Result<UnixDatagram> {
        let name = socket_name(process);
        let _ = rustix::fs::unlinkat(&self.folder, &name, AtFlags::empty());
        let socket = UnixDatagram::bind(self.socket(process))?;
        self.share(&name, Sharing::file_mode)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Opens the folder if it exists. A link is not followed: it could lead a user who may write
    /// more than its maker, such as root, to create files there, and to give them to that maker.
    pub(super) fn find(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        let by_folder = Path::new("/proc/self/fd").exists();
        Ok(LivenessDir { path: path.to_owned(), folder, by_folder, sharing: None, owner: None })
    }

    /// Creates and takes this process's liveness lock.
    ///
    /// # Errors
    ///
    /// Also if others never see the file, because the folder was moved since it was opened.
    pub(super) fn create_own(&self) -> io::Result<OwnLock> {
        for _ in 0..TRIES {
            let process = getrandom::u64().map_err(io::Error::other)?;
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            let file = match rustix::fs::openat(&self.folder, lock_name(process), flags, mode) {
                Err(Errno::EXIST | Errno::INTR) => continue,
                opened => opened?,
            };
            self.share(&lock_name(process), Sharing::lock_mode)?;
            self.owner.inspect(|owner| owner.give(&file));
            // A sweep that ran before the lock was taken may take the file for a dead process's,
            // and remove it.
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            // Without this, as on a full disk, a copy is not told from the file.
            let _ = rustix::io::write(&file, &numbers(&file)?);
            let (path, pid) = (self.path.join(lock_name(process)), std::process::id());
            let own_lock = OwnLock { process, file, path, pid };
            if own_lock.is_visible() {
                return Ok(own_lock);
            }
            self.remove(process);
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "the folder was moved meanwhile"))
    }

    /// Another process's liveness lock, if it exists and can be opened.
    pub(super) fn peer(&self, process: Process) -> Option<PeerLock> {
        self.open_peer(process).ok().flatten()
    }

    /// Another process's liveness lock, if it exists and is no copy.
    fn open_peer(&self, process: Process) -> io::Result<Option<PeerLock>> {
        // Other users may have put other things than files here.
        let safely = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | safely;
        match rustix::fs::openat(&self.folder, lock_name(process), flags, Mode::empty()) {
            Ok(file) => Ok((!is_copy(&file)?).then_some(PeerLock(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the files of a process if it is dead. Its liveness lock is held meanwhile, so that a
    /// process that is just starting cannot take it.
    pub(super) fn clear(&self, process: Process) {
        match self.open_peer(process) {
            Ok(Some(peer)) => peer.if_free(|| self.remove(process)),
            Ok(None) => self.remove(process),
            Err(_) => {} // for want of descriptors, say: it may be alive
        }
    }

    /// Removes the files of a process. Its liveness lock, if it exists, must be held.
    pub(super) fn remove(&self, process: Process) {
        // The socket first: a socket without a liveness lock may be removed by any process.
        let _ = rustix::fs::unlinkat(&self.folder, socket_name(process), AtFlags::empty());
        let _ = rustix::fs::unlinkat(&self.folder, lock_name(process), AtFlags::empty());
    }

    /// The dead processes whose liveness locks still exist; and the processes that have only a
    /// socket, or the copy of a liveness lock, and may be alive.
    pub(super) fn stale_locks(&self) -> (Vec<Process>, Vec<Process>) {
        let (mut dead, mut orphans) = (Vec::new(), Vec::new());
        let Ok(entries) = fs::read_dir(&self.path) else { return (dead, orphans) };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        for name in names {
            let Some((process, ending @ ("lock" | "sock"))) = read_name(&name) else { continue };
            match self.open_peer(process) {
                Ok(Some(peer)) if ending == "lock" && peer.is_free() => dead.push(process),
                Ok(None) => orphans.push(process),
                _ => {}
            }
        }
        (dead, orphans)
    }

    /// The path of a process's socket: through the open folder descriptor, because a socket's path
    /// may have only 108 bytes.
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
    /// Keeps the lock over an exec: it is free when all processes that inherited it have ended.
    pub(super) fn inherit(&self) -> io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.file, rustix::io::FdFlags::empty())?)
    }

    /// Whether other processes see the file: it was not removed, nor was its folder replaced,
    /// perhaps by a copy.
    pub(super) fn is_visible(&self) -> bool {
        let key = |about: rustix::fs::Stat| (about.st_dev, about.st_ino);
        let own = rustix::fs::fstat(&self.file).map(key);
        match rustix::fs::lstat(&self.path).map(key) {
            Err(Errno::NOENT | Errno::NOTDIR) => false,
            Err(_) => true, // not known
            seen => seen == own,
        }
    }
}

impl Drop for OwnLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread forks has a copy until its exec. Such
        // a child must not free its parent's lock.
        if self.pid == std::process::id() {
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

impl PeerLock {
    /// Whether the process is dead, or has not taken its lock yet.
    pub(super) fn is_free(&self) -> bool {
        let mut free = false;
        self.if_free(|| free = true);
        free
    }

    /// Runs `work` with the lock held, if the lock was free. Meanwhile no process can take it.
    pub(super) fn if_free(&self, work: impl FnOnce()) {
        if rustix::fs::flock(&self.0, FlockOperation::NonBlockingLockShared).is_ok() {
            work();
            let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_lock_is_held_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let liveness_dir = LivenessDir::open(&folder.path().join("live"), None, None).unwrap();
        let own_lock = liveness_dir.create_own().unwrap();
        let peer = liveness_dir.peer(own_lock.process).unwrap();
        assert!(!peer.is_free());
        assert!(any_held(&folder.path().join("live")).unwrap());
        assert_eq!(liveness_dir.stale_locks(), (vec![], vec![]));
        let process = own_lock.process;
        liveness_dir.clear(process);
        assert!(own_lock.is_visible(), "it lives");
        drop(own_lock);
        assert!(peer.is_free());
        assert!(!any_held(&folder.path().join("live")).unwrap());
        assert!(!any_held(&folder.path().join("nowhere")).unwrap());
        assert_eq!(liveness_dir.stale_locks(), (vec![process], vec![]));
        liveness_dir.clear(process);
        assert!(liveness_dir.peer(process).is_none());
    }

    /// A child that was forked off has a copy of the lock, and of the open file.
    #[test]
    fn a_forked_child_does_not_free_its_parents_lock() {
        let folder = tempfile::tempdir().unwrap();
        let liveness_dir = LivenessDir::open(folder.path(), None, None).unwrap();
        let own_lock = liveness_dir.create_own().unwrap();
        let (process, path) = (own_lock.process, own_lock.path.clone());
        let file = own_lock.file.try_clone().unwrap();
        drop(OwnLock { process, file, path, pid: own_lock.pid + 1 });
        assert!(!liveness_dir.peer(process).unwrap().is_free(), "its parent lives");
    }

    #[test]
    fn a_link_in_place_of_the_folder_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (live, other) = (folder.path().join("live"), folder.path().join("other"));
        fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&other, &live).unwrap();
        let made = LivenessDir::open(&live, None, None).and_then(|found| found.create_own());
        assert_eq!(made.map(drop).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert!(any_held(&live).is_err(), "it is not known");
        assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    }

    #[test]
    fn the_files_of_a_process_whose_lock_cannot_be_opened_are_left() {
        let folder = tempfile::tempdir().unwrap();
        let liveness_dir = LivenessDir::open(folder.path(), None, None).unwrap();
        let process = 7;
        let lock = folder.path().join(lock_name(process));
        let _socket = liveness_dir.bind_socket(process).unwrap();
        // Which cannot be opened without following it.
        std::os::unix::fs::symlink("elsewhere", &lock).unwrap();
        assert_eq!(liveness_dir.stale_locks(), (vec![], vec![]));
        liveness_dir.clear(process);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        fs::remove_file(lock).unwrap();
        assert_eq!(liveness_dir.stale_locks(), (vec![], vec![process]));
        liveness_dir.clear(process);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// Its file exists before it is locked, and is free until then.
    #[test]
    fn a_process_that_is_removed_while_it_starts_cannot_take_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let liveness_dir = LivenessDir::open(folder.path(), None, None).unwrap();
        let file = fs::File::create(folder.path().join(lock_name(7))).unwrap();
        let take = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        let peer = liveness_dir.peer(7).unwrap();
        let mut taken = Ok(());
        peer.if_free(|| taken = take());
        assert_eq!(taken, Err(Errno::WOULDBLOCK));
        take().unwrap();
        peer.if_free(|| panic!("it lives"));
    }

    /// Another process that sweeps may just hold the lock that this one has created.
    #[test]
    fn a_process_that_starts_while_another_sweeps_holds_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let liveness_dir = LivenessDir::open(folder.path(), None, None).unwrap();
        let take = |path: &Path| {
            let file = fs::File::open(path)?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)?;
            io::Result::Ok(file)
        };
        let sweep = || -> Vec<_> {
            let entries = fs::read_dir(folder.path()).unwrap().flatten();
            entries.filter_map(|entry| take(&entry.path()).ok()).collect()
        };
        // Whether it holds its lock, and whether there was another one that it could not take.
        let start = || {
            let Ok(own_lock) = liveness_dir.create_own() else { return (false, false) };
            let held = take(&own_lock.path).is_err();
            let _ = fs::remove_file(&own_lock.path);
            (held, fs::read_dir(folder.path()).is_ok_and(|mut left| left.next().is_some()))
        };
        let over = AtomicBool::new(false);
        let started = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut held = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    held = sweep();
                }
                drop(held);
            });
            let started = (0..20_000).map(|_| start()).find(|it| *it != (true, false));
            over.store(true, Ordering::Relaxed);
            started
        });
        assert!(started.is_none_or(|(held, _)| held), "it would be taken for dead");
    }

    #[test]
    fn a_process_whose_folder_is_moved_while_it_starts_gets_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let (live, moved) = (folder.path().join("live"), folder.path().join("moved"));
        let liveness_dir = LivenessDir::open(&live, None, None).unwrap();
        fs::rename(&live, &moved).unwrap();
        let error = liveness_dir.create_own().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        assert_eq!(fs::read_dir(moved).unwrap().count(), 0);
    }

    /// The copy of a disk, by blocks, has the same numbers of inodes.
    #[test]
    fn a_copy_on_another_device_proves_nothing_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let liveness_dir = LivenessDir::open(folder.path(), None, None).unwrap();
        let own_lock = liveness_dir.create_own().unwrap();
        let (process, lock) = (own_lock.process, own_lock.path.clone());
        drop(own_lock);
        assert!(liveness_dir.peer(process).is_some_and(|peer| peer.is_free()));
        let about = fs::metadata(&lock).unwrap();
        fs::write(&lock, format!("{:016x}{:016x}", about.ino(), about.dev() + 1)).unwrap();
        assert!(liveness_dir.peer(process).is_none());
        assert!(!any_held(folder.path()).unwrap());
        assert_eq!(liveness_dir.stale_locks(), (vec![], vec![process]));
        liveness_dir.clear(process);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_removed_lock_knows_it() {
        let folder = tempfile::tempdir().unwrap();
        let liveness_dir = LivenessDir::open(folder.path(), None, None).unwrap();
        let own_lock = liveness_dir.create_own().unwrap();
        assert!(own_lock.is_visible());
        let path = folder.path().join(lock_name(own_lock.process));
        fs::remove_file(&path).unwrap();
        assert!(!own_lock.is_visible());
        fs::write(path, "").unwrap();
        assert!(!own_lock.is_visible(), "it is another file");
    }
}
