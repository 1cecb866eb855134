//! What an `etcd:` URL says.
//!
//! ```text
//! etcd[s]://[user[:password]@]host[:port][,host[:port]...][/prefix][?option=value&...]
//! ```
//!
//! The password is kept in a type that does not show it.

use crate::error::{Error, ErrorKind, Result};
use std::fmt;

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
    /// A file with the certificates to trust, instead of the system's.
    pub(super) ca_file: Option<String>,
    /// Files with a certificate of our own, and its key.
    pub(super) cert_file: Option<String>,
    pub(super) key_file: Option<String>,
}

/// A password. Not shown, whatever prints it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

const KNOWN: &str = "prefix, tls, password_file, password_env, ca_file, cert_file and key_file";

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
            ca_file: None,
            cert_file: None,
            key_file: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            address.set(key, decode(value)?)?;
        }
        address.check()?;
        Ok(address)
    }

    fn set(&mut self, key: &str, value: String) -> Result<()> {
        match key {
            "prefix" => self.prefix = value,
            "tls" => {
                self.tls = match &*value {
                    "true" | "1" | "" => true,
                    "false" | "0" => false,
                    _ => return Err(invalid("has an option tls that is neither true nor false")),
                }
            }
            "password_file" => self.password = Some(Secret(file("password_file", &value)?)),
            "password_env" => {
                let found = std::env::var(&value).map_err(|_| {
                    invalid("names a variable of the environment by password_env that is not set")
                })?;
                self.password = Some(Secret(found));
            }
            "ca_file" => self.ca_file = Some(value),
            "cert_file" => self.cert_file = Some(value),
            "key_file" => self.key_file = Some(value),
            _ => {
                return Err(invalid(&format!(
                    "has an option that is not known; known are {KNOWN}"
                )));
            }
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
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(invalid("needs cert_file and key_file together"));
        }
        let files = [&self.ca_file, &self.cert_file, &self.key_file];
        if !self.tls && files.iter().any(|file| file.is_some()) {
            return Err(invalid("has certificates, but no TLS; write etcds://"));
        }
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

/// `host:port`, with etcd's port unless another is given.
fn host(text: &str) -> Result<String> {
    let (name, port) = match text.rsplit_once(':') {
        // The colons of an IPv6 address are inside of its brackets.
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (text, "2379"),
    };
    let bad = |c: char| c.is_whitespace() || c.is_control() || c == '%';
    if name.is_empty() || name.contains(bad) {
        return Err(invalid("has a host that is no host"));
    }
    match port.parse::<u16>() {
        Ok(port) if port != 0 => Ok(format!("{name}:{port}")),
        _ => Err(invalid("has a port that is no port")),
    }
}

/// The first line of a file that holds a secret.
fn file(option: &str, path: &str) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let message = format!("the file {path} that {option} names could not be read");
        Error::because(ErrorKind::Invalid, message, error)
    })?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// A path is a folder: `etcd://host/team` keeps the lock `a` where `etcdctl lock team/a` does.
fn folder(path: String) -> String {
    if path.is_empty() || path.ends_with('/') { path } else { path + "/" }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Turns `%20` and the like into what they stand for.
fn decode(text: &str) -> Result<String> {
    let wrong = || invalid("has a % that is not followed by two hexadecimal digits");
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(wrong()) };
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| wrong())?);
    }
    String::from_utf8(bytes).map_err(|_| invalid("is not UTF-8 once decoded"))
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
        ] {
            let error = Address::read("etcd", bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error:#}").contains("secret"), "{bad}: {error:#}");
        }
    }
}
