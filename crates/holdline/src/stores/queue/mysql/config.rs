//! The configuration of a MySQL store, parsed from its URL:
//! `mysql://[user[:password]@]host[:port]/database`, or `mariadb:`, which is the same.

use crate::error::{Error, ErrorKind, Result};
use crate::stores::queue::{shedlock, sql};
use crate::stores::servers::Url;
use crate::stores::tls::{self, TlsOptions};
use crate::stores::url::{self, Secret, join};
use std::fmt;
use std::time::Duration;

/// The server of a store, and the options for using it.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) database: String,
    pub(super) user: String,
    pub(super) password: Option<Secret>,
    pub(super) tls: bool,
    pub(super) tls_options: TlsOptions,
    pub(super) scheme: Scheme,
    /// Whether to install the tables and procedures when the store is opened.
    pub(super) install: bool,
    /// The time limit of one call, connecting included.
    pub(super) timeout: Duration,
    /// The minimum time for which a lock in ShedLock's table stays locked.
    pub(super) at_least: Duration,
    /// The number of connections for calls.
    pub(super) connections: usize,
}

/// How locks are kept in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// A line of leases in tables.
    Table,
    /// A row locked by an open transaction.
    Row,
    /// One of the server's named locks.
    Named,
    /// ShedLock's table.
    Shedlock,
}

/// The schemes, by their names in a URL.
const SCHEMES: [(&str, Scheme); 4] = [
    ("table", Scheme::Table),
    ("row", Scheme::Row),
    ("named", Scheme::Named),
    ("shedlock", Scheme::Shedlock),
];

const KNOWN: &str = "scheme, install, timeout, connections, at_least, password_file, password_env, \
    tls, ca_file, ca_env, cert_file, cert_env, key_file, key_env";

impl Config {
    /// Reads what follows the first colon of a URL.
    pub(super) fn read(rest: &str) -> Result<Config> {
        let url = Url::read(rest, invalid)?;
        let [(host, port)] = &url.hosts(3306).map_err(invalid)?[..] else {
            return Err(invalid("has several hosts; give that of the primary"));
        };
        let database = url::decode(url.path).map_err(invalid)?;
        if database.is_empty() || database.contains(['/', '`', '\0']) {
            return Err(invalid("names no database, as in mysql://HOST/DATABASE"));
        }
        let mut config = Config {
            host: host.clone(),
            port: *port,
            database,
            user: url.user.unwrap_or_else(|| "root".to_owned()),
            password: url.password,
            tls: false,
            tls_options: url.tls_options,
            scheme: Scheme::Table,
            install: false,
            timeout: Duration::from_millis(1500),
            at_least: Duration::ZERO,
            connections: 1,
        };
        for (key, value) in url.options {
            config.set(key, &value)?;
        }
        if config.scheme != Scheme::Shedlock && !config.at_least.is_zero() {
            return Err(invalid("has at_least, which only scheme=shedlock has"));
        }
        config.tls_options.check(config.tls).map_err(invalid)?;
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "scheme" => self.scheme = sql::scheme("MySQL", &SCHEMES, value)?,
            "install" => self.install = sql::yes(key, value).map_err(|why| invalid(&why))?,
            "at_least" => self.at_least = shedlock::at_least(value).map_err(invalid)?,
            "timeout" => self.timeout = sql::timeout(value).map_err(invalid)?,
            "connections" => match value.parse() {
                Ok(number @ 1..=64) => self.connections = number,
                _ => return Err(invalid("has a number of connections that is not from 1 to 64")),
            },
            "tls" => self.tls = tls::wanted(false, value).map_err(invalid)?,
            _ => return Err(invalid(&url::unknown_option(key, KNOWN))),
        }
        Ok(())
    }
}

/// The URL for messages, without the user and options.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mysql://{}/{}", join(&self.host, self.port), self.database)
    }
}

/// The URL itself is not shown: it may have a password in an unexpected place.
fn invalid(problem: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the MySQL store's URL {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_make_sense() {
        let plain = Config::read("//localhost/app").expect("good");
        assert_eq!(
            (plain.host.as_str(), plain.port, plain.user.as_str()),
            ("localhost", 3306, "root")
        );
        assert_eq!(plain.scheme, Scheme::Table);
        let full = "//al:p%40ss@[::1]:7/app?scheme=named&install=yes&timeout=50ms&connections=4";
        let full = Config::read(full).expect("good");
        assert_eq!((full.port, full.scheme, full.install), (7, Scheme::Named, true));
        assert_eq!((full.timeout, full.connections), (Duration::from_millis(50), 4));
        assert_eq!(full.password, Some(Secret("p@ss".to_owned())));
        assert_eq!(full.to_string(), "mysql://[::1]:7/app");
        assert!(!format!("{full:?}").contains("p@ss"));
    }

    #[test]
    fn urls_that_do_not() {
        for rest in [
            "localhost/app",
            "//h",
            "//h/",
            "//h/a/b",
            "//h:0/app",
            "//a,b/app",
            "//u:canary%zz@h/app",
            "//u:canary@h/app#x",
            "//u:canary@h/app?x=1",
            "//h/app?timeout=5",
            "//h/app?timeout=49ms",
            "//h/app?timeout=61s",
            "//h/app?connections=0",
            "//h/app?install=maybe",
            "//h/app?at_least=1s",
            "//h/app?scheme=shedlock&at_least=25h",
            "//h/app?ca_file=ca.pem",
            "//h/app?tls=true&cert_file=cert.pem",
            "//h/app?password_env=HOLDLINE_NOT_SET",
        ] {
            let error = Config::read(rest).expect_err(rest);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{rest}");
            assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        }
        let error = Config::read("//h/app?scheme=other").expect_err("no such scheme");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
