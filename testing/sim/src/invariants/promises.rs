//! The servers' promises to each ticket, and whether they were kept: state that several invariants
//! use.

use super::{Cause, Fact, Line};
use holdline_kernel::{Seq, TicketId};
use std::collections::BTreeMap;

/// A server's promise to a ticket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) seq: Seq,
    pub(crate) until: u64,
    /// Whether the server removed the ticket before that, without a request.
    pub(crate) broken: bool,
}

/// All promises.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    by: BTreeMap<(TicketId, Line), Promise>,
}

impl Promises {
    pub(crate) fn see(&mut self, now: u64, fact: &Fact<'_>) {
        match *fact {
            Fact::Promised { line, id, seq, until } => {
                let before = self.by.get(&(id, line)).filter(|before| before.seq == seq);
                let until = before.map_or(until, |before| until.max(before.until));
                self.by.insert((id, line), Promise { seq, until, broken: false });
            }
            Fact::Removed { line, id, seq, cause: Cause::Lapsed | Cause::Wiped } => {
                if let Some(promise) = self.by.get_mut(&(id, line))
                    && promise.seq == seq
                    && promise.until > now
                {
                    promise.broken = true;
                }
            }
            _ => {}
        }
    }

    /// The promises to a ticket, with their lines.
    pub(crate) fn to(&self, id: TicketId) -> impl Iterator<Item = (Line, &Promise)> {
        let all = (id, (0, 0))..=(id, (usize::MAX, usize::MAX));
        self.by.range(all).map(|(&(_, line), promise)| (line, promise))
    }

    pub(crate) fn get(&self, id: TicketId, line: Line) -> Option<&Promise> {
        self.by.get(&(id, line))
    }
}
