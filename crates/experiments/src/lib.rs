//! Experiments with locks: scenarios, stores and ways to wait, measured beside each other.
//!
//! A [`Plan`] is a list of [`Cell`]s: one combination each of scenario, store, way to wait, number
//! of clients, time held and delay of the link. [`run`] measures every cell in several rounds, the
//! rounds of all cells in turns, and makes a [`Report`] of it, which is shown as a table, as JSON,
//! as CSV, or as an HTML page with charts.
//!
//! What is measured is the library as its users have it: only its public API is used. A combination
//! that a store does not have is never measured as another one: its row says why there is nothing.

mod cell;
mod contend;
mod counters;
mod crash;
mod delay;
mod error;
mod figures;
mod launch;
mod machine;
mod mode;
mod plan;
mod report;
mod run;
mod stats;
mod target;
mod timer;
mod worker;

pub use cell::{Cell, Scenario};
pub use error::{Error, Result};
pub use mode::{Mode, Schedule, Way};
pub use plan::{PRESETS, Plan, Preset};
pub use report::Report;
pub use run::{Host, Progress, run};
pub use stats::Spread;
pub use worker::work;
