//! The store's URL: what the program refuses, and how it resolves a relative path.

use crate::exit::Failure;
use std::fmt::Write;
use std::path::Path;

/// The default store of all users of the machine, if it exists.
#[cfg(feature = "sqlite")]
pub(crate) const MACHINE_PATH: &str = holdline::sqlite::MACHINE_PATH;
#[cfg(not(feature = "sqlite"))]
pub(crate) const MACHINE_PATH: &str = "\0";

/// A variable that is easily taken for the store's, which is HOLDLINE_STORE.
const OTHER_VARIABLE: &str = "HOLDLINE_URL";

/// Resolves the URL of `--store` to absolute paths, so that it is the same store in every folder,
/// also for the command. Empty for the default. An empty URL is refused: it is a variable or a
/// secret that is not set, and a lock in the default store would keep no other machine out.
pub(crate) fn resolve(url: Option<&str>) -> Result<String, Failure> {
    let Some(url) = url else {
        refuse_other_variable()?;
        return Ok(String::new());
    };
    refuse_empty(url)?;
    let of_quorum = after_scheme(url, "quorum:");
    let nodes: Vec<&str> = of_quorum.map_or(vec![url], |nodes| nodes.split(',').collect());
    if nodes.iter().any(|node| after_scheme(node, "memory:").is_some()) {
        return Err(Failure::usage(
            "memory: is the memory of one process, so a lock there would keep nobody out; leave \
             --store away for the file of this machine, or name a store that others reach",
        ));
    }
    let Ok(folder) = std::env::current_dir() else { return Ok(url.to_owned()) };
    let quorum = if of_quorum.is_some() { "quorum:" } else { "" };
    let nodes: Result<Vec<String>, _> = nodes.iter().map(|node| absolute(node, &folder)).collect();
    let nodes = nodes?;
    Ok(format!("{quorum}{}", nodes.join(",")))
}

/// The part of a URL after this scheme, whose case does not matter; `None` for other URLs.
fn after_scheme<'a>(url: &'a str, scheme: &str) -> Option<&'a str> {
    let (begin, rest) = url.trim_start_matches(' ').split_at_checked(scheme.len())?;
    begin.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// Refuses a URL that is given and empty.
fn refuse_empty(url: &str) -> Result<(), Failure> {
    if url.trim_matches(' ').is_empty() {
        return Err(Failure::usage(
            "the store's URL is empty, perhaps by a variable that is not set; name a store \
             (--store, HOLDLINE_STORE), or unset both for the file of this machine",
        ));
    }
    Ok(())
}

/// The schemes of servers' URLs, without what may follow: an `s` for TLS, or a kind such as
/// `+cluster`.
const SERVERS: [&str; 9] =
    ["redis", "valkey", "etcd", "zookeeper", "zk", "mysql", "mariadb", "postgres", "postgresql"];

/// Whether a text contains the URL of a server with a user or a password.
pub(crate) fn has_user(text: &str) -> bool {
    text.match_indices("://").any(|(at, _)| {
        let ends = |c: char| !c.is_ascii_alphanumeric() && c != '+';
        let scheme = text[..at].rsplit(ends).next().unwrap_or_default().to_ascii_lowercase();
        let kind = scheme.split('+').next().unwrap_or_default();
        let is_server =
            SERVERS.iter().any(|name| kind.strip_suffix('s') == Some(name) || kind == *name);
        is_server && text[at..].contains('@')
    })
}

/// Refuses the default store if another was probably meant, for the reason that [`resolve`] gives.
fn refuse_other_variable() -> Result<(), Failure> {
    if std::env::var_os(OTHER_VARIABLE).is_some() {
        return Err(Failure::usage(format!(
            "{OTHER_VARIABLE} is set, but not read; the variable for the store's URL is \
             HOLDLINE_STORE; unset both for the file of this machine"
        )));
    }
    Ok(())
}

