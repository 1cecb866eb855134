//! A bounded set of tickets: the latest ones that were put into it.

use crate::store::TicketId;
use crate::sync::Mutex;
use std::collections::{HashSet, VecDeque};
use std::sync::MutexGuard;

/// The latest so many tickets.
#[derive(Debug)]
pub(super) struct Recent {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    members: HashSet<TicketId>,
    /// In the order in which they came; those that were taken out may still be here.
    order: VecDeque<TicketId>,
}

impl Recent {
    pub(super) fn new(most: usize) -> Self {
        Recent { most, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn insert(&self, id: TicketId) {
        let mut state = self.state();
        if state.members.insert(id) {
            state.order.push_back(id);
        }
        if state.order.len() > self.most
            && let Some(oldest) = state.order.pop_front()
        {
            state.members.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, id: TicketId) -> bool {
        self.state().members.contains(&id)
    }

    /// Takes a ticket out. Returns whether it was there.
    pub(super) fn remove(&self, id: TicketId) -> bool {
        let mut state = self.state();
        let was_there = state.members.remove(&id);
        // Most leave in the order in which they came.
        while state.order.front().is_some_and(|oldest| !state.members.contains(oldest)) {
            state.order.pop_front();
        }
        was_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_known() {
        let recent = Recent::new(3);
        (0..5).for_each(|id| recent.insert(TicketId(id)));
        let known = (0..5).filter(|id| recent.contains(TicketId(*id))).collect::<Vec<_>>();
        assert_eq!(known, [2, 3, 4]);
        assert!(recent.remove(TicketId(2)) && !recent.remove(TicketId(2)));
        assert!(recent.remove(TicketId(4)));
        recent.insert(TicketId(5));
        assert!(recent.contains(TicketId(3)) && recent.contains(TicketId(5)));
    }
}
