//! The address of a file store: the part of a URL after `sqlite:`, or the default path.

use super::sharing;
use crate::error::{Error, ErrorKind, Result};
use crate::stores::url;
use rustix::fs::{Gid, Mode, RawMode};
use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A parsed URL of a file store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The path of the database, as it was given.
    pub(super) path: PathBuf,
    /// How long to wait for the write lock of the database.
    pub(super) busy_timeout: Duration,
    /// Whether the file may be on a network file system.
    pub(super) network: bool,
    pub(super) creation: Creation,
}

/// How the database is created if it does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Creation {
    /// Its mode and group, if the URL gives them; an existing database of this user gets them too.
    pub(super) mode: Option<Mode>,
    pub(super) group: Option<Gid>,
    /// Whether missing folders are created: only those of the default path.
    pub(super) makes_folders: bool,
}

/// The machine's database: if it exists, it is the default of all users.
pub const MACHINE_PATH: &str = "/var/lib/holdline/locks.db";
/// The environment variable for another default.
const STATE: &str = "HOLDLINE_STATE";
/// The options that a URL may have.
const KNOWN: &str = "mode=600|660|666, group=GROUP, busy_timeout=TIME and network=allow";

/// The error for an invalid mode.
const MODES: &str = "mode must be 600 (its owner alone), 660 (its group) or 666 (all users)";
/// Short enough for an answer within two seconds. A waiting acquisition retries.
const BUSY_TIMEOUT: Duration = Duration::from_millis(1500);
const LONGEST_BUSY_TIMEOUT: Duration = Duration::from_secs(3600);

impl Address {
    /// The file at this path, with the default options.
    pub(super) fn of(path: impl Into<PathBuf>) -> Self {
        let creation = Creation::default();
        Address { path: path.into(), busy_timeout: BUSY_TIMEOUT, network: false, creation }
    }

    /// The default file. Its folder is created if necessary, unless the variable sets the path.
    pub(super) fn default_file() -> Result<Self> {
        let chosen = env::var_os(STATE).is_some();
        let creation = Creation { makes_folders: !chosen, ..Creation::default() };
        Ok(Address { creation, ..Address::of(default_path()?) })
    }

    /// Parses the part of a URL after `sqlite:`. A path is used as is; in the form with `//`, `%20`
    /// and the like are decoded.
    pub(super) fn parse(rest: &str) -> Result<Self> {
        let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
        let has_host = path.starts_with("//") && !path.starts_with("///");
        // What is not a path may hold a password, if the URL was meant for another store.
        let shown = if has_host { "" } else { path };
        let refused = |why: String| {
            let message = format!("sqlite:{shown} is refused: {why}");
            Error::new(ErrorKind::Invalid, message)
        };
        let refuse = |why: &str| Err(refused(why.to_owned()));
        // With a line end it would be another file than without.
        if rest.contains(char::is_control) {
            return refuse("it contains a line end or another control character; remove it");
        }
        let path = match path.strip_prefix("//") {
            Some(_) if has_host => {
                return refuse("it names a host; write sqlite:PATH or sqlite:///absolute/path");
            }
            Some(path) => match url::decode(path) {
                Ok(path) => path,
                Err(why) => return refuse(&format!("it {why}")),
            },
            None => path.to_owned(),
        };
        if path.is_empty() || path.contains('\0') {
            return refuse("it names no file; write sqlite:PATH");
        }
        if path.starts_with('~') {
            return refuse("~ is left as it is here; write the whole path, or ./~ for such a name");
        }
        if path.starts_with(":memory:") || path.starts_with("file:") {
            return refuse("it must be a path; locks in the memory of a process are memory:");
        }
        let mut address = Address::of(path);
        let mut seen = Vec::new();
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if seen.contains(&key) {
                return refuse(&format!("the option \"{key}\" is given twice"));
            }
            seen.push(key);
            address.set(key, value).map_err(refused)?;
        }
        if address.creation.group.is_some() && address.creation.mode.is_none() {
            address.creation.mode = Some(Mode::from_raw_mode(0o660));
        }
        Ok(address)
    }

    /// Sets an option, or says why it is invalid.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match (key, value) {
            ("busy_timeout", _) => {
                let wrong = "busy_timeout must be a time such as 500ms or 2s, at most 1h";
                let time = url::duration(value).filter(|time| *time <= LONGEST_BUSY_TIMEOUT);
                self.busy_timeout = time.ok_or(wrong)?;
            }
            ("network", "allow") => self.network = true,
            ("mode", _) => {
                let mode = RawMode::from_str_radix(value, 8).ok();
                let mode = mode.filter(|mode| [0o600, 0o660, 0o666].contains(mode)).ok_or(MODES)?;
                self.creation.mode = Some(Mode::from_raw_mode(mode));
            }
            ("group", _) => self.creation.group = Some(sharing::group(value)?),
            _ => return Err(format!("the option \"{key}\" is not known; there are {KNOWN}")),
        }
        Ok(())
    }
}