/// The URL of the default store, for the command's environment.
pub(crate) fn of_default() -> Option<String> {
    #[cfg(feature = "sqlite")]
    {
        let path = holdline::sqlite::default_path().ok()?;
        let path = std::path::absolute(path).ok()?;
        Some(format!("sqlite:{}", written(path.to_str()?)))
    }
    #[cfg(not(feature = "sqlite"))]
    None
}

fn absolute(url: &str, folder: &Path) -> Result<String, Failure> {
    let Some(rest) = after_scheme(url, "sqlite:") else { return Ok(url.to_owned()) };
    // The library refuses these, with its own message.
    if rest.starts_with(['/', '~', ':', '?'])
        || rest.is_empty()
        || rest.starts_with("file:")
        || rest.contains(char::is_control)
    {
        return Ok(url.to_owned());
    }
    let (path, options) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    let whole = folder.join(path);
    // The command may go to another folder, where the relative path is another store.
    let whole = whole.to_str().ok_or_else(|| {
        Failure::usage(
            "the name of this folder is not UTF-8, and no URL can have it: name the store by an \
             absolute path (sqlite:/...)",
        )
    })?;
    Ok(format!("sqlite:{}{options}", written(whole)))
}

/// An absolute path, encoded for a URL.
fn written(path: &str) -> String {
    let is_special = |c: char| matches!(c, '?' | ',' | '%') || c.is_control();
    if !path.contains(is_special) && !path.starts_with("//") {
        return path.to_owned();
    }
    let mut url = String::from("//");
    for c in path.chars() {
        if is_special(c) {
            for byte in c.to_string().bytes() {
                let _ = write!(url, "%{byte:02x}");
            }
        } else {
            url.push(c);
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::{absolute, has_user, resolve};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    #[test]
    fn relative_paths_become_absolute() {
        for (url, whole) in [
            ("sqlite:a.db", "sqlite:/here/a.db"),
            ("sqlite:../a.db?mode=660", "sqlite:/here/../a.db?mode=660"),
            ("sqlite:/a.db", "sqlite:/a.db"),
            ("sqlite:///a%20b.db", "sqlite:///a%20b.db"),
            (" SQLite:a.db", "sqlite:/here/a.db"),
            ("redis://host", "redis://host"),
            ("", ""),
        ] {
            assert_eq!(absolute(url, Path::new("/here")).unwrap(), whole);
        }
        let odd = absolute("sqlite:a.db?mode=660", Path::new("/what?")).unwrap();
        assert_eq!(odd, "sqlite:///what%3f/a.db?mode=660");
        let odd = absolute("sqlite:a.db", Path::new("/a\n%b")).unwrap();
        assert_eq!(odd, "sqlite:///a%0a%25b/a.db");
        let unnamed = Path::new(OsStr::from_bytes(b"/\xff"));
        assert!(absolute("sqlite:a.db", unnamed).is_err());
        assert_eq!(absolute("sqlite:/a.db", unnamed).unwrap(), "sqlite:/a.db");
    }

    #[test]
    fn a_url_with_a_user_is_recognized() {
        for url in [
            "redis://:secret@host",
            "REDISS+Cluster://me:se/cret@host",
            "quorum:valkey://a,etcds://me:secret@b",
            "copy to postgres://secret@host/db",
        ] {
            assert!(has_user(url), "{url}");
        }
        for name in ["http://me@host/path", "redis://host:1", "deploy:web@prod", "a@redis://b"] {
            assert!(!has_user(name), "{name}");
        }
    }

    #[test]
    fn memory_is_refused() {
        assert!(resolve(Some("memory:")).is_err());
        assert!(resolve(Some("quorum:sqlite:/a,memory:,b")).is_err());
        assert!(resolve(Some(" Quorum:sqlite:/a, MEMORY:b")).is_err());
        let quorum = "quorum:redis://a,redis://b";
        assert_eq!(resolve(Some(quorum)).unwrap(), quorum);
    }

    #[test]
    fn the_default_is_a_url_that_is_not_given_and_not_an_empty_one() {
        assert_eq!(resolve(None).unwrap(), "");
        assert!(resolve(Some("")).is_err() && resolve(Some(" ")).is_err());
    }
}
