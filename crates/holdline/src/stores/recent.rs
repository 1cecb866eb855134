//! A bounded set of recent tickets, or of other recent items.

use crate::store::TicketId;
use crate::sync::Mutex;
use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;

/// The `most` latest items, and up to as many before them.
#[derive(Debug)]
pub(in crate::stores) struct Recent<T = TicketId> {
    most: usize,
    /// The latest items, and those before them.
    sets: Mutex<[HashSet<T>; 2]>,
}

impl<T: Eq + Hash> Recent<T> {
    pub(in crate::stores) fn new(most: usize) -> Self {
        Recent { most, sets: Mutex::default() }
    }

    pub(in crate::stores) fn insert(&self, item: T) {
        let mut sets = self.sets.lock();
        if sets[0].len() >= self.most {
            sets[1] = std::mem::take(&mut sets[0]);
        }
        sets[0].insert(item);
    }

    pub(in crate::stores) fn contains(&self, item: impl Borrow<T>) -> bool {
        self.sets.lock().iter().any(|set| set.contains(item.borrow()))
    }

    /// Removes an item. Returns whether it was in the set.
    pub(in crate::stores) fn remove(&self, item: impl Borrow<T>) -> bool {
        let [latest, before] = &mut *self.sets.lock();
        latest.remove(item.borrow()) | before.remove(item.borrow())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_known() {
        let recent = Recent::new(3);
        (0..8).for_each(|id| recent.insert(TicketId(id)));
        let known = (0..8).filter(|id| recent.contains(TicketId(*id))).collect::<Vec<_>>();
        assert_eq!(known, [3, 4, 5, 6, 7]);
        assert!(recent.remove(TicketId(4)) && !recent.remove(TicketId(4)));
        assert!(recent.remove(TicketId(7)));
        assert!(recent.contains(TicketId(5)) && recent.contains(TicketId(6)));
    }
}
