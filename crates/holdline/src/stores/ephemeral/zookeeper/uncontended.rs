//! Uncontended lines: a new place there is known to be the first without a list.
//!
//! The server numbers the nodes that are created in a line one after the other. So a new node is
//! its line's only child if
//!
//! 1. this session's last node there was the only child when the line was listed,
//! 2. that node was deleted,
//! 3. the new node has the next number: nobody has created one in between, and
//! 4. the line's node is still the same one. It may be removed while it is empty, and the numbers
//!    then start again. A watch on it was set before that list, on the connection that the new node
//!    was created on, and has not fired. Servers send events and replies in the order of the
//!    transactions, so it would have fired before the reply.
//!
//! The new node then takes the part of the last one, so the next lock needs no list either. Whether
//! a list is needed is known only with the number, and a wrong guess costs a round trip. So the
//! list is left out only if this session had the last two numbers, too.

use super::layout::Member;
use crate::sync::Mutex;
use holdline_zookeeper_client::Watch;
use std::collections::HashMap;
use std::hash::BuildHasher;

/// The most lines that are remembered, and so the most watches: one for each value of a hash.
const MOST: u64 = 4096;

/// What is known of the lines that a store uses.
#[derive(Debug, Default)]
pub(super) struct Uncontended(Mutex<HashMap<u64, Line>>);

#[derive(Debug)]
struct Line {
    parent: String,
    session: i64,
    /// The number of this session's last node, if that was the only child.
    last: Option<i64>,
    /// Whether that node was deleted.
    deleted: bool,
    /// Whether the one before it had the number before.
    repeated: bool,
    watch: Option<Watch>,
}

/// What to ask for together with the creation of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// A list of the line.
    List,
    /// A watch on the line's node, and a list.
    Watch,
    /// Nothing, if the new node comes right after this number.
    After(i64),
}

impl Line {
    /// Whether the line's node has not changed since the watch was set.
    fn is_same(&mut self) -> bool {
        self.watch.as_mut().is_some_and(Watch::is_pending)
    }

    /// The number of the last node if the next one would be the only child.
    fn free_after(&mut self) -> Option<i64> {
        self.last.filter(|_| self.deleted && self.is_same())
    }
}

impl Uncontended {
    /// Works with a line of a session, if it is remembered.
    fn with<T>(&self, line: (&str, i64), work: impl FnOnce(&mut Line) -> T) -> Option<T> {
        let mut lines = self.0.lock();
        let slot = lines.hasher().hash_one(line.0) % MOST;
        lines.get_mut(&slot).filter(|known| (&*known.parent, known.session) == line).map(work)
    }

    /// What to ask for with the next node of a line.
    pub(super) fn plan(&self, line: (&str, i64)) -> Plan {
        let plan = self.with(line, |known| match known.free_after() {
            Some(last) if known.repeated => Plan::After(last),
            _ if known.repeated && !known.is_same() => Plan::Watch,
            _ => Plan::List,
        });
        plan.unwrap_or(Plan::List)
    }

    /// Whether a node that was just created right after this number is the only child.
    pub(super) fn is_first(&self, line: (&str, i64), last: i64, new: &Member) -> bool {
        let follows = new.seq == last + 1 && !new.is_exhausted();
        follows && self.with(line, Line::free_after).flatten() == Some(last)
    }

    /// Remembers a new node, and whether it was the only child.
    pub(super) fn created(
        &self,
        (parent, session): (&str, i64),
        new: &Member,
        only: bool,
        watch: Option<Watch>,
    ) {
        let mut lines = self.0.lock();
        let slot = lines.hasher().hash_one(parent) % MOST;
        let fresh = || Line {
            parent: parent.to_owned(),
            session,
            last: None,
            deleted: false,
            repeated: false,
            watch: None,
        };
        let line = lines.entry(slot).or_insert_with(fresh);
        if (&*line.parent, line.session) != (parent, session) {
            // A watch cannot be withdrawn, so the line that has it stays until it fires.
            if line.is_same() {
                return;
            }
            *line = fresh();
        }
        let follows = line.last.is_some_and(|last| last + 1 == new.seq);
        line.repeated = only && follows;
        line.last = only.then_some(new.seq);
        line.deleted = false;
        if watch.is_some() {
            line.watch = watch;
        }
    }

    /// Remembers that a node was deleted.
    pub(super) fn deleted(&self, line: (&str, i64), seq: i64) {
        self.with(line, |known| known.deleted |= known.last == Some(seq));
    }
}
