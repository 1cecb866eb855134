//! The invariants of every run, one file each.
//!
//! The world reports *facts* in the order of true time. Each invariant keeps its own state, and
//! shares none with the world or other invariants.

mod clean;
mod exclusion;
mod fairness;
mod loss;
mod notices;
mod progress;
mod promises;
mod tokens;

use crate::plan::{Class, Plan};
use holdline_kernel::{Seq, Ticket, TicketId};

/// A lock's number in the world.
pub(crate) type Lock = usize;

/// A lock's line on one server: one of several, if a quorum keeps the lock.
pub(crate) type Line = (Lock, usize);

/// One place of a line, after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaceView {
    pub(crate) id: TicketId,
    pub(crate) seq: Seq,
    pub(crate) weight: u32,
    pub(crate) client: usize,
    pub(crate) admitted: bool,
}

/// The cause of a place's removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Left,
    Lapsed,
    Evicted,
    Wiped,
}

/// The end of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Granted,
    GaveUp,
    Failed,
    Cancelled,
}

/// A fact about the simulation, in true time, perhaps unknown to every machine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fact<'a> {
    /// A client began an acquisition. A patient one has no limit, and queues or polls.
    Began { client: usize, patient: bool },
    /// A client's acquisition ended.
    Settled { client: usize, how: Settled },
    /// A client uses this ticket from now on.
    Uses { client: usize, id: TicketId },
    /// A client will not use this ticket again: it has left, or was told that its place is gone.
    Disowned { id: TicketId },
    /// A client holds, as far as it knows, until this true time.
    Granted { lock: Lock, ticket: Ticket, seq: Seq, until: u64 },
    /// A renewal prolonged a client's deadline.
    Renewed { lock: Lock, id: TicketId, seq: Seq, until: u64 },
    /// A holder's weight was lowered.
    Lowered { lock: Lock, id: TicketId, weight: u32 },
    /// A client no longer holds: it was told of the loss, or is about to leave.
    Ended { lock: Lock, id: TicketId },
    /// The state of a server's line after an operation.
    Line { line: Line, capacity: u32, places: &'a [PlaceView] },
    /// A server admitted a place.
    Admitted { line: Line, seq: Seq },
    /// A server keeps a place, admitted or not, at least until this true time, unless its clock
    /// jumps.
    Promised { line: Line, id: TicketId, seq: Seq, until: u64 },
    /// A server removed a place.
    Removed { line: Line, id: TicketId, seq: Seq, cause: Cause },
    /// A server answered this ticket's entry with its place, perhaps a new one.
    Entered { line: Line, ticket: Ticket, seq: Seq, new: bool },
    /// A server removed this place by force, and answered with this token. The place behind it, if
    /// there is one.
    Fenced { line: Line, seq: Seq, fence: Seq, behind: Option<Seq> },
    /// A server has lost its line.
    Wiped { line: Line },
    /// One operation admitted these places, except for its caller's own, and notified these.
    Notified { line: Line, admitted: &'a [Seq], notified: &'a [Seq] },
    /// An operator got this token, to fence the ticket that was broken by force.
    Broken { lock: Lock, id: TicketId, seq: Seq },
    /// The faults have stopped. From now on each patient acquisition must be admitted within this
    /// time.
    Calm { bound: u64 },
    /// The run has ended and all leases have expired: this many places are left in a line.
    Over { line: Line, left: usize },
}

/// An invariant and its state.
pub(crate) trait Invariant {
    fn name(&self) -> &'static str;
    fn see(&mut self, now: u64, fact: &Fact<'_>) -> Result<(), String>;
}

/// The invariants that hold in this plan. A server that loses its data, or whose clock jumps, may
/// admit another client at any moment: then neither exclusion nor the order of the clients' grants
/// is guaranteed, and a loss is reported by the old promise. A quorum guarantees more: two clients
/// hold at once only if every node that promised the lock to both has broken a promise, and tokens
/// rise unless a vote was counted that its node had not kept.
pub(crate) fn all(plan: &Plan, exclusion_anyway: bool) -> Vec<Box<dyn Invariant>> {
    let (quorum, honest) = (plan.class.is_quorum(), plan.class.is_honest());
    let by_news = plan.class == Class::Entries;
    let mut rules: Vec<Box<dyn Invariant>> = vec![
        Box::new(tokens::Tokens::new(quorum, honest)),
        Box::new(loss::Loss::new(plan.majority(), honest && !quorum, by_news)),
        Box::new(fairness::Fairness::new(!quorum)),
        Box::new(notices::Notices),
        Box::new(clean::Clean::default()),
        Box::new(progress::Progress::default()),
    ];
    if honest || exclusion_anyway {
        rules.push(Box::new(exclusion::Exclusion::new(false)));
    } else if quorum {
        rules.push(Box::new(exclusion::Exclusion::new(true)));
    }
    rules
}
