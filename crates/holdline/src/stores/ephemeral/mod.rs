//! Stores of the second kind: ephemeral entries ordered by the server. The client looks at the
//! entries ahead of its own, applies the rule (`rule::blockers` in ZooKeeper, `rule::fits` in etcd,
//! where a look need not show all of them), and watches those that block it.
//!
//! How to start one:
//!
//! 1. The session: what keeps an entry alive, how that is proved, and until when the proof is
//!    valid, counted from before the request that proved it.
//! 2. The layout: an entry's key has the ticket's id, its value the weight, capacity and note; the
//!    server's own order (revision, transaction) is the place, and so the token.
//! 3. The operations that differ: what `backend.rs` lists, and snapshot, list, evict and subscribe.
//! 4. `mod.rs` with `impl AsyncStore`; `address.rs` for the URL, by `stores::url`; `errors.rs`.
//! 5. Entries that outlive their ticket (after an unknown outcome, or when a session returns) are
//!    found by their id and removed.
//! 6. The store's rows in the tables of the tests: its topology, the conformance suite, the faults
//!    (`CONTRIBUTING.md` says where).

mod backend;
mod contract;
mod engine;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "simulation")]
pub mod simulated;
mod table;
mod ticket;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod values;
#[cfg(any(feature = "etcd", feature = "simulation"))]
mod view;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
