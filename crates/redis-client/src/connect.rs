//! Connecting: to one server, to the primary that sentinels name, or to a cluster.

use crate::config::{Config, Kind};
use crate::fault::{Fault, broken, says};
use crate::notices::{self, Notices};
use holdline_base::{Error, ErrorKind, clock};
use redis::ErrorKind::{AuthenticationFailed, RESP3NotSupported};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, Value,
};
use std::pin::pin;
use std::sync::Arc;

/// The client name sent to the server.
const LIBRARY: &str = "holdline";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The reply, or the error that it is.
pub(crate) fn or_error(reply: Value) -> Result<Value, RedisError> {
    match reply {
        error @ Value::ServerError(_) => error.extract_error(),
        reply => Ok(reply),
    }
}

/// How a connection for commands starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// The connection is ready when the server has answered the introduction of this client.
    Answered,
    /// The connection is ready at once, for a call that is sent next: the introduction of this
    /// client is sent along with it. Passwords are still checked.
    Unanswered,
}

/// Connects to one server for commands, and subscribes to the channel, if there is one. The caller
/// limits the time.
pub(crate) async fn commands(
    config: &Arc<Config>,
    reply_order_channel: &str,
    begin: Begin,
) -> Result<MultiplexedConnection, Fault> {
    let addr = target(config).await?;
    let mut login = login(config);
    if begin == Begin::Unanswered {
        login = login.set_skip_set_lib_name();
    }
    let conn = match multiplexed(&client(config, addr.clone(), login.clone())?, config).await {
        Ok(conn) => conn,
        Err(Fault::Refused(error))
            if begin == Begin::Unanswered && error.kind() == AuthenticationFailed =>
        {
            return Err(refusal(config, addr, login, error).await);
        }
        Err(fault) => return Err(fault),
    };
    if begin == Begin::Unanswered || !reply_order_channel.is_empty() {
        let told = introduce(conn.clone(), begin, reply_order_channel.to_owned());
        tokio::spawn(clock::timeout(config.timeout, told));
    }
    Ok(conn)
}

/// Introduces this client, unless that was done, and subscribes a connection for commands to a
/// channel, if there is one. Nothing waits for this or reads the messages, and it may fail.
async fn introduce(
    mut conn: MultiplexedConnection,
    begin: Begin,
    channel: String,
) -> Result<(), RedisError> {
    let mut first = redis::pipe();
    if begin == Begin::Unanswered {
        for (what, value) in [("LIB-NAME", LIBRARY), ("LIB-VER", VERSION)] {
            first.cmd("CLIENT").arg("SETINFO").arg(what).arg(value);
        }
    }
    if !channel.is_empty() {
        // Under the older protocol, a subscribed connection could do nothing else.
        first.cmd("HELLO").arg(3);
    }
    let answers: Vec<Result<Value, RedisError>> =
        first.ignore_errors().query_async(&mut conn).await?;
    if !channel.is_empty() {
        answers.into_iter().next_back().transpose()?;
        redis::cmd("SUBSCRIBE").arg(channel).exec_async(&mut conn).await?;
    }
    Ok(())
}

impl Notices {
    /// Connects, without any channel. The caller limits the time.
    ///
    /// # Errors
    ///
    /// The fault of the attempt.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn open(config: &Config) -> Result<Notices, Fault> {
        if config.sharded {
            let (pushes, heard) = tokio::sync::mpsc::unbounded_channel();
            let builder = cluster(config)?.use_protocol(ProtocolVersion::RESP3).push_sender(pushes);
            return Ok(Notices::new(notices::Kind::Sharded(connect(builder).await?, heard), None));
        }
        let addr = target(config).await?;
        let named = matches!(config.kind, Kind::Sentinel(_));
        let primary = named.then(|| (config.primary.clone(), addr.to_string()));
        let client = client(config, addr, login(config))?;
        let pubsub = client.get_async_pubsub().await.map_err(unsent)?;
        Ok(Notices::new(notices::Kind::from(pubsub), primary))
    }
}

