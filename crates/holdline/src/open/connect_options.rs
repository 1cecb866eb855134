//! Connection options: opening a store without writing a URL.

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use holdline_base::url::Secret;
use std::fmt::Write;

/// The connection options of a store on servers, for programs that have them in parts. Passwords,
/// above all, need no encoding here.
///
/// The options mean the same as a URL of the same scheme, and are checked in the same way. For a
/// file use [`File::open`](crate::sqlite::File::open), for memory
/// [`Memory::new`](crate::stores::memory::Memory::new), and for a quorum of stores
/// [`Quorum::new`](crate::stores::quorum::Quorum::new), then [`Client::new`].
///
/// A program that already has a client can reuse its settings (servers and credentials):
/// `&redis::ConnectionInfo`, `&tokio_postgres::Config` and `&mysql_async::Opts` convert to
/// `ConnectOptions` by `try_from`. The store opens its own connections and never uses the client's:
/// the library renews locks on its own thread even while the program is busy, and no other request
/// may delay a renewal.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn example(database: tokio_postgres::Config) -> holdline::Result<()> {
/// use holdline::ConnectOptions;
///
/// let client = ConnectOptions::try_from(&database)?.option("install", "yes").open().await?;
/// # let _ = client; Ok(()) }
/// ```
///
/// ```no_run
/// # async fn example(password: String) -> holdline::Result<()> {
/// use holdline::ConnectOptions;
///
/// let client = ConnectOptions::new("etcds")
///     .hosts(["10.0.0.1:2379", "10.0.0.2:2379", "10.0.0.3:2379"])
///     .user("locks")
///     .password(password)
///     .path("team/")
///     .option("ca_file", "/etc/ssl/etcd.pem")
///     .open()
///     .await?;
/// # let _ = client; Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "options do nothing until they are opened"]
pub struct ConnectOptions {
    scheme: String,
    hosts: Vec<String>,
    pub(super) user: Option<String>,
    password: Option<Secret>,
    path: String,
    /// Their values may be or contain passwords and keys.
    options: Vec<(String, Secret)>,
}

impl ConnectOptions {
    /// Creates options for a store of this kind, given as the scheme of its URLs, such as `redis`,
    /// `rediss+cluster`, `etcds` or `postgres`. See [`open`](crate::open()) for all schemes.
    pub fn new(scheme: impl Into<String>) -> Self {
        ConnectOptions {
            scheme: scheme.into(),
            hosts: Vec::new(),
            user: None,
            password: None,
            path: String::new(),
            options: Vec::new(),
        }
    }

    /// Adds a server: `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`; for PostgreSQL also the
    /// directory of a Unix socket.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// Adds servers, each as [`host`](Self::host) does.
    pub fn hosts<T: Into<String>>(mut self, hosts: impl IntoIterator<Item = T>) -> Self {
        self.hosts.extend(hosts.into_iter().map(Into::into));
        self
    }

