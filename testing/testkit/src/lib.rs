//! The common parts of tests, benchmarks and `cargo xtask`: real servers, and faults between them
//! and their clients.
//!
//! Each server is launched by one piece of code. [`servers`] has a file for each kind of server,
//! which describes its processes as [`Node`]s; [`Server`] runs a node; a [`Topology`] is a named
//! set of nodes, a row in [`servers::TOPOLOGIES`]. `cargo xtask servers` starts topologies that
//! several programs share, on ports above `HOLDLINE_PORT_BASE`. A test starts its own servers on
//! free ports; they end with the test, or with the process at the latest.
//!
//! With the feature `links` there are TCP proxies: a [`Link`] can be cut, stalled in one direction
//! or both, delayed, and made to lose a reply; a [`GarblingProxy`] corrupts replies.
//!
//! With the feature `library` there are parts for tests of the library: a lock that is held and
//! waited for ([`contested()`]), clients over [`flaky_links`], members that are [`killed`] in turn,
//! holders that are disconnected at any moment ([`partition`]), clients whose requests are late,
//! lost and repeated at random ([`unreliable`]).
//!
//! A program that a test needs may be missing: see [`missing()`].

mod apart;
pub mod certs;
mod choice;
#[cfg(feature = "library")]
mod contested;
mod eventually;
#[cfg(feature = "library")]
pub mod flaky_links;
mod folder;
#[cfg(feature = "links")]
mod garble;
mod install;
#[cfg(feature = "library")]
pub mod killed;
#[cfg(feature = "links")]
mod link;
mod missing;
#[cfg(feature = "links")]
mod network;
mod node;
mod own_process;
#[cfg(feature = "library")]
pub mod partition;
mod ports;
mod private;
mod probe;
mod process;
mod program;
#[cfg(feature = "links")]
mod pump;
mod reaper;
mod server;
pub mod servers;
#[cfg(feature = "library")]
mod ticket;
mod toolchain;
mod topology;
#[cfg(feature = "library")]
pub mod unreliable;
mod wall_clock;
#[cfg(feature = "library")]
mod warnings;
mod wheel;

pub use apart::OtherRelease;
pub use choice::Choice;
#[cfg(feature = "library")]
pub use contested::{behind, contested, gives_up_on_a_frozen_server};
#[cfg(feature = "library")]
pub use eventually::{persist, released};
#[cfg(feature = "links")]
pub use eventually::{soon, until};
pub use eventually::{wait_for, wait_until};
pub use folder::Folder;
#[cfg(feature = "links")]
pub use garble::GarblingProxy;
pub use install::{install_missing, packages_from_apt};
#[cfg(feature = "links")]
pub use link::{Link, Way};
pub use missing::{VARIABLE as MISSING_VARIABLE, missing};
#[cfg(feature = "links")]
pub use network::Network;
pub use node::{Node, Wrap};
pub use own_process::in_own_process;
pub use ports::{CLUSTER_BUS, PORTS, Ports, free_cluster_port, free_port};
pub use private::Private;
pub use probe::{Probe, http_get, talk};
pub use process::Process;
pub use program::{Found, JarFolder, Program, in_path};
pub use reaper::end_with_us;
pub use server::Server;
pub use servers::{etcd, mysql, postgres, redis, zookeeper};
#[cfg(feature = "library")]
pub use ticket::ticket;
pub use toolchain::{Language, newest_go};
pub use topology::{Deployment, Setup, Topology};
pub use wall_clock::WallClock;
#[cfg(feature = "library")]
pub use warnings::{Warnings, on_event, panicking_subscriber};
pub use wheel::Wheel;

/// A result whose error is a sentence: what happened, to what, what to do.
pub type Outcome<T> = Result<T, String>;

/// The error for a failed operation on a file.
fn cannot(what: &str, path: &std::path::Path, error: &std::io::Error) -> String {
    format!("I cannot {what} {}: {error}.", path.display())
}

/// Cargo's target folder, as cargo reports it when it runs a test; otherwise `target`, here. The
/// value at compile time is not used: the program includes this code too, on other machines.
fn target() -> std::path::PathBuf {
    let usual = || {
        let package = std::env::var_os("CARGO_MANIFEST_DIR").map(std::path::PathBuf::from);
        let package = package.unwrap_or_default();
        let root = package.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
        root.unwrap_or(std::path::Path::new("")).join("target")
    };
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(usual, std::path::PathBuf::from)
}