async fn multiplexed(client: &Client, config: &Config) -> Result<MultiplexedConnection, Fault> {
    let options = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.timeout))
        .set_response_timeout(None); // every call has a limit of its own
    client.get_multiplexed_async_connection_with_config(&options).await.map_err(unsent)
}

/// The fault of a login that failed. The crate takes any error that the server sends first for a
/// wrong password, and drops its text: also that no connection is left, which passes. So the server
/// is asked again in a way whose errors the crate passes on.
async fn refusal(
    config: &Config,
    addr: ConnectionAddr,
    login: RedisConnectionInfo,
    error: RedisError,
) -> Fault {
    let hello = login.clone().set_protocol(ProtocolVersion::RESP3);
    let client = match client(config, addr, hello) {
        Ok(client) => client,
        Err(fault) => return fault,
    };
    let mut conn = match multiplexed(&client, config).await {
        Ok(conn) => conn,
        Err(Fault::Refused(other)) if other.kind() == RESP3NotSupported => return unsent(error),
        Err(fault) => return fault,
    };
    // A user without a password may log in with any by that, but not by this command.
    let again = redis::cmd("AUTH").arg(login.username()).arg(login.password()).to_owned();
    match again.exec_async(&mut conn).await {
        Ok(()) => broken(true), // accepted by now
        Err(error) => unsent(error),
    }
}

/// A fault before any command was sent.
fn unsent(error: RedisError) -> Fault {
    match Fault::from(error) {
        Fault::Broken(error, _) => Fault::Broken(error, true),
        other => other,
    }
}

fn login(config: &Config) -> RedisConnectionInfo {
    let mut login =
        RedisConnectionInfo::default().set_db(i64::from(config.db)).set_lib_name(LIBRARY, VERSION);
    if let Some(user) = &config.user {
        login = login.set_username(user);
    }
    if let Some(password) = &config.password {
        login = login.set_password(&password.0);
    }
    login
}

fn address(config: &Config, host: &str, port: u16) -> ConnectionAddr {
    if config.tls {
        let host = host.to_owned();
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host.to_owned(), port)
    }
}

fn client(
    config: &Config,
    addr: ConnectionAddr,
    login: RedisConnectionInfo,
) -> Result<Client, Fault> {
    let info = addr
        .into_connection_info()
        .map_err(unsent)?
        .set_redis_settings(login)
        .set_tcp_settings(TcpSettings::default().set_nodelay(true));
    if !config.tls {
        return Client::open(info).map_err(unsent);
    }
    tls::client(config, info)
}

/// The address of the server for commands: in most topologies, the one in the URL.
async fn target(config: &Config) -> Result<ConnectionAddr, Fault> {
    match &config.kind {
        Kind::Unix(path) => Ok(ConnectionAddr::Unix(path.into())),
        Kind::Single => {
            let (host, port) = &config.hosts[0];
            Ok(address(config, host, *port))
        }
        // Any node of a cluster relays notices: try a different one each time.
        Kind::Cluster => {
            let (host, port) = &config.hosts[fastrand::usize(..config.hosts.len())];
            Ok(address(config, host, *port))
        }
        Kind::Sentinel(service) => {
            let addr = primary(config, service).await?;
            config.primary.named(&addr.to_string());
            Ok(addr)
        }
    }
}

