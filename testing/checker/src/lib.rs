//! Checks a lock system's behaviour against its promises.
//!
//! Processes under test write a *history*: one line per event, with times of one clock that all
//! processes of the machine share ([`Writer`]). After the run, [`check`] applies the rules to it
//! and reports which held, which did not (with the events that prove it), and which could not be
//! judged. A run that did too little to prove anything does not pass.
//!
//! The crate knows nothing about any lock library, so that it can judge all of them alike. The
//! [`resource`] stands for the data that locks guard: a small server that checks fencing tokens and
//! records the requests that it accepted.

#![allow(clippy::missing_errors_doc, reason = "errors of files, which say themselves what failed")]

mod event;
mod expect;
mod history;
mod index;
mod report;
pub mod resource;
mod rules;
mod writer;

pub use event::{Event, FaultKind, Op, Phase, Reason, Register, VERSION};
pub use expect::{Expect, Fences, Handoff, Unpromised};
pub use history::{History, ReadError};
pub use report::{Finding, Report, Rule, RuleReport, Verdict};
pub use writer::{Writer, now};

/// Applies all rules to a history.
pub fn check(history: &History, expect: &Expect) -> Report {
    Report { rules: rules::all(&index::Cx::new(history, expect)) }
}
