//! Making connections: to the one server, to whichever the sentinels name, or to a cluster.

use super::config::{Config, Kind};
use super::fault::Fault;
use crate::error::{Error, ErrorKind};
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, Value,
};

/// A connection for commands, shared by all calls.
#[derive(Clone)]
pub(super) enum Conn {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Conn {
    pub(super) async fn ask(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        match self {
            Conn::One(conn) => conn.req_packed_command(command).await,
            Conn::Cluster(conn) => conn.req_packed_command(command).await,
        }
        .and_then(Value::extract_error)
    }

    /// All keys that fit a pattern. In a cluster, a question without a key goes to any node; so
    /// each primary is asked by its address.
    pub(super) async fn scan(&self, pattern: &str) -> Result<Vec<String>, Fault> {
        match self {
            Conn::One(conn) => scan(pattern, &mut conn.clone()).await,
            Conn::Cluster(conn) => scan_cluster(pattern, &mut conn.clone()).await,
        }
    }
}

/// Asks each primary, as the cluster lists them.
async fn scan_cluster(pattern: &str, conn: &mut ClusterConnection) -> Result<Vec<String>, Fault> {
    let slots: Vec<Vec<Value>> = redis::cmd("CLUSTER").arg("SLOTS").query_async(conn).await?;
    let mut primaries: Vec<(String, u16)> = slots
        .iter()
        .filter_map(|range| match range.get(2) {
            Some(Value::Array(node)) => {
                redis::from_redis_value(Value::Array(node[..2].to_vec())).ok()
            }
            _ => None,
        })
        .collect();
    primaries.sort();
    primaries.dedup();
    let mut keys = Vec::new();
    for (host, port) in primaries {
        let mut cursor = 0;
        loop {
            let node = SingleNodeRoutingInfo::ByAddress { host: host.clone(), port };
            let reply = conn
                .route_command(scan_from(cursor, pattern), RoutingInfo::SingleNode(node))
                .await?;
            let (next, found): (u64, Vec<String>) =
                redis::from_redis_value(reply).map_err(RedisError::from)?;
            keys.extend(found);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(keys)
}

fn scan_from(cursor: u64, pattern: &str) -> Cmd {
    let mut command = redis::cmd("SCAN");
    command.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
    command
}

async fn scan(pattern: &str, conn: &mut MultiplexedConnection) -> Result<Vec<String>, Fault> {
    let (mut keys, mut cursor) = (Vec::new(), 0_u64);
    loop {
        let command = scan_from(cursor, pattern);
        let (next, found): (u64, Vec<String>) = command.query_async(conn).await?;
        keys.extend(found);
        if next == 0 {
            return Ok(keys);
        }
        cursor = next;
    }
}

/// Connects for commands. The caller limits the time.
pub(super) async fn commands(config: &Config) -> Result<Conn, Fault> {
    if config.kind == Kind::Cluster {
        return cluster(config).await;
    }
    let addr = target(config).await?;
    let client = client(config, addr, login(config))?;
    Ok(Conn::One(multiplexed(&client, config).await?))
}

/// Connects for notices. The caller limits the time.
pub(super) async fn notices(config: &Config) -> Result<PubSub, Fault> {
    let addr = target(config).await?;
    let client = client(config, addr, login(config))?;
    client.get_async_pubsub().await.map_err(unsent)
}

async fn multiplexed(client: &Client, config: &Config) -> Result<MultiplexedConnection, Fault> {
    let options = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.timeout))
        .set_response_timeout(None); // every call has a limit of its own
    client.get_multiplexed_async_connection_with_config(&options).await.map_err(unsent)
}

/// Nothing was asked for yet.
fn unsent(error: RedisError) -> Fault {
    match Fault::from(error) {
        Fault::Broken(error, _) => Fault::Broken(error, true),
        other => other,
    }
}

fn login(config: &Config) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default()
        .set_db(i64::from(config.db))
        .set_lib_name("holdline", env!("CARGO_PKG_VERSION"));
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

/// Where the server is that takes commands: for most, in the URL.
async fn target(config: &Config) -> Result<ConnectionAddr, Fault> {
    match &config.kind {
        Kind::Unix(path) => Ok(ConnectionAddr::Unix(path.into())),
        Kind::Single => {
            let (host, port) = &config.hosts[0];
            Ok(address(config, host, *port))
        }
        // Notices go through any node of a cluster: try another one each time.
        Kind::Cluster => {
            let (host, port) = &config.hosts[fastrand::usize(..config.hosts.len())];
            Ok(address(config, host, *port))
        }
        Kind::Sentinel(service) => primary(config, service).await,
    }
}

/// Asks the sentinels, one after the other, each for a fair share of the time.
async fn primary(config: &Config, service: &str) -> Result<ConnectionAddr, Fault> {
    let share = config.timeout / (config.hosts.len() as u32 + 1);
    let mut fault = Fault::Silence;
    for (host, port) in &config.hosts {
        let asked = tokio::time::timeout(share, ask_sentinel(config, host, *port, service));
        match asked.await {
            Ok(Ok(addr)) => return Ok(addr),
            Ok(Err(error)) => fault = error,
            Err(_) => {}
        }
    }
    Err(fault)
}

async fn ask_sentinel(
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
    let found: Option<(String, u16)> = command.query_async(&mut sentinel).await?;
    let Some((host, port)) = found else {
        let message = format!(
            "{} is watched by sentinels that know no primary of this name",
            config.address()
        );
        return Err(Fault::Ours(Error::new(ErrorKind::Unavailable, message)));
    };
    Ok(address(config, &host, port))
}

async fn cluster(config: &Config) -> Result<Conn, Fault> {
    let nodes = config.hosts.iter().map(|(host, port)| address(config, host, *port));
    let nodes: Vec<_> = nodes
        .map(IntoConnectionInfo::into_connection_info)
        .collect::<Result<_, _>>()
        .map_err(unsent)?;
    let mut builder = redis::cluster::ClusterClient::builder(nodes)
        .retries(3)
        .connection_timeout(config.timeout)
        .response_timeout(config.timeout)
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
    let client = builder.build().map_err(unsent)?;
    Ok(Conn::Cluster(client.get_async_connection().await.map_err(unsent)?))
}

#[cfg(feature = "redis-tls")]
mod tls {
    use super::{Client, Config, Error, ErrorKind, Fault, unsent};
    use redis::cluster::ClusterClientBuilder;
    use redis::{ConnectionInfo, TlsCertificates, TlsMode};

