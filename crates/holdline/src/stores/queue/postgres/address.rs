//! The address of a PostgreSQL store: a parsed `postgres:` URL.
//!
//! ```text
//! postgres://[user[:password]@]host[:port][,host[:port]...][/database][?option=value&...]
//! ```
//!
//! A host may be the folder of a Unix socket, written with `%2F` for each `/`. The password is kept
//! in a type that does not show it.

use super::keys::KeyScheme;
use crate::error::{Error, ErrorKind, Result};
use crate::stores::queue::{shedlock, sql};
use crate::stores::servers::Url;
use crate::stores::tls::{self, TlsOptions};
use crate::stores::url::{self, Secret, some};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::config::{ChannelBinding, SslMode, TargetSessionAttrs};

/// A database, how to connect to it, and how it keeps locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Hosts and ports, in the order in which they are tried. One that begins with `/` is the
    /// folder of a Unix socket.
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) database: Option<String>,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) tls: bool,
    pub(super) tls_options: TlsOptions,
    pub(super) scheme: Scheme,
    /// The database schema of the tables and functions.
    pub(super) schema: String,
    /// Whether opening installs the schema if it does not exist.
    pub(super) install: bool,
    pub(super) listen: Listen,
    /// The maximum number of connections that hold locks, if sessions or transactions hold them.
    pub(super) connections: Option<usize>,
    /// The minimum time for which a lock in ShedLock's table stays locked.
    pub(super) at_least: Duration,
    /// The time limit of one call, connecting included.
    pub(super) timeout: Duration,
}

/// The way in which locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// A table of leases, with a queue: see `sql/`.
    Table,
    /// Session-level advisory locks, with keys of this kind.
    Advisory(KeyScheme),
    /// A row for each lock, locked by an open transaction.
    Row,
    /// ShedLock's table.
    Shedlock,
}

/// The schemes, by their names in a URL.
const SCHEMES: [(&str, Scheme); 4] = [
    ("table", Scheme::Table),
    ("row", Scheme::Row),
    ("advisory", Scheme::Advisory(KeyScheme::NATIVE)),
    ("shedlock", Scheme::Shedlock),
];

/// The source of notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listen {
    /// The same server.
    Here,
    /// This address of the same database, because the URL's own is a proxy that pools transactions.
    At(Box<Address>),
    /// Nowhere: waiters poll.
    Off,
}

const KNOWN: &str = "scheme, keys, connections, at_least, schema, install, listen, timeout, \
    sslmode, tls, password_file, password_env, ca_file, ca_env, cert_file, cert_env, key_file and \
    key_env";

impl Address {
    /// The address at which to listen for notices, if any.
    pub(super) fn listen_at(self: &Arc<Self>) -> Option<Arc<Address>> {
        match &self.listen {
            Listen::Here => Some(Arc::clone(self)),
            Listen::At(direct) => Some(Arc::new((**direct).clone())),
            Listen::Off => None,
        }
    }

