//! The identity of a node, independent of how its URL is spelled, so that no quorum has a node
//! twice.
//!
//! URLs are parsed loosely, only to compare them; the store reports errors in them.

use super::scheme::{feature_of, shown};
use crate::error::{Error, ErrorKind, Result};
use crate::stores::quorum;
use holdline_base::url;
use std::path::{Path, PathBuf};

/// The URL of a node for messages: without user, password and options. Of an invalid URL it is the
/// scheme alone, or not even that, since all the rest may be a password.
pub(super) fn address(url: &str) -> String {
    let Some(scheme) = shown(url) else { return "a store without a scheme".to_owned() };
    let rest = &url[scheme.len() + 1..];
    match feature_of(scheme) {
        Some("memory" | "sqlite") => {}
        Some(_) if url::check(rest).is_ok() => {}
        _ => return format!("{scheme}:"),
    }
    let url = url.split('?').next().unwrap_or_default();
    let shown = match url.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit('@').next().unwrap_or("")),
        None => url.to_owned(),
    };
    shown.chars().filter(|c| !c.is_control()).collect()
}

/// Refuses URLs if two of them name the same store, or if a password in one is not encoded: it
/// would be taken for another part of the URL.
pub(super) fn distinct(urls: &[String]) -> Result<()> {
    let sites = urls.iter().map(|url| Site::of(url)).collect::<Result<Vec<_>>>()?;
    for (at, site) in sites.iter().enumerate() {
        if let Some(before) = sites[..at].iter().position(|other| other.is(site)) {
            return Err(quorum::twice(&address(&urls[before]), &address(&urls[at])));
        }
    }
    Ok(())
}

/// The identity of a store.
#[derive(Debug, PartialEq, Eq)]
struct Site {
    /// The servers or the file. Two stores that share one are the same store.
    places: Vec<String>,
    /// The database, the prefix and the like.
    part: String,
}

impl Site {
    fn is(&self, other: &Site) -> bool {
        self.part == other.part && self.places.iter().any(|place| other.places.contains(place))
    }

    fn of(url: &str) -> Result<Site> {
        let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
        let path = rest.split('?').next().unwrap_or_default();
        let places = match feature_of(scheme) {
            None => Vec::new(), // opening it says that there is no such store
            // Every unnamed memory store is a new one.
            Some("memory") => Vec::from_iter(url::some(path.to_owned())),
            Some("sqlite") => {
                let path = path.strip_prefix("//").map_or_else(|| path.to_owned(), decode);
                vec![file(Path::new(&path))]
            }
            Some(store) => return server(store, scheme, rest),
        };
        Ok(Site { places, part: scheme.to_owned() })
    }
}

/// The identity of a store on servers, which is the same with and without TLS, and under all its
/// scheme names.
fn server(store: &str, scheme: &str, rest: &str) -> Result<Site> {
    url::check(rest).map_err(|why| {
        Error::new(ErrorKind::Invalid, format!("the URL of a node of the quorum {why}"))
    })?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let hosts = authority.rsplit('@').next().unwrap_or_default();
    let option = |key: &str| {
        let of_key = |pair: &str| pair.strip_prefix(key)?.strip_prefix('=').map(decode);
        query.split('&').filter_map(of_key).next_back()
    };
    if store != "redis" {
        let (port, options) = match store {
            "etcd" => (2379, &[][..]),
            "postgres" => (5432, &["scheme", "schema"][..]),
            "mysql" => (3306, &["scheme"][..]),
            _ => (2181, &[][..]),
        };
        let places = hosts.split(',').map(|text| host(text, port)).collect();
        let options: Vec<_> = options.iter().map(|key| option(key)).collect();
        let path = decode(path.trim_end_matches('/'));
        return Ok(Site { places, part: format!("{store} {path} {options:?}") });
    }
    let kind = scheme.split_once('+').map_or("", |(_, kind)| kind);
    let (service, db) = match kind {
        "sentinel" => path.split_once('/').unwrap_or((path, "")),
        "unix" => ("", ""),
        _ => ("", path),
    };
    let db = option("db").unwrap_or_else(|| db.to_owned()).parse::<u32>().unwrap_or(0);
    let lines = option("scheme").is_none_or(|scheme| scheme == "line");
    let prefix = option("prefix").filter(|prefix| !(lines && prefix.is_empty()));
    let prefix = prefix.unwrap_or_else(|| if lines { "holdline:" } else { "" }.to_owned());
    let service = decode(service);
    let port = if kind == "sentinel" { 26379 } else { 6379 };
    let places = if kind == "unix" {
        vec![file(Path::new(&format!("/{}", decode(path))))]
    } else {
        hosts.split(',').map(|text| host(text, port)).collect()
    };
    Ok(Site { places, part: format!("redis {kind} {service:?} {db} {prefix:?}") })
}

