//! Connections to Redis and Valkey, over the crate [`redis`]: to one server, to the primary that
//! sentinels name, or to a cluster.
//!
//! - [`Config`]: the servers of a URL.
//! - [`Connection`]: the connection for commands and [`Script`]s, made on first use and again after
//!   it breaks. Every call has a time limit, and a [`Fault`] says whether the server may have
//!   carried it out.
//! - [`Notices`]: the connection for messages on channels.
//! - [`primaries`]: the nodes of a cluster that serve keys.
//! - [`what_answers`]: detects what listens at an address that does not behave like Redis.
//!
//! ```no_run
//! # async fn example() -> Result<(), holdline_redis_client::Fault> {
//! use holdline_redis_client::{Config, Connection};
//!
//! let (config, _options) = Config::read("redis", "//localhost").expect("it is a URL of Redis");
//! let connection = Connection::new(config.into(), String::new());
//! let value = connection.ask(redis::cmd("GET").arg("greeting")).await?;
//! println!("{value:?}");
//! # Ok(()) }
//! ```
//!
//! It knows nothing about locks.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod checks;
mod cluster;
mod config;
mod connect;
mod connection;
mod fault;
mod notices;
mod probe;
mod scan;
mod slots;

pub use checks::{flags_suffice, too_old};
pub use config::{Config, KNOWN, Kind, Primary, duration, invalid};
pub use connect::ask_sentinel;
pub use connection::{Connection, Script};
pub use fault::{Fault, broken, says};
pub use notices::{Event, Notices};
pub use probe::why as what_answers;
pub use slots::primaries;
