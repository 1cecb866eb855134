//! The view of a line, merged from several nodes' answers.

use super::round::{Round, Until};
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
    /// On how many of the nodes that answered a lock must be held to count as held. It is on a
    /// majority of all nodes, some of which may not have answered. On fewer, a ticket is only
    /// trying, or leaving.
    pub(super) fn enough(&self, answered: usize) -> usize {
        let silent = self.nodes.len() - answered.min(self.nodes.len());
        (self.tally().majority() as usize).saturating_sub(silent).max(1)
    }

    /// Sends a read-only request to all nodes, and merges a majority's answers.
    pub(super) async fn survey<'a, T: Send + 'a>(
        &'a self,
        line: &'a Name,
        question: impl Fn(&'a dyn Store) -> Async<'a, T>,
    ) -> Result<Vec<T>> {
        let mut round = Round::new(&self.nodes, line, SURVEY);
        for node in self.nodes.iter() {
            let answer = question(&*node.store);
            round.ask(node, async move { Ok((Vote::Yes, Some(answer.await?))) });
        }
        let outcome = round.run(clock::now(), Until::MostAnswered).await;
        if !outcome.met() {
            return Err(self.unavailable(line, outcome.failures()));
        }
        Ok(outcome.into_answers().filter_map(|(_, answer)| answer).collect())
    }

    pub(super) async fn see(&self, line: &Name) -> Result<QueueSnapshot> {
        let mut views = self.survey(line, |node| node.snapshot(line)).await?;
        let enough = self.enough(views.len());
        let evictions = views.iter_mut().map(|view| mem::take(&mut view.evictions));
        let evictions = merged(evictions.collect());
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

/// Merges several nodes' evictions: the latest ones, each once, in the order of most nodes that
/// know both of two. If no node does, the one that fewer nodes know is the older: the others have
/// forgotten it.
fn merged(nodes: Vec<Vec<Eviction>>) -> Vec<Eviction> {
    let orders: Vec<Vec<TicketId>> =
        nodes.iter().map(|node| node.iter().map(|eviction| eviction.id).collect()).collect();
    let mut left: BTreeMap<TicketId, Eviction> =
        nodes.into_iter().flatten().map(|eviction| (eviction.id, eviction)).collect();
    let mut all = Vec::with_capacity(left.len());
    let oldest = |left: &BTreeMap<TicketId, Eviction>| {
        let older = |id| left.keys().filter(|other| precedes(&orders, **other, id)).count();
        let known = |id: &TicketId| orders.iter().filter(|order| order.contains(id)).count();
        left.keys().min_by_key(|id| (older(**id), known(id))).copied()
    };
    while let Some(next) = oldest(&left).and_then(|id| left.remove(&id)) {
        all.push(next);
    }
    let surplus = all.len().saturating_sub(EVICTIONS_KEPT);
    all.split_off(surplus)
}

/// Whether most nodes that know both say that `one` came before `other`.
fn precedes(orders: &[Vec<TicketId>], one: TicketId, other: TicketId) -> bool {
    let at = |order: &[TicketId], id| order.iter().position(|known| *known == id);
    let both = orders.iter().filter_map(|order| Some(at(order, one)?.cmp(&at(order, other)?)));
    both.map(|order| order as i32).sum::<i32>() < 0
}

/// Merges one place from several nodes. Its own data is taken from most of them: nodes that a
/// change has not reached are fewer.
fn together(seen: Vec<QueueEntry>, enough: usize) -> Option<QueueEntry> {
    let says = |note: &Arc<str>| seen.iter().filter(|place| place.note == *note).count();
    let note = Arc::clone(&seen.iter().max_by_key(|place| says(&place.note))?.note);
    let admitted = seen.iter().filter(|place| place.admitted).count() >= enough;
    let seq = seen.iter().map(|place| place.seq).max()?;
    let expires_in = seen.iter().map(|place| place.expires_in).max()?;
    let first = seen.into_iter().next()?;
    Some(QueueEntry { seq, admitted, expires_in, note, ..first })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(nodes: &[&[u128]]) -> Vec<u128> {
        let eviction = |id: &u128| Eviction { id: TicketId(*id), note: Arc::from("") };
        let nodes = nodes.iter().map(|node| node.iter().map(eviction).collect()).collect();
        merged(nodes).into_iter().map(|eviction| eviction.id.0).collect()
    }

    #[test]
    fn evictions_are_in_the_order_of_most_nodes() {
        assert_eq!(order(&[&[], &[], &[]]), []);
        assert_eq!(order(&[&[7, 5], &[5, 3], &[7, 3]]), [7, 5, 3], "each node lacks one");
        assert_eq!(order(&[&[2, 1], &[1, 2], &[2, 1]]), [2, 1], "one had them the other way");
        let mut circle = order(&[&[1, 2], &[2, 3], &[3, 1]]);
        circle.sort_unstable();
        assert_eq!(circle, [1, 2, 3], "each once");
    }

    #[test]
    fn what_most_nodes_have_forgotten_is_the_oldest() {
        let last: Vec<u128> = (1..=8).collect();
        let lacks_one = [99, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(order(&[&lacks_one, &last, &last]), last);
        assert_eq!(order(&[&last, &last, &lacks_one]), last);
    }
}