    /// Reads what follows the colon of the URL.
    pub(super) fn read(rest: &str) -> Result<Address> {
        let url = Url::read(rest, invalid)?;
        let mut address = Address {
            hosts: url.hosts(5432).map_err(invalid)?,
            database: some(url::decode(url.path).map_err(invalid)?),
            user: url.user,
            password: url.password,
            tls: false,
            tls_options: url.tls_options,
            scheme: Scheme::Table,
            schema: "holdline".to_owned(),
            install: false,
            listen: Listen::Here,
            connections: None,
            at_least: Duration::ZERO,
            timeout: Duration::from_millis(1500),
        };
        let given: Vec<&str> = url.options.iter().map(|(option, _)| *option).collect();
        let (mut keys, mut tls) = (None, None);
        for (key, value) in url.options {
            match key {
                "keys" => {
                    let why = "has keys that are not known; see the guide for PostgreSQL";
                    keys = Some(KeyScheme::named(&value).ok_or_else(|| invalid(why))?);
                }
                "tls" | "sslmode" => {
                    let wanted = if key == "tls" {
                        tls::wanted(false, &value).map_err(invalid)?
                    } else {
                        ssl_mode(&value)?
                    };
                    if tls.replace(wanted).is_some_and(|other| other != wanted) {
                        return Err(invalid("has a tls and an sslmode that contradict each other"));
                    }
                }
                _ => address.set(key, &value)?,
            }
        }
        address.tls = tls.unwrap_or(false);
        if let (Some(keys), Scheme::Advisory(used)) = (keys, &mut address.scheme) {
            *used = keys;
        }
        if address.scheme == Scheme::Shedlock && !given.contains(&"schema") {
            "public".clone_into(&mut address.schema);
        }
        let (shedlock, advisory) =
            (address.scheme == Scheme::Shedlock, matches!(address.scheme, Scheme::Advisory(_)));
        let sessions = advisory || address.scheme == Scheme::Row;
        for (option, allowed, which) in [
            ("keys", advisory, "only scheme=advisory has"),
            ("listen", !shedlock, "scheme=shedlock has not"),
            ("at_least", shedlock, "only scheme=shedlock has"),
            // Advisory locks are those of the whole database.
            ("schema", !advisory, "scheme=advisory has not"),
            ("connections", sessions, "only scheme=row and scheme=advisory have"),
        ] {
            if given.contains(&option) && !allowed {
                return Err(invalid(&format!("has {option}, which {which}")));
            }
        }
        if address.user.is_none() && address.password.is_some() {
            return Err(invalid("has a password, but no user"));
        }
        address.tls_options.check(address.tls).map_err(invalid)?;
        Ok(address)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "scheme" => self.scheme = sql::scheme("PostgreSQL", &SCHEMES, value)?,
            "connections" => {
                let number = value.parse().ok().filter(|number| (1..=1000).contains(number));
                let why = "has connections that are no number from 1 to 1000";
                self.connections = Some(number.ok_or_else(|| invalid(why))?);
            }
            "schema" => schema_name(value)?.clone_into(&mut self.schema),
            "install" => self.install = sql::yes(key, value).map_err(|why| invalid(&why))?,
            "listen" => self.listen = listen(value)?,
            "at_least" => self.at_least = shedlock::at_least(value).map_err(invalid)?,
            "timeout" => self.timeout = sql::timeout(value).map_err(invalid)?,
            _ => return Err(invalid(&url::unknown_option(key, KNOWN))),
        }
        Ok(())
    }

    /// The client's configuration for one of the hosts.
    pub(super) fn config(&self, (host, port): &(String, u16)) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.host(host).port(*port);
        if let Some(user) = &self.user {
            config.user(user);
        }
        if let Some(password) = &self.password {
            config.password(&password.0);
        }
        if let Some(database) = &self.database {
            config.dbname(database);
        }
        if self.hosts.len() > 1 {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let ssl_mode = if self.tls { SslMode::Require } else { SslMode::Disable };
        config
            .ssl_mode(ssl_mode)
            .channel_binding(ChannelBinding::Prefer)
            .application_name("holdline")
            .keepalives_idle(Duration::from_secs(15))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        config
    }
}

/// The URL without its password and options, for messages.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        let hosts = self.hosts.iter().map(|(host, port)| url::join(host, *port));
        f.write_str(&hosts.collect::<Vec<_>>().join(","))?;
        if let Some(database) = &self.database {
            write!(f, "/{database}")?;
        }
        Ok(())
    }
}

/// Checks the name of a database schema.
pub(super) fn schema_name(name: &str) -> Result<&str> {
    if name.is_empty() || name.len() > 63 || name.chars().any(char::is_control) {
        return Err(invalid("has a schema that is empty, longer than 63 bytes, or not printable"));
    }
    // Statements also use it in string constants and beside parameters.
    if name.contains(['\'', '\\', '$']) {
        return Err(invalid("has a schema with ' or \\ or $ in its name, which cannot be used"));
    }
    Ok(name)
}

fn listen(value: &str) -> Result<Listen> {
    match value {
        "off" => return Ok(Listen::Off),
        "on" => return Ok(Listen::Here),
        _ => {}
    }
    let rest = value.strip_prefix("postgres:").or_else(|| value.strip_prefix("postgresql:"));
    let rest = rest.ok_or_else(|| invalid("has a listen that is neither on nor off nor a URL"))?;
    // Its own message would show an option inside an option.
    let address = Address::read(rest).map_err(|_| invalid("has a listen whose URL is invalid"))?;
    Ok(Listen::At(Box::new(address)))
}

