//! A seeded, deterministic simulation of holdline's clients, servers, clocks and faults.
//!
//! The world is made of the kernel's own parts: every server is a [`holdline_kernel::Line`] per
//! name, every client runs real [`holdline_kernel::Acquisition`]s and
//! [`holdline_kernel::LeaseTimer`]s, driven as the library's driver and renewer drive them. Between
//! them is a network that delays, loses, doubles and reorders; each machine has a clock of its own;
//! and true time, which nobody in the world can see, is what the invariants are judged by.
//!
//! ```text
//!   client.rs  (driver)  --+                       +-- server.rs (a Line per name)
//!   renewer.rs  (renewer)    |-- network.rs, world.rs --|
//!   faults.rs            --+         |             +-- clock.rs
//!                                    v facts
//!                     invariants/*.rs: one rule each, with books of its own
//! ```

mod client;
mod clock;
mod faults;
mod invariants;
mod network;
mod plan;
mod quorum;
mod renewer;
mod rng;
mod server;
mod trace;
mod world;

pub use plan::{Bug, Class};

/// The names of the invariants.
pub const INVARIANTS: [&str; 6] = ["exclusion", "tokens", "loss", "progress", "clean", "fairness"];

/// One run to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// Decides everything.
    pub seed: u64,
    /// The class of faults, if the seed is not to choose it.
    pub class: Option<Class>,
    /// A mistake to plant.
    pub bug: Option<Bug>,
    /// Demand exclusion even under faults that break it.
    pub exclusion_anyway: bool,
    /// How many servers forget or jump, if the seed is not to choose it.
    pub bad: Option<usize>,
    /// Judge by this invariant alone.
    pub only: Option<&'static str>,
    /// Keep the story, not only its hash.
    pub keep_trace: bool,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its name: that of its file in `invariants/`.
    pub invariant: &'static str,
    /// What happened.
    pub what: String,
    /// When, in nanoseconds of true time.
    pub at: u64,
}

/// How much happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events taken from the queue.
    pub events: u64,
    /// Locks granted.
    pub grants: u64,
    /// Holders told that they lost.
    pub losses: u64,
    /// Places that lapsed on a server.
    pub lapses: u64,
    /// Places removed by force.
    pub evictions: u64,
    /// Servers that lost their data.
    pub wipes: u64,
    /// Faults of any kind.
    pub faults: u64,
    /// Notices sent.
    pub notices: u64,
    /// The longest that an acquisition waited after the faults had stopped, in milliseconds.
    pub calm_wait: u64,
    /// The shortest bound that was set for it.
    pub calm_bound: u64,
}

impl Stats {
    /// Adds another run's.
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

/// How a run went.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// The class of its faults.
    pub class: Class,
    /// The first rule that was broken, if any.
    pub violation: Option<Violation>,
    /// A hash of the whole story: equal seeds, equal hashes.
    pub trace_hash: u64,
    /// The story, if it was kept.
    pub trace: Vec<String>,
    /// How much happened.
    pub stats: Stats,
}

/// Lives one world.
pub fn run(config: Config) -> Report {
    world::World::new(config).run()
}
