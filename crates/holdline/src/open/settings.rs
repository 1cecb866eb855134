//! Conversions from the settings of a client that the program already has to connection options.
//!
//! The location and the identity are taken over: hosts, database, user, password, TLS. Behaviour
//! (time limits, keepalives, session settings) is not: a store has its own. Settings that a store
//! cannot follow are refused, above all TLS settings that it would have to drop.

use super::ConnectOptions;
use crate::error::{Error, ErrorKind, Result};

/// The error for a setting that a store cannot follow.
fn refused(client: &str, what: &str) -> Error {
    let message = format!("a store cannot be opened by these settings of {client}: they {what}");
    Error::new(ErrorKind::Invalid, message)
}

/// A host and its port in the form that [`ConnectOptions::host`] takes.
fn join(host: &str, port: u16) -> String {
    holdline_base::url::join(host, port)
}

/// Takes over the settings of a `redis::Client`, which its `get_connection_info` returns.
///
/// The store opens its own connections to the same server: see [`ConnectOptions`]. Time limits, the
/// protocol version and the library's name are not taken over.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if TLS does not verify the host, or uses its own certificates, which
/// cannot be read from these settings: set `rediss` and [`ca_pem`](ConnectOptions::ca_pem).
#[cfg(feature = "redis")]
impl TryFrom<&redis::ConnectionInfo> for ConnectOptions {
    type Error = Error;

    fn try_from(info: &redis::ConnectionInfo) -> Result<Self> {
        use redis::ConnectionAddr::{Tcp, TcpTls, Unix};
        let refused = |what| refused("redis", what);
        let mut options = match info.addr() {
            Tcp(host, port) => ConnectOptions::new("redis").host(join(host, *port)),
            TcpTls { insecure: true, .. } => {
                return Err(refused("have TLS that does not verify the host"));
            }
            TcpTls { tls_params: Some(_), .. } => {
                return Err(refused("have certificates, which cannot be read out of them"));
            }
            TcpTls { host, port, .. } => ConnectOptions::new("rediss").host(join(host, *port)),
            Unix(path) => {
                let path = path.to_str().ok_or_else(|| refused("have a path that is no text"))?;
                ConnectOptions::new("redis+unix").path(path)
            }
            _ => return Err(refused("have an address of a kind that is not known here")),
        };
        let settings = info.redis_settings();
        if settings.db() != 0 {
            options = options.option("db", settings.db().to_string());
        }
        options.user = settings.username().map(str::to_owned);
        Ok(settings.password().map_or(options.clone(), |password| options.password(password)))
    }
}

/// Takes over the settings of a `tokio_postgres` client or pool.
///
/// The store opens its own connections to the same database: see [`ConnectOptions`]. Time limits,
/// keepalives and the application's name are not taken over.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the settings leave open whether connections use TLS (`sslmode=prefer`,
/// the client's default: set `disable` or `require`), or if a store cannot follow them: `options`,
/// `hostaddr`, direct TLS, mandatory channel binding.
#[cfg(feature = "postgres")]
impl TryFrom<&tokio_postgres::Config> for ConnectOptions {
    type Error = Error;

    fn try_from(config: &tokio_postgres::Config) -> Result<Self> {
        use tokio_postgres::config::{ChannelBinding, Host, SslMode, SslNegotiation};
        let refused = |what| refused("tokio_postgres", what);
        let hosts = config.get_hosts();
        let is_local = !hosts.is_empty() && hosts.iter().all(|host| matches!(host, Host::Unix(_)));
        let mode = match config.get_ssl_mode() {
            SslMode::Disable => "disable",
            SslMode::Require => "require",
            _ if is_local => "disable",
            _ => return Err(refused("leave open whether there is TLS; set sslmode")),
        };
        if config.get_ssl_negotiation() != SslNegotiation::Postgres {
            return Err(refused("want TLS without negotiation"));
        }
        if config.get_channel_binding() == ChannelBinding::Require {
            return Err(refused("demand channel binding"));
        }
        if config.get_options().is_some() {
            return Err(refused("have options for the server"));
        }
        if !config.get_hostaddrs().is_empty() {
            return Err(refused("have a hostaddr"));
        }
        let mut options = ConnectOptions::new("postgres").option("sslmode", mode);
        for (at, host) in hosts.iter().enumerate() {
            let ports = config.get_ports();
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            options = options.host(match host {
                Host::Tcp(host) => join(host, port),
                Host::Unix(path) => format!("{}:{port}", path.display()),
            });
        }
        options.user = config.get_user().map(str::to_owned);
        if let Some(password) = config.get_password() {
            let password = str::from_utf8(password);
            options = options
                .password(password.map_err(|_| refused("have a password that is not UTF-8"))?);
        }
        Ok(config.get_dbname().map_or(options.clone(), |name| options.path(name)))
    }
}

/// Takes over the settings of a `mysql_async` client or pool.
///
/// The store opens its own connections to the same database: see [`ConnectOptions`]. The pool's
/// limits, keepalives and session settings are not taken over. If the settings have no certificate
/// authorities, TLS trusts the system's.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if there is no user, if the server is at a socket, or if TLS does not
/// verify the server or uses its own certificates, which cannot be read from these settings: set
/// `tls` and [`ca_pem`](ConnectOptions::ca_pem).
#[cfg(feature = "mysql")]
impl TryFrom<&mysql_async::Opts> for ConnectOptions {
    type Error = Error;

