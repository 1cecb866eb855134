//! Experiments with locks: comparisons of scenarios, stores and ways to wait.
//!
//! A [`Plan`] is a list of [`Cell`]s: each is a combination of scenario, store, way to wait, number
//! of clients, hold time and link delay. [`run`] measures every cell in several rounds, with the
//! rounds of all cells in turns, and returns a [`Report`], which is shown as a table, JSON, CSV, or
//! an HTML page with charts.
//!
//! The library is measured as users have it, through its public API. A combination that a store
//! does not support is never replaced by another: its row says why it has no figures.

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
