//! The database file: finding it, making it, knowing it as ours, and opening it fast.
//!
//! A short-lived program opens a database that is there and has nothing to do in it, so that case
//! runs no statement that writes or waits for the disk. Closing does not either: the write-ahead
//! log stays where it is, and is emptied by whoever closes when it has grown.

use super::address::Address;
use super::fault::{busy, explain, refused};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Marks a database as ours: "hold".
const APPLICATION: i32 = i32::from_be_bytes(*b"hold");
/// The version of `schema.sql`.
const VERSION: i32 = 1;
const SCHEMA: &str = include_str!("schema.sql");
/// A log longer than this is emptied at closing, because the next program to open it reads it all.
const LOG: u64 = 512 * 1024;

/// A database file that exists, and how to treat it.
#[derive(Debug)]
pub(super) struct Site {
    /// As it was named, for messages.
    pub(super) name: PathBuf,
    /// Without links: all who use the file find the same folder beside it.
    file: PathBuf,
    /// How long to wait while another process writes.
    pub(super) patience: Duration,
}

/// An open database.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) conn: Connection,
    /// Which file it is: device and inode.
    inode: (u64, u64),
}

impl Site {
    /// Finds or makes the file.
    pub(super) fn find(address: Address) -> Result<Self> {
        let Address { path: name, patience, network } = address;
        let file = match fs::canonicalize(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(&name)?,
            found => found.map_err(|error| refused("open the lock database", &name, error))?,
        };
        let about =
            fs::metadata(&file).map_err(|error| refused("open the lock database", &name, error))?;
        if !about.is_file() {
            let message = format!("{} is not a file; name a file for the locks", name.display());
            return Err(Error::new(ErrorKind::Invalid, message));
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
        Ok(Site { name, file, patience })
    }

    /// The folder of the beacons and sockets.
    pub(super) fn live(&self) -> PathBuf {
        self.beside(".live")
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut path = OsString::from(&self.file);
        path.push(ending);
        path.into()
    }

    /// Opens the database, and makes it what it should be if it is new.
    pub(super) fn open(&self) -> Result<Open> {
        let limit = clock::now().after(self.patience);
        loop {
            match self.connect() {
                Ok(Ok(open)) => return Ok(open),
                Ok(Err(error)) => return Err(error),
                Err(error) if busy(&error) && clock::now() < limit => pause(),
                Err(error) => return Err(explain(&self.name, error)),
            }
        }
    }

    fn connect(&self) -> rusqlite::Result<Result<Open>> {
        let missing = |error| Ok(Err(refused("open the lock database", &self.name, error)));
        let inode = match fs::metadata(&self.file) {
            Ok(about) => (about.dev(), about.ino()),
            // Somebody removed it since it was found.
            Err(error) if error.kind() == io::ErrorKind::NotFound => match create(&self.file) {
                Ok(_) => return self.connect(),
                Err(error) => return Ok(Err(error)),
            },
            Err(error) => return missing(error),
        };
        // No URIs: a file may have any name. No creation: that would set the wrong mode.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&self.file, flags)?;
        conn.busy_timeout(Duration::ZERO)?; // SQLite's own waiting starves one of two processes
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        conn.set_prepared_statement_cache_capacity(32);
        if conn.is_readonly("main")? {
            return missing(io::ErrorKind::PermissionDenied.into());
        }
        // Enough, because whoever held a lock when the power failed is gone as well, and tokens do
        // not depend on what is stored as long as the wall clock goes forward.
        conn.pragma_update(None, "synchronous", "NORMAL")?;
        if let Err(error) = self.know(&conn)? {
            return Ok(Err(error));
        }
        if !self.is(inode) {
            return self.connect();
        }
        Ok(Ok(Open { conn, inode }))
    }

    /// Whether the path still leads to the file that is open. If not, that file is of the past:
    /// others meet in the new one.
    pub(super) fn current(&self, open: &Open) -> bool {
        self.is(open.inode)
    }

    fn is(&self, inode: (u64, u64)) -> bool {
        fs::metadata(&self.file).is_ok_and(|about| (about.dev(), about.ino()) == inode)
    }

    /// Makes sure that the database is ours, of our version, and of this run of the machine.
    fn know(&self, conn: &Connection) -> rusqlite::Result<Result<()>> {
        match marks(conn)? {
            (APPLICATION, VERSION) => {}
            (APPLICATION, version) => return Ok(Err(self.newer(version))),
            (0, 0) => {
                if let Err(error) = self.furnish(conn)? {
                    return Ok(Err(error));
                }
            }
            _ => return Ok(Err(self.foreign())),
        }
        let boot = boot();
        if stored_boot(conn)? != boot {
            purge(conn, &boot)?;
        }
        Ok(Ok(()))
    }

    /// Makes our tables in an empty database. Whoever is killed on the way leaves it empty.
    fn furnish(&self, conn: &Connection) -> rusqlite::Result<Result<()>> {
        let tables = |conn: &Connection| -> rusqlite::Result<u32> {
            conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        };
        if tables(conn)? > 0 && marks(conn)? == (0, 0) {
            return Ok(Err(self.foreign()));
        }
        conn.pragma_update(None, "journal_mode", "WAL")?;
        let txn =
            rusqlite::Transaction::new_unchecked(conn, rusqlite::TransactionBehavior::Immediate)?;
        match marks(&txn)? {
            (0, 0) if tables(&txn)? == 0 => {}
            (APPLICATION, VERSION) => return Ok(Ok(())), // another process was first
            (APPLICATION, version) => return Ok(Err(self.newer(version))),
            _ => return Ok(Err(self.foreign())),
        }
        txn.execute_batch(SCHEMA)?;
        txn.execute("INSERT INTO meta (one, boot, last, cursor) VALUES (1, ?1, 0, '')", [boot()])?;
        txn.pragma_update(None, "application_id", APPLICATION)?;
        txn.pragma_update(None, "user_version", VERSION)?;
        txn.commit()?;
        Ok(Ok(()))
    }

    /// Empties a long log, so that the next program opens the database fast.
    pub(super) fn tidy(&self, open: &Open) {
        let long = fs::metadata(self.beside("-wal")).is_ok_and(|log| log.len() > LOG);
        if long {
            // If others use it just now, one of them will do it.
            let _ = open.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }

    fn newer(&self, version: i32) -> Error {
        let message = format!(
            "the lock database {} has version {version}, and this program knows only version \
             {VERSION}; update the program, or choose another path",
            self.name.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    }

    fn foreign(&self) -> Error {
        let message = format!(
            "the database {} belongs to another program, and was left as it is; choose another \
             path for the locks",
            self.name.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    }
}

/// A short wait of random length, so that of several processes none is always the slower.
pub(super) fn pause() {
    std::thread::sleep(Duration::from_micros(fastrand::u64(50..300)));
}

/// Both marks as they are at one instant: between two reads, another process may set both.
fn marks(conn: &Connection) -> rusqlite::Result<(i32, i32)> {
    let read = |pragma| conn.pragma_query_value(None, pragma, |row| row.get(0));
    let instant = if conn.is_autocommit() { Some(conn.unchecked_transaction()?) } else { None };
    let marks = (read("application_id")?, read("user_version")?);
    if let Some(instant) = instant {
        instant.commit()?;
    }
    Ok(marks)
}

fn stored_boot(conn: &Connection) -> rusqlite::Result<String> {
    conn.query_row("SELECT boot FROM meta", [], |row| row.get(0))
}

/// The places are of an earlier run of the machine: nobody who took one is left, and the clock that
/// they were judged by has begun anew.
fn purge(conn: &Connection, boot: &str) -> rusqlite::Result<()> {
    let behavior = rusqlite::TransactionBehavior::Immediate;
    let txn = rusqlite::Transaction::new_unchecked(conn, behavior)?;
    if stored_boot(&txn)? != boot {
        let none = i64::MAX;
        txn.execute("DELETE FROM place", [])?;
        txn.execute("UPDATE line SET count = 0, held = 0, front = ?1, due = ?1", [none])?;
        txn.execute("UPDATE meta SET boot = ?1", [boot])?;
    }
    txn.commit()
}

/// Which run of the machine this is.
fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned())
}

/// Makes the file and the folders above it, for this user only. SQLite gives its other files the
/// same mode.
fn create(path: &Path) -> Result<PathBuf> {
    let making = |error| refused("make the lock database", path, error);
    if let Some(folder) = path.parent()
        && !folder.as_os_str().is_empty()
    {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(making)?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(making(error)),
        _ => {}
    }
    fs::canonicalize(path).map_err(making)
}

/// The file systems that lie on another machine, or may.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NETWORKS: [(u32, &str); 11] = [
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
];

#[cfg(any(target_os = "linux", target_os = "android"))]
fn network_system(file: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(file).ok()?.f_type as u32;
    NETWORKS.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn network_system(_file: &Path) -> Option<&'static str> {
    None
}
