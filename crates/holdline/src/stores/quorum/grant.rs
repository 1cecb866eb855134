//! A ticket that holds on a majority: what each node knows it by, and its renewal.

use super::Quorum;
use super::round::Round;
use crate::clock;
use crate::error::Result;
use crate::names::Name;
use crate::store::{Enter, Seq, Standing, Ticket};
use holdline_kernel::{Time, Vote};
use std::sync::Arc;

/// What the nodes know a ticket by that holds.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) token: Seq,
    pub(super) seats: Vec<Seat>,
}

/// A ticket's place on one node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seat {
    /// It has this number there.
    Taken(Seq),
    /// The node has not answered yet, or has lost it: since when this is known.
    Missing(Time),
}

impl Quorum {
    /// A renewal: held if a majority still has it.
    ///
    /// A node that lost it is asked to take it again, but only some time after: if somebody is just
    /// breaking this lock, node by node, it must not come back behind them. And what is repaired
    /// counts for the next renewal, not for this one: what a majority gave at once must never be
    /// gathered piece by piece.
    pub(super) async fn keep(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        token: Seq,
    ) -> Result<Standing> {
        let sent = clock::now();
        let grant = self.held().get(&ticket.id).filter(|grant| grant.token == token).cloned();
        let Some(grant) = grant else { return Ok(Standing::Lost) };
        let ticket = &Ticket { min_token: token.0, ..*ticket };
        let timeout = Self::node_timeout(ticket.lease);
        let mut round = Round::new(&self.nodes, line, timeout);
        for (node, seat) in self.nodes.iter().zip(grant.seats) {
            match seat {
                Seat::Taken(seq) => round.ask(
                    node,
                    Box::pin(async move {
                        let standing =
                            node.store.enter(line, ticket, note, Enter::Keep(seq)).await?;
                        let kept = matches!(standing, Standing::Admitted(_));
                        Ok(if kept { (Vote::Yes, seat) } else { (Vote::No, Seat::Missing(sent)) })
                    }),
                ),
                Seat::Missing(since) if sent < since.after(timeout * 2) => {
                    round.answered(node, (Vote::No, seat));
                }
                Seat::Missing(_) => round.ask(
                    node,
                    Box::pin(async move {
                        Ok(match node.store.enter(line, ticket, note, Enter::Try).await? {
                            Standing::Admitted(seq) => (Vote::No, Seat::Taken(seq)),
                            Standing::Waiting { .. } | Standing::Lost => (Vote::No, seat),
                        })
                    }),
                ),
            }
        }
        let outcome = round.run_all(sent).await;
        if outcome.met() {
            if let Some(grant) = self.held().get_mut(&ticket.id) {
                // A node that was not heard keeps the seat that it had.
                for (seat, answer) in grant.seats.iter_mut().zip(outcome.each()) {
                    *seat = answer.map_or(*seat, |(_, seat)| *seat);
                }
            }
            return Ok(Standing::Admitted(token));
        }
        if outcome.hopeless_by_no() {
            // What is left of it on a minority keeps rivals out until the holder has been told, who
            // then leaves; to leave here would let them in before.
            self.held().remove(&ticket.id);
            return Ok(Standing::Lost);
        }
        Err(self.unavailable(line, outcome.failures()))
    }
}