    fn certificates(config: &Config) -> Result<TlsCertificates, Fault> {
        provider()?;
        let root_cert =
            config.ca_file.as_ref().map(std::fs::read).transpose().map_err(|error| {
                let message = format!("the CA file of {} cannot be read", config.address());
                Fault::Ours(Error::because(ErrorKind::Invalid, message, error))
            })?;
        Ok(TlsCertificates { client_tls: None, root_cert })
    }

    pub(super) fn client(config: &Config, info: ConnectionInfo) -> Result<Client, Fault> {
        let certificates = certificates(config)?;
        if certificates.root_cert.is_none() {
            return Client::open(info).map_err(unsent);
        }
        Client::build_with_tls(info, certificates).map_err(unsent)
    }

    pub(super) fn cluster(
        config: &Config,
        builder: ClusterClientBuilder,
    ) -> Result<ClusterClientBuilder, Fault> {
        let certificates = certificates(config)?;
        let builder = builder.tls(TlsMode::Secure);
        let custom = certificates.root_cert.is_some();
        Ok(if custom { builder.certs(certificates) } else { builder })
    }

    /// With two providers of cryptography in one program, rustls panics unless the program says
    /// which one it wants. That is the program's choice, not a library's.
    fn provider() -> Result<(), Fault> {
        if rustls::crypto::CryptoProvider::get_default().is_some() {
            return Ok(());
        }
        std::panic::catch_unwind(|| drop(rustls::ClientConfig::builder())).map_err(|_| {
            let message = "this program has several providers of cryptography for TLS; let it call \
                rustls::crypto::ring::default_provider().install_default() when it starts";
            Fault::Ours(Error::new(ErrorKind::Unsupported, message))
        })
    }
}

#[cfg(not(feature = "redis-tls"))]
mod tls {
    use super::{Client, Config, Error, ErrorKind, Fault};
    use redis::ConnectionInfo;
    use redis::cluster::ClusterClientBuilder;

    fn absent<T>() -> Result<T, Fault> {
        let message = "TLS to Redis is not in this build; build with the feature \"redis-tls\"";
        Err(Fault::Ours(Error::new(ErrorKind::Unsupported, message)))
    }

    pub(super) fn client(_: &Config, _: ConnectionInfo) -> Result<Client, Fault> {
        absent()
    }

    pub(super) fn cluster(
        _: &Config,
        _: ClusterClientBuilder,
    ) -> Result<ClusterClientBuilder, Fault> {
        absent()
    }
}
