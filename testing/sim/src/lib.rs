//! A seeded, deterministic simulation of holdline's clients, servers, clocks and faults.
//!
//! The simulation runs the kernel itself: every server is a [`holdline_kernel::Line`] per name,
//! every client runs real [`holdline_kernel::Acquisition`]s and [`holdline_kernel::LeaseTimer`]s,
//! driven as by the library's driver and renewer. Between them is a network that delays, loses,
//! duplicates and reorders messages; each machine has a clock of its own; and the invariants are
//! checked in true time, which no machine can read.
//!
//! ```text
//!   client.rs  (driver)  --+                       +-- server.rs (a Line per name), entries.rs
//!   renewer.rs  (renewer)    |-- network.rs, world.rs --|
//!   faults.rs            --+         |             +-- clock.rs
//!   library.rs (quorum,  --+         v facts
//!     engine of entries)
//!                     invariants/*.rs: one rule each, with a state of its own
//! ```

mod client;
mod clock;
mod entries;
mod faults;
mod invariants;
mod library;
mod network;
mod plan;
mod renewer;
mod rng;
mod server;
mod trace;
mod world;

pub use plan::{Bug, Class};

/// The names of the invariants.
pub const INVARIANTS: [&str; 7] =
    ["exclusion", "tokens", "loss", "progress", "clean", "fairness", "notices"];

/// The configuration of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// The seed, which determines the whole run.
    pub seed: u64,
    /// The class of faults; by default the seed chooses it.
    pub class: Option<Class>,
    /// A bug to plant.
    pub bug: Option<Bug>,
    /// Check exclusion even under faults that break it.
    pub exclusion_anyway: bool,
    /// The number of servers that lose data or whose clocks jump; by default the seed chooses it.
    pub bad: Option<usize>,
    /// Check this invariant only.
    pub only: Option<&'static str>,
    /// Keep the trace, not only its hash.
    pub keep_trace: bool,
}

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant's name, as of its file in `invariants/`.
    pub invariant: &'static str,
    /// What happened.
    pub what: String,
    /// When, in nanoseconds of true time.
    pub at: u64,
}

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events taken from the queue.
    pub events: u64,
    /// Locks granted.
    pub grants: u64,
    /// Holders that were told of a loss.
    pub losses: u64,
    /// Places that expired on a server.
    pub lapses: u64,
    /// Places removed by force.
    pub evictions: u64,
    /// Servers that lost their data.
    pub wipes: u64,
    /// Faults of any kind.
    pub faults: u64,
    /// Notices sent.
    pub notices: u64,
    /// The longest wait of an acquisition after the faults had stopped, in milliseconds.
    pub calm_wait: u64,
    /// The smallest bound of that wait.
    pub calm_bound: u64,
}

impl Stats {
    /// Adds another run's counts.
    pub fn add(&mut self, other: &Stats) {
        self.events += other.events;
        self.grants += other.grants;
        self.losses += other.losses;
        self.lapses += other.lapses;
        self.evictions += other.evictions;
        self.wipes += other.wipes;
        self.faults += other.faults;
        self.notices += other.notices;
        self.calm_wait = self.calm_wait.max(other.calm_wait);
        self.calm_bound = match self.calm_bound {
            0 => other.calm_bound,
            bound => bound.min(other.calm_bound),
        };
    }
}

/// The report of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// The class of its faults.
    pub class: Class,
    /// The first violation, if any.
    pub violation: Option<Violation>,
    /// The hash of the whole trace: equal seeds give equal hashes.
    pub trace_hash: u64,
    /// The trace, if it was kept.
    pub trace: Vec<String>,
    /// The counts of a run.
    pub stats: Stats,
}

/// Runs one simulation.
pub fn run(config: Config) -> Report {
    world::World::new(config).run()
}
