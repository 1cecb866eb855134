//! Eviction: removes a place by force, and returns a token that fences its holder but no later one.
//!
//! The nodes' own replies to the removal do not suffice: the highest may exceed the tokens of a
//! later majority, and would fence the next holder as well. So a stand-in queues behind the victim
//! on every node, and is admitted where the victim is removed: nothing comes in between. Its own
//! numbers do not suffice either: on some nodes it may have queued before the victim entered
//! others, so the victim's token may be the higher.
//!
//! So a second ticket queues behind the admitted stand-in, only to be given a number, which is
//! above all that its node has seen before. The highest of these is the result, once a renewal of
//! the stand-in has raised a majority of those nodes to it. The proof is in
//! `docs/decisions/0007-quorum-tokens.md`.

use super::Quorum;
use super::round::{Round, Until};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{Enter, Seq, Standing, Store, Ticket, TicketId};
use holdline_kernel::Vote;
use std::sync::Arc;
use std::time::Duration;

/// How long both tickets are left behind if everything fails. Three rounds, each a third of it:
/// even if a node is silent, the stand-in still exists when it is admitted.
const LEASE: Duration = Duration::from_secs(3);

impl Quorum {
    pub(super) async fn remove(
        &self,
        line: &Name,
        id: TicketId,
        reason: &str,
    ) -> Result<Option<Seq>> {
        let views = self.survey(line, |node| node.snapshot(line)).await?;
        if !views.iter().flat_map(|view| &view.places).any(|place| place.id == id) {
            return Ok(None);
        }
        if !self.capabilities().fencing_tokens {
            // Without tokens the victim cannot be fenced, and no ticket can queue.
            let there = self.survey(line, |node| node.evict(line, id, reason)).await?;
            return Ok(there.into_iter().flatten().max());
        }
        let stand_in = Ticket {
            id: TicketId(fastrand::u128(..)),
            weight: 1,
            capacity: 1,
            lease: LEASE,
            wait_lease: LEASE,
            token_count: 1,
            min_token: self.shared.lead.request(),
        };
        let second = Ticket { id: TicketId(fastrand::u128(..)), ..stand_in };
        let mut on_cancel = CancelGuard { quorum: self, line, ids: &[second.id, stand_in.id] };
        let number = self.replace(line, id, reason, &stand_in, &second).await;
        while let [id, rest @ ..] = on_cancel.ids {
            self.leave_all(line, *id, Self::node_timeout(LEASE), Until::AllAnswered).await.ok();
            on_cancel.ids = rest;
        }
        number
    }

    async fn replace(
        &self,
        line: &Name,
        id: TicketId,
        reason: &str,
        stand_in: &Ticket,
        second: &Ticket,
    ) -> Result<Option<Seq>> {
        let note = &Arc::from("");
        self.survey(line, |node| node.enter(line, stand_in, note, Enter::Queue)).await?;
        let there = self.survey(line, |node| node.evict(line, id, reason)).await?;
        if there.iter().all(Option::is_none) {
            return Ok(None);
        }
        self.number(line, stand_in, second, note).await.map(Some)
    }

    /// On a majority, in this order: the stand-in is admitted, a second ticket is given a number,
    /// and the stand-in raises the node to the highest of those numbers.
    async fn number(
        &self,
        line: &Name,
        stand_in: &Ticket,
        second: &Ticket,
        note: &Arc<str>,
    ) -> Result<Seq> {
        let mut round = Round::new(&self.nodes, line, LEASE / 3);
        for node in self.nodes.iter() {
            round.ask(node, async move {
                let first = node.store.enter(line, stand_in, note, Enter::Try).await?;
                let Standing::Admitted(node_place) = first else { return Ok((Vote::No, None)) };
                Ok(match node.store.enter(line, second, note, Enter::Queue).await? {
                    // Nodes without tokens give no place either.
                    Standing::Waiting { seq, .. } => {
                        (Vote::Yes, Some((node_place, seq.unwrap_or(Seq(0)))))
                    }
                    Standing::Admitted(_) | Standing::Lost => (Vote::No, None),
                })
            });
        }
        let outcome = round.run(clock::now(), Until::MostAnswered).await;
        if !outcome.met() {
            // The victim was no longer on a majority, and another ticket was first; or replies are
            // missing. No number is better than one that may fence the wrong holder, or none.
            let missing = !outcome.hopeless_by_no();
            let cause = missing.then(|| self.unavailable(line, outcome.failures()));
            return Err(unfenced(line, cause));
        }
        let places = outcome.answers(|(_, place)| *place);
        let number = places.iter().flatten().map(|(_, number)| *number).max().unwrap_or(Seq(0));
        let node_places =
            places.into_iter().map(|place| place.map(|(node_place, _)| node_place)).collect();
        let lifted = self.lift(line, stand_in, note, node_places, number).await;
        lifted.map_err(|error| unfenced(line, Some(error)))?;
        Ok(number)
    }
}

/// Releases the rest of both tickets in the background if the caller stops waiting.
struct CancelGuard<'a> {
    quorum: &'a Quorum,
    line: &'a Name,
    ids: &'a [TicketId],
}

impl Drop for CancelGuard<'_> {
    fn drop(&mut self) {
        for id in self.ids {
            self.quorum.forget(*id);
            self.quorum.nodes.iter().for_each(|node| node.leave_later(self.line, *id));
        }
    }
}

fn unfenced(line: &Name, cause: Option<Error>) -> Error {
    let message = format!(
        "lock \"{line}\" was taken from its holder by force, but there is no token to fence it \
         with; the next holder's token will do"
    );
    match cause {
        Some(cause) => Error::because(ErrorKind::Unavailable, message, cause),
        None => Error::new(ErrorKind::Unavailable, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::queue::CAPABILITIES;
    use crate::stores::quorum::fault::late;
    use crate::stores::quorum::grant::Grant;
    use crate::stores::quorum::lazy::{Lazy, Opener};

    #[test]
    fn a_force_unlock_that_is_dropped_leaves_no_stand_in() {
        let never: Opener = Arc::new(|| Box::pin(async { Err(late()) }));
        let node = |_| Lazy::new("away".to_owned(), CAPABILITIES, Arc::clone(&never));
        let nodes = (0..3).map(node).map(|node| Arc::new(node) as Arc<dyn Store>);
        let quorum = Quorum::new(nodes).expect("enough nodes");
        let (stand_in, other) = (TicketId(1), TicketId(2));
        for id in [stand_in, other] {
            quorum.held().insert(id, Grant { token: Seq(7), node_places: Vec::new() });
        }
        let line = &Name::new("x").expect("fine");
        drop(CancelGuard { quorum: &quorum, line, ids: &[stand_in] });
        assert_eq!(quorum.held().keys().collect::<Vec<_>>(), [&other]);
    }
}
