//! The servers of a URL.
//!
//! ```text
//! redis[s]://[user[:password]@]host[:port][/db]
//! redis[s]+sentinel://[user[:password]@]host[:port],host[:port]/service[/db]
//! redis[s]+cluster://[user[:password]@]host[:port],host[:port]
//! redis+unix:///path/of/the/socket
//! ```
//!
//! `tls=true` is the same as `rediss`.
//!
//! Passwords have a type that does not show them.

use holdline_base::servers::Url;
use holdline_base::tls::{self, TlsOptions};
use holdline_base::url::{self, Secret, join};
use holdline_base::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The servers of a URL, and how to reach them.
#[derive(Clone, Debug)]
pub struct Config {
    /// The topology of the servers.
    pub kind: Kind,
    /// The hosts and their ports; empty for a socket.
    pub hosts: Vec<(String, u16)>,
    /// Whether connections use TLS.
    pub tls: bool,
    /// The certificates for TLS.
    pub tls_options: TlsOptions,
    /// The user to log in as.
    pub user: Option<String>,
    /// The password, of the user or of the server.
    pub password: Option<Secret>,
    /// The user of the sentinels.
    pub sentinel_user: Option<String>,
    /// The password of the sentinels.
    pub sentinel_password: Option<Secret>,
    /// The number of the database.
    pub db: u32,
    /// The time limit of one call, connecting included.
    pub timeout: Duration,
    /// The primary that a sentinel named last.
    pub primary: Primary,
    /// Called after each new connection for commands. It must not block.
    pub connected: fn(),
    /// Whether notices use sharded channels. Not set by any URL; see [`Connection::shards`].
    ///
    /// [`Connection::shards`]: crate::Connection::shards
    pub sharded: bool,
}

/// The topology of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One server.
    Single,
    /// One server, at this socket.
    Unix(String),
    /// Sentinels, which know the address of this service's primary.
    Sentinel(String),
    /// A cluster, some of whose nodes are given.
    Cluster,
}

/// The address of the primary that a sentinel named last, shared by the connections of a store:
/// the one for notices follows the one for commands.
#[derive(Clone, Debug, Default)]
pub struct Primary(Arc<watch::Sender<String>>);

impl Primary {
    /// Records the address that a sentinel names.
    pub(crate) fn named(&self, address: &str) {
        self.0.send_if_modified(|last| {
            let other = last != address;
            address.clone_into(last);
            other
        });
    }

    /// Waits until a sentinel has named another address than this one.
    pub(crate) async fn left(&self, address: &str) {
        let _ = self.0.subscribe().wait_for(|last| last != address).await;
    }
}

/// The options that are not about the servers, with their values.
type Options = Vec<(String, String)>;

/// The options parsed here, for the error about an unknown one.
pub const KNOWN: &str = "timeout, password_file, password_env, tls, \
    ca_file, ca_env, cert_file, cert_env, key_file, key_env, sentinel_user, \
    sentinel_password_file, sentinel_password_env";

impl Config {
    /// Parses the part of a URL after this scheme and the first colon. Also returns the options
    /// that are not about the servers, with their values.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the URL is invalid.
    pub fn read(scheme: &str, rest: &str) -> Result<(Config, Options)> {
        let url = Url::read(rest, invalid)?;
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let port = if kind == "sentinel" { 26379 } else { 6379 };
        let hosts = if kind == "unix" { Ok(Vec::new()) } else { url.hosts(port) };
        let mut config = Config {
            kind: Kind::Single,
            hosts: hosts.map_err(invalid)?,
            tls: base == "rediss",
            tls_options: url.tls_options,
            user: url.user,
            password: url.password,
            sentinel_user: None,
            sentinel_password: None,
            db: 0,
            timeout: Duration::from_millis(1500),
            primary: Primary::default(),
            connected: || (),
            sharded: false,
        };
        let of_path = config.place(kind, url.path)?;
        let mut options = Options::new();
        for (key, value) in url.options {
            if !config.set(key, &value)? {
                options.push((key.to_owned(), value));
            }
        }
        if of_path.is_some_and(|db| db != config.db) {
            return Err(invalid("has two databases, in the path and as db"));
        }
        config.agrees()?;
        Ok((config, options))
    }

