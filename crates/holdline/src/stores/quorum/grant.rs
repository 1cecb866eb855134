//! A grant: a ticket that holds on a majority, its place on each node, and its renewal.

use super::Quorum;
use super::round::{Round, Until};
use crate::clock;
use crate::error::Result;
use crate::names::Name;
use crate::store::{Enter, Seq, Standing, Ticket};
use holdline_kernel::{Time, Vote};
use std::sync::Arc;

/// The places of a ticket that holds.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) token: Seq,
    pub(super) node_places: Vec<NodePlace>,
}

/// A ticket's place on one node.
#[derive(Clone, Copy, Debug)]
pub(super) enum NodePlace {
    /// It has this number there.
    Taken(Seq),
    /// The node has not answered yet, or has lost the place: known since this time.
    Missing(Time),
}

impl Quorum {
    /// Renews a ticket: it is held if a majority still has it.
    ///
    /// A node that lost it is asked to take it again, but only after some time: if the lock is just
    /// being broken by force, node by node, it must not come back behind the eviction. And a
    /// repaired place counts only from the next renewal on: what a majority granted at once must
    /// never be gathered piece by piece.
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
        let ticket = &Ticket { min_token: token.0.max(ticket.min_token), ..*ticket };
        let timeout = Self::node_timeout(ticket.lease);
        let mut round = Round::new(&self.nodes, line, timeout);
        for (node, node_place) in self.nodes.iter().zip(grant.node_places) {
            match node_place {
                NodePlace::Taken(seq) => round.ask(node, async move {
                    let standing = node.store.enter(line, ticket, note, Enter::Keep(seq)).await?;
                    let kept = matches!(standing, Standing::Admitted(_));
                    Ok(if kept {
                        (Vote::Yes, node_place)
                    } else {
                        (Vote::No, NodePlace::Missing(sent))
                    })
                }),
                NodePlace::Missing(since)
                    if sent < since.after(timeout * 2) || node.is_leaving(ticket.id) =>
                {
                    round.answered(node, (Vote::No, node_place));
                }
                NodePlace::Missing(_) => round.ask(node, async move {
                    let standing = node.store.enter(line, ticket, note, Enter::Try).await?;
                    if !self.held().contains_key(&ticket.id) {
                        // The ticket was given up meanwhile: this entry may have come after the
                        // departure.
                        node.leave(line, ticket.id).await?;
                        return Ok((Vote::No, node_place));
                    }
                    Ok(match standing {
                        Standing::Admitted(seq) => (Vote::No, NodePlace::Taken(seq)),
                        Standing::Waiting { .. } | Standing::Lost => (Vote::No, node_place),
                    })
                }),
            }
        }
        let outcome = round.run(sent, Until::MostAnswered).await;
        if outcome.met() {
            if let Some(grant) = self.held().get_mut(&ticket.id) {
                // A node that was not heard keeps its `node_place`.
                for (node_place, answer) in grant.node_places.iter_mut().zip(outcome.each()) {
                    *node_place = answer.map_or(*node_place, |(_, node_place)| *node_place);
                }
            }
            return Ok(Standing::Admitted(token));
        }
        if outcome.hopeless_by_no() {
            // The rest of it on a minority blocks rivals until the holder, once notified, leaves.
            // Leaving here would admit them before that.
            self.held().remove(&ticket.id);
            return Ok(Standing::Lost);
        }
        Err(self.unavailable(line, outcome.failures()))
    }
}
