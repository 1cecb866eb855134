//! The address of a file store: what follows `sqlite:` in a URL, or the default path.

use crate::error::{Error, ErrorKind, Result};
use crate::stores::url;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A parsed URL of a file store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The path of the database, as it was given.
    pub(super) path: PathBuf,
    /// How long to wait for the write lock of the database.
    pub(super) busy_timeout: Duration,
    /// Whether it may be on a network file system.
    pub(super) network: bool,
}

/// Short enough for an answer within two seconds. A waiting acquisition tries again.
const BUSY_TIMEOUT: Duration = Duration::from_millis(1500);

impl Address {
    /// The file at this path, with the default options.
    pub(super) fn of(path: impl Into<PathBuf>) -> Self {
        Address { path: path.into(), busy_timeout: BUSY_TIMEOUT, network: false }
    }

    /// Reads what follows `sqlite:`. A path is taken as it stands; in the form with `//`, `%20` and
    /// the like are decoded.
    pub(super) fn parse(rest: &str) -> Result<Self> {
        let refuse = |why: &str| {
            let message = format!("sqlite:{rest} is refused: {why}");
            Err(Error::new(ErrorKind::Invalid, message))
        };
        let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
        let path = match path.strip_prefix("//") {
            Some(path) if !path.starts_with('/') => {
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
        let mut address = Address::of(path);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("busy_timeout", value)) => match url::duration(value) {
                    Some(busy_timeout) => address.busy_timeout = busy_timeout,
                    None => return refuse("busy_timeout must be a time such as 500ms or 2s"),
                },
                Some(("network", "allow")) => address.network = true,
                _ => {
                    return refuse(&format!(
                        "the option \"{option}\" is not known; there are busy_timeout=TIME and \
                         network=allow"
                    ));
                }
            }
        }
        Ok(address)
    }
}

/// The default path of this user's file store: `$HOLDLINE_STATE`, or else
/// `holdline/locks.db` in `$XDG_STATE_HOME`, or else in `~/.local/state`.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if none of these is known.
pub fn default_path() -> Result<PathBuf> {
    choose(|name| env::var_os(name))
}

fn choose(var: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let var = |name| var(name).filter(|value| !value.is_empty());
    if let Some(path) = var("HOLDLINE_STATE") {
        return Ok(path.into());
    }
    // The XDG standard says that a relative path is to be ignored.
    let state = var("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || var("HOME").map(|home| Path::new(&home).join(".local/state"));
    if let Some(state) = state.or_else(home) {
        return Ok(state.join("holdline/locks.db"));
    }
    let message = "there is no place for the lock database, because HOME is not set; set \
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
        let full = read("~/x.db?busy_timeout=250ms&network=allow");
        assert_eq!(full.path, Path::new("~/x.db"));
        assert_eq!((full.busy_timeout, full.network), (Duration::from_millis(250), true));
        assert_eq!(read("x?busy_timeout=2s").busy_timeout, Duration::from_secs(2));
    }

    #[test]
    fn nonsense_is_refused() {
        for rest in ["", "//host/x", "///a%2", "x?busy_timeout=2", "x?busy_timeout=s", "x?a=b", "?"]
        {
            let error = Address::parse(rest).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{rest}");
            assert!(error.to_string().starts_with("sqlite:"), "{error}");
        }
    }

    #[test]
    fn the_default_path_follows_the_environment() {
        let with = |vars: &'static [(&str, &str)]| {
            choose(|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let all = with(&[("HOLDLINE_STATE", "s.db"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")]);
        assert_eq!(all.unwrap(), Path::new("s.db"));
        let xdg = with(&[("HOLDLINE_STATE", ""), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")]);
        assert_eq!(xdg.unwrap(), Path::new("/x/holdline/locks.db"));
        let home = with(&[("XDG_STATE_HOME", "relative"), ("HOME", "/h")]);
        assert_eq!(home.unwrap(), Path::new("/h/.local/state/holdline/locks.db"));
        assert_eq!(with(&[]).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