    /// Sets the user to log in as.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the password, unencoded. No message contains it, and `Debug` does not show it.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(Secret(password.into()));
        self
    }

    /// Sets the part of the URL after the hosts: the database of PostgreSQL and MySQL, the
    /// database's number in Redis (with Sentinel, `SERVICE/NUMBER`), the prefix of the keys in
    /// etcd, the path of the root node in ZooKeeper, the path of a socket.
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// Sets an option of the store, as its guide describes it. Replaces an earlier value.
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.options.retain(|(other, _)| *other != name);
        self.options.push((name, Secret(value)));
        self
    }

    /// Sets the certificate authorities to trust, in PEM, in place of the system's. The option
    /// `ca_file` reads them from a file instead, again for each connection.
    pub fn ca_pem(self, authorities: impl Into<String>) -> Self {
        self.option("ca_pem", authorities)
    }

    /// Sets the client's certificate and its key, in PEM. The options `cert_file` and `key_file`
    /// read them from files instead, again for each connection.
    pub fn client_pem(self, certificate: impl Into<String>, key: impl Into<String>) -> Self {
        self.option("cert_pem", certificate).option("key_pem", key)
    }

    /// Opens the store.
    ///
    /// # Errors
    ///
    /// As [`open`](crate::open()).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes everything it has opened.
    pub async fn open(&self) -> Result<Client> {
        super::open(&self.url()?.0).await
    }

    /// The equivalent URL.
    pub(super) fn url(&self) -> Result<Secret> {
        if matches!(self.scheme.as_str(), "memory" | "sqlite" | "quorum") {
            let message = format!(
                "a store of the kind \"{}\" has no servers; open it by its URL, or by its type",
                self.scheme
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if !self.scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'+') {
            let message = "the kind of a store is the scheme of its URLs, as in \"redis\"";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if let Some(at) = self.hosts.iter().position(|host| !is_host(host)) {
            // Not shown, because it may contain a password.
            let message = format!(
                "host {} of {} is no host; write HOST, HOST:PORT or [IPV6]:PORT, and give user and \
                 password apart from it",
                at + 1,
                self.hosts.len()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let mut url = format!("{}://", self.scheme);
        if self.user.is_some() || self.password.is_some() {
            encode(&mut url, self.user.as_deref().unwrap_or_default(), b"");
            if let Some(Secret(password)) = &self.password {
                url.push(':');
                encode(&mut url, password, b"");
            }
            url.push('@');
        }
        for (at, host) in self.hosts.iter().enumerate() {
            url.push_str(if at == 0 { "" } else { "," });
            encode(&mut url, host, b":[]");
        }
        if !self.path.is_empty() {
            url.push('/');
            encode(&mut url, self.path.strip_prefix('/').unwrap_or(&self.path), b"/");
        }
        for (at, (name, Secret(value))) in self.options.iter().enumerate() {
            url.push(if at == 0 { '?' } else { '&' });
            encode(&mut url, name, b"");
            url.push('=');
            encode(&mut url, value, b"");
        }
        Ok(Secret(url))
    }
}

/// Whether this may be a host, or the directory of a socket.
fn is_host(text: &str) -> bool {
    let bad = |c: char| c.is_whitespace() || c.is_control() || "/@?#%,".contains(c);
    !text.is_empty() && (text.starts_with('/') || !text.contains(bad))
}

/// Appends a text to a URL, percent-encoding every special character except these.
fn encode(url: &mut String, text: &str, except: &[u8]) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || except.contains(&byte) {
            url.push(char::from(byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(options: &ConnectOptions) -> String {
        options.url().expect("it is good").0
    }

    #[test]
    fn parts_are_said_as_a_url_says_them() {
        let options = ConnectOptions::new("rediss+cluster")
            .host("a:1")
            .hosts(["[::1]:2", "c"])
            .password("p@ss:/?#% ü")
            .option("timeout", "1s")
            .option("prefix", "x&y=z")
            .option("timeout", "2s");
        let expected = "rediss+cluster://:p%40ss%3A%2F%3F%23%25%20%C3%BC@a:1,[::1]:2,c?\
                        prefix=x%26y%3Dz&timeout=2s";
        assert_eq!(url(&options), expected);
        assert!(!format!("{options:?}").contains("p@ss"), "{options:?}");
        let options = ConnectOptions::new("etcds").host("a").ca_pem("A\nB").client_pem("C", "k3y");
        assert_eq!(url(&options), "etcds://a?ca_pem=A%0AB&cert_pem=C&key_pem=k3y");
        assert!(!format!("{options:?}").contains("k3y"), "{options:?}");
        let options = ConnectOptions::new("zookeeper").host("a").user("me").path("/team/ä");
        assert_eq!(url(&options), "zookeeper://me@a/team/%C3%A4");
        assert_eq!(url(&ConnectOptions::new("redis+unix").path("/run/r")), "redis+unix:///run/r");
    }

    #[tokio::test]
    async fn bad_values_are_errors_that_tell_no_password() {
        let secret = |scheme: &str| ConnectOptions::new(scheme).user("me").password("s3cret/#");
        let bad = [
            secret("sqlite").path("locks.db"),
            secret("quorum"),
            secret("no such kind").host("a"),
            secret("nosuchkind").host("a"),
            #[cfg(feature = "redis")]
            secret("redis").host("a b"),
            #[cfg(feature = "redis")]
            secret("redis").host("a,b"),
            #[cfg(feature = "redis")]
            secret("redis").host("a/b"),
            #[cfg(feature = "redis")]
            ConnectOptions::new("redis").hosts(["a", "me:s3cret@b"]),
            #[cfg(feature = "redis")]
            secret("redis").host("a").path("first"),
            #[cfg(feature = "redis")]
            secret("redis").host("a").option("no such", "x"),
            #[cfg(feature = "etcd")]
            secret("etcd").hosts(["a:1", "b:0"]),
            #[cfg(feature = "etcd")]
            secret("etcd"),
            #[cfg(feature = "etcd-tls")]
            secret("etcds").host("a").ca_pem("s3cret, and no PEM"),
            #[cfg(feature = "zookeeper-tls")]
            secret("zks").host("a").client_pem("s3cret, and no PEM", "s3cret"),
            #[cfg(feature = "zookeeper")]
            secret("zookeeper").host("a").option("session", "1"),
            #[cfg(feature = "postgres")]
            secret("postgres").host("a").option("sslmode", "perhaps"),
            #[cfg(feature = "mysql")]
            secret("mysql").host("a"),
        ];
        for options in bad {
            let error = options.open().await.expect_err("it makes no sense");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{options:?}: {error:#}");
            assert!(!format!("{error:#} {error:?}").contains("s3cret"), "{error:#}");
        }
    }
}
