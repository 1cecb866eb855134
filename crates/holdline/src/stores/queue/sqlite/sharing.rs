//! The users that share a database: its mode and group, which all files beside it follow.
//!
//! A database that its group (0660) or everybody (0666) may write is shared. Its log and the log's
//! index, the folder of the liveness locks, the locks and the sockets are then open to the same
//! users, whatever the umask. SQLite gives its files the mode of the database, but the group of the
//! process that creates them.

#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::fs::OFlags;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, RawMode, Uid};
#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::io::Errno;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The users that may use a database, by its mode and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sharing {
    group: bool,
    others: bool,
    gid: Gid,
}

impl Sharing {
    /// The users of this database; `None` if only its owner may use it.
    pub(super) fn of(database: &Metadata) -> Option<Self> {
        let has = |bits| database.mode() & bits == bits;
        let (group, others) = (has(0o060), has(0o006));
        (group || others).then(|| Sharing { group, others, gid: Gid::from_raw(database.gid()) })
    }

    fn mode(self, owner: RawMode, group: RawMode, others: RawMode) -> Mode {
        let bits =
            owner | if self.group { group } else { 0 } | if self.others { others } else { 0 };
        Mode::from_raw_mode(bits)
    }

    /// The mode of files that are written, and of sockets.
    pub(super) fn file_mode(self) -> Mode {
        self.mode(0o600, 0o060, 0o006)
    }

    /// The mode of the liveness locks, which others open to see whether they are held.
    pub(super) fn lock_mode(self) -> Mode {
        self.mode(0o600, 0o040, 0o004)
    }

    /// The mode of the folder: files created in it get its group.
    pub(super) fn folder_mode(self) -> Mode {
        self.mode(0o700, 0o2070, 0o007)
    }

    /// Gives a file that this user has created this mode, and the database's group where that
    /// matters. Files of other users are left to them. Opens nothing: closing a file of a database
    /// would end SQLite's locks on it.
    pub(super) fn apply(self, folder: impl AsFd, name: &Path, mode: Mode) -> io::Result<()> {
        adjust(folder.as_fd(), name, Some(mode), self.needed_group())
    }

    /// The same for a file given by its path.
    pub(super) fn apply_to(self, path: &Path, mode: Mode) -> io::Result<()> {
        adjust(CWD, path, Some(mode), self.needed_group())
    }

    /// The group that files must have. If everybody has access it may be any, and a user outside
    /// the database's group could not give it to them.
    fn needed_group(self) -> Option<Gid> {
        (!(self.group && self.others)).then_some(self.gid)
    }
}

/// The owner of a private database that root uses. Files that root creates beside it are given to
/// its owner, as SQLite does with its own files: otherwise the owner could not enter the folder, or
/// see that a process of root's is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(Uid, Gid);

impl Owner {
    /// The owner of this database, if this user is root, and the database is neither root's nor
    /// shared.
    pub(super) fn of(database: &Metadata) -> Option<Self> {
        let foreign = rustix::process::geteuid().is_root() && database.uid() != 0;
        let private = Sharing::of(database).is_none();
        let owner = Owner(Uid::from_raw(database.uid()), Gid::from_raw(database.gid()));
        (foreign && private).then_some(owner)
    }

    /// Gives away an open file that this process has created. It may stay root's if the owner does
    /// not exist in this user namespace.
    pub(super) fn give(self, made: impl AsFd) {
        let _ = rustix::fs::fchown(made, Some(self.0), Some(self.1));
    }
}

/// Sets the mode and group of a file, folder or socket of this user, where they differ.
pub(super) fn adjust(
    folder: BorrowedFd<'_>,
    name: &Path,
    mode: Option<Mode>,
    group: Option<Gid>,
) -> io::Result<()> {
    let about = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let same_mode = mode.is_none_or(|mode| mode.bits() == about.st_mode & 0o7777);
    let same_group = group.is_none_or(|group| group.as_raw() == about.st_gid);
    if about.st_uid != rustix::process::geteuid().as_raw() || same_mode && same_group {
        return Ok(());
    }
    let (kind, one) = (FileType::from_raw_mode(about.st_mode), about.st_nlink == 1);
    if kind.is_symlink() || kind.is_file() && !one {
        return Err(io::Error::other("it is a link; somebody else may have put it there"));
    }
    // The group first: changing it clears the mode's set-group-id bit.
    if !same_group {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(folder, name, None, group, flags)?;
    }
    mode.map_or(Ok(()), |mode| change_mode(folder, name, mode))
}

/// Changes the mode of a file of this user. A link put in its place is not followed.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn change_mode(folder: BorrowedFd<'_>, name: &Path, mode: Mode) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    let about = rustix::fs::fstat(&fd)?;
    let is_link = FileType::from_raw_mode(about.st_mode).is_symlink();
    if is_link || about.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it was replaced meanwhile"));
    }
    let changed = rustix::fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), mode);
    changed.map_err(|errno| match errno {
        Errno::NOENT => io::Error::other("its mode cannot be set, for /proc is not mounted"),
        errno => errno.into(),
    })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn change_mode(folder: BorrowedFd<'_>, name: &Path, mode: Mode) -> io::Result<()> {
    Ok(rustix::fs::chmodat(folder, name, mode, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// The group with this name or number, or what is wrong with the text.
pub(super) fn group(text: &str) -> Result<Gid, String> {
    if let Ok(number) = text.parse() {
        return Ok(Gid::from_raw(number));
    }
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let found = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(text)).then(|| fields.nth(1)?.parse().ok())?
    });
    found
        .map(Gid::from_raw)
        .ok_or_else(|| format!("there is no group \"{text}\" in /etc/group; give its number"))
}
