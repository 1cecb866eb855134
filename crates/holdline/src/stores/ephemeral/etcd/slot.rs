//! The numbers that tell the places of one lease in the same line from each other.

use crate::sync::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard};

/// The slots of one lease, by what begins the keys of a line.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<HashMap<Vec<u8>, OfLine>>);

/// The slots of one line.
#[derive(Debug, Default)]
struct OfLine {
    /// Those that were used, and are not now.
    free: BTreeSet<u32>,
    /// All from this on were never used.
    next: u32,
    /// How many are not free, some of them for ever.
    taken: usize,
}

/// A number that no other place on this lease has in the same line. Free again when it is dropped.
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

    /// Never to be used again: something that was written for it may still come.
    pub(super) fn retire(mut self) {
        self.prefix = Vec::new();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut lines = self.slots.lines();
        // All prefixes end in a slash; one that is empty is of a slot that has retired.
        let Some(slots) = lines.get_mut(&self.prefix) else { return };
        slots.free.insert(self.number);
        slots.taken -= 1;
        if slots.taken == 0 {
            lines.remove(&self.prefix);
        }
    }
}

impl Slots {
    fn lines(&self) -> MutexGuard<'_, HashMap<Vec<u8>, OfLine>> {
        self.0.lock()
    }

    /// A number for one more place in a line: the lowest that there is, so that few are used.
    pub(super) fn slot(self: &Arc<Self>, prefix: &[u8]) -> Slot {
        let mut lines = self.lines();
        let slots = lines.entry(prefix.to_vec()).or_default();
        slots.taken += 1;
        let number = slots.free.pop_first().unwrap_or_else(|| {
            slots.next += 1;
            slots.next - 1
        });
        Slot { slots: Arc::clone(self), prefix: prefix.to_vec(), number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of a line are few, however often they are used.
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
    }
}
