//! Stores of the second kind, ephemeral entries ordered by the server: the client lists the entries
//! ahead of its own, applies `rule::blockers`, and watches them.

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod engine;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod liveness;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod recent;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod table;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod ticket;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
