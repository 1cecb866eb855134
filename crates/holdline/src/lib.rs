//! Distributed locks with fencing tokens, automatic renewal and loss notification, on many stores.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> holdline::Result<()> {
//! let client = holdline::open("memory:").await?; // or redis://HOST, or open_default()
//! let report = holdline::Mutex::new(&client, "nightly-report");
//!
//! let guard = report.lock().await?; // or try_lock(), lock_within(time)
//! let token = guard.token(); // higher than every earlier holder's: give it to what you guard
//! let work = async { /* stopped, with an error, if the lock is lost */ };
//! let outcome = guard.protect(work).await;
//! drop(guard); // releases the lock in the background; or unlock(), which reports the result
//! client.settle().await; // before the process ends: waits for the release
//! # assert!(token > 0);
//! outcome
//! # }
//! ```
//!
//! # What to use
//!
//! | for | use |
//! | --- | --- |
//! | one holder at a time | [`Mutex`] |
//! | one holder that may lock again | [`ReentrantMutex`] with an [`Owner`] |
//! | many readers or one writer | [`RwLock`] |
//! | up to n holders | [`Semaphore`] |
//! | one leader that the others can see | [`Election`] |
//! | several mutexes at once, all or none | [`Multi`] |
//! | one process for each key, without a request per key | [`Group`] |
//!
//! Without async: [`blocking`]. If one process can be made responsible for each key, or the target
//! of a write can reject stale ones, you need no lock, and that is better than any lock.
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
//! | `doctor` | `doctor`: checks how a store's servers are configured | |
//! | `simulation` | simulated [`clock`]s, for tests of your own | |
//!
//! The memory store and the quorum (Redlock) are always included. TLS is rustls with ring and the
//! system's root certificates. The minimum supported Rust version is `rust-version` in
//! `Cargo.toml`, now 1.95; it is raised only in a new minor version.
//!
//! # Runtime
//!
//! The library's futures run on a [Tokio](https://docs.rs/tokio) runtime of either flavour with
//! timers enabled; stores on servers also need I/O enabled. The library renews locks on a thread of
//! its own, so a busy executor loses none. A client and its locks can be used from several
//! runtimes, and outlive the one that they were created on; a future that was polled belongs to
//! the runtime that polled it, whose timers it uses. A guard may be dropped anywhere: it is
//! released in the background. [`Client::settle`] waits for that: call it before a program exits,
//! or the store may keep the lock for the rest of its lease.
//!
//! # Testing
//!
//! `open("memory:")` is a new, empty store each time; `memory:NAME` is shared within the process. A
//! loss is made by breaking the lock: `client.force_unlock("x", guard.ticket(), "a test")`. Leases
//! and waits take real time, also while Tokio's clock is paused: there a Tokio timer around the
//! wait for a lock that is held fires at once, so use `lock_within` in its place.
//!
//! # When the lock is lost
//!
//! A lease can expire: the process is paused for longer than the lease, or the store cannot be
//! reached. [`Guard::is_valid`] then turns false, and [`Guard::lost`] resolves, a margin *before*
//! another ticket can be admitted. You choose what happens next:
//!
//! - [`Guard::protect`] stops the work and returns an error, so that the caller can roll back. This
//!   is the default ([`OnLoss::Stop`]).
//! - With [`OnLoss::Continue`] the work goes on: for work that is harmless when done twice, or
//!   whose target checks the fencing token (see [`Fence`]).
//!
//! [`Guard::loss`], and the errors of [`Guard::protect`] and [`Guard::unlock`], give the cause of
//! the loss: see [`Loss`].
//!
//! No lock with a lease can do better on its own. `GUARANTEES.md` numbers what is promised, and
//! what is not.
//!
//! # Observability
//!
//! Metrics go through the [`metrics`](https://docs.rs/metrics) facade, and cost next to nothing
//! until the program installs a recorder (then call [`describe_metrics`]):
//!
//! | name | kind | meaning | labels |
//! | --- | --- | --- | --- |
//! | `holdline_waiting` | gauge | acquisitions in progress | `store`, `recipe` |
//! | `holdline_held` | gauge | locks held | `store`, `recipe` |
//! | `holdline_acquisitions_total` | counter | acquisitions that have ended | and `outcome` (1) |
//! | `holdline_acquire_seconds` | histogram | time to acquire, if acquired | `store`, `recipe` |
//! | `holdline_hold_seconds` | histogram | time held, until release or loss | `store`, `recipe` |
//! | `holdline_renewals_total` | counter | renewals | and `outcome`: `ok`, `failed` |
//! | `holdline_losses_total` | counter | locks lost while held | `store`, `recipe` |
//! | `holdline_handoffs_total` | counter | local handoffs, unseen by the store | the same |
//! | `holdline_errors_total` | counter | calls to the store that failed | `store`, `kind` |
//! | `holdline_timeouts_total` | counter | calls to the store that timed out | `store` |
//! | `holdline_connections_total` | counter | connections opened (not etcd, ZooKeeper) | `store` |
//!
//! (1) `acquired`; `busy`, of a try; `timeout`, of a wait with a limit; `cancelled`, of a dropped
//! future; `error`. Waits that reach their limits are counted here: `holdline_timeouts_total`
//! counts single calls to the store that were not answered.
//!
//! The label `store` is the kind of store, such as `redis`. A lock's name is not a label, unless
//! [`Client::named_metrics`] makes it one. The repository has alerts for Prometheus and a dashboard
//! for Grafana in `packaging/prometheus`. A recorder that panics loses its value, and changes
//! nothing else.
//!
//! Spans and events go through [`tracing`](https://docs.rs/tracing): a span `acquire` (fields
//! `name`, `token` and `outcome`) around each acquisition, the warnings `lock lost` and `renewal
//! failed`, and each store's events about its servers.
//!
//! # Stores
//!
//! A store is chosen by the URL given to [`open()`], or by [`ConnectOptions`], which takes the
//! parts of a URL one by one, or the settings of a client that the program already has. Each store
//! has a page in the [guides] with its URL, its options, its promises and its costs. Its
//! capabilities are data ([`Client::capabilities`]); a recipe or option that needs more is refused
//! with a clear error. Tokens alone are 0 where a store has none, unless
//! [`fenced`](Mutex::fenced) asks for them. A store of your own implements [`store::Store`]; the
//! test suite in the crate `holdline-conformance` checks that it keeps the contract.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod availability;
#[allow(clippy::missing_errors_doc, reason = "those of the async methods")]
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
pub use open::{ConnectOptions, address_of, open, open_default};
pub use options::OnLoss;
pub use owner_info::OwnerInfo;
pub use recipes::{
    Election, Group, Leader, Leadership, Member, Members, MembersObserver, Multi, MultiGuard,
    Mutex, Observer, Owner, Ownership, ReentrantGuard, ReentrantMutex, Route, RwLock, Semaphore,
    WriteGuard,
};
#[cfg(feature = "sqlite")]
pub use stores::sqlite;
