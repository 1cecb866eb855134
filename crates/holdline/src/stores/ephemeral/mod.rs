//! Stores of the second kind, ephemeral entries ordered by the server: the client lists the entries
//! ahead of its own, applies `rule::blockers`, and watches them.

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
