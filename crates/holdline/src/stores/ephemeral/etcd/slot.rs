//! Slots: numbers that distinguish the places of one lease in the same line.

use crate::sync::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The slots of one lease.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// The used ones, by the prefix of the line's keys.
    used: Mutex<HashMap<Vec<u8>, BTreeSet<u32>>>,
    /// How many have retired.
    retired: AtomicU32,
}

/// The most slots that retire before the lease gets no new places: they last as long as it does.
const MOST_RETIRED: u32 = 32;

/// A number that no other place on this lease has in the same line. Freed when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    prefix: Vec<u8>,
    number: u32,
}

impl Slot {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Retires the slot for good: a late write for it may still arrive.
    pub(super) fn retire(mut self) {
        self.prefix = Vec::new();
        self.slots.retired.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut lines = self.slots.used.lock();
        // All prefixes end in a slash; an empty one means that the slot has retired.
        let Some(taken) = lines.get_mut(&self.prefix) else { return };
        taken.remove(&self.number);
        if taken.is_empty() {
            lines.remove(&self.prefix);
        }
    }
}

impl Slots {
    /// Whether so many slots have retired that the lease should end.
    pub(super) fn are_worn(&self) -> bool {
        self.retired.load(Ordering::Relaxed) >= MOST_RETIRED
    }

    /// A slot for one more place in a line: the lowest free one, so that few are used.
    pub(super) fn slot(self: &Arc<Self>, prefix: &[u8]) -> Slot {
        let mut lines = self.used.lock();
        let taken = lines.entry(prefix.to_vec()).or_default();
        let number = (0..).zip(&*taken).find_map(|(at, slot)| (at != *slot).then_some(at));
        let number = number.unwrap_or_else(|| taken.last().map_or(0, |last| last + 1));
        taken.insert(number);
        Slot { slots: Arc::clone(self), prefix: prefix.to_vec(), number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line has few distinct keys, however often they are used.
    #[test]
    fn slots_are_used_again_unless_in_doubt() {
        let slots = Arc::<Slots>::default();
        let slot = |line: &[u8]| slots.slot(line);
        let (first, second) = (slot(b"x/"), slot(b"x/"));
        assert_eq!((first.number(), second.number(), slot(b"y/").number()), (0, 1, 0));
        drop(first);
        let first = slot(b"x/");
        assert_eq!((first.number(), slot(b"x/").number()), (0, 2));
        second.retire();
        drop(first);
        assert_eq!([0, 2, 3], [slot(b"x/"), slot(b"x/"), slot(b"x/")].map(|slot| slot.number()));
        (2..MOST_RETIRED).for_each(|_| slot(b"z/").retire());
        assert!(!slots.are_worn());
        slot(b"z/").retire();
        assert!(slots.are_worn());
    }
}