/// The default path of the file store: `$HOLDLINE_STATE`; or else `/var/lib/holdline/locks.db`,
/// which all users of the machine share, if it exists; or else this user's own, `holdline/locks.db`
/// in `$XDG_STATE_HOME` or in `~/.local/state`.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if no default can be determined, or `$HOLDLINE_STATE` is empty: others
/// may lock in the file that it was to name.
pub fn default_path() -> Result<PathBuf> {
    // A file that this user cannot inspect is in use by others: a separate default would not lock
    // them out.
    let machine = Path::new(MACHINE_PATH);
    let absent = machine.symlink_metadata().is_err_and(|error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
    });
    choose(|name| env::var_os(name), (!absent).then_some(machine))
}

fn choose(var: impl Fn(&str) -> Option<OsString>, machine: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = var(STATE) {
        if path.is_empty() {
            let message = "HOLDLINE_STATE is empty, perhaps by a variable that is not set; name a \
                           file, or unset it for the default one";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        return Ok(path.into());
    }
    if let Some(machine) = machine {
        return Ok(machine.to_owned());
    }
    // The XDG standard says that a relative path is to be ignored. It would be another file in
    // another folder.
    let absolute = |name| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME");
    let home = || absolute("HOME").map(|home| home.join(".local/state"));
    if let Some(state) = state.or_else(home) {
        return Ok(state.join("holdline/locks.db"));
    }
    let message = "there is no place for the lock database, because HOME names no folder; set \
                   HOLDLINE_STATE to the path of a file";
    Err(Error::new(ErrorKind::Invalid, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let read = |rest| Address::parse(rest).unwrap();
        assert_eq!(read("a b%20.db"), Address::of("a b%20.db"));
        assert_eq!(read("/var/x.db"), Address::of("/var/x.db"));
        assert_eq!(read("///var/a%20b%3f.db"), Address::of("/var/a b?.db"));
        let full = read("./~/x.db?busy_timeout=250ms&network=allow&mode=0660&group=7");
        assert_eq!(full.path, Path::new("./~/x.db"));
        assert_eq!(full.creation.mode, Some(Mode::from_raw_mode(0o660)));
        assert_eq!(full.creation.group, Some(Gid::from_raw(7)));
        assert_eq!(read("x?group=7").creation.mode, full.creation.mode, "to share it with");
        assert_eq!((full.busy_timeout, full.network), (Duration::from_millis(250), true));
        assert_eq!(read("x?busy_timeout=2s").busy_timeout, Duration::from_secs(2));
    }

    #[test]
    fn nonsense_is_refused() {
        for rest in [
            "",
            "//host/x",
            "///a%2",
            "x?busy_timeout=2",
            "x?busy_timeout=61m",
            "x?busy_timeout=s",
            "x?a=b",
            "?",
            "~/x.db",
            "~",
            "~me/x.db",
            ":memory:",
            "file:x.db",
            "///~/x?mode=640",
            "x?mode=rw",
            "x?mode=600&mode=600",
            "x?group=no-such-group",
            "x.db\n",
            "x.db?mode=660\r\n",
            "//me:secret@host/x",
            "x?password=secret",
        ] {
            let error = Address::parse(rest).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{rest}");
            assert!(error.to_string().starts_with("sqlite:"), "{error}");
            assert!(!format!("{error:?}").contains("secret"), "{error}");
        }
    }

    #[test]
    fn the_default_path_follows_the_environment() {
        let with = |vars: &'static [(&str, &str)]| {
            let var = |name: &str| vars.iter().find(|(key, _)| *key == name);
            choose(|name| var(name).map(|(_, value)| value.into()), None)
        };
        let all = with(&[("HOLDLINE_STATE", "s.db"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")]);
        assert_eq!(all.unwrap(), Path::new("s.db"));
        let xdg = with(&[("XDG_STATE_HOME", "/x"), ("HOME", "/h")]);
        assert_eq!(xdg.unwrap(), Path::new("/x/holdline/locks.db"));
        let home = with(&[("XDG_STATE_HOME", "relative"), ("HOME", "/h")]);
        assert_eq!(home.unwrap(), Path::new("/h/.local/state/holdline/locks.db"));
        let empty = &[("HOLDLINE_STATE", ""), ("HOME", "/h")][..];
        for none in [&[][..], &[("HOME", "")], &[("HOME", "relative")], empty] {
            assert_eq!(with(none).unwrap_err().kind(), ErrorKind::Invalid, "{none:?}");
        }
        let state = |name: &str| (name == STATE).then(|| "s.db".into());
        assert_eq!(choose(state, Some(Path::new("/m"))).unwrap(), Path::new("s.db"));
        assert_eq!(choose(|_| None, Some(Path::new("/m"))).unwrap(), Path::new("/m"));
    }
}
