//! The configuration of a session.

use holdline_base::net::Tls;
use holdline_base::servers::Servers;
use std::time::Duration;

/// The servers, and the session to request from them.
#[derive(Clone, Debug)]
pub struct Config {
    /// The hosts, and the user to log in as.
    pub servers: Servers,
    /// The TLS settings of the connections, if any.
    pub tls: Option<Tls>,
    /// The servers' name in messages.
    pub name: String,
    /// The login method.
    pub login: Login,
    /// The requested time for which the servers keep the session without hearing from us.
    pub session: Duration,
    /// The node that heartbeats refer to. It need not exist.
    pub root: String,
}

/// A login method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login {
    /// ZooKeeper's own scheme: a name and a password, known to the nodes' access lists.
    Digest,
    /// DIGEST-MD5 over SASL: a name and a password that the servers know.
    Sasl,
}

impl Config {
    /// A session of 15 seconds with these servers, without TLS.
    pub fn new(servers: Servers) -> Self {
        Config {
            name: servers.to_string(),
            servers,
            tls: None,
            login: Login::Digest,
            session: Duration::from_secs(15),
            root: "/".to_owned(),
        }
    }
}
