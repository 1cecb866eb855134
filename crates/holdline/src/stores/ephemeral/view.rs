//! The view of a ticket: what it knows about the entries ahead of its own, and what news of them
//! prove. Pure decisions.
//!
//! The entries created before a ticket's own are a set that can only shrink, because the server
//! gives every new entry a higher number. So a ticket is admitted, whatever else has happened, once
//! it has seen all of them at or after its own creation, and has been told of the deletion of each.
//! If there are many, it watches the nearest ones, as many as it takes to block it: while all of
//! these stay, it need not look again; when one goes, it does.
//!
//! It watches a few more than that, so that news of deletions alone can admit it. If there are more
//! ahead than it watches, it looks again when most of the watched ones are gone, while others still
//! hold, so that no ticket waits for the look. For the rest, an upper bound of their weight may
//! suffice, which never grows: a reader need not know the other readers.

use holdline_kernel::rule;
use std::collections::HashMap;
use std::hash::Hash;

/// How many of the nearest entries are watched at least, and how many are left when it is time to
/// look again.
const NEAREST: usize = 4;
const SOON: usize = 2;
/// The most entries that are compared one by one.
const MOST: usize = 16;

/// One look at a line: the entries ahead of a ticket.
#[derive(Debug)]
pub(super) struct Look<K> {
    /// The server's revision at that time.
    pub(super) revision: i64,
    /// Their keys and weights, the nearest first.
    pub(super) ahead: Vec<(K, u32)>,
    /// Whether these are all.
    pub(super) complete: bool,
    /// The most that all of them can weigh, if known.
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

/// A ticket's view of the entries ahead of it.
#[derive(Debug)]
pub(super) struct View<K> {
    pub(super) watched: Watched,
    /// The revision for which `ahead` is correct.
    seen: i64,
    /// The nearest entries that block it, with their weights.
    ahead: HashMap<K, u32>,
    /// Changes of them since, with revisions: a reply may be older than a change.
    changes: Vec<(K, Option<u32>, i64)>,
    /// The most that the other entries ahead can weigh, if known.
    rest: Option<u64>,
}

impl<K> Look<K> {
    /// Whether a ticket of this weight is admitted behind them. `None` if they do not suffice to
    /// tell.
    pub(super) fn admits(&self, weight: u32, capacity: u32) -> Option<bool> {
        let fits = |ahead| rule::fits(ahead, weight, capacity);
        let seen = fits(self.ahead.iter().map(|(_, weight)| u64::from(*weight)).sum());
        (self.complete || !seen || self.most.is_some_and(fits)).then_some(seen)
    }
}

impl<K> Default for View<K> {
    fn default() -> Self {
        let (ahead, changes) = (HashMap::new(), Vec::new());
        View { watched: Watched::Nothing, seen: 0, ahead, changes, rest: None }
    }
}

impl<K: Clone + Eq + Hash> View<K> {
    /// Whether a ticket of this weight is admitted, as far as is known.
    pub(super) fn has_room(&self, weight: u32, capacity: u32) -> bool {
        self.rest.is_some_and(|rest| self.fits_behind(rest, weight, capacity))
    }

    /// Whether a ticket fits behind the known entries and others of this weight.
    fn fits_behind(&self, others: u64, weight: u32, capacity: u32) -> bool {
        let ahead = self.ahead.values().map(|weight| u64::from(*weight)).sum::<u64>();
        rule::fits(ahead + others, weight, capacity)
    }

    /// Whether a look at the line is due: the known entries ahead leave room, or soon will.
    fn is_due(&self, weight: u32, capacity: u32) -> bool {
        let is_soon = self.rest.is_none() && self.ahead.len() == SOON;
        is_soon || self.fits_behind(0, weight, capacity)
    }

