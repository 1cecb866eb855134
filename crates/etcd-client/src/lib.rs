//! A small client of etcd (3.4 and later), made for locks and leases, and of use for more.
//!
//! - [`Cluster`]: calls with a time limit for each member, failover, login and TLS. A caller writes
//!   its request itself, at once: sending costs no change of threads.
//! - [`Watcher`]: all watches of a client in one stream, which goes on after a failover where it
//!   was.
//! - [`Lease`]: a lease that is kept alive, and until when it is *sure* to be, also while members
//!   are frozen or cut off.
//! - [`proto`]: the messages, with the field names of etcd's API; [`maintenance`]: those about the
//!   members and how they are.
//!
//! ```no_run
//! # async fn example() -> holdline_base::Result<()> {
//! use holdline_etcd_client::{Answer, Cluster, proto};
//!
//! let parts = holdline_base::servers::Servers::read("//localhost", 2379, false, invalid)?;
//! let cluster = Cluster::new(parts.servers, None, "etcd://localhost")?;
//! let key = proto::Range { key: b"greeting".to_vec(), ..Default::default() };
//! let limit = std::time::Duration::from_secs(1);
//! let answer: Answer<proto::RangeAnswer> = cluster.call(proto::RANGE, &key, limit).await?;
//! println!("{:?}", answer.body.kvs);
//! # Ok(()) }
//! # fn invalid(why: &str) -> holdline_base::Error {
//! #     holdline_base::Error::new(holdline_base::ErrorKind::Invalid, format!("the URL {why}"))
//! # }
//! ```
//!
//! What it lacks is what holdline does not need: the messages of users, roles and elections;
//! compression; a cache. It knows nothing of locks.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod cluster;
mod connection;
mod error;
mod greeting;
mod grpc;
mod lease;
pub mod maintenance;
pub mod proto;
mod watcher;

pub use cluster::{Answer, Cluster};
pub use connection::PendingWrite;
pub use error::{is_full, is_lease_gone};
pub use lease::{Lease, LeaseUser};
pub use watcher::{Callback, News, Watcher, Watching};