/// Asks the sentinels in turn for the primary, each with an equal share of the time. Any may be the
/// first: one that has missed a failover must not be believed each time. One that refuses this
/// client for good proves nothing of the others, which may answer soon.
async fn primary(config: &Config, service: &str) -> Result<ConnectionAddr, Fault> {
    let share = config.timeout / (config.hosts.len() as u32 + 1);
    let (mut refused, mut away) = (None, None);
    let (before, from) = config.hosts.split_at(fastrand::usize(..config.hosts.len()));
    for (host, port) in from.iter().chain(before) {
        let asked = pin!(primary_of(config, host, *port, service));
        match clock::timeout(share, asked).await {
            Some(Ok(addr)) => return Ok(addr),
            Some(Err(fault)) if fault.copy().explain("").retryable() => away = Some(fault),
            Some(Err(fault)) => refused = Some(fault),
            None => away = away.or(Some(Fault::Silence)),
        }
    }
    Err(match (refused, away) {
        (Some(refused), Some(_)) => {
            let why = refused.explain(&config.address());
            let message = format!("{why}; the other sentinels name no primary");
            Fault::Ours(Error::new(ErrorKind::Unavailable, message))
        }
        (refused, away) => refused.or(away).unwrap_or(Fault::Silence),
    })
}

/// Asks one sentinel for the address of a service's primary. The caller limits the time.
///
/// # Errors
///
/// The sentinel does not answer, or does not know the service.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub async fn ask_sentinel(
    config: &Config,
    (host, port): (&str, u16),
    service: &str,
) -> Result<String, Fault> {
    Ok(primary_of(config, host, port, service).await?.to_string())
}

async fn primary_of(
    config: &Config,
    host: &str,
    port: u16,
    service: &str,
) -> Result<ConnectionAddr, Fault> {
    let mut login = RedisConnectionInfo::default();
    if let Some(user) = &config.sentinel_user {
        login = login.set_username(user);
    }
    if let Some(password) = &config.sentinel_password {
        login = login.set_password(&password.0);
    }
    let client = client(config, address(config, host, port), login)?;
    let mut sentinel = multiplexed(&client, config).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let found = command.query_async(&mut sentinel).await;
    let found: Option<(String, u16)> = found.map_err(|error| no_sentinel(error, host, port))?;
    let Some((host, port)) = found else {
        let message = format!(
            "{} is watched by sentinels that know no primary of this name",
            config.address()
        );
        return Err(Fault::Ours(Error::new(ErrorKind::Unavailable, message)));
    };
    Ok(address(config, &host, port))
}

/// The fault of a request to a sentinel, if the reply shows that it is no sentinel or needs a
/// login.
fn no_sentinel(error: RedisError, host: &str, port: u16) -> Fault {
    let (kind, advice) = if says(&error, "unknown command") {
        let advice = "is no sentinel; name the sentinels, which listen on port 26379 unless \
                      configured otherwise, or use a URL with redis for the server itself";
        (ErrorKind::Invalid, advice)
    } else if says(&error, "NOAUTH") {
        let advice = "is a sentinel that asks for a password; name a file of it with \
                      ?sentinel_password_file=PATH";
        (ErrorKind::Denied, advice)
    } else {
        return error.into();
    };
    Fault::Ours(Error::new(kind, format!("{host}:{port} {advice}")))
}

async fn connect(builder: ClusterClientBuilder) -> Result<ClusterConnection, Fault> {
    let client = builder.build().map_err(unsent)?;
    client.get_async_connection().await.map_err(unsent)
}

fn cluster(config: &Config) -> Result<ClusterClientBuilder, Fault> {
    let nodes = config.hosts.iter().map(|(host, port)| address(config, host, *port));
    let nodes: Vec<_> = nodes
        .map(IntoConnectionInfo::into_connection_info)
        .collect::<Result<_, _>>()
        .map_err(unsent)?;
    let mut builder = ClusterClientBuilder::new(nodes)
        .retries(3)
        // The client waits for all nodes, twice: first for those in the URL, then for those that
        // they name. So a node that hangs must not use up the time, or delay other calls.
        .connection_timeout(config.timeout / 4)
        .response_timeout(config.timeout / 2)
        .overall_response_timeout(Some(config.timeout))
        .tcp_settings(TcpSettings::default().set_nodelay(true));
    if let Some(user) = &config.user {
        builder = builder.username(user);
    }
    if let Some(password) = &config.password {
        builder = builder.password(&password.0);
    }
    if config.tls {
        builder = tls::cluster(config, builder)?;
    }
    Ok(builder)
}

