//! What is to be known before a session can be had.

use holdline_base::net::Tls;
use holdline_base::servers::Servers;
use std::time::Duration;

/// The servers, and the session to ask them for.
#[derive(Clone, Debug)]
pub struct Config {
    /// The hosts, and the user to log in as.
    pub servers: Servers,
    /// The TLS of the connections, if there is any.
    pub tls: Option<Tls>,
    /// What the servers are called in messages.
    pub name: String,
    /// The way in which the user logs in.
    pub login: Login,
    /// How long the servers are to keep the session without hearing of us.
    pub session: Duration,
    /// The node that heartbeats are about. It need not be there.
    pub root: String,
}

/// The way in which a user logs in.
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
