//! Distributed locks with fencing tokens, renewal and loss notice, over many stores.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> holdline::Result<()> {
//! let client = holdline::open("memory:").await?; // or sqlite:PATH, or "" for the default file
//! let report = holdline::Mutex::new(&client, "nightly-report");
//!
//! let guard = report.lock().await?; // or try_lock(), lock_within(time)
//! let token = guard.token(); // higher than every earlier holder's: give it to what you guard
//! guard.protect(async { /* stopped, with an error, if the lock is lost */ }).await?;
//! guard.unlock().await?; // or drop it
//! # assert!(token > 0); Ok(()) }
//! ```
//!
//! # What to use
//!
//! | to let in | use |
//! | --- | --- |
//! | one at a time | [`Mutex`] |
//! | one at a time, which may come in again | [`ReentrantMutex`] with an [`Owner`] |
//! | many readers or one writer | [`RwLock`] |
//! | up to n | [`Semaphore`] |
//! | one, whom the others can see | [`Election`] |
//! | one at a time to several things, all or none | [`Multi`] |
//! | one process for each key, with no request for each | [`Group`] |
//!
//! Without async: [`blocking`]. Where no lock is needed, because one process can be made
//! responsible for each key, or a write can be refused when another one was faster, that is better
//! than any lock.
//!
//! # Features
//!
//! | feature | what | on |
//! | --- | --- | --- |
//! | `sqlite` | the file store, for the processes of one machine | by default |
//! | `redis`, `redis-tls` | Redis and Valkey, also shared with Redisson, redsync and others | |
//! | `etcd`, `etcd-tls` | etcd, shared with Go's `concurrency` and `etcdctl lock` | |
//! | `zookeeper`, `zookeeper-tls` | ZooKeeper, shared with Curator or kazoo | |
//! | `postgres`, `postgres-tls` | PostgreSQL: a table of leases, rows, advisory locks | |
//! | `mysql`, `mysql-tls` | MySQL and MariaDB | |
//! | `doctor` | `doctor`: looks at how a store's servers are set up | |
//! | `simulation` | [`clock`]s that a simulation moves, for tests of your own | |
//!
//! Memory and the quorum (Redlock) are always there. TLS is rustls with ring and the system's root
//! certificates. The oldest Rust that compiles it is `rust-version` in `Cargo.toml`, now 1.95; a
//! newer one is asked for only with a new minor version.
//!
//! # Runtime
//!
//! The library's futures are polled on a [Tokio](https://docs.rs/tokio) runtime of either flavour
//! with its timers enabled, and its I/O for stores on servers. Locks are renewed on a thread of the
//! library, so that a busy executor loses none. A client and its locks can be used from several
//! runtimes, and outlive the one that they were made on. A guard may be dropped anywhere; what that
//! begins in the background, [`Client::settle`] waits for before a program ends.
//!
//! # When the lock is lost
//!
//! A lease can expire: the process is paused for longer than it lasts, or the store cannot be
//! reached. [`Guard::is_valid`] turns false, and [`Guard::lost`] resolves, a margin *before*
//! another ticket can be admitted. What happens then is your choice:
//!
//! - [`Guard::protect`] stops the work and returns an error, so that the caller can roll back. This
//!   is the default ([`OnLoss::Stop`]).
//! - With [`OnLoss::Continue`] the work goes on: for work that does no harm when done twice, or
//!   whose target checks the fencing token (see [`Fence`]).
//!
//! [`Guard::loss`], and the error that [`Guard::protect`] and [`Guard::unlock`] return, give the
//! cause of the loss: see [`Loss`].
//!
//! No lock with a lease can do better on its own; `GUARANTEES.md` numbers what is and is not
//! promised.
//!
//! # What can be observed
//!
//! Metrics go through the [`metrics`](https://docs.rs/metrics) facade, and cost next to nothing
//! until the program installs a recorder (then call [`describe_metrics`]):
//!
//! | name | kind | meaning | labels |
//! | --- | --- | --- | --- |
//! | `holdline_waiting` | gauge | acquisitions under way | `store`, `recipe` |
//! | `holdline_held` | gauge | locks held | `store`, `recipe` |
//! | `holdline_acquire_seconds` | histogram | from asking to holding | `store`, `recipe` |
//! | `holdline_hold_seconds` | histogram | from holding to release or loss | `store`, `recipe` |
//! | `holdline_renewals_total` | counter | renewals | and `outcome`: `ok`, `failed` |
//! | `holdline_losses_total` | counter | locks lost while held | `store`, `recipe` |
//! | `holdline_handoffs_total` | counter | local handoffs, unseen by the store | the same |
//! | `holdline_errors_total` | counter | calls to the store that failed | `store`, `kind` |
//! | `holdline_timeouts_total` | counter | calls not answered in time | `store` |
//! | `holdline_connections_total` | counter | connections made (not etcd, ZooKeeper) | `store` |
//!
//! `store` is its kind, as in `redis`. A lock's name is no label, unless asked for by
//! [`Client::named_metrics`]. The repository has alerts for Prometheus and a dashboard for Grafana
//! in `packaging/prometheus`.
//!
//! Spans and events go through [`tracing`](https://docs.rs/tracing): a span `acquire` (fields
//! `name` and `token`) around each acquisition, warnings `lock lost` and `renewal failed`, and the
//! stores' events about their servers.
//!
//! # Stores
//!
//! A store is chosen by the URL given to [`open()`], or by [`ConnectOptions`]: its parts, one by
//! one, or the settings of a client that the program has already. Each store has a page of
//! [guides], with its URL, its options, what it promises and what it costs. Its capabilities are
//! data ([`store::Capabilities`]); a recipe or option that needs more is refused with a clear
//! error. A store of your own implements [`store::Store`]; the suite in the crate
//! `holdline-conformance` tests whether it keeps the contract.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod availability;
pub mod blocking;
mod changes;
mod client;
pub mod clock;
mod deadline;
#[cfg(feature = "doctor")]
pub mod doctor;
mod driver;
mod error;
mod fence;
#[cfg(feature = "doctor")]
mod findings;
mod guard;
#[cfg(any(doc, doctest))]
pub mod guides;
mod handles;
mod hash;
mod held_lock;
mod local_queue;
mod loss;
mod loss_notice;
mod metrics;
mod names;
mod open;
mod options;
mod owner_info;
mod recipes;
mod renewer;
mod request;
pub mod schema;
pub mod store;
pub mod stores;
mod subscription;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod thread;
mod undone;

use holdline_base::sync;

pub use changes::Changes;
pub use client::{Client, LockInfo, Participant};
pub use error::{Error, ErrorKind, Result};
pub use fence::{Fence, Stale};
pub use guard::Guard;
pub use holdline_kernel::Backoff;
pub use loss::{Evicted, Loss};
pub use loss_notice::LossNotice;
pub use metrics::describe_metrics;
pub use names::Name;
pub use open::{ConnectOptions, open};
pub use options::OnLoss;
pub use owner_info::OwnerInfo;
pub use recipes::{
    Election, Group, Leader, Leadership, Member, Members, MembersObserver, Multi, MultiGuard,
    Mutex, Observer, Owner, Ownership, ReentrantGuard, ReentrantMutex, Route, RwLock, Semaphore,
    WriteGuard,
};
#[cfg(feature = "sqlite")]
pub use stores::sqlite;