/// A host and its port, with one name for the local machine.
fn host(text: &str, port: u16) -> String {
    let (host, given) = url::host_and_port(text).unwrap_or((text, None));
    let port = given.unwrap_or(port);
    let host = decode(host).to_lowercase();
    match host.trim_end_matches('.') {
        "" | "localhost" | "127.0.0.1" | "::1" | "0.0.0.0" | "::" => format!("localhost:{port}"),
        host => match host.parse::<std::net::IpAddr>() {
            Ok(ip) => format!("{}:{port}", ip.to_canonical()),
            Err(_) => format!("{host}:{port}"),
        },
    }
}

/// A file's canonical path.
fn file(path: &Path) -> String {
    #[cfg(unix)]
    if let Ok(known) = std::fs::metadata(path) {
        use std::os::unix::fs::MetadataExt;
        return format!("{}:{}", known.dev(), known.ino());
    }
    let whole = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    let whole: PathBuf = whole().unwrap_or_else(|| path.to_owned());
    whole.display().to_string()
}

/// Decodes percent-encoding; returns a text with an invalid sequence unchanged.
fn decode(text: &str) -> String {
    url::decode(text).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(one: &str, other: &str) -> bool {
        distinct(&[one.to_owned(), other.to_owned()]).is_err()
    }

    #[test]
    fn a_store_is_the_same_however_it_is_spelled() {
        for (one, other) in [
            ("redis://h", "redis://H:6379/0"),
            ("redis://h", "redis://user:pass@h.?timeout=1s"),
            ("redis://localhost", "redis://127.0.0.1:6379"),
            ("redis://", "redis://[::1]"),
            ("redis://[2001:DB8::1]:7", "redis://[2001:db8:0::1]:7"),
            ("redis://h/3", "redis://h?db=3"),
            ("redis://h", "redis://h?prefix=holdline:"),
            ("redis://h?scheme=string", "redis://h?scheme=string&prefix="),
            ("rediss://h:1", "redis://h:1"),
            ("redis+cluster://a,b", "redis+cluster://b,c"),
            ("redis+sentinel://a,b/main", "redis+sentinel://b:26379/m%61in/0"),
            ("redis+unix:///tmp", "redis+unix:///tmp/../tmp/."),
            ("sqlite:/tmp/none.db", "sqlite:///tmp/../tmp/none.db?busy_timeout=1s"),
            ("memory:a", "memory:a"),
            ("postgres://h/x", "postgresql://me:pw@H:5432/x?sslmode=require"),
            ("postgres://h/x?schema=a", "postgres://h/x?timeout=1s&schema=a"),
            ("mysql://h/x", "mariadb://h:3306/x"),
            ("zk://h/x", "zookeeper://h:2181/x"),
        ] {
            assert!(same(one, other), "{one} and {other}");
            assert!(same(other, one), "{other} and {one}");
        }
    }

    #[test]
    fn another_server_database_or_prefix_is_another_store() {
        for (one, other) in [
            ("redis://h:1", "redis://h:2"),
            ("redis://a", "redis://b"),
            ("redis://127.0.0.1", "redis://127.0.0.2"),
            ("redis://h", "redis://h/1"),
            ("redis://h", "redis://h?prefix=b:"),
            ("redis+sentinel://a/one", "redis+sentinel://a/two"),
            ("sqlite:/tmp/a.db", "sqlite:/tmp/b.db"),
            ("memory:a", "memory:b"),
            ("memory:", "memory:"),
            ("postgres://h:1/x", "mysql://h:1/x"),
            ("postgres://h/x", "zookeeper://h/x"),
            ("postgres://h/x", "postgres://h/x?schema=a"),
            ("mysql://h/x", "mysql://h/x?scheme=row"),
        ] {
            assert!(!same(one, other), "{one} and {other}");
        }
    }

    #[test]
    fn an_address_shows_no_secret() {
        for url in ["redis://:can@ary@h:1/2?password=canary", "redis://canary@h:1/2"] {
            assert_eq!(address(url), "redis://h:1/2");
        }
        assert_eq!(address("sqlite:/a@b?x"), "sqlite:/a@b");
        for url in ["redis://:can?ary@h", "redis://:can/ary@h", "redis://h?password=can@ary"] {
            assert_eq!(address(url), "redis:");
        }
        assert_eq!(address("redsi://canary"), "redsi:");
        for url in ["canary@h:6379", "can:ary@h", "canary"] {
            assert!(!address(url).contains("can"), "{url}");
        }
    }

    #[test]
    fn a_password_that_is_not_encoded_is_told_and_not_shown() {
        for password in ["?", "canary?", "can/ary", "can#ary"] {
            let nodes = ["a", "b"].map(|host| format!("redis://:{password}@{host}"));
            let error = distinct(&nodes).expect_err(password).to_string();
            assert!(error.contains("a node of the quorum has a"), "{error}");
            assert!(error.contains("%2F") && !error.contains("can"), "{error}");
        }
        let nodes = ["reddis://:canary?@a", "reddis://:canary?@b"].map(str::to_owned);
        assert!(distinct(&nodes).is_ok(), "there is no such store");
    }
}
