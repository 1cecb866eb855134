//! What an `etcd:` URL says.
//!
//! ```text
//! etcd[s]://[user[:password]@]host[:port][,host[:port]...][/prefix][?option=value&...]
//! ```
//!
//! The password is kept in a type that does not show it.

use crate::error::{Error, ErrorKind, Result};
use crate::stores::tls::{self, TlsOptions};
use crate::stores::url::{self, some};
use std::fmt;

pub(super) use crate::stores::url::Secret;

/// Everything about a store's servers, and where in them it keeps its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// `host:port`, in the order in which they are tried.
    pub(super) hosts: Vec<String>,
    /// What all keys begin with. Empty unless asked for, so that names mean what they mean to
    /// `etcdctl lock`.
    pub(super) prefix: String,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) tls: bool,
    pub(super) tls_options: TlsOptions,
}

const KNOWN: &str = "prefix, tls, password_file, password_env, ca_file, ca_env, cert_file, \
                     cert_env, key_file and key_env";

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
        let mut address = Address {
            hosts: hosts.split(',').map(host).collect::<Result<_>>()?,
            prefix: folder(decode(path)?),
            user: some(decode(user)?),
            password: some(decode(password)?).map(Secret),
            tls: scheme == "etcds",
            tls_options: TlsOptions::default(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            address.set(key, decode(value)?)?;
        }
        address.check()?;
        Ok(address)
    }

    fn set(&mut self, key: &str, value: String) -> Result<()> {
        if self.tls_options.set(key, &value).map_err(|why| invalid(&why))? {
            return Ok(());
        }
        match key {
            "prefix" => self.prefix = value,
            "tls" => self.tls = tls::wanted(&value).map_err(invalid)?,
            "password_file" => self.password = Some(url::secret_file(key, &value)?),
            "password_env" => {
                let password = url::secret_env(key, &value).map_err(|why| invalid(&why))?;
                self.password = Some(password);
            }
            _ => return Err(invalid(&url::unknown_option(KNOWN))),
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.user.is_none() && self.password.is_some() {
            return Err(invalid("has a password, but no user"));
        }
        if self.user.is_some() && self.password.is_none() {
            return Err(invalid("has a user, but no password; see password_file"));
        }
        self.tls_options.check(self.tls).map_err(invalid)?;
        if self.prefix.chars().any(char::is_control) {
            return Err(invalid("has a control character in its prefix"));
        }
        Ok(())
    }
}

/// The URL without its password, for messages.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "etcds://" } else { "etcd://" })?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        f.write_str(&self.hosts.join(","))?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        Ok(())
    }
}

/// With etcd's port unless another is given.
fn host(text: &str) -> Result<String> {
    url::host(text, 2379).map_err(invalid)
}

fn decode(text: &str) -> Result<String> {
    url::decode(text).map_err(invalid)
}

/// A path is a folder: `etcd://host/team` keeps the lock `a` where `etcdctl lock team/a` does.
fn folder(path: String) -> String {
    if path.is_empty() || path.ends_with('/') { path } else { path + "/" }
}

/// The URL is not shown: it may hold a password.
fn invalid(why: &str) -> Error {
    let form = "write etcd://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]/PREFIX";
    Error::new(ErrorKind::Invalid, format!("the etcd URL {why}; {form}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_who() {
        let address = Address::read("etcd", "//me:p%40ss@a,b:1,[::1]/team").expect("it is good");
        assert_eq!(address.hosts, ["a:2379", "b:1", "[::1]:2379"]);
        assert_eq!(address.prefix, "team/");
        assert_eq!(address.password, Some(Secret("p@ss".to_owned())));
        assert_eq!(address.to_string(), "etcd://me@a:2379,b:1,[::1]:2379/team/");
        assert!(!format!("{address:?}").contains("p@ss"));
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
            "//me:secret@a?ca_file=b",
            "//a?password_file=/nowhere/at/all",
            "//a?tls&cert_env=PATH",
            "//a?tls&ca_env=HOLDLINE_NOT_SET",
        ] {
            let error = Address::read("etcd", bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error:#}").contains("secret"), "{bad}: {error:#}");
        }
    }
}
