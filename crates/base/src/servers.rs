//! The servers that a URL names, how to log in to them, and whether over TLS.
//!
//! ```text
//! SCHEME://[user[:password]@]host[:port][,host[:port]...][/path][?option=value&...]
//! ```

use crate::tls::{self, TlsOptions};
use crate::url::{self, Secret, some};
use crate::{Error, Result};
use std::fmt;

/// The servers of a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers {
    /// `host:port`, in the order in which the URL names them.
    pub hosts: Vec<String>,
    /// The user to log in as; not without a password.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Secret>,
    /// Whether connections are over TLS.
    pub tls: bool,
    /// The certificates for that.
    pub tls_options: TlsOptions,
}

/// The options that are read here, for the error about one that is not known.
pub const KNOWN: &str =
    "password_file, password_env, tls, ca_file, ca_env, cert_file, cert_env, key_file and key_env";

/// A URL that was read: the servers, and what its kind of server makes sense of.
#[derive(Debug)]
pub struct Parts {
    /// The servers.
    pub servers: Servers,
    /// The path without its first slash.
    pub path: String,
    /// The options that are not about the servers, with their values.
    pub options: Vec<(String, String)>,
}

impl Servers {
    /// Reads what follows the colon of a URL. `tls` says whether the scheme asks for TLS, and
    /// `invalid` makes an error of a sentence that begins with the name of the URL.
    ///
    /// # Errors
    ///
    /// That of `invalid`, or of a password's file that cannot be read.
    pub fn read<E: From<Error>>(
        rest: &str,
        default_port: u16,
        tls: bool,
        invalid: fn(&str) -> E,
    ) -> Result<Parts, E> {
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
        let decode = |text: &str| url::decode(text).map_err(invalid);
        let hosts = hosts.split(',').map(|text| url::host(text, default_port).map_err(invalid));
        let mut servers = Servers {
            hosts: hosts.collect::<Result<_, E>>()?,
            user: some(decode(user)?),
            password: some(decode(password)?).map(Secret),
            tls,
            tls_options: TlsOptions::default(),
        };
        let mut options = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value)?;
            if !servers.set(key, &value, invalid)? {
                options.push((key.to_owned(), value));
            }
        }
        servers.check().map_err(invalid)?;
        Ok(Parts { servers, path: decode(path)?, options })
    }

    /// Sets an option. `false` if it is not about the servers.
    fn set<E: From<Error>>(
        &mut self,
        key: &str,
        value: &str,
        invalid: fn(&str) -> E,
    ) -> Result<bool, E> {
        match key {
            "tls" => self.tls = tls::wanted(value).map_err(invalid)?,
            "password_file" => self.password = Some(url::secret_file(key, value)?),
            "password_env" => {
                let password = url::secret_env(key, value).map_err(|why| invalid(&why))?;
                self.password = Some(password);
            }
            _ => return self.tls_options.set(key, value).map_err(|why| invalid(&why)),
        }
        Ok(true)
    }

    fn check(&self) -> Result<(), &'static str> {
        match (&self.user, &self.password) {
            (None, Some(_)) => Err("has a password, but no user"),
            (Some(_), None) => Err("has a user, but no password; see password_file"),
            _ => self.tls_options.check(self.tls),
        }
    }
}

/// The user and the hosts, without the password.
impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        f.write_str(&self.hosts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn read(rest: &str) -> Result<Parts> {
        let invalid = |why: &str| Error::new(ErrorKind::Invalid, format!("the URL {why}"));
        Servers::read(rest, 7, false, invalid)
    }

    #[test]
    fn a_url_says_where_and_who() {
        let Parts { servers, path, options } =
            read("//me:p%40ss@a,b:1,[::1]/team/%2e?tls=true&x=%20y&ca_file=c").expect("it is good");
        assert_eq!(servers.hosts, ["a:7", "b:1", "[::1]:7"]);
        assert_eq!(servers.password, Some(Secret("p@ss".to_owned())));
        assert!(servers.tls && servers.tls_options.ca.is_some());
        assert_eq!((path.as_str(), options), ("team/.", vec![("x".to_owned(), " y".to_owned())]));
        assert_eq!(servers.to_string(), "me@a:7,b:1,[::1]:7");
        assert!(!format!("{servers:?}").contains("p@ss"));
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
            "//me:secret%@a",
            "//me:secret@a#b",
            "//me:secret@a?ca_file=b",
            "//me:secret@a?tls=secret",
            "//a?password_file=/nowhere/at/all",
            "//a?tls&cert_env=PATH",
            "//a?tls&ca_env=HOLDLINE_NOT_SET",
        ] {
            let error = read(bad).err().expect(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error:#}").contains("secret"), "{bad}: {error:#}");
        }
    }
}