    /// Refuses options that contradict each other.
    fn agrees(&self) -> Result<()> {
        if self.user.is_some() && self.password.is_none() {
            return Err(invalid(
                "has a user but no password; a password alone is written with a colon before it, \
                 as in redis://:PASSWORD@HOST",
            ));
        }
        if self.tls && matches!(self.kind, Kind::Unix(_)) {
            return Err(invalid("names a socket of this machine, which has no TLS"));
        }
        if self.db != 0 && self.kind == Kind::Cluster {
            return Err(invalid("has a database, but a cluster has only number 0"));
        }
        if self.sentinel_user.is_some() && self.sentinel_password.is_none() {
            return Err(invalid("has a sentinel_user without a password for the sentinels"));
        }
        self.tls_options.check(self.tls).map_err(invalid)
    }

    /// Parses the path, whose meaning depends on the topology. Returns the database, if it has one.
    fn place(&mut self, kind: &str, path: &str) -> Result<Option<u32>> {
        let mut number = "";
        match kind {
            "" if self.hosts.len() > 1 => {
                return Err(invalid(
                    "has several hosts; use redis+sentinel: or redis+cluster:, or quorum: with \
                     one URL for each",
                ));
            }
            "" => number = path,
            "unix" => self.kind = Kind::Unix(format!("/{}", decode(path)?)),
            "cluster" => (self.kind, number) = (Kind::Cluster, path),
            "sentinel" => {
                let service;
                (service, number) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(invalid("lacks the service's name, as in redis+sentinel://h/name"));
                }
                self.kind = Kind::Sentinel(decode(service)?);
            }
            _ => return Err(invalid("has an unknown scheme")),
        }
        if number.is_empty() {
            return Ok(None);
        }
        self.db = number.parse().map_err(|_| invalid("has a database that is no number"))?;
        Ok(Some(self.db))
    }

    /// Sets an option. `false` if it is not about the servers.
    fn set(&mut self, key: &str, value: &str) -> Result<bool> {
        match key {
            "timeout" => self.timeout = duration(key, value)?,
            "tls" => self.tls = tls::wanted(self.tls, value).map_err(invalid)?,
            "db" => self.db = value.parse().map_err(|_| invalid("has a db that is no number"))?,
            "sentinel_user" => self.sentinel_user = Some(value.to_owned()),
            "sentinel_password_file" => {
                self.sentinel_password = Some(url::secret_file(key, value)?);
            }
            "sentinel_password_env" => {
                let secret = url::secret_env(key, value).map_err(|why| invalid(&why))?;
                self.sentinel_password = Some(secret);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The URL for messages: without the part before the host, and without options. A single word
    /// before the host may well be a password whose colon was forgotten.
    pub fn address(&self) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let hosts: Vec<String> = self.hosts.iter().map(|(h, p)| join(h, *p)).collect();
        let hosts = hosts.join(",");
        let db = if self.db == 0 { String::new() } else { format!("/{}", self.db) };
        match &self.kind {
            Kind::Single => format!("{scheme}://{hosts}{db}"),
            Kind::Unix(path) => format!("redis+unix://{path}"),
            Kind::Sentinel(service) => format!("{scheme}+sentinel://{hosts}/{service}{db}"),
            Kind::Cluster => format!("{scheme}+cluster://{hosts}"),
        }
    }
}

/// The error for a URL, which is not shown because it may have a password in an unexpected place.
pub fn invalid(problem: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the Redis store's URL {problem}"))
}

fn decode(text: &str) -> Result<String> {
    url::decode(text).map_err(invalid)
}

/// Parses the time of an option, from 10 ms to a week.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] for anything else.
pub fn duration(option: &str, text: &str) -> Result<Duration> {
    let allowed = Duration::from_millis(10)..=Duration::from_secs(7 * 86_400);
    url::duration(text).filter(|time| allowed.contains(time)).ok_or_else(|| {
        invalid(&format!(
            "has the option {option}, whose time is not like 500ms, 2s, 10m or 1h, from 10ms to \
             168h"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Config> {
        let (scheme, rest) = url.split_once(':').expect("a colon");
        Config::read(scheme, rest).map(|(config, _)| config)
    }

    #[test]
    fn urls_that_make_sense() {
        let plain = read("redis://localhost").expect("good");
        assert_eq!(plain.hosts, [("localhost".to_owned(), 6379)]);
        assert_eq!((plain.db, plain.tls), (0, false));
        let full = read("rediss://al:p%40ss%3a@[::1]:7/3?timeout=500ms").expect("good");
        assert_eq!(full.hosts, [("::1".to_owned(), 7)]);
        assert_eq!(full.password, Some(Secret("p@ss:".to_owned())));
        assert_eq!((full.db, full.tls), (3, true));
        assert_eq!(full.timeout, Duration::from_millis(500));
        assert_eq!(full.address(), "rediss://[::1]:7/3");
        assert!(!format!("{full:?}").contains("p@ss"));
        let sentinel = read("redis+sentinel://a,b:2/main/1").expect("good");
        assert_eq!(sentinel.kind, Kind::Sentinel("main".to_owned()));
        assert_eq!(sentinel.address(), "redis+sentinel://a:26379,b:2/main/1");
        for (url, same) in [
            ("redis://h?tls=true", "rediss://h:6379"),
            ("rediss://h?tls=true", "rediss://h:6379"),
            ("redis://h?tls=false", "redis://h:6379"),
            ("redis+sentinel://h/x?tls=true", "rediss+sentinel://h:26379/x"),
            ("redis+cluster://h/0?db=0", "redis+cluster://h:6379"),
            ("redis://h/3?db=3", "redis://h:6379/3"),
        ] {
            assert_eq!(read(url).expect("good").address(), same);
        }
        assert_eq!(read("redis+cluster://a:1,b:2").expect("good").kind, Kind::Cluster);
        let unix = read("redis+unix:///run/redis.sock").expect("good");
        assert_eq!(unix.kind, Kind::Unix("/run/redis.sock".to_owned()));
    }

    #[test]
    fn urls_that_do_not() {
        for url in [
            "redis:localhost",
            "redis://h:0",
            "redis://h:x",
            "redis://[::1",
            "redis://a,b",
            "redis://h/x",
            "redis://u:canary%zz@h",
            "redis://u:canary@h#x",
            "redis://canary@h",
            "redis+cluster://canary@a,b",
            "redis://h?timeout=5",
            "redis+cluster://h/1",
            "redis+cluster://h?db=1",
            "redis://h/3?db=4",
            "redis://h/0?db=4",
            "redis+sentinel://h/x/3?db=0",
            "redis+sentinel://h/x?sentinel_user=canary",
            "redis+sentinel://h",
            "redis+proxy://h",
            "redis://h?password_env=HOLDLINE_NOT_SET",
            "redis://h?password_file=/nonexistent",
            "redis://h?ca_file=ca.pem",
            "redis://h?tls=canary",
            "rediss://h?tls=false",
            "redis+unix:///s?tls=true",
            "rediss://h?cert_file=cert.pem",
            "rediss://h?key_file=key.pem",
            "rediss://h?cert_file=c&key_env=HOLDLINE_NOT_SET",
        ] {
            let error = read(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        }
    }

    #[test]
    fn what_is_not_about_the_servers_is_returned() {
        let (_, options) = Config::read("redis", "//h?x=%20y&timeout=2s").expect("good");
        assert_eq!(options, [("x".to_owned(), " y".to_owned())]);
    }
}
