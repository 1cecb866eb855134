//! A small client of etcd (3.4 and later), made for locks and leases, and useful for more.
//!
//! - [`Cluster`]: calls with a time limit for each member, failover, login and TLS. A caller writes
//!   its own request at once, so sending costs no thread switch.
//! - [`Watcher`]: all watches of a client in one stream, which resumes after a failover where it
//!   left off.
//! - [`Lease`]: a lease that is kept alive, and until when it is *certain* to last, even while
//!   members are frozen or partitioned.
//! - [`proto`]: the messages, with the field names of etcd's API; [`maintenance`]: the messages
//!   about members and their status.
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
//! It lacks what holdline does not need: the messages of users, roles and elections; compression; a
//! cache. It knows nothing about locks.

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
pub use error::{is_forbidden, is_full, is_lease_gone};
pub use lease::{Lease, LeaseUser};
pub use watcher::{Callback, News, Watcher, Watching};
