//! What is seen of a line, put together from what several nodes say.

use super::round::Round;
use super::{Quorum, SURVEY};
use crate::clock;
use crate::error::Result;
use crate::names::Name;
use crate::store::{Async, EVICTIONS_KEPT, Eviction, QueueEntry, QueueSnapshot, Store, TicketId};
use holdline_kernel::Vote;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

impl Quorum {
    /// On how many of so many nodes that answered a lock must be seen to be held: it is on a
    /// majority of all, of which some may not have answered. On fewer, somebody tries, or is just
    /// leaving.
    pub(super) fn enough(&self, answered: usize) -> usize {
        let silent = self.nodes.len() - answered.min(self.nodes.len());
        (self.tally().majority() as usize).saturating_sub(silent).max(1)
    }

    /// Asks all nodes something that changes nothing, and takes what a majority says.
    pub(super) async fn survey<'a, T: Send + 'a>(
        &'a self,
        line: &'a Name,
        question: impl Fn(&'a dyn Store) -> Async<'a, T>,
    ) -> Result<Vec<T>> {
        let mut round = Round::new(&self.nodes, line, SURVEY);
        for node in self.nodes.iter() {
            let answer = question(&*node.store);
            round.ask(node, Box::pin(async move { Ok((Vote::Yes, Some(answer.await?))) }));
        }
        let outcome = round.run_all(clock::now()).await;
        if !outcome.met() {
            return Err(self.unavailable(line, outcome.failures()));
        }
        Ok(outcome.into_answers().filter_map(|(_, answer)| answer).collect())
    }

    pub(super) async fn see(&self, line: &Name) -> Result<QueueSnapshot> {
        let mut views = self.survey(line, |node| node.snapshot(line)).await?;
        let enough = self.enough(views.len());
        let evictions = views.iter_mut().flat_map(|view| mem::take(&mut view.evictions));
        let evictions = merged(evictions);
        let mut all: BTreeMap<TicketId, Vec<QueueEntry>> = BTreeMap::new();
        for place in views.into_iter().flat_map(|view| view.places) {
            all.entry(place.id).or_default().push(place);
        }
        let mut places: Vec<QueueEntry> = all
            .into_values()
            .filter_map(|seen| together(seen, enough))
            .filter(|place| place.admitted) // others have it on a few nodes, for a moment
            .collect();
        places.sort_by_key(|place| place.seq);
        let capacity = u32::from(!places.is_empty());
        Ok(QueueSnapshot { capacity, places, evictions })
    }

    pub(super) async fn names(&self, prefix: &str) -> Result<Vec<Name>> {
        let any = Name::new(if prefix.is_empty() { "*" } else { prefix })?;
        let lists = self.survey(&any, |node| node.list(prefix)).await?;
        let enough = self.enough(lists.len());
        let mut names: BTreeMap<Name, usize> = BTreeMap::new();
        for name in lists.into_iter().flatten() {
            *names.entry(name).or_default() += 1;
        }
        Ok(names.into_iter().filter(|(_, on)| *on >= enough).map(|(name, _)| name).collect())
    }
}

/// What several nodes say of evictions: each once, in the order of the nodes that know it.
fn merged(evictions: impl Iterator<Item = Eviction>) -> Vec<Eviction> {
    let mut all: Vec<Eviction> = Vec::new();
    for eviction in evictions {
        if !all.iter().any(|known| known.id == eviction.id) {
            all.push(eviction);
        }
    }
    let surplus = all.len().saturating_sub(EVICTIONS_KEPT);
    all.split_off(surplus)
}

/// One place, as several nodes have it. What it says about itself is what most of them say: those
/// that a change has not reached yet are the fewer.
fn together(seen: Vec<QueueEntry>, enough: usize) -> Option<QueueEntry> {
    let says = |note: &Arc<str>| seen.iter().filter(|place| place.note == *note).count();
    let note = Arc::clone(&seen.iter().max_by_key(|place| says(&place.note))?.note);
    let admitted = seen.iter().filter(|place| place.admitted).count() >= enough;
    let seq = seen.iter().map(|place| place.seq).max()?;
    let expires_in = seen.iter().map(|place| place.expires_in).max()?;
    let first = seen.into_iter().next()?;
    Some(QueueEntry { seq, admitted, expires_in, note, ..first })
}
