//! What a `zookeeper:` URL says.
//!
//! ```text
//! zookeeper|zks://[user:password@]host[:port][,host[:port]...][/chroot][?option=value&...]
//! ```
//!
//! The password is kept in a type that does not show it.

use super::dialect::Dialect;
use crate::error::{Error, ErrorKind, Result};
use crate::stores::tls::{self, TlsOptions};
use crate::stores::url::{self, Secret, some};
use std::fmt;
use std::time::Duration;

/// Everything about a store's servers, and where in them it keeps its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// `host:port`.
    pub(super) hosts: Vec<String>,
    /// The node below which everything is: empty, or a path that begins with a slash.
    pub(super) root: String,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) login: Login,
    /// Whether our nodes are for our user alone.
    pub(super) private: bool,
    pub(super) dialect: Dialect,
    /// Whether to wait behind nodes of a dialect whose clients do not see ours.
    pub(super) mixed: bool,
    /// The session that is asked for.
    pub(super) session: Duration,
    pub(super) tls: bool,
    pub(super) tls_options: TlsOptions,
}

/// How a user shows who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Login {
    /// ZooKeeper's own scheme: a name and a password, known to the nodes' access lists.
    Digest,
    /// DIGEST-MD5 over SASL: a name and a password that the servers know.
    Sasl,
}

const KNOWN: &str = "dialect, mixed, session, auth, acl, password_file, password_env, tls, \
                     ca_file, ca_env, cert_file, cert_env, key_file and key_env";
/// Long enough for locks of ten seconds, which is what they have unless told otherwise.
const SESSION: Duration = Duration::from_secs(15);
const SESSIONS: std::ops::RangeInclusive<u64> = 2..=3600;

impl Address {
    /// Reads what follows the colon of a URL of this scheme.
    pub(super) fn read(scheme: &str, rest: &str) -> Result<Address> {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if rest.contains('#') || query.contains('#') {
            return Err(invalid("has a part after #; write # in a password as %23"));
        }
        let rest = rest.strip_prefix("//").ok_or_else(|| invalid("lacks // after the scheme"))?;
        let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        if login.contains('/') {
            return Err(invalid("has a / before the @; write / in a password as %2F"));
        }
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let hosts = hosts.split(',').map(|text| url::host(text, 2181).map_err(invalid));
        let mut address = Address {
            hosts: hosts.collect::<Result<_>>()?,
            root: root(&decode(path)?)?,
            user: some(decode(user)?),
            password: some(decode(password)?).map(Secret),
            login: Login::Digest,
            private: true,
            dialect: Dialect::Curator,
            mixed: false,
            session: SESSION,
            tls: scheme == "zks",
            tls_options: TlsOptions::default(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            address.set(key, &decode(value)?)?;
        }
        if address.user.is_none() && address.password.is_some() {
            return Err(invalid("has a password, but no user"));
        }
        if address.user.is_some() && address.password.is_none() {
            return Err(invalid("has a user, but no password; see password_file"));
        }
        address.tls_options.check(address.tls).map_err(invalid)?;
        Ok(address)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        if self.tls_options.set(key, value).map_err(|why| invalid(&why))? {
            return Ok(());
        }
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
            ("tls", _) => self.tls = tls::wanted(value).map_err(invalid)?,
            ("password_file", path) => self.password = Some(url::secret_file(key, path)?),
            ("password_env", variable) => {
                let password = url::secret_env(key, variable).map_err(|why| invalid(&why))?;
                self.password = Some(password);
            }
            _ => return Err(invalid(&url::unknown_option(KNOWN))),
        }
        Ok(())
    }
}

/// The URL without its password, for messages.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "zks://" } else { "zookeeper://" })?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        write!(f, "{}{}", self.hosts.join(","), self.root)
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

fn decode(text: &str) -> Result<String> {
    url::decode(text).map_err(invalid)
}

/// The URL is not shown: it may hold a password.
fn invalid(why: &str) -> Error {
    let form = "write zookeeper://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]/PATH";
    Error::new(ErrorKind::Invalid, format!("the ZooKeeper URL {why}; {form}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_who() {
        let text = "//me:p%40ss@a,b:1,[::1]/team/locks/?dialect=kazoo&session=20s&auth=sasl";
        let address = Address::read("zk", text).expect("it is good");
        assert_eq!(address.hosts, ["a:2181", "b:1", "[::1]:2181"]);
        assert_eq!((address.root.as_str(), address.dialect), ("/team/locks", Dialect::Kazoo));
        assert_eq!((address.session, address.login), (Duration::from_secs(20), Login::Sasl));
        assert_eq!(address.password, Some(Secret("p@ss".to_owned())));
        assert_eq!(address.to_string(), "zookeeper://me@a:2181,b:1,[::1]:2181/team/locks");
        assert!(!format!("{address:?}").contains("p@ss"));
    }

    #[test]
    fn tls_is_asked_for_in_two_ways() {
        let by_scheme = Address::read("zks", "//a?ca_file=b").expect("it is good");
        assert_eq!(by_scheme.to_string(), "zks://a:2181");
        assert_eq!(Address::read("zk", "//a?tls=true&ca_file=b").expect("it is good"), by_scheme);
        assert!(!Address::read("zk", "//a").expect("it is good").tls);
    }

    #[test]
    fn nonsense_is_refused_and_not_repeated() {
        for bad in [
            "secret",
            "//",
            "//:1",
            "//a:0",
            "//a:x",
            "//:secret@a",
            "//me@a",
            "//me:secret@a?x=y",
            "//me:secret%@a",
            "//me:secret@a#b",
            "//me:secret@a?dialect=secret",
            "//me:secret@a?session=1",
            "//me:secret@a?session=secret",
            "//a/b//c",
            "//a/..",
            "//a?password_file=/nowhere/at/all",
            "//me:secret@a?ca_file=b",
            "//me:secret@a?tls=secret",
            "//a?tls&cert_env=PATH",
            "//a?tls&ca_env=HOLDLINE_NOT_SET",
        ] {
            let error = Address::read("zk", bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error:#}").contains("secret"), "{bad}: {error:#}");
        }
    }
}
