//! The configuration of a Redis store, as its URL gives it.
//!
//! ```text
//! redis[s]://[user[:password]@]host[:port][/db]
//! redis[s]+sentinel://[user[:password]@]host[:port],host[:port]/service[/db]
//! redis[s]+cluster://[user[:password]@]host[:port],host[:port]
//! redis+unix:///path/of/the/socket
//! ```
//!
//! Passwords are kept in a type that does not show them.

use crate::error::{Error, ErrorKind, Result};
use crate::stores::tls::TlsOptions;
use crate::stores::url::{self, Secret, join, some};
use std::time::Duration;

/// The servers of a store, and the options for using them.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Config {
    pub(in crate::stores) kind: Kind,
    pub(in crate::stores) hosts: Vec<(String, u16)>,
    pub(in crate::stores) tls: bool,
    pub(in crate::stores) tls_options: TlsOptions,
    pub(in crate::stores) user: Option<String>,
    pub(in crate::stores) password: Option<Secret>,
    pub(in crate::stores) sentinel_user: Option<String>,
    pub(in crate::stores) sentinel_password: Option<Secret>,
    pub(in crate::stores) db: u32,
    /// The prefix of all keys and channels.
    pub(in crate::stores) prefix: String,
    /// The time limit of one call, connecting included.
    pub(in crate::stores) timeout: Duration,
    /// The least time for which the token counter of an idle line is kept.
    pub(in crate::stores) idle: Duration,
    pub(in crate::stores) layout: Layout,
    /// Whether notices use sharded channels. Detected, not set by the URL.
    pub(in crate::stores) sharded: bool,
}

/// The topology of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores) enum Kind {
    Single,
    Unix(String),
    /// The sentinels know the address of this service's primary.
    Sentinel(String),
    Cluster,
}

/// The layout of a lock in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stores) enum Layout {
    /// A line with places: see `lua/enter_one.lua`.
    Line,
    /// A string with an expiry, as the common Redis lock libraries have it.
    String,
    /// A hash with one field, as Redisson's `RLock` has it.
    Redisson,
}

const KNOWN: &str = "prefix, timeout, idle, scheme, password_file, password_env, \
    ca_file, ca_env, cert_file, cert_env, key_file, key_env, sentinel_user, \
    sentinel_password_file, sentinel_password_env";