    /// The entries that block the ticket as long as they are unchanged, and the revision of that
    /// state. None if a look at the line is due.
    pub(super) fn blockers(&self, weight: u32, capacity: u32) -> (Vec<K>, i64) {
        let looks = self.is_due(weight, capacity) || self.ahead.len() > MOST;
        (if looks { Vec::new() } else { self.nearest(MOST) }, self.seen)
    }

    /// The revision of the view.
    pub(super) fn seen(&self) -> i64 {
        self.seen
    }

    /// Whether this entry is ahead, as far as is known.
    pub(super) fn has(&self, key: &K) -> bool {
        self.ahead.contains_key(key)
    }

    /// Up to `most` of the entries ahead.
    pub(super) fn nearest(&self, most: usize) -> Vec<K> {
        self.ahead.keys().take(most).cloned().collect()
    }

    /// Applies a look at the entries ahead, all or only the nearest. `false` if it does not
    /// determine the ticket's standing.
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
        for (key, new, at) in self.changes.drain(..) {
            if at > look.revision {
                change(&mut ahead, &key, new);
            }
        }
        // Different entries were watched.
        if self.watched == Watched::Ahead && !ahead.keys().all(|key| self.ahead.contains_key(key)) {
            self.watched = Watched::Nothing;
        }
        (self.ahead, self.rest) = (ahead, rest);
        self.unchanged_at(look.revision);
        true
    }

    /// Records that the entries ahead are unchanged at this revision.
    pub(super) fn unchanged_at(&mut self, revision: i64) {
        self.seen = self.seen.max(revision);
    }

    /// Records that an entry was deleted at this revision, or has this weight since. Returns
    /// whether it is time to ask for the ticket's standing.
    pub(super) fn change(
        &mut self,
        (key, new): (&K, Option<u32>),
        revision: i64,
        (weight, capacity): (u32, u32),
    ) -> bool {
        if revision <= self.seen || !self.has(key) {
            return false; // of before the last look, or behind
        }
        change(&mut self.ahead, key, new);
        self.changes.push((key.clone(), new, revision));
        self.is_due(weight, capacity)
    }

    /// Watches only the ticket's own entry if it holds. Returns whether a watch on it must be
    /// started.
    pub(super) fn turn_to_own(&mut self, holds: bool) -> bool {
        let begins = holds && self.watched != Watched::Own;
        if begins {
            self.watched = Watched::Own;
            self.ahead.clear(); // admitted: nobody ahead matters any more
        }
        begins
    }
}

