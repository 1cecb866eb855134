//! A grant: a ticket that holds on a majority, its place on each node, and its renewal.

use super::node::Node;
use super::round::{Round, Until};
use super::{Quorum, Shared};
use crate::clock;
use crate::error::Result;
use crate::names::Name;
use crate::store::{Enter, Seq, Standing, Ticket, TicketId};
use futures_util::future::{Either, select};
use holdline_kernel::{Time, Vote};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

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
    /// The node has not answered yet, or has lost the place. It is asked for one from this time on.
    Missing(Time),
}

/// The time limit of a request for a missing place. Nobody waits for it, and the first request to a
/// node that was away takes longer than others.
const REPAIR: Duration = Duration::from_secs(5);

impl Quorum {
    /// How long a place that is missing is not asked for: if the lock is just being broken by
    /// force, node by node, it must not come back behind the eviction.
    pub(super) fn missing_time(lease: Duration) -> Duration {
        Self::node_timeout(lease) * 2
    }

    /// Renews a ticket: it is held if a majority still has it.
    ///
    /// A node that lacks its place counts against it, and is asked for one after a renewal that a
    /// majority confirmed. So the place counts only from the next renewal on: what a majority
    /// granted at once must never be gathered piece by piece.
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
        let has = |number: usize| matches!(grant.node_places[number], NodePlace::Taken(_));
        let mut round = Round::among(&self.nodes, line, Self::node_timeout(ticket.lease), has);
        for (node, node_place) in self.nodes.iter().zip(&grant.node_places) {
            match *node_place {
                NodePlace::Taken(seq) => round.ask(node, async move {
                    let standing = node.store.enter(line, ticket, note, Enter::Keep(seq)).await?;
                    let kept = matches!(standing, Standing::Admitted(_));
                    Ok(if kept { (Vote::Yes, None) } else { (Vote::No, Some(seq)) })
                }),
                NodePlace::Missing(_) => round.answered(node, (Vote::No, None)),
            }
        }
        let outcome = round.run(sent, Until::MostAnswered).await;
        if outcome.met() {
            let lost = outcome.answers(|answer| answer.1);
            self.record_lost(ticket.id, &lost, sent.after(Self::missing_time(ticket.lease)));
            self.repair(line, ticket, note).await;
            return Ok(Standing::Admitted(token));
        }
        if outcome.hopeless_by_no() {
            // The rest of it on a minority blocks rivals until the holder, once notified, leaves.
            // Leaving here would admit them before that.
            self.forget(ticket.id);
            return Ok(Standing::Lost);
        }
        Err(self.unavailable(line, outcome.failures()))
    }

    /// Records the places that nodes have lost, unless a repair has recorded another meanwhile.
    /// They are asked for one from this time on.
    fn record_lost(&self, id: TicketId, lost: &[Option<Seq>], from: Time) {
        let mut held = self.held();
        let Some(grant) = held.get_mut(&id) else { return };
        for (node_place, lost) in grant.node_places.iter_mut().zip(lost) {
            if let (NodePlace::Taken(seq), Some(lost)) = (*node_place, *lost)
                && seq == lost
            {
                *node_place = NodePlace::Missing(from);
            }
        }
    }

    /// Asks the nodes that lack the ticket's place for one, in the background: a slow node delays
    /// no renewal, and its answer counts however late it is.
    async fn repair(&self, line: &Name, ticket: &Ticket, note: &Arc<str>) {
        for (number, permit) in self.due_for_repair(line, ticket.id) {
            let repair = Repair {
                shared: Arc::clone(&self.shared),
                node: self.nodes[number].clone(),
                number,
                line: line.clone(),
                ticket: *ticket,
                note: Arc::clone(note),
                _permit: permit,
            };
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(repair.run());
                continue;
            }
            // In the simulation, which has no tasks.
            let limit = clock::now().after(Self::node_timeout(ticket.lease));
            clock::within(limit, repair.run()).await;
        }
    }

    /// The numbers of the nodes to ask for a place now. None of them is asked again before its
    /// answer.
    fn due_for_repair(&self, line: &Name, id: TicketId) -> Vec<(usize, OwnedSemaphorePermit)> {
        let now = clock::now();
        let mut held = self.held();
        let Some(grant) = held.get_mut(&id) else { return Vec::new() };
        let mut due = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let NodePlace::Missing(from) = &mut grant.node_places[number] else { continue };
            if now < *from || node.is_leaving(id) {
                continue;
            }
            if node.is_silent() {
                node.probe(line);
            } else if let Ok(permit) = Arc::clone(&node.repairs).try_acquire_owned() {
                *from = now.after(REPAIR);
                due.push((number, permit));
            }
        }
        due
    }
}

/// A request for a missing place.
struct Repair {
    shared: Arc<Shared>,
    node: Node,
    /// The node's number.
    number: usize,
    line: Name,
    ticket: Ticket,
    note: Arc<str>,
    _permit: OwnedSemaphorePermit,
}

impl Repair {
    /// Asks, until the lock is given up: the place must not come after the departure.
    async fn run(self) {
        let answer = match select(pin!(self.ask()), pin!(self.given_up())).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => None,
        };
        let Repair { node, line, ticket, .. } = &self;
        let node_place = match answer {
            Some(Ok(Standing::Admitted(seq))) => NodePlace::Taken(seq),
            _ => NodePlace::Missing(clock::now().after(Quorum::missing_time(ticket.lease))),
        };
        if !self.record(node_place) {
            // The ticket was given up meanwhile: this entry may have come after the departure.
            let _ = node.leave(line, ticket.id).await;
        }
    }

    /// Asks the node, until its answer comes or the time is over.
    async fn ask(&self) -> Option<Result<Standing>> {
        let Repair { node, line, ticket, note, .. } = self;
        let sent = clock::now();
        let mut enter = node.store.enter(line, ticket, note, Enter::Try);
        let soon = sent.after(Quorum::node_timeout(ticket.lease));
        let mut answer = clock::within(soon, enter.as_mut()).await;
        if answer.is_none() {
            node.health.silent();
            answer = clock::within(sent.after(REPAIR), enter).await;
        }
        if let Some(answer) = &answer {
            node.health.ended(sent, answer.as_ref().err());
        }
        answer
    }

    /// Waits until the ticket is no longer held.
    async fn given_up(&self) {
        loop {
            let left = self.shared.left.notified();
            if !self.shared.held.lock().contains_key(&self.ticket.id) {
                return;
            }
            left.await;
        }
    }

    /// Records the place, if the ticket is still held.
    fn record(&self, node_place: NodePlace) -> bool {
        let mut held = self.shared.held.lock();
        let Some(grant) = held.get_mut(&self.ticket.id) else { return false };
        // The next request may have been faster.
        if let missing @ NodePlace::Missing(_) = &mut grant.node_places[self.number] {
            *missing = node_place;
        }
        true
    }
}
