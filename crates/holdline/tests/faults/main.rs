//! Fault runs: processes use the library's locks while they are killed, stopped and robbed of their
//! locks; they write down what they see, and the history checker judges it.
//!
//! The harness knows no store: [`run::Run`] takes a URL, faults, times, a seed and what to expect.
//! `docs/faults.md` says how to run it for longer and how to read what it prints.

#![cfg(all(unix, feature = "sqlite"))]

mod client;
mod crew;
mod errand;
mod inject;
mod judge;
mod run;
mod sqlite;
mod tally;
mod witness;