impl Config {
    /// Reads what follows the first colon of a URL of this scheme.
    pub(in crate::stores) fn read(scheme: &str, rest: &str) -> Result<Config> {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if rest.contains('#') || query.contains('#') {
            return Err(invalid("has a part after #; write # in a password as %23"));
        }
        let rest = rest.strip_prefix("//").ok_or_else(|| invalid("lacks // after the scheme"))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let mut config = Config {
            kind: Kind::Single,
            hosts: Vec::new(),
            tls: base == "rediss",
            tls_options: TlsOptions::default(),
            user: some(decode(user)?),
            password: some(decode(password)?).map(Secret),
            sentinel_user: None,
            sentinel_password: None,
            db: 0,
            prefix: String::new(),
            timeout: Duration::from_millis(1500),
            idle: Duration::from_secs(600),
            layout: Layout::Line,
            sharded: false,
        };
        let port = if kind == "sentinel" { 26379 } else { 6379 };
        if kind != "unix" {
            config.hosts = hosts.split(',').map(|h| host(h, port)).collect::<Result<_>>()?;
        }
        config.place(kind, path)?;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            config.set(key, &decode(value)?)?;
        }
        if config.layout == Layout::Line && config.prefix.is_empty() {
            "holdline:".clone_into(&mut config.prefix);
        }
        config.agrees()?;
        Ok(config)
    }

    /// Refuses options that contradict each other.
    fn agrees(&self) -> Result<()> {
        if self.user.is_some() && self.password.is_none() {
            return Err(invalid(
                "has a user but no password; a password alone is written with a colon before it, \
                 as in redis://:PASSWORD@HOST",
            ));
        }
        if !self.tls && self.tls_options != TlsOptions::default() {
            return Err(invalid("has certificates but no TLS; let it begin with rediss"));
        }
        self.tls_options.check(self.tls).map_err(invalid)?;
        Ok(())
    }

    /// Reads the path, whose meaning depends on the topology.
    fn place(&mut self, kind: &str, path: &str) -> Result<()> {
        let db = |text: &str| match text {
            "" => Ok(0),
            text => text.parse().map_err(|_| invalid("has a database that is no number")),
        };
        match kind {
            "" if self.hosts.len() > 1 => {
                return Err(invalid(
                    "has several hosts; use redis+sentinel: or redis+cluster:, or quorum: with \
                     one URL for each",
                ));
            }
            "" => self.db = db(path)?,
            "unix" => self.kind = Kind::Unix(format!("/{}", decode(path)?)),
            "cluster" if path.is_empty() || path == "0" => self.kind = Kind::Cluster,
            "cluster" => return Err(invalid("has a database, but a cluster has only number 0")),
            "sentinel" => {
                let (service, number) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(invalid("lacks the service's name, as in redis+sentinel://h/name"));
                }
                self.kind = Kind::Sentinel(decode(service)?);
                self.db = db(number)?;
            }
            _ => return Err(invalid("has an unknown scheme")),
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        if self.tls_options.set(key, value).map_err(|why| invalid(&why))? {
            return Ok(());
        }
        match key {
            "prefix" if value.contains(['{', '}']) || value.chars().any(char::is_whitespace) => {
                return Err(invalid("has a prefix with braces or spaces"));
            }
            "prefix" => value.clone_into(&mut self.prefix),
            "timeout" => self.timeout = duration(value)?,
            "idle" => self.idle = duration(value)?,
            "scheme" => {
                self.layout = match value {
                    "line" => Layout::Line,
                    "string" => Layout::String,
                    "redisson" => Layout::Redisson,
                    _ => {
                        let message = "a Redis store has the schemes \"line\", \"string\" and \
                            \"redisson\"; no other is supported";
                        return Err(Error::new(ErrorKind::Unsupported, message));
                    }
                }
            }
            "password_file" => self.password = Some(url::secret_file(key, value)?),
            "password_env" => self.password = Some(secret_env(key, value)?),
            "db" => self.db = value.parse().map_err(|_| invalid("has a db that is no number"))?,
            "sentinel_user" => self.sentinel_user = Some(value.to_owned()),
            "sentinel_password_file" => {
                self.sentinel_password = Some(url::secret_file(key, value)?);
            }
            "sentinel_password_env" => self.sentinel_password = Some(secret_env(key, value)?),
            _ => return Err(invalid(&url::unknown_option(key, KNOWN))),
        }
        Ok(())
    }

    /// The URL for messages: without what stands before the host, and without options. A lone word
    /// there may well be a password whose colon was forgotten.
    pub(in crate::stores) fn address(&self) -> String {
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

/// The URL itself is not shown: it may have a password in an unexpected place.
fn invalid(problem: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the Redis store's URL {problem}"))
}

fn host(text: &str, default_port: u16) -> Result<(String, u16)> {
    let (host, port) = url::host_and_port(text).map_err(invalid)?;
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    Ok((decode(host)?, port.unwrap_or(default_port)))
}

fn decode(text: &str) -> Result<String> {
    url::decode(text).map_err(invalid)
}

fn duration(text: &str) -> Result<Duration> {
    let allowed = Duration::from_millis(10)..=Duration::from_secs(7 * 86_400);
    url::duration(text).filter(|time| allowed.contains(time)).ok_or_else(|| {
        invalid("has a time that is not like 500ms, 2s, 10m or 1h, from 10ms to 168h")
    })
}

fn secret_env(option: &str, variable: &str) -> Result<Secret> {
    url::secret_env(option, variable).map_err(|why| invalid(&why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Config> {
        let (scheme, rest) = url.split_once(':').expect("a colon");
        Config::read(scheme, rest)
    }

    #[test]
    fn urls_that_make_sense() {
        let plain = read("redis://localhost").expect("good");
        assert_eq!(plain.hosts, [("localhost".to_owned(), 6379)]);
        assert_eq!((plain.db, plain.prefix.as_str(), plain.tls), (0, "holdline:", false));
        let full = read("rediss://al:p%40ss%3a@[::1]:7/3?prefix=app:&timeout=500ms").expect("good");
        assert_eq!(full.hosts, [("::1".to_owned(), 7)]);
        assert_eq!(full.password, Some(Secret("p@ss:".to_owned())));
        assert_eq!((full.db, full.prefix.as_str(), full.tls), (3, "app:", true));
        assert_eq!(full.timeout, Duration::from_millis(500));
        assert_eq!(full.address(), "rediss://[::1]:7/3");
        assert!(!format!("{full:?}").contains("p@ss"));
        let sentinel = read("redis+sentinel://a,b:2/main/1").expect("good");
        assert_eq!(sentinel.kind, Kind::Sentinel("main".to_owned()));
        assert_eq!(sentinel.address(), "redis+sentinel://a:26379,b:2/main/1");
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
            "redis://u:canary@h?x=1",
            "redis://canary@h",
            "redis+cluster://canary@a,b",
            "redis://h?timeout=5",
            "redis://h?prefix={a}",
            "redis+cluster://h/1",
            "redis+sentinel://h",
            "redis+proxy://h",
            "redis://h?password_env=HOLDLINE_NOT_SET",
            "redis://h?password_file=/nonexistent",
            "redis://h?ack=1",
            "redis://h?ca_file=ca.pem",
            "rediss://h?cert_file=cert.pem",
            "rediss://h?key_file=key.pem",
            "rediss://h?cert_file=c&key_env=HOLDLINE_NOT_SET",
        ] {
            let error = read(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        }
        let error = read("redis://h?scheme=other").expect_err("no such scheme");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
