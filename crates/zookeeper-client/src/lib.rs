//! A small client of ZooKeeper (3.5 and later), made for locks and leases, and useful for more.
//!
//! - [`Session`]: a session that moves from server to server by itself. It knows until when the
//!   servers are *certain* to keep it, from heartbeats that a quorum has agreed on.
//! - [`Client`]: the session's requests. Requests made before any of their replies is awaited are
//!   sent in one write, and a caller writes its own request at once.
//! - [`Watch`]: one event of one node; set again automatically on the next connection.
//! - [`Listener`]: the same for very many nodes, whose events share one channel.
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
//! session.end(); // and closed when the last reference is dropped
//! # Ok(()) }
//! ```
//!
//! It lacks what holdline does not need: other access lists than those two, reconfiguration,
//! Kerberos. It knows nothing about locks.

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
pub use error::{Error, UnexpectedServer};
pub use jute::{Acl, Stat};
pub use session::{Session, longest_lease};
pub use watch_registry::{Event, Listener, TreeWatch, Watch};
