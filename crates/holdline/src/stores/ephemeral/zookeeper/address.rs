//! The address in a `zookeeper:` URL.
//!
//! ```text
//! zookeeper|zks://[user:password@]host[:port][,host[:port]...][/chroot][?option=value&...]
//! ```
//!
//! The password has a type that does not show it.

use super::dialect::Dialect;
use crate::error::{Error, ErrorKind, Result};
use crate::stores::servers::{KNOWN, Parts, Servers};
use crate::stores::url;
use holdline_base::net::Tls;
use holdline_zookeeper_client::{Config, Login};
use std::fmt;
use std::time::Duration;

/// The address of a store: its servers, and the root of its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) servers: Servers,
    /// The path of the root node: empty, or beginning with a slash.
    pub(super) root: String,
    pub(super) login: Login,
    /// Whether only our user may access our nodes.
    pub(super) private: bool,
    pub(super) dialect: Dialect,
    /// Whether to wait behind nodes of a dialect whose clients do not see ours.
    pub(super) mixed: bool,
    /// The requested session timeout.
    pub(super) session: Duration,
}

/// Long enough for locks with the default lease of ten seconds.
const SESSION: Duration = Duration::from_secs(15);
const SESSIONS: std::ops::RangeInclusive<u64> = 2..=3600;

impl Address {
    /// Parses the part of a URL after this scheme and the colon.
    pub(super) fn read(scheme: &str, rest: &str) -> Result<Address> {
        let Parts { servers, path, options } = Servers::read(rest, 2181, scheme == "zks", invalid)?;
        let mut address = Address {
            servers,
            root: root(&path)?,
            login: Login::Digest,
            private: true,
            dialect: Dialect::Curator,
            mixed: false,
            session: SESSION,
        };
        for (option, value) in &options {
            address.set(option, value)?;
        }
        // Without a user, nodes are open to everybody, whatever was asked for.
        let mut asked = options.iter().map(|(key, value)| (&**key, &**value));
        let needs_user = asked.any(|it| matches!(it, ("auth", _) | ("acl", "creator")));
        if needs_user && address.servers.user.is_none() {
            return Err(invalid("has auth or acl=creator, but no user"));
        }
        Ok(address)
    }

    /// The configuration of a session.
    ///
    /// # Errors
    ///
    /// An error means that TLS is requested, and its certificates or the hosts are unusable for it.
    pub(super) fn config(&self) -> Result<Config> {
        let feature = ("zookeeper-tls", cfg!(feature = "zookeeper-tls"));
        Ok(Config {
            tls: Tls::new(&self.servers, self, None, feature)?,
            name: self.to_string(),
            login: self.login,
            session: self.session,
            root: if self.root.is_empty() { "/" } else { &self.root }.to_owned(),
            ..Config::new(self.servers.clone())
        })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match (key, value) {
            ("dialect", "curator") => self.dialect = Dialect::Curator,
            ("dialect", "kazoo") => self.dialect = Dialect::Kazoo,
            ("dialect", _) => return Err(invalid("has a dialect other than curator and kazoo")),
            ("mixed", "refuse") => self.mixed = false,
            ("mixed", "wait") => self.mixed = true,
            ("mixed", _) => return Err(invalid("has an option mixed other than refuse and wait")),
            ("auth", "digest") => self.login = Login::Digest,
            ("auth", "sasl") => self.login = Login::Sasl,
            ("auth", _) => return Err(invalid("has an option auth other than digest and sasl")),
            ("acl", "creator") => self.private = true,
            ("acl", "open") => self.private = false,
            ("acl", _) => return Err(invalid("has an option acl other than creator and open")),
            ("session", _) => {
                let seconds = value.trim_end_matches('s').parse().ok();
                let seconds = seconds.filter(|seconds| SESSIONS.contains(seconds));
                let wrong = || invalid("has a session that is not 2 to 3600 seconds long");
                self.session = Duration::from_secs(seconds.ok_or_else(wrong)?);
            }
            _ => {
                let known = format!("dialect, mixed, session, auth, acl, {KNOWN}");
                return Err(invalid(&url::unknown_option(key, &known)));
            }
        }
        Ok(())
    }
}

/// The URL without its password, for messages.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.servers.tls { "zks" } else { "zookeeper" };
        write!(f, "{scheme}://{}{}", self.servers, self.root)
    }
}

/// The path of the root node.
fn root(path: &str) -> Result<String> {
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return Ok(String::new());
    }
    let bad = |part: &str| part.is_empty() || part == "." || part == "..";
    if path.split('/').any(bad) || path.chars().any(char::is_control) {
        return Err(invalid("has a path that is no path of a node"));
    }
    Ok(format!("/{path}"))
}

/// The error for a URL, which is not shown because it may contain a password.
fn invalid(why: &str) -> Error {
    let form = "write zookeeper://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]/PATH";
    Error::new(ErrorKind::Invalid, format!("the ZooKeeper URL {why}; {form}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_the_root_node() {
        let text = "//me:secret@a,b:1/team/locks/?dialect=kazoo&session=20s&auth=sasl";
        let address = Address::read("zk", text).expect("it is good");
        assert_eq!((address.root.as_str(), address.dialect), ("/team/locks", Dialect::Kazoo));
        assert_eq!((address.session, address.login), (Duration::from_secs(20), Login::Sasl));
        assert_eq!(address.to_string(), "zookeeper://me@a:2181,b:1/team/locks");
    }

    #[test]
    fn tls_is_asked_for_in_two_ways() {
        let by_scheme = Address::read("zks", "//a?ca_file=b").expect("it is good");
        assert_eq!(by_scheme.to_string(), "zks://a:2181");
        assert_eq!(Address::read("zk", "//a?tls=true&ca_file=b").expect("it is good"), by_scheme);
        assert!(!Address::read("zk", "//a").expect("it is good").servers.tls);
    }

    #[test]
    fn nonsense_is_refused_and_not_repeated() {
        for bad in [
            "//me:secret@a?x=y",
            "//me:secret@a?dialect=secret",
            "//me:secret@a?session=1",
            "//me:secret@a?session=secret",
            "//me:secret@a/b//c",
            "//me:secret@a/..",
            "//a?acl=creator",
            "//a?auth=sasl",
        ] {
            let error = Address::read("zk", bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error:#}").contains("secret"), "{bad}: {error:#}");
        }
    }
}