    fn try_from(opts: &mysql_async::Opts) -> Result<Self> {
        let refused = |what| refused("mysql_async", what);
        if opts.socket().is_some() {
            return Err(refused("name a socket"));
        }
        let user = opts.user().ok_or_else(|| refused("name no user"))?;
        let host = join(opts.ip_or_hostname(), opts.tcp_port());
        let mut options = ConnectOptions::new("mysql").host(host).user(user);
        if let Some(password) = opts.pass() {
            options = options.password(password);
        }
        if let Some(name) = opts.db_name() {
            options = options.path(name);
        }
        let Some(tls) = opts.ssl_opts() else { return Ok(options) };
        if tls.skip_domain_validation()
            || tls.accept_invalid_certs()
            || tls.tls_hostname_override().is_some()
        {
            return Err(refused("have TLS that does not verify the server, or another's name"));
        }
        #[cfg(feature = "mysql-tls")]
        let has_identity = tls.client_identity().is_some();
        #[cfg(not(feature = "mysql-tls"))]
        let has_identity = false;
        if has_identity || !tls.root_certs().is_empty() {
            return Err(refused("have certificates, which cannot be read out of them"));
        }
        options = options.option("tls", "true");
        Ok(options)
    }
}

#[cfg(all(test, feature = "redis", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;

    fn url<T>(settings: T) -> String
    where
        ConnectOptions: TryFrom<T, Error = Error>,
    {
        let options = ConnectOptions::try_from(settings).expect("it can follow these");
        options.url().expect("they are good").0
    }

    fn refusal<T>(settings: T) -> String
    where
        ConnectOptions: TryFrom<T, Error = Error>,
    {
        let error = ConnectOptions::try_from(settings).expect_err("it cannot follow these");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let text = format!("{error:#} {error:?}");
        assert!(!text.contains("s3cret"), "{text}");
        text
    }

    #[test]
    fn redis() {
        let of = |url: &str| redis::Client::open(url).expect(url);
        for (theirs, ours) in [
            ("redis://h", "redis://h:6379"),
            ("redis://me:s3cret%2F@[::1]:7/2", "redis://me:s3cret%2F@[::1]:7?db=2"),
            ("rediss://:s3cret@h:7", "rediss://:s3cret@h:7"),
            ("redis+unix:///run/r?db=1&pass=s3cret", "redis+unix://:s3cret@/run/r?db=1"),
        ] {
            assert_eq!(url(of(theirs).get_connection_info()), ours);
        }
        let insecure = of("rediss://:s3cret@h/#insecure");
        assert!(refusal(insecure.get_connection_info()).contains("does not verify the host"));
    }

    #[test]
    fn postgres() {
        let of = |text: &str| text.parse::<tokio_postgres::Config>().expect(text);
        for (theirs, ours) in [
            (
                "host=a,b port=1,2 user=me password='s3cret /' dbname=d sslmode=require",
                "postgres://me:s3cret%20%2F@a:1,b:2/d?sslmode=require",
            ),
            ("host=a,b port=1 user=me sslmode=disable", "postgres://me@a:1,b:1?sslmode=disable"),
            ("host=/run/pg user=me", "postgres://me@%2Frun%2Fpg:5432?sslmode=disable"),
            ("host=::1 user=me sslmode=disable", "postgres://me@[::1]:5432?sslmode=disable"),
        ] {
            assert_eq!(url(&of(theirs)), ours);
        }
        for (theirs, why) in [
            ("", "leave open whether there is TLS"),
            ("sslnegotiation=direct sslmode=require", "without negotiation"),
            ("channel_binding=require sslmode=require", "demand channel binding"),
            ("options='-c a=b' sslmode=require", "options for the server"),
            ("hostaddr=127.0.0.1 sslmode=require", "hostaddr"),
        ] {
            let text = refusal(&of(&format!("host=a user=me password=s3cret {theirs}")));
            assert!(text.contains(why), "{theirs}: {text}");
        }
    }

    #[test]
    fn mysql() {
        use mysql_async::{OptsBuilder, SslOpts};
        let of = |url: &str| mysql_async::Opts::from_url(url).expect(url);
        let with = |url: &str, tls: SslOpts| {
            mysql_async::Opts::from(OptsBuilder::from_opts(of(url)).ssl_opts(tls))
        };
        assert_eq!(url(&of("mysql://me:s3cret%2F@h:7/d")), "mysql://me:s3cret%2F@h:7/d");
        let plain = "mysql://me:s3cret@h/d";
        let tls = url(&with(plain, SslOpts::default()));
        assert_eq!(tls, "mysql://me:s3cret@h:3306/d?tls=true");
        let text = SslOpts::default().with_root_certs(vec![b"PEM".to_vec().into()]);
        assert!(refusal(&with(plain, text)).contains("have certificates"));
        let lax = SslOpts::default().with_danger_accept_invalid_certs(true);
        assert!(refusal(&with(plain, lax)).contains("does not verify"));
        assert!(refusal(&of("mysql://h/d")).contains("no user"));
        let socket = OptsBuilder::from_opts(of(plain)).socket(Some("/run/m.sock"));
        assert!(refusal(&mysql_async::Opts::from(socket)).contains("socket"));
    }
}
