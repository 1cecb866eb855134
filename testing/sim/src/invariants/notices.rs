//! Notices: an operation notifies the places that it admits, and no others. The caller's own place
//! is told by the reply.

use super::{Fact, Invariant};

/// The check, which needs no state.
#[derive(Debug)]
pub(crate) struct Notices;

impl Invariant for Notices {
    fn name(&self) -> &'static str {
        "notices"
    }

    fn see(&mut self, _now: u64, fact: &Fact<'_>) -> Result<(), String> {
        match *fact {
            Fact::Notified { line, admitted, notified } if admitted != notified => {
                Err(format!("{notified:?} were notified in line {line:?}, admitted: {admitted:?}"))
            }
            _ => Ok(()),
        }
    }
}