/// Every kind of TLS verifies the server's certificate and name, as with every other store.
fn ssl_mode(value: &str) -> Result<bool> {
    match value {
        "disable" => Ok(false),
        "require" | "verify-full" => Ok(true),
        _ => Err(invalid(
            "has an sslmode other than disable, require and verify-full (the last two are the \
             same here: certificate and name are verified)",
        )),
    }
}

/// The URL is not shown: it may hold a password.
fn invalid(why: &str) -> Error {
    let form = "write postgres://[USER:PASSWORD@]HOST[:PORT]/DATABASE";
    Error::new(ErrorKind::Invalid, format!("the PostgreSQL URL {why}; {form}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_who() {
        let full = "//me:p%40ss@a,[::1]:7/team?schema=locks&timeout=50ms&listen=off&install=yes";
        let address = Address::read(full).expect("it is good");
        assert_eq!(address.hosts, [("a".to_owned(), 5432), ("::1".to_owned(), 7)]);
        assert_eq!(address.password, Some(Secret("p@ss".to_owned())));
        assert_eq!((&*address.schema, address.install), ("locks", true));
        assert_eq!(address.timeout, Duration::from_millis(50));
        assert_eq!(address.listen, Listen::Off);
        assert_eq!(address.to_string(), "postgres://a:5432,[::1]:7/team");
        assert!(!format!("{address:?}").contains("p@ss"));
        let socket = Address::read("//%2Frun%2Fpostgresql/x").expect("it is good");
        assert_eq!(socket.hosts[0].0, "/run/postgresql");
        let listen = "//a:6432/x?listen=postgres%3A%2F%2Fme%3Apw%40a%3A5432%2Fx";
        let Listen::At(direct) = Address::read(listen).expect("it is good").listen else {
            panic!("another address");
        };
        assert_eq!(direct.to_string(), "postgres://a:5432/x");
    }

    #[test]
    fn tls_is_asked_for_in_two_ways_that_agree() {
        for (options, tls) in [
            ("", false),
            ("?tls=true", true),
            ("?sslmode=require", true),
            ("?tls=true&sslmode=verify-full", true),
            ("?sslmode=disable&tls=false", false),
        ] {
            assert_eq!(
                Address::read(&format!("//a{options}")).expect("good").tls,
                tls,
                "{options}"
            );
        }
        for options in ["tls=true&sslmode=disable", "sslmode=require&tls=false"] {
            let error = Address::read(&format!("//a?{options}")).expect_err("which?");
            assert!(error.to_string().contains("contradict"), "{error}");
        }
    }

    #[test]
    fn nonsense_is_refused_and_not_repeated() {
        for bad in [
            "secret",
            "//a:0",
            "//a:x",
            "//:secret@a",
            "//me:secret@a?x=y",
            "//me:sec?ret@a/x",
            "//me:secret%@a",
            "//me:secret@a#b",
            "//me:secret@a?ca_file=b",
            "//me:secret@a?sslmode=prefer",
            "//me:secret@a?schema=",
            "//me:secret@a?schema=a$b&scheme=shedlock",
            "//me:secret@a?timeout=5",
            "//me:secret@a?timeout=49ms",
            "//me:secret@a?timeout=61s",
            "//me:secret@a?install=maybe",
            "//me:secret@a?at_least=1s",
            "//me:secret@a?connections=4",
            "//me:secret@a?connections=4&scheme=shedlock",
            "//me:secret@a?scheme=shedlock&at_least=25h",
            "//me:secret@a?scheme=shedlock&listen=off",
            "//me:secret@a?scheme=advisory&schema=secret",
            "//me:secret@a?listen=postgres%3A%2F%2Fme%3Asecret%40a%3Ax",
            "//a?password_file=/nowhere/at/all",
        ] {
            let error = Address::read(bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let text = format!("{error:#}");
            assert!(!text.contains("secret") && !text.contains("ret@"), "{bad}: {text}");
        }
        let twice = Address::read("//a?timeout=1s&timeout=2s").expect_err("twice");
        assert!(twice.to_string().contains("the option \"timeout\" twice"), "{twice}");
        let unknown = Address::read("//a?tiemout=1s").expect_err("unknown");
        assert!(unknown.to_string().contains("the option \"tiemout\""), "{unknown}");
        let scheme = Address::read("//a?scheme=other").expect_err("unknown");
        assert_eq!(scheme.kind(), ErrorKind::Unsupported);
    }
}
