//! What the servers promised to each ticket, and whether they kept it: books that several rules
//! keep.

use super::{Cause, Fact, Line};
use holdline_kernel::{Seq, TicketId};
use std::collections::BTreeMap;

/// One server's word to one ticket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) seq: Seq,
    pub(crate) until: u64,
    /// It has let the ticket go before that, unasked.
    pub(crate) broken: bool,
}

/// All of them.
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

    /// What a ticket was promised, and on which line.
    pub(crate) fn to(&self, id: TicketId) -> impl Iterator<Item = (Line, &Promise)> {
        let all = (id, (0, 0))..=(id, (usize::MAX, usize::MAX));
        self.by.range(all).map(|(&(_, line), promise)| (line, promise))
    }

    pub(crate) fn get(&self, id: TicketId, line: Line) -> Option<&Promise> {
        self.by.get(&(id, line))
    }
}
