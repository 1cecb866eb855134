//! The database file: finding, creating and opening it.
//!
//! Short-lived programs open existing databases, so that path runs no statement that writes or
//! waits for the disk. Nor does closing: the write-ahead log stays, and is checkpointed at a close
//! when it has grown. A checkpoint waits for the disk, so none runs inside a transaction.

use super::address::{Address, Creation};
use super::errors::{busy, explain, obstacle, refused};
use super::liveness::LivenessDir;
use super::sharing::{self, Owner, Sharing};
use super::{machine, schema};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::{OsString, c_int};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The length of the write-ahead log, in pages of the database, beyond which closing checkpoints
/// it, because the next program to open the database reads it all.
const LOG: u64 = 128;

/// The time in which a disk takes in a log that is in no trouble.
const QUICK: Duration = Duration::from_millis(100);
/// The length of the log, in pages, from which on it begins anew also on a slower disk.
const LONGEST: i64 = 16_000;

thread_local! {
    /// The length of the log, in pages, after this thread's last commit.
    static LOG_PAGES: Cell<c_int> = const { Cell::new(0) };
}

/// The suffixes of SQLite's files beside the database: its log, and the log's index.
pub(super) const BESIDE: [&str; 2] = ["-wal", "-shm"];

/// A database file that exists, and its options.
#[derive(Debug)]
pub(super) struct Site {
    /// The path as given, for messages.
    pub(super) name: PathBuf,
    /// The path with links resolved, so that all processes find the same folder beside it.
    file: PathBuf,
    /// How long to wait for the write lock of the database.
    pub(super) busy_timeout: Duration,
    creation: Creation,
}

/// An open database.
#[derive(Debug)]
pub(super) struct OpenDatabase {
    pub(super) conn: Connection,
    /// The device and inode of the file.
    inode: (u64, u64),
}

