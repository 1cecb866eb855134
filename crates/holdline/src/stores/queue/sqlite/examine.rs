//! The examination of a store's file for the problems that the guide warns of. It changes nothing.

use super::address::Address;
use super::database::{BESIDE, beside, mounted_alone, network_system};
use super::{errors, machine};
use crate::error::Result;
use crate::findings::Findings;
use rustix::fs::{Access, access, statvfs};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The free space, in bytes, below which the log may fail to grow.
const LITTLE: u64 = 64 << 20;
const HARDLY_ANY: u64 = 1 << 20;
/// The length of a log, in bytes, that something must be preventing from being checkpointed.
const LONG_LOG: u64 = 64 << 20;

/// Examines the file named in a URL; `rest` follows the colon. Returns whether it exists.
pub(crate) fn examine(rest: &str, findings: &mut Findings) -> Result<bool> {
    let address = Address::parse(rest)?;
    let path = fs::canonicalize(&address.path).unwrap_or_else(|_| address.path.clone());
    findings.about(path.display().to_string());
    let file = fs::metadata(&path).ok();
    if let Some(file) = &file {
        kind_and_mode(&path, file, findings);
    }
    let Some(folder) = nearest_folder(&path) else {
        let advice = "name a path that can be made";
        findings.problem("folder", "no folder above it is there", advice);
        return Ok(false);
    };
    rights(&path, &folder, file.is_some(), findings);
    system(if file.is_some() { &path } else { &folder }, address.network, findings);
    room(&folder, findings);
    if file.is_some() {
        log(&path, findings);
    }
    if let Err(error) = machine::detect_shift() {
        findings.error("clock", &error);
    }
    if file.is_none() {
        let own = std::path::absolute(&path).ok().and_then(|path| Some(path.parent()?.to_owned()));
        if let Some(own) = own.filter(|own| *own != folder && !makes_folder(&address)) {
            let advice = "make it first: only that of the default file is made by itself";
            findings.problem("folder", format!("{} is not there", own.display()), advice);
        }
        let advice = "nothing: it is made when a lock is first asked for";
        findings.advice("file", "it is not there, so no lock was tried", advice);
    }
    Ok(file.is_some())
}

/// Whether it is the default file, whose folder is made when it is opened.
fn makes_folder(address: &Address) -> bool {
    Address::default_file()
        .is_ok_and(|default| default.creation.makes_folders && default.path == address.path)
}

/// The nearest existing folder above a path.
fn nearest_folder(path: &Path) -> Option<PathBuf> {
    let whole = std::path::absolute(path).ok()?;
    whole.ancestors().skip(1).find(|folder| folder.is_dir()).map(Path::to_owned)
}

fn kind_and_mode(path: &Path, file: &Metadata, findings: &mut Findings) {
    if !file.is_file() {
        return findings.problem("file", "it is no file", "name a file for the locks");
    }
    if mounted_alone(path) {
        findings.problem(
            "file",
            "it is mounted by itself, without the files beside it that tell others of its locks",
            "mount its folder",
        );
    }
    if file.nlink() > 1 {
        findings.problem(
            "file",
            "it has another name (a hard link), whose users would not see the locks of this one",
            "remove the other name, or make it a symbolic link",
        );
    }
    let mode = file.mode() & 0o777;
    let found = format!("owner {}, mode {mode:o}", file.uid());
    if access(path, Access::READ_OK | Access::WRITE_OK).is_err() {
        let found = format!("this user may not write it: {}", errors::owned(file));
        findings.problem("rights", found, format!("run as its owner, or {}", errors::SHARE));
    } else if mode & 0o002 != 0 {
        let advice = "everybody can take locks away: if not all may, share it by ?group=NAME";
        findings.advice("rights", found, advice);
    } else {
        findings.ok("rights", found);
    }
}

/// Checks that the file's users can write or create the files beside it, and that others cannot.
fn rights(path: &Path, folder: &Path, exists: bool, findings: &mut Findings) {
    let name = folder.display();
    let writable = |file: &Path| access(file, Access::READ_OK | Access::WRITE_OK).is_ok();
    let makes = access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    if !makes && BESIDE.iter().all(|ending| writable(&beside(path, ending))) {
        findings.ok("folder", format!("{name}: the files beside it are shared"));
    } else if !makes {
        let found = format!("this user may not make files in {name}");
        let advice = "let it: the log and the signs of life are kept beside the file";
        findings.problem("folder", found, advice);
    }
    let Ok(about) = fs::metadata(folder) else { return };
    if about.mode() & 0o002 != 0 && exists {
        let advice = "anybody may put another file in its place, and a cleaner of temporary files \
                      may remove it; choose a folder of this user's or group's";
        findings.warning("folder", format!("everybody may write to {name}"), advice);
    }
}

fn system(path: &Path, allowed: bool, findings: &mut Findings) {
    match network_system(path) {
        None => findings.ok("file system", "local"),
        Some(system) if allowed => findings.warning(
            "file system",
            format!("{system}, with network=allow"),
            "see that only one machine uses it: those of others are not seen",
        ),
        Some(system) => findings.problem(
            "file system",
            format!("{system}: processes of several machines would not see each other's locks"),
            "choose a path on a local disk, or a store with a server",
        ),
    }
}

fn room(folder: &Path, findings: &mut Findings) {
    let Ok(about) = statvfs(folder) else { return };
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    let found = format!("{} MB are free", free >> 20);
    let advice = "make room: without it no lock can be taken or renewed";
    if free < HARDLY_ANY {
        findings.problem("room", found, advice);
    } else if free < LITTLE {
        findings.warning("room", found, advice);
    } else {
        findings.ok("room", found);
    }
}

fn log(path: &Path, findings: &mut Findings) {
    let length = fs::metadata(beside(path, "-wal")).map_or(0, |about| about.len());
    let found = format!("the write-ahead log has {} KB", length >> 10);
    if length > LONG_LOG {
        let advice = "end the process that reads the database for long: it keeps the log from \
                      being written back, and opening reads all of it";
        findings.warning("log", found, advice);
    } else {
        findings.ok("log", found);
    }
}
