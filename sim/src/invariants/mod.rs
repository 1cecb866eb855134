//! What must hold in every run, one file each.
//!
//! The world tells *facts*, in the order of true time; each invariant keeps its own books about
//! them, and shares no state with the world or with another invariant.

mod clean;
mod exclusion;
mod fairness;
mod loss;
mod progress;
mod promises;
mod tokens;

use crate::plan::Plan;
use holdline_kernel::{Seq, TicketId};

/// A lock's number in the world.
pub(crate) type Lock = usize;

/// A lock's line on one server: one of several, if a quorum keeps the lock.
pub(crate) type Line = (Lock, usize);

/// One place of a line, after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) id: TicketId,
    pub(crate) seq: Seq,
    pub(crate) weight: u32,
    pub(crate) client: usize,
    pub(crate) admitted: bool,
}

/// Why a place is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Left,
    Lapsed,
    Evicted,
    Wiped,
}

/// How an acquisition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Granted,
    GaveUp,
    Failed,
    Cancelled,
}

/// Something that is true, though perhaps nobody in the world knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fact<'a> {
    /// A client began to want a lock. A patient one has no limit, and queues or asks again.
    Began { client: usize, patient: bool },
    /// It stopped wanting it.
    Settled { client: usize, how: Settled },
    /// It goes by this ticket now.
    Goes { client: usize, id: TicketId },
    /// It will not use this ticket again: it has left, or was told that its place is gone.
    Disowned { id: TicketId },
    /// It holds, by its own judgement, until this true time.
    Granted { lock: Lock, id: TicketId, seq: Seq, weight: u32, capacity: u32, until: u64 },
    /// It holds for longer.
    Renewed { lock: Lock, id: TicketId, seq: Seq, until: u64 },
    /// It takes less from now on.
    Lowered { lock: Lock, id: TicketId, weight: u32 },
    /// It holds no longer: told of the loss, or about to leave.
    Ended { lock: Lock, id: TicketId },
    /// The server's line, after an operation.
    Line { line: Line, capacity: u32, places: &'a [Spot] },
    /// The server let it in.
    Admitted { line: Line, seq: Seq },
    /// The server keeps a place, admitted or not, at least until this true time, if its clock is
    /// left alone.
    Promised { line: Line, id: TicketId, seq: Seq, until: u64 },
    /// The server has removed it.
    Removed { line: Line, id: TicketId, seq: Seq, cause: Cause },
    /// Somebody was given this number to fence the one that he broke by force.
    Broken { lock: Lock, id: TicketId, seq: Seq },
    /// No more faults. From now on each patient acquisition is to be admitted within this time.
    Calm { bound: u64 },
    /// All is over and all leases have lapsed: so many places are left in a line.
    Over { line: Line, left: usize },
}

/// One rule, and the books that it keeps.
pub(crate) trait Invariant {
    fn name(&self) -> &'static str;
    fn see(&mut self, now: u64, fact: &Fact<'_>) -> Result<(), String>;
}

/// The rules that hold in this plan. A server that forgets, or whose clock jumps, may let a rival
/// in
/// at any moment: then exclusion is not promised, nor any order between the grants as the clients
/// see them, and a loss is announced by what *was* promised. Of a quorum more can be said: two hold
/// at once only if every node that promised the lock to both has broken its word, and the tokens
/// rise unless a vote was counted that a node had not kept.
pub(crate) fn all(plan: &Plan, exclusion_anyway: bool) -> Vec<Box<dyn Invariant>> {
    let (quorum, honest) = (plan.class.is_quorum(), plan.class.is_honest());
    let mut rules: Vec<Box<dyn Invariant>> = vec![
        Box::new(tokens::Tokens::new(quorum, honest)),
        Box::new(loss::Loss::new(plan.majority(), honest && !quorum)),
        Box::new(fairness::Fairness::new(!quorum)),
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