/// Deletes an entry or sets its weight, which never grows.
fn change<K: Eq + Hash>(entries: &mut HashMap<K, u32>, key: &K, new: Option<u32>) {
    match new {
        None => drop(entries.remove(key)),
        Some(new) => entries.get_mut(key).into_iter().for_each(|old| *old = new.min(*old)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::collections::{BTreeMap, VecDeque};

    type Change = (u8, Option<u32>, i64);

    /// A line at a server that reuses keys, and the news that one ticket in it receives.
    struct World {
        rng: Rng,
        share: (u32, u32),
        revision: i64,
        /// The entries by the revision of their creation: key and weight.
        entries: BTreeMap<i64, (u8, u32)>,
        /// The news that are still in transit, and those that have arrived.
        news: VecDeque<Change>,
        applied: Vec<Change>,
        /// The creation revision of the ticket's own entry; 0 if it does not exist yet.
        own: i64,
        view: View<u8>,
        /// A look that has been made but not applied yet.
        late: Option<Look<u8>>,
        /// The revision after which the watch on the entries ahead began.
        begun: i64,
    }

    impl World {
        fn new(seed: u64) -> Self {
            let mut rng = Rng::with_seed(seed);
            let capacity = *rng.choice(&[1, 3, 10, 1 << 30]).expect("some");
            let weight = *rng.choice(&[1, capacity.min(2), capacity]).expect("some");
            World {
                rng,
                share: (weight, capacity),
                revision: 0,
                entries: BTreeMap::new(),
                news: VecDeque::new(),
                applied: Vec::new(),
                own: 0,
                view: View::default(),
                late: None,
                begun: 0,
            }
        }

        fn create(&mut self) {
            let key = self.rng.u8(..12);
            if self.entries.values().all(|(taken, _)| *taken != key) {
                let capacity = self.share.1;
                let weight = *self.rng.choice(&[1, 1, capacity.min(2), capacity]).expect("some");
                self.revision += 1;
                self.entries.insert(self.revision, (key, weight));
            }
        }

        /// Removes an entry, or lowers its weight.
        fn change(&mut self) {
            let at = self.rng.usize(..self.entries.len().max(1));
            let Some((create, (key, weight))) = self.entries.iter().nth(at).map(|(c, e)| (*c, *e))
            else {
                return;
            };
            self.revision += 1;
            let less = (weight > 1 && self.rng.u8(..4) == 0).then(|| self.rng.u32(1..weight));
            match less {
                Some(less) => drop(self.entries.insert(create, (key, less))),
                None => drop(self.entries.remove(&create)),
            }
            self.news.push_back((key, less, self.revision));
        }

        fn ahead(&self) -> impl DoubleEndedIterator<Item = (u8, u32)> + Clone {
            self.entries.range(..self.own).map(|(_, entry)| *entry)
        }

        /// A look: the nearest entries and perhaps the total weight, or slightly more.
        fn look(&mut self) -> Look<u8> {
            let (knows, more) = (self.rng.bool(), self.rng.u64(..2));
            let limits: &[_] = if knows { &[1, 2, 5, 9] } else { &[5, 6, 9, usize::MAX] };
            let limit = *self.rng.choice(limits).expect("some");
            let nearest: Vec<_> = self.ahead().rev().take(limit).collect();
            let weight: u64 = self.ahead().map(|(_, weight)| u64::from(weight)).sum();
            let (complete, most) = (nearest.len() < limit, knows.then_some(weight + more));
            let look = Look { revision: self.revision, ahead: nearest, complete, most };
            let admits = look.admits(self.share.0, self.share.1);
            assert!(admits.is_none_or(|admits| admits == self.is_admitted()), "{look:?}");
            look
        }

        fn is_admitted(&self) -> bool {
            let ahead = self.ahead().map(|(_, weight)| u64::from(weight)).sum();
            rule::fits(ahead, self.share.0, self.share.1)
        }

        /// Receives the oldest news, or earlier news again.
        fn apply_one(&mut self) {
            let again =
                (self.rng.u8(..8) == 0).then(|| self.rng.choice(&self.applied).copied()).flatten();
            let next = again.or_else(|| self.news.pop_front());
            if let Some((key, new, revision)) = next {
                self.applied.push((key, new, revision));
                self.view.change((&key, new), revision, self.share);
            }
        }

        /// Applies a look, and watches the entries in it.
        fn take(&mut self, look: Look<u8>) {
            let (weight, capacity) = self.share;
            if !self.view.take(look, weight, capacity) {
                let (ahead, revision) = (self.ahead().rev().collect(), self.revision);
                let look = Look { revision, ahead, complete: true, most: None };
                assert!(self.view.take(look, weight, capacity), "all of them tell");
            }
            if self.view.watched != Watched::Ahead {
                self.view.watched = Watched::Ahead;
                self.begun = self.revision;
            }
        }

        /// Whether the ticket knows its standing, or knows that it does not.
        fn knows(&self) -> bool {
            let (weight, capacity) = self.share;
            let looks = self.view.blockers(weight, capacity).0.is_empty();
            looks || self.check()
        }

        /// Receives everything in transit, and looks once more if the watch began later.
        fn settle(&mut self) {
            if let Some(look) = self.late.take() {
                self.take(look);
            }
            if self.view.seen() < self.begun {
                let look = self.look();
                self.take(look);
            }
            self.apply_all();
        }

        fn apply_all(&mut self) {
            while !self.news.is_empty() {
                self.apply_one();
            }
        }

        fn check(&self) -> bool {
            let admitted = self.own > 0 && self.view.has_room(self.share.0, self.share.1);
            assert!(!admitted || self.is_admitted(), "{:?}", self.view);
            admitted
        }

        /// Changes the line before the ticket comes.
        fn prepare(&mut self) {
            match self.rng.u8(..10) {
                0..=3 => self.create(),
                4 => self.change(),
                _ => self.apply_one(),
            }
        }

        fn step(&mut self) {
            match self.rng.u8(..12) {
                0 => self.create(),
                1..=4 => self.change(),
                5 | 6 => match self.late.take() {
                    None => self.late = Some(self.look()),
                    Some(look) => self.take(look),
                },
                _ => self.apply_one(),
            }
        }
    }

    /// Whatever a ticket sees and hears, however late, it is not admitted before its turn; and when
    /// its turn has come and all news have arrived, it knows that, or looks.
    #[test]
    fn nobody_is_admitted_before_their_turn_or_long_after() {
        let mut admitted = 0;
        for seed in 0..10_000 {
            let mut world = World::new(seed);
            (0..world.rng.u8(4..40)).for_each(|_| world.prepare());
            world.revision += 1;
            world.own = world.revision;
            let first = world.look();
            world.take(first);
            let (weight, capacity) = world.share;
            let waits = !world.view.blockers(weight, capacity).0.is_empty();
            assert!(waits || world.check(), "seed {seed}: it does not know how it stands");
            for _ in 0..world.rng.u8(..40) {
                world.step();
                admitted += u32::from(waits && world.check());
            }
            world.settle();
            while !world.is_admitted() {
                world.change();
            }
            world.apply_all();
            assert!(world.knows(), "seed {seed}: {:?}", world.view);
        }
        assert!(admitted > 10_000, "{admitted}");
    }

    /// A view after a look at entries of these weights, by a ticket of this share.
    fn view(ahead: &[u32], complete: bool, (weight, capacity): (u32, u32)) -> View<u8> {
        let mut view = View::default();
        let ahead = (0..).zip(ahead.iter().copied()).collect();
        let look = Look { revision: 10, ahead, complete, most: None };
        assert!(view.take(look, weight, capacity));
        view
    }

    #[test]
    fn a_look_is_due_before_the_last_known_blocker_goes() {
        let mut incomplete = view(&[1; 4], false, (1, 1));
        assert_eq!(incomplete.blockers(1, 1).0.len(), 4);
        assert!(!incomplete.change((&0, None), 11, (1, 1)));
        assert!(incomplete.change((&1, None), 12, (1, 1)), "two are left: it is time");
        let mut complete = view(&[1; 4], true, (1, 1));
        for (key, revision) in [(0, 11), (1, 12), (2, 13)] {
            assert!(!complete.change((&key, None), revision, (1, 1)), "all are known");
        }
        assert!(complete.change((&3, None), 14, (1, 1)) && complete.has_room(1, 1));
        let many = view(&[1; MOST + 1], true, (1, 17));
        assert!(many.blockers(1, 17).0.is_empty(), "these are not compared one by one");
    }

    /// News may come twice, and what is behind the ticket is none.
    #[test]
    fn old_news_raise_no_weight() {
        let mut view = view(&[5, 1], true, (4, 6));
        assert!(!view.change((&9, None), 11, (4, 6)), "it is not ahead");
        assert!(view.change((&0, Some(1)), 12, (4, 6)) && view.has_room(4, 6));
        view.change((&0, Some(5)), 11, (4, 6));
        assert!(view.has_room(4, 6));
    }

    #[test]
    fn a_ticket_that_holds_watches_its_own_entry_only() {
        let mut view = view(&[1, 1], true, (1, 3));
        assert!(!view.turn_to_own(false) && view.has(&0), "it waits");
        assert!(view.turn_to_own(true) && !view.has(&0));
        assert_eq!(view.watched, Watched::Own);
        assert!(!view.turn_to_own(true), "it does so already");
    }
}
