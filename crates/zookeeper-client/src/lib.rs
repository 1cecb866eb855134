//! A small client of ZooKeeper (3.5 and later), made for locks and leases, and of use for more.
//!
//! - [`Session`]: a session that moves from server to server by itself, and until when the servers
//!   are *sure* to keep it, by heartbeats that a quorum has agreed on.
//! - [`Client`]: what can be asked on it. Requests that are made before any of their replies is
//!   awaited go out in one write, and a caller writes its request itself, at once.
//! - [`Watch`]: one event of one node; set again by itself on the next connection.
//! - [`Listener`]: the same for very many nodes, all of whose events come by one channel.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use holdline_base::servers::Servers;
//! use holdline_zookeeper_client::{Acl, Config, Mode, Past, Session};
//!
//! let servers = Servers { hosts: vec!["localhost:2181".to_owned()], ..Servers::default() };
//! let session = std::sync::Arc::new(Session::open(&Config::new(servers), Past::default()).await?);
//! tokio::spawn(session.clone().run(|id| eprintln!("session {id:x} is over")));
//! let (path, _) = session.client.create("/a", b"data", Mode::Ephemeral, Acl::Anyone).await?;
//! println!("made {path}");
//! # Ok(()) }
//! ```
//!
//! What it lacks is what holdline does not need: other access lists than those two,
//! reconfiguration, Kerberos. It knows nothing of locks.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod config;
mod connection;
mod error;
mod handshake;
mod identify;
mod jute;
mod sasl;
mod session;
mod transport;
mod watch_registry;

pub use client::{Client, Mode, Past};
pub use config::{Config, Login};
pub use connection::{Reply, State};
pub use error::{Error, Stranger};
pub use jute::{Acl, Stat};
pub use session::{Session, longest_lease};
pub use watch_registry::{Event, Listener, TreeWatch, Watch};