#[cfg(feature = "tls")]
mod tls {
    use super::{Client, Config, Error, ErrorKind, Fault, unsent};
    use holdline_base::tls::Pem;
    use redis::cluster::ClusterClientBuilder;
    use redis::{ClientTlsConfig, ConnectionInfo, TlsCertificates, TlsMode};
    use rustls::crypto::CryptoProvider;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::sign::CertifiedKey;

    /// The certificates of the URL, if any.
    fn certificates(config: &Config) -> Result<Option<TlsCertificates>, Fault> {
        holdline_base::tls_provider::choose();
        let read = |pem: &Option<Pem>, what| {
            let text = pem.as_ref().map(|pem| pem.read(what, &config.address()));
            text.transpose().map_err(Fault::Ours)
        };
        let options = &config.tls_options;
        let root_cert = read(&options.ca, "CA certificate")?;
        let pair = read(&options.cert, "certificate")?.zip(read(&options.key, "key")?);
        let client_tls =
            pair.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let any = client_tls.is_some() || root_cert.is_some();
        let certificates = TlsCertificates { client_tls, root_cert };
        if !make_sense(&certificates) {
            let message = format!(
                "the certificates or the key for {} cannot be used: they are not in PEM, or there \
                 are none, or the key belongs to another certificate",
                config.address()
            );
            return Err(Fault::Ours(Error::new(ErrorKind::Invalid, message)));
        }
        Ok(any.then_some(certificates))
    }

    /// Whether the certificates and the key are usable. Otherwise the client would report a broken
    /// connection.
    fn make_sense(TlsCertificates { client_tls, root_cert }: &TlsCertificates) -> bool {
        let chain = |pem: &[u8]| {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            chain.ok().filter(|chain| !chain.is_empty())
        };
        let ours = client_tls.as_ref().is_none_or(|pair| {
            let key = PrivateKeyDer::from_pem_slice(&pair.client_key).ok();
            let parts = chain(&pair.client_cert).zip(key).zip(CryptoProvider::get_default());
            parts.is_some_and(|((chain, key), ring)| {
                CertifiedKey::from_der(chain, key, ring).is_ok()
            })
        });
        ours && root_cert.as_ref().is_none_or(|pem| chain(pem).is_some())
    }

    pub(crate) fn client(config: &Config, info: ConnectionInfo) -> Result<Client, Fault> {
        match certificates(config)? {
            None => Client::open(info).map_err(unsent),
            Some(certificates) => Client::build_with_tls(info, certificates).map_err(unsent),
        }
    }

    pub(crate) fn cluster(
        config: &Config,
        builder: ClusterClientBuilder,
    ) -> Result<ClusterClientBuilder, Fault> {
        let builder = builder.tls(TlsMode::Secure);
        Ok(match certificates(config)? {
            None => builder,
            Some(certificates) => builder.certs(certificates),
        })
    }
}

#[cfg(not(feature = "tls"))]
mod tls {
    use super::{Client, Config, Error, ErrorKind, Fault};
    use redis::ConnectionInfo;
    use redis::cluster::ClusterClientBuilder;

    fn absent<T>() -> Result<T, Fault> {
        let message = "TLS to Redis is not in this build; build with the feature \"redis-tls\"";
        Err(Fault::Ours(Error::new(ErrorKind::Unsupported, message)))
    }

    pub(crate) fn client(_: &Config, _: ConnectionInfo) -> Result<Client, Fault> {
        absent()
    }

    pub(crate) fn cluster(
        _: &Config,
        _: ClusterClientBuilder,
    ) -> Result<ClusterClientBuilder, Fault> {
        absent()
    }
}
