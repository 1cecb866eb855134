//! URLs of servers: their hosts, the login, and whether to use TLS.
//!
//! ```text
//! SCHEME://[user[:password]@]host[:port][,host[:port]...][/path][?option=value&...]
//! ```

use crate::tls::{self, TlsOptions};
use crate::url::{self, Secret, some};
use crate::{Error, Result};
use std::fmt;

/// A parsed URL of servers.
#[derive(Debug)]
pub struct Url<'a> {
    /// The user to log in as.
    pub user: Option<String>,
    /// The user's password, from the URL or from the place that an option names.
    pub password: Option<Secret>,
    /// The hosts and their ports, undecoded.
    pub hosts: &'a str,
    /// The path without its first slash, undecoded.
    pub path: &'a str,
    /// The certificates.
    pub tls_options: TlsOptions,
    /// The other options, with their values.
    pub options: Vec<(&'a str, String)>,
}

impl<'a> Url<'a> {
    /// Parses the part of a URL after the colon. `invalid` makes an error from a sentence that
    /// begins with the name of the URL.
    ///
    /// # Errors
    ///
    /// The error of `invalid`, or that of a password file that cannot be read.
    pub fn read<E: From<Error>>(rest: &'a str, invalid: fn(&str) -> E) -> Result<Self, E> {
        url::check(rest).map_err(|why| invalid(&why))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let rest = rest.strip_prefix("//").ok_or_else(|| invalid("lacks // after the scheme"))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let decode = |text: &str| url::decode(text).map_err(invalid);
        let mut url = Url {
            user: some(decode(user)?),
            password: some(decode(password)?).map(Secret),
            hosts,
            path,
            tls_options: TlsOptions::default(),
            options: Vec::new(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value)?;
            if key == "password_file" {
                url.password = Some(url::secret_file(key, &value)?);
            } else if key == "password_env" {
                let password = url::secret_env(key, &value).map_err(|why| invalid(&why))?;
                url.password = Some(password);
            } else if !url.tls_options.set(key, &value).map_err(|why| invalid(&why))? {
                url.options.push((key, value));
            }
        }
        Ok(url)
    }

    /// The hosts and their ports, decoded. An omitted host is this machine, but not as one of
    /// several: with a comma too many, this machine would be one of the servers.
    ///
    /// # Errors
    ///
    /// What is wrong with a host: the rest of a sentence that begins with the URL's name.
    pub fn hosts(&self, default_port: u16) -> Result<Vec<(String, u16)>, &'static str> {
        let host = |text| {
            let (host, port) = url::host_and_port(text)?;
            if text.is_empty() && !self.hosts.is_empty() {
                return Err("has a comma without a host before or after it");
            }
            let host = url::decode(if host.is_empty() { "127.0.0.1" } else { host })?;
            if text.contains(' ') {
                return Err(url::BLANK);
            }
            if host.chars().any(|c| c.is_whitespace() || c.is_control()) {
                return Err("has a host that is no host");
            }
            Ok((host, port.unwrap_or(default_port)))
        };
        self.hosts.split(',').map(host).collect()
    }
}

/// The servers of a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers {
    /// `host:port`, in the order in which the URL names them.
    pub hosts: Vec<String>,
    /// The user to log in as; only with a password.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Secret>,
    /// Whether connections use TLS.
    pub tls: bool,
    /// The certificates for TLS.
    pub tls_options: TlsOptions,
}

/// The options parsed here, for the error about an unknown one.
pub const KNOWN: &str =
    "password_file, password_env, tls, ca_file, ca_env, cert_file, cert_env, key_file and key_env";

/// The parts of a URL: the servers, and the parts that depend on the kind of server.
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
    /// Parses the part of a URL after the colon. `tls` says whether the scheme requests TLS, and
    /// `invalid` makes an error from a sentence that begins with the name of the URL.
    ///
    /// # Errors
    ///
    /// The error of `invalid`, or that of a password file that cannot be read.
    pub fn read<E: From<Error>>(
        rest: &str,
        default_port: u16,
        tls: bool,
        invalid: fn(&str) -> E,
    ) -> Result<Parts, E> {
        let url = Url::read(rest, invalid)?;
        let hosts = url.hosts.split(',').map(|text| url::host(text, default_port).map_err(invalid));
        let hosts = hosts.collect::<Result<_, E>>()?;
        let path = url::decode(url.path).map_err(invalid)?;
        let Url { user, password, tls_options, .. } = url;
        let mut servers = Servers { hosts, user, password, tls, tls_options };
        let mut options = Vec::new();
        for (key, value) in url.options {
            if key == "tls" {
                servers.tls = tls::wanted(tls, &value).map_err(invalid)?;
            } else {
                options.push((key.to_owned(), value));
            }
        }
        servers.check().map_err(invalid)?;
        Ok(Parts { servers, path, options })
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
    fn a_host_is_omitted_only_if_there_is_no_other() {
        let hosts = |rest| {
            let invalid = |why: &str| Error::new(ErrorKind::Invalid, why);
            Url::read(rest, invalid)?.hosts(7).map_err(invalid)
        };
        let here = |port| ("127.0.0.1".to_owned(), port);
        assert_eq!(hosts("//").expect("good"), [here(7)]);
        assert_eq!(hosts("//me@/x").expect("good"), [here(7)]);
        assert_eq!(hosts("//:1,:2/x").expect("good"), [here(1), here(2)]);
        for bad in ["//a,", "//,a", "//a,,b/x", "//,"] {
            let error = hosts(bad).expect_err(bad).to_string();
            assert!(error.contains("a comma without a host"), "{bad}: {error}");
        }
    }

    #[test]
    fn tls_is_not_both_wanted_and_not() {
        let tls = |rest| {
            let invalid = |why: &str| Error::new(ErrorKind::Invalid, why);
            Servers::read(rest, 7, true, invalid).map(|parts| parts.servers.tls)
        };
        assert!(tls("//a").expect("good") && tls("//a?tls=true").expect("good"));
        let error = tls("//a?tls=false").expect_err("the scheme says something else");
        assert!(error.to_string().contains("tls=false"), "{error}");
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
            let error = read(bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error:#}").contains("secret"), "{bad}: {error:#}");
        }
    }
}
