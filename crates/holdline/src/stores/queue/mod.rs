//! Stores of the first kind: a queue in the server. The server applies the rule in a script, a
//! function or a transaction, and answers in one round trip.
//!
//! How to start one:
//!
//! 1. The layout: how the server stores a line's head, its places and its evictions, with a version
//!    mark (`docs/layouts/`). The head has the fields of `holdline_kernel::Head`.
//! 2. The two operations, enter and leave, in files of their own (`*.lua`, `*.sql`), and a test
//!    that runs them against the kernel's `Line` on random operations (`model.rs`).
//! 3. `mod.rs` with `impl AsyncStore`; `config.rs` or `address.rs` for the URL, by `stores::url`;
//!    `errors.rs`, which says for each server error whether a retry may help and whether the
//!    request may have been carried out.
//! 4. Notices, by `stores::waiters`: one connection for all waiters of the process.
//! 5. A request whose future was dropped may arrive after its ticket has left. The layout bars such
//!    a ticket, or the protocol keeps both requests in order.
//! 6. The store's rows in the tables of the tests: its topology, the conformance suite, the faults
//!    (`CONTRIBUTING.md` says where).

use crate::store::Capabilities;
use std::time::Duration;

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod calls;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod connecting;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod division;
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
pub(in crate::stores) mod in_flight;
pub mod memory;
#[cfg(all(
    test,
    any(
        feature = "redis",
        feature = "postgres",
        feature = "mysql",
        all(feature = "sqlite", feature = "simulation")
    )
))]
mod model;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sessions;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod shedlock;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;

/// The common capabilities of stores with a queue; each store states its differences.
pub(in crate::stores) const CAPABILITIES: Capabilities = Capabilities {
    fair_queue: true,
    fencing_tokens: true,
    notifications: true,
    weighted: true,
    read_write: true,
    token_ranges: true,
    crash_release: false,
    survives_failover: false,
    survives_restart: false,
    lease_min: Duration::from_millis(100),
    lease_max: Duration::from_secs(24 * 3600),
};
