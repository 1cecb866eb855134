//! The address in an `etcd:` URL.
//!
//! ```text
//! etcd[s]://[user[:password]@]host[:port][,host[:port]...][/prefix][?option=value&...]
//! ```
//!
//! The password has a type that does not show it.

use crate::error::{Error, ErrorKind, Result};
use crate::stores::servers::{KNOWN, Parts, Servers};
use crate::stores::url;
use holdline_base::net::Tls;
use std::fmt;

/// The address of a store: its servers, and the prefix of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The members, in the order in which they are tried.
    pub(super) servers: Servers,
    /// The prefix of all keys. Empty by default, so that names mean the same as in `etcdctl lock`.
    pub(super) prefix: String,
}

impl Address {
    /// Parses the part of a URL after this scheme and the colon.
    pub(super) fn read(scheme: &str, rest: &str) -> Result<Address> {
        let Parts { servers, path, options } =
            Servers::read(rest, 2379, scheme == "etcds", invalid)?;
        let mut address = Address { servers, prefix: folder(path) };
        for (option, value) in options {
            if option != "prefix" {
                let known = format!("prefix, {KNOWN}");
                return Err(invalid(&url::unknown_option(&option, &known)));
            }
            if !address.prefix.is_empty() {
                return Err(invalid("has two prefixes, in the path and as prefix"));
            }
            address.prefix = value;
        }
        if address.prefix.chars().any(char::is_control) {
            return Err(invalid("has a control character in its prefix"));
        }
        Ok(address)
    }

    /// The TLS settings of the connections, if any.
    pub(super) fn tls(&self) -> Result<Option<Tls>> {
        let feature = ("etcd-tls", cfg!(feature = "etcd-tls"));
        Ok(Tls::new(&self.servers, self, Some(b"h2"), feature)?)
    }
}

/// The URL without its password, for messages.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.servers.tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}", self.servers)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        Ok(())
    }
}

/// The key prefix for a path, which is a folder: with `etcd://host/team`, the lock `a` is the one
/// of `etcdctl lock team/a`.
fn folder(path: String) -> String {
    if path.is_empty() || path.ends_with('/') { path } else { path + "/" }
}

/// The error for a URL, which is not shown because it may contain a password.
fn invalid(why: &str) -> Error {
    let form = "write etcd://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]/PREFIX";
    Error::new(ErrorKind::Invalid, format!("the etcd URL {why}; {form}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_the_prefix_of_the_keys() {
        let address = Address::read("etcd", "//me:secret@a,b:1/team").expect("it is good");
        assert_eq!(address.prefix, "team/");
        assert_eq!(address.to_string(), "etcd://me@a:2379,b:1/team/");
        let plain = Address::read("etcds", "//a?prefix=x").expect("it is good");
        assert_eq!((plain.prefix.as_str(), plain.servers.tls), ("x", true));
    }

    #[test]
    fn nonsense_is_refused_and_not_repeated() {
        for bad in [
            "//me:secret@a?x=y",
            "//me:secret@a?prefix=%0a",
            "//me:secret@a:x",
            "//me:secret@a/team?prefix=x/",
            "//me:secret@a/team?prefix=",
        ] {
            let error = Address::read("etcd", bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error:#}").contains("secret"), "{bad}: {error:#}");
        }
    }
}