impl Site {
    /// Finds or creates the file.
    pub(super) fn find(address: Address) -> Result<Self> {
        let Address { path: name, busy_timeout, network, creation } = address;
        let file = match fs::canonicalize(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(&name, creation)?,
            found => found.map_err(|error| refused("open the lock database", &name, error))?,
        };
        sharing::adjust(CWD, &file, creation.mode, creation.group)
            .map_err(|error| refused("share the lock database", &name, error))?;
        let about =
            fs::metadata(&file).map_err(|error| refused("open the lock database", &name, error))?;
        if !about.is_file() {
            let message = format!("{} is not a file; name a file for the locks", name.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        machine::detect_shift()?;
        if mounted_alone(&file) {
            let message = format!(
                "the lock database {} is mounted by itself, without the files beside it \
                 (-wal, -shm, .live) by which others know of its locks; mount its folder",
                name.display()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if !network && let Some(system) = network_system(&file) {
            let message = format!(
                "the lock database {} lies on {system}, where the processes of several machines \
                 would not see each other's locks; choose a path on a local disk, or add \
                 ?network=allow if only one machine uses it",
                name.display()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(Site { name, file, busy_timeout, creation })
    }

    /// The folder of the liveness locks and sockets.
    pub(super) fn live(&self) -> PathBuf {
        self.beside(".live")
    }

    /// The write-ahead log.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn wal(&self) -> PathBuf {
        self.beside("-wal")
    }

    /// Opens the folder of the liveness locks, and creates it if necessary.
    pub(super) fn liveness_dir(&self) -> io::Result<LivenessDir> {
        let about = fs::metadata(&self.file).ok();
        let sharing = about.as_ref().and_then(Sharing::of);
        let owner = about.as_ref().and_then(Owner::of);
        LivenessDir::open(&self.live(), sharing, owner)
    }

    fn beside(&self, ending: &str) -> PathBuf {
        beside(&self.file, ending)
    }

    /// Opens the database, and creates its schema if it is new.
    pub(super) fn open(&self) -> Result<OpenDatabase> {
        let limit = clock::now().after(self.busy_timeout);
        while self.is_being_made() && clock::now() < limit {
            pause();
        }
        loop {
            match self.connect() {
                Ok(Ok(open)) => return Ok(open),
                Ok(Err(error)) => return Err(error),
                Err(error) if busy(&error) && clock::now() < limit => pause(),
                Err(error) => return Err(explain(&self.name, error)),
            }
        }
    }

    /// Whether another user has just created the files beside the database, and has not yet given
    /// them its mode and group.
    fn is_being_made(&self) -> bool {
        let closed = |path: PathBuf| {
            let access = Access::READ_OK | Access::WRITE_OK;
            accessat(CWD, path, access, AtFlags::EACCESS) == Err(Errno::ACCESS)
        };
        !closed(self.file.clone()) && BESIDE.iter().any(|ending| closed(self.beside(ending)))
    }

    /// Gives the files beside the database that this user has created its mode and group. The
    /// database's owner creates the folder, since others may not be able to.
    fn share(&self) -> io::Result<()> {
        let about = fs::metadata(&self.file)?;
        let Some(sharing) = Sharing::of(&about) else { return Ok(()) };
        if about.uid() == rustix::process::geteuid().as_raw() {
            LivenessDir::open(&self.live(), Some(sharing), None)?;
        }
        for ending in BESIDE {
            sharing.apply_to(&self.beside(ending), sharing.file_mode())?;
        }
        Ok(())
    }

    fn connect(&self) -> rusqlite::Result<Result<OpenDatabase>> {
        let missing = |error| Ok(Err(refused("open the lock database", &self.name, error)));
        let inode = match fs::metadata(&self.file) {
            Ok(about) if about.nlink() > 1 => return Ok(Err(self.has_two_names())),
            Ok(about) => (about.dev(), about.ino()),
            // The file was removed after it was found.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match create(&self.file, self.creation) {
                    Ok(_) => return self.connect(),
                    Err(error) => return Ok(Err(error)),
                }
            }
            Err(error) => return missing(error),
        };
        // No URIs: a file may have any name. No creation: that would set the wrong mode.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&self.file, flags)?;
        conn.busy_timeout(Duration::ZERO)?; // SQLite's own waiting starves one of two processes
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        conn.set_prepared_statement_cache_capacity(48);
        // In place of SQLite's own hook, which checkpoints as a part of the commit.
        conn.wal_hook(Some(note_log_pages));
        if conn.is_readonly("main")? {
            // SQLite opens a file read-only if it cannot write it, even only for a moment.
            return Ok(Err(obstacle(&self.name).unwrap_or_else(|| {
                refused("write the lock database", &self.name, io::ErrorKind::Interrupted.into())
            })));
        }
        // Sufficient: a power failure ends the lock holders as well, and tokens do not depend on
        // stored data as long as the wall clock goes forward.
        conn.pragma_update(None, "synchronous", "NORMAL")?;
        if let Err(error) = schema::check(self, &conn)? {
            return Ok(Err(error));
        }
        if let Err(error) = self.share() {
            return Ok(Err(refused("share the files beside", &self.name, error)));
        }
        if !self.is(inode) {
            return self.connect();
        }
        Ok(Ok(OpenDatabase { conn, inode }))
    }

    /// The error for a file with hard links. The log and the liveness locks are named after the
    /// file, so users of another name would have their own, and not see the locks of this one.
    fn has_two_names(&self) -> Error {
        let (name, file) = (self.name.display(), self.file.display());
        let message = format!(
            "the lock database {name} has another name (a hard link), whose users would not see \
             the locks of this one; remove all names but one (find -samefile {file} lists them), \
             and use symbolic links in their place"
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Whether the path still leads to the open file. If not, other processes use the new file.
    pub(super) fn current(&self, open: &OpenDatabase) -> bool {
        self.is(open.inode)
    }

    fn is(&self, inode: (u64, u64)) -> bool {
        fs::metadata(&self.file).is_ok_and(|about| (about.dev(), about.ino()) == inode)
    }

    /// Checkpoints a long write-ahead log, so that the next program opens the database fast.
    pub(super) fn checkpoint(&self, open: &OpenDatabase) {
        let page = || open.conn.pragma_query_value(None, "page_size", |row| row.get::<_, u32>(0));
        let long = fs::metadata(self.beside("-wal")).is_ok_and(|log| {
            // If the log is smaller than any with so many pages, no query is needed.
            log.len() > LOG * 512 && page().is_ok_and(|page| log.len() > LOG * u64::from(page))
        });
        if long {
            // If other processes use it now, one of them will do this.
            let _ = open.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }
}

impl OpenDatabase {
    /// Checkpoints the log, and returns whether it starts anew.
    ///
    /// The first checkpoint runs while others write. They add to the log meanwhile, and would do so
    /// every time, so that the log would grow without end. The second one makes them wait, and has
    /// little to do.
    pub(super) fn checkpoint(&self) -> rusqlite::Result<bool> {
        let began = clock::now();
        let passive = "PRAGMA wal_checkpoint(PASSIVE)";
        let (busy, pages) = self
            .conn
            .query_row(passive, [], |row| Ok((row.get::<_, bool>(0)?, row.get::<_, i64>(1)?)))?;
        // If it is busy, another process does it.
        if busy || !may_hold_up(began.until(clock::now()), pages) {
            return Ok(false);
        }
        self.conn.busy_handler(Some(waits))?;
        let restart = "PRAGMA wal_checkpoint(RESTART)";
        let busy = self.conn.query_row(restart, [], |row| row.get::<_, bool>(0));
        self.conn.busy_timeout(Duration::ZERO)?;
        Ok(!busy?)
    }
}

/// Whether a log of so many pages is worth that all who write wait for the disk, which has just
/// taken so long. Where that is slow or overloaded, they would wait for longer than a short lease.
fn may_hold_up(took: Duration, pages: i64) -> bool {
    took < QUICK || pages >= LONGEST
}

/// Whether a checkpoint continues to wait, after this many pauses, for writers to end or, while it
/// blocks writers, for readers: a few milliseconds.
fn waits(pauses: i32) -> bool {
    if pauses < 32 {
        pause();
    }
    pauses < 32
}

#[allow(clippy::unnecessary_wraps, reason = "as SQLite calls it")]
fn note_log_pages(_: &Wal, pages: c_int) -> rusqlite::Result<()> {
    LOG_PAGES.set(pages);
    Ok(())
}

/// The length of the log, in pages, after the commit that this thread has just made, if any.
pub(super) fn take_log_pages() -> Option<u32> {
    u32::try_from(LOG_PAGES.take()).ok().filter(|pages| *pages > 0)
}

/// The file beside this one with the same name and this suffix.
pub(super) fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut path = OsString::from(file);
    path.push(ending);
    path.into()
}

/// Sleeps for a short random time before a retry, so that no process always loses the race.
pub(super) fn pause() {
    std::thread::sleep(Duration::from_micros(fastrand::u64(50..300)));
}

/// Creates the file: for this user only, unless its URL says otherwise. SQLite gives its other
/// files the same mode.
fn create(path: &Path, creation: Creation) -> Result<PathBuf> {
    let making = |error| refused("make the lock database", path, error);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder
        && fs::metadata(folder).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    {
        if !creation.makes_folders {
            let message = format!(
                "could not make the lock database {}: there is no folder {}; check the path, or \
                 make the folder first",
                path.display(),
                folder.display()
            );
            return Err(Error::new(ErrorKind::Denied, message));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(making)?;
    }
    let made = if creation.mode.is_some() {
        create_shared(path, creation)
    } else {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(drop)
    };
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(making(error)),
        _ => {}
    }
    fs::canonicalize(path).map_err(making)
}

/// Creates the file with a mode and a group. It becomes visible only with both.
fn create_shared(path: &Path, creation: Creation) -> io::Result<()> {
    let name = beside(path, &format!(".new-{:016x}", fastrand::u64(..)));
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name)?;
    let shared = sharing::adjust(CWD, &name, creation.mode, creation.group);
    let made = shared.and_then(|()| rename_to_new(&name, path));
    if made.is_err() {
        let _ = fs::remove_file(&name);
    }
    made
}

/// Renames a file, unless there is one of the new name. Where the system can, in one step: a file
/// that has both names is refused, for good if this process is killed then.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    match rustix::fs::renameat_with(CWD, from, CWD, to, rustix::fs::RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {} // some file systems
        renamed => return Ok(renamed?),
    }
    fs::hard_link(from, to)?;
    fs::remove_file(from)
}

/// Whether the file itself is a mount point: a container may be given the file without its folder.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn mounted_alone(file: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    // An older kernel does not tell.
    statx(CWD, file, AtFlags::empty(), StatxFlags::TYPE)
        .is_ok_and(|about| about.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn mounted_alone(_file: &Path) -> bool {
    false
}

/// The magic numbers of file systems that are, or may be, on another machine.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NETWORKS: [(u32, &str); 15] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x0102_1997, "9P"),
    (0x6573_5546, "a FUSE file system"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x786f_4256, "a folder shared with a virtual machine"),
    (0xbacb_acbc, "a folder shared with a virtual machine"),
];

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn network_system(file: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(file).ok()?.f_type as u32;
    NETWORKS.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn network_system(_file: &Path) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_slow_disk_unless_the_log_is_long() {
        assert!(may_hold_up(Duration::from_millis(20), 1000));
        assert!(!may_hold_up(Duration::from_millis(300), 1000));
        assert!(may_hold_up(Duration::from_millis(300), 20_000));
    }
}
