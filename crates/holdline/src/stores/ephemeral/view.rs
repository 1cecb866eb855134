//! What a ticket knows of the entries ahead of its own, and what news of them prove: decisions
//! alone.
//!
//! The entries that were created before a ticket's own are a set that can only lose members,
//! because the server gives every new one a higher number. So a ticket that has seen all of them,
//! at or after its own creation, and has been told of a deletion of each, is admitted, whatever
//! else happened. Of many it takes the nearest, as many as are needed to keep it out: as long as
//! all of these stay it need not look again, and when one goes it does.
//!
//! It takes a few more of the nearest than that, so that it is let in by the news of deletions
//! alone. Where more are ahead than it takes, it looks again when most of those that it took are
//! gone: while others still hold, so that nobody waits for it. Of the rest it may be enough to know
//! what they can weigh at most, which never grows: a reader need not know the other readers.

use holdline_kernel::rule;
use std::collections::HashMap;
use std::hash::Hash;

/// The number of the nearest entries that are taken at least, and the number that is left when it
/// is time to look again.
const NEAREST: usize = 4;
const SOON: usize = 2;
/// The number of entries that are compared one by one, at most.
const MOST: usize = 16;

/// What a look at a line shows of those ahead of a ticket.
#[derive(Debug)]
pub(super) struct Look<K> {
    /// The revision of the server at which it was so.
    pub(super) revision: i64,
    /// Their keys and weights, the nearest first.
    pub(super) ahead: Vec<(K, u32)>,
    /// Whether those are all.
    pub(super) complete: bool,
    /// The most that all of them can weigh, if that is known.
    pub(super) most: Option<u64>,
}

/// The entries that a ticket watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Watched {
    #[default]
    Nothing,
    Own,
    /// Those ahead of it, and its own.
    Ahead,
}

/// What a ticket knows of those ahead of it.
#[derive(Debug)]
pub(super) struct View<K> {
    pub(super) watched: Watched,
    /// The revision at which `ahead` was so.
    seen: i64,
    /// The entries that keep it out and their weights: the nearest, as many as it takes.
    ahead: HashMap<K, u32>,
    /// Those of them that were deleted since, and when: an answer may be older than that.
    gone: Vec<(K, i64)>,
    /// The most that the others can weigh which were ahead, if that is known.
    rest: Option<u64>,
}

impl<K> Look<K> {
    /// Whether a ticket of this weight is admitted behind them. `None` if they do not tell.
    pub(super) fn admits(&self, weight: u32, capacity: u32) -> Option<bool> {
        let fits = |ahead| rule::fits(ahead, weight, capacity);
        let seen = fits(self.ahead.iter().map(|(_, weight)| u64::from(*weight)).sum());
        (self.complete || !seen || self.most.is_some_and(fits)).then_some(seen)
    }
}

impl<K> Default for View<K> {
    fn default() -> Self {
        let (ahead, gone) = (HashMap::new(), Vec::new());
        View { watched: Watched::Nothing, seen: 0, ahead, gone, rest: None }
    }
}

impl<K: Clone + Eq + Hash> View<K> {
    /// Whether a ticket of this weight is admitted, as far as is known.
    pub(super) fn has_room(&self, weight: u32, capacity: u32) -> bool {
        self.rest.is_some_and(|rest| self.fits_behind(rest, weight, capacity))
    }

    /// Whether a ticket fits behind those that are known, and others of that weight.
    fn fits_behind(&self, others: u64, weight: u32, capacity: u32) -> bool {
        let ahead = self.ahead.values().map(|weight| u64::from(*weight)).sum::<u64>();
        rule::fits(ahead + others, weight, capacity)
    }

    /// Whether to look at the line: all that are known to be ahead leave room, or soon do.
    fn is_due(&self, weight: u32, capacity: u32) -> bool {
        let is_soon = self.rest.is_none() && self.ahead.len() == SOON;
        is_soon || self.fits_behind(0, weight, capacity)
    }

    /// The entries which, while they are as they were, keep the ticket out, and the revision at
    /// which they were so. None if the line is to be looked at.
    pub(super) fn blockers(&self, weight: u32, capacity: u32) -> (Vec<K>, i64) {
        let looks = self.is_due(weight, capacity) || self.ahead.len() > MOST;
        (if looks { Vec::new() } else { self.nearest(MOST) }, self.seen)
    }

    /// The revision at which it was so.
    pub(super) fn seen(&self) -> i64 {
        self.seen
    }

    /// Whether this is one of those ahead, as far as is known.
    pub(super) fn has(&self, key: &K) -> bool {
        self.ahead.contains_key(key)
    }

    /// So many of those ahead.
    pub(super) fn nearest(&self, most: usize) -> Vec<K> {
        self.ahead.keys().take(most).cloned().collect()
    }

    /// Takes in a look at those ahead, all or only the nearest. `false` if the look does not tell
    /// how the ticket stands.
    pub(super) fn take(&mut self, look: Look<K>, weight: u32, capacity: u32) -> bool {
        let fits = |ahead| rule::fits(ahead, weight, capacity);
        let (count, mut sum) = (look.ahead.len(), 0);
        let mut ahead = HashMap::new();
        for (key, part) in look.ahead {
            sum += u64::from(part);
            ahead.insert(key, part);
            if !fits(sum) && ahead.len() >= NEAREST {
                break;
            }
        }
        let most = if look.complete { Some(sum) } else { look.most };
        if fits(sum) && !most.is_some_and(fits) {
            return false;
        }
        let rest = most.filter(|_| ahead.len() == count).map(|most| most.saturating_sub(sum));
        for (key, at) in self.gone.drain(..) {
            if at > look.revision {
                ahead.remove(&key);
            }
        }
        // Other entries were watched.
        if self.watched == Watched::Ahead && !ahead.keys().all(|key| self.ahead.contains_key(key)) {
            self.watched = Watched::Nothing;
        }
        (self.ahead, self.rest) = (ahead, rest);
        self.unchanged_at(look.revision);
        true
    }

    /// Those ahead are as they were.
    pub(super) fn unchanged_at(&mut self, revision: i64) {
        self.seen = self.seen.max(revision);
    }

    /// One was deleted at this revision, or has this weight since. Returns whether it is time to
    /// ask how the ticket stands.
    pub(super) fn change(
        &mut self,
        (key, new): (&K, Option<u32>),
        revision: i64,
        (weight, capacity): (u32, u32),
    ) -> bool {
        let Some(old) = self.ahead.get_mut(key).filter(|_| revision > self.seen) else {
            return false; // of before the last look, or behind
        };
        if let Some(new) = new {
            *old = new.min(*old);
        } else {
            self.ahead.remove(key);
            self.gone.push((key.clone(), revision));
        }
        self.is_due(weight, capacity)
    }

    /// Turns to the ticket's own entry if it holds. Returns whether a watch over that is to begin.
    pub(super) fn turn_to_own(&mut self, holds: bool) -> bool {
        let begins = holds && self.watched != Watched::Own;
        if begins {
            self.watched = Watched::Own;
            self.ahead.clear(); // admitted: nobody ahead matters any more
        }
        begins
    }
}
