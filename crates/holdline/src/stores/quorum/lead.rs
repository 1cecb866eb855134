//! The lead: the number that a ticket requests from the start, so that all nodes give the same one
//! and none need be raised. It is a guess, slightly ahead of all nodes' clocks; a wrong one costs a
//! round.
//!
//! A node counts on from the numbers that were requested of it. Another process may take such a
//! number for the time of the node's clock, and request a higher one, and so on. So no number is
//! requested that is more than a second ahead of this machine's wall clock: if the nodes are, the
//! second round is paid. What is learnt of the nodes' clocks is kept by this machine's boot-time
//! clock, so that a wall clock that is set does not raise the requests.

use crate::clock;
use crate::store::Seq;
use holdline_kernel::Time;
use std::sync::atomic::{AtomicI64, Ordering};

/// How far the nodes' clocks, when a request arrives, are ahead of this machine's boot-time clock,
/// when it is sent, in microseconds; [`UNKNOWN`] before the first answer.
#[derive(Debug)]
pub(super) struct Lead(AtomicI64);

const UNKNOWN: i64 = i64::MIN;

/// How far beyond the newest known number a ticket's number is to be, to be ahead of all nodes.
const LEAD_MICROS: i64 = 20_000;

/// How far a requested number may be ahead of this machine's wall clock.
const MOST_MICROS: u64 = 1_000_000;

impl Lead {
    pub(super) fn new() -> Self {
        Lead(AtomicI64::new(UNKNOWN))
    }

    /// The number to request, or 0 for none.
    pub(super) fn request(&self) -> u64 {
        self.at(clock::now(), clock::wall_micros())
    }

    fn at(&self, now: Time, wall_micros: u64) -> u64 {
        let ahead = match self.0.load(Ordering::Relaxed) {
            UNKNOWN => return 0,
            ahead => micros(now).saturating_add_signed(ahead).saturating_add_signed(LEAD_MICROS),
        };
        if ahead > wall_micros.saturating_add(MOST_MICROS) { 0 } else { ahead }
    }

    /// Whether no node has answered yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.0.load(Ordering::Relaxed) == UNKNOWN
    }

    /// Learns from the numbers that nodes gave a ticket which requested this one, from before it
    /// was `sent`: the next requests are on their way for as long. Only a number that the node
    /// chose itself, by its clock or its counter, tells anything.
    pub(super) fn learn(&self, sent: Time, requested: u64, given: &[Option<Seq>]) {
        let chosen = given.iter().flatten().map(|seq| seq.0).filter(|seq| *seq != requested);
        if let Some(newest) = chosen.max() {
            let newest = i64::try_from(newest).unwrap_or(i64::MAX);
            self.0.store(newest.saturating_sub_unsigned(micros(sent)), Ordering::Relaxed);
        }
    }
}

fn micros(time: Time) -> u64 {
    time.0 / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    /// The nodes' clocks, when this machine's boot-time clock is at 0.
    const NODES: u64 = 1_800_000_000 * SECOND;

    fn after(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn known() -> Lead {
        let lead = Lead::new();
        assert_eq!(lead.at(after(0), NODES), 0, "nothing is known");
        lead.learn(after(0), 0, &[Some(Seq(NODES - 5000)), None, Some(Seq(NODES))]);
        lead
    }

    #[test]
    fn a_request_is_slightly_ahead_of_all_nodes() {
        let lead = known();
        for seconds in [0, 1, 86_400] {
            let clocks = NODES + seconds * SECOND;
            let request = lead.at(after(seconds), clocks);
            assert_eq!(request, clocks + 20_000);
            lead.learn(after(seconds), request, &[Some(Seq(request)), None]);
        }
        lead.learn(after(1), 7, &[Some(Seq(7)), Some(Seq(NODES + 2 * SECOND))]);
        assert_eq!(lead.at(after(1), NODES + SECOND), 0, "too far ahead of the wall clock");
        lead.learn(after(1), 0, &[Some(Seq(NODES + SECOND))]);
        assert_eq!(lead.at(after(1), NODES + SECOND), NODES + SECOND + 20_000);
    }

    /// A machine whose wall clock is set while it runs requests no number that is ahead by as much.
    #[test]
    fn a_wall_clock_that_is_set_leads_nowhere() {
        let lead = known();
        assert_eq!(lead.at(after(1), SECOND), 0, "in 1970 no number makes sense");
        for wall_micros in [NODES + SECOND, 2 * NODES] {
            assert_eq!(lead.at(after(1), wall_micros), NODES + SECOND + 20_000);
        }
    }
}
