//! The ZooKeeper store's part of a ticket: its node, and the nodes that block it.

use super::dialect::Dialect;
use super::layout::Member;
use crate::names::Name;
use crate::store::{Ticket, TicketId};
use crate::stores::ephemeral::ticket::{self, Entry, State};
use crate::stores::ephemeral::values;
use holdline_kernel::Time;
use holdline_zookeeper_client::Session;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

/// A ticket of a ZooKeeper store.
pub(super) type TicketRecord = ticket::TicketRecord<NodeEntry>;
pub(super) type Record = Arc<TicketRecord>;
pub(super) type Place = ticket::Place<NodeEntry>;

/// The part of a node that does not change while its ticket lives.
#[derive(Debug)]
pub(super) struct Base {
    /// The node of its line.
    pub(super) parent: String,
    /// The session that the node is on. A ticket never moves to another one.
    pub(super) session: Arc<Session>,
}

/// A ticket's node.
#[derive(Debug)]
pub(super) struct NodeEntry {
    /// Its number in the line.
    pub(super) seq: i64,
    /// Its name, once known.
    pub(super) child: String,
    /// Whether this is not the ticket's first node.
    pub(super) moved: bool,
    /// Whether the ticket is moving to another node, so that the deletion of the old one means
    /// nothing.
    pub(super) moving: bool,
    next_check: NextCheck,
    /// The nodes that block it, as few as possible.
    pub(super) blockers: Vec<Member>,
    /// Since when these nodes have blocked it, and when to ask for proof of them.
    blocked: Time,
    proof: Time,
    /// Whether its node is watched, or is about to be.
    pub(super) guarded: bool,
}

/// When to check next for clients that do not see a held lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextCheck {
    Unplanned,
    At(Time),
    /// Never again: the holder has been warned.
    Warned,
}

impl Entry for NodeEntry {
    type Base = Base;
    type Watch = Ahead;

    fn has_room(place: &Place, _capacity: u32) -> bool {
        !place.is_unsure() && place.entry.blockers.is_empty()
    }
}

/// A task that watches a node. Dropping this ends it.
#[derive(Debug)]
pub(super) struct Watching(pub(super) AbortHandle);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What is watched ahead of a ticket: a child of its line, or, if it is `None`, the whole line.
pub(super) type Watched = Option<String>;

/// A watch ahead of a ticket.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) watched: Watched,
    pub(super) _task: Watching,
}

impl TicketRecord {
    /// A ticket whose node is yet to be created.
    pub(super) fn of(
        line: &Name,
        parent: String,
        ticket: &Ticket,
        note: &Arc<str>,
        session: Arc<Session>,
        due: Time,
    ) -> Self {
        let base = Base { parent, session };
        TicketRecord::new(line, ticket, note, due, (base, NodeEntry::new()))
    }

    /// A ticket for an orphan: known only by its node, which must be removed.
    pub(super) fn orphan(id: TicketId, line: &Name, parent: String, session: Arc<Session>) -> Self {
        let lease = Duration::ZERO;
        let (weight, capacity, token_count, min_token) = (1, 1, 1, 0);
        let ticket =
            Ticket { id, weight, capacity, lease, wait_lease: lease, token_count, min_token };
        let record = TicketRecord::of(line, parent, &ticket, &Arc::from(""), session, Time::NEVER);
        record.with(|place| (place.state, place.doubtful) = (State::Lapsed, true));
        record
    }

    /// The path of a child of its line.
    pub(super) fn path(&self, child: &str) -> String {
        format!("{}/{child}", self.base.parent)
    }

    /// The path of its node; `None` if it has no known node.
    pub(super) fn own(&self) -> Option<String> {
        self.with(|place| (place.create != 0).then(|| self.path(&place.entry.child)))
    }

    /// Whether the store may have a node of this ticket, as far as is known here.
    pub(super) fn may_be_there(&self) -> bool {
        let may_be = self.with(|place| place.create != 0 || place.doubtful);
        may_be && !self.base.session.has_ended()
    }

    /// The path of its node without the number, as it is created.
    pub(super) fn stem(&self, dialect: Dialect, ticket: &Ticket) -> String {
        let elects = values::word(ticket, &self.place().note).is_some();
        self.path(&dialect.stem(ticket, elects))
    }

    /// Records that its node exists.
    pub(super) fn born(&self, member: &Member, create: i64) {
        drop(self.with(|place| place.is_at(member, create, self.capacity)));
    }

    /// Records the node that a look has found, unless another request has settled the doubt since.
    pub(super) fn found(&self, member: &Member, czxid: i64) {
        drop(self.with(|place| {
            // The token stays if it has only moved.
            let create = if place.create == 0 { czxid } else { place.create };
            place.doubtful.then(|| place.is_at(member, create, self.capacity))
        }));
    }

    /// Makes the waiter look again, because something has changed.
    pub(super) fn stir(&self) {
        self.place().miss();
        self.wake();
    }
}

impl NodeEntry {
    fn new() -> Self {
        NodeEntry {
            seq: 0,
            child: String::new(),
            moved: false,
            moving: false,
            next_check: NextCheck::Unplanned,
            blockers: Vec::new(),
            blocked: Time::NEVER,
            proof: Time::NEVER,
            guarded: false,
        }
    }
}

impl Place {
    /// Records its node. If that has another name than before, the place has moved there, to the
    /// weight that the name tells. Returns the permit, to be dropped without holding the mutex.
    fn is_at(
        &mut self,
        member: &Member,
        create: i64,
        capacity: u32,
    ) -> Option<OwnedSemaphorePermit> {
        if self.entry.child != member.child {
            self.entry.moved |= self.create != 0;
            self.weight = self.weight.min(member.weight(capacity));
            self.entry.child.clone_from(&member.child);
            self.entry.guarded = false;
        }
        self.entry.seq = member.seq;
        self.born(create);
        self.doubtful = false;
        self.permit.take()
    }

    /// Extends a ticket that is requested again. `false` if it was given up before: its earlier
    /// requests are being undone, and nothing may be created for it any more.
    pub(super) fn want(&mut self, until: Time) -> bool {
        let wanted = self.is_alive();
        if wanted {
            self.due = self.due.max(until);
        }
        wanted
    }

    /// Closes a ticket for which nothing was created, so that it may be forgotten; not while a task
    /// looks for its node.
    pub(super) fn retire(&mut self) -> bool {
        let unmade = self.create == 0 && !self.doubtful;
        unmade && std::mem::replace(&mut self.state, State::Lapsed) != State::Lapsed
    }

    /// Whether a child of its line with its id is a node other than its own.
    pub(super) fn disowns(&self, child: &str) -> bool {
        let NodeEntry { child: own, moving, .. } = &self.entry;
        self.create != 0 && !self.doubtful && !moving && own != child
    }

    /// When to check next for clients that do not see a held lock.
    pub(super) fn next_check(&mut self, now: Time) -> Time {
        if self.state != State::Held {
            return Time::NEVER;
        }
        match self.entry.next_check {
            NextCheck::Unplanned => self.plan_check(now.after(CHECK_INTERVAL)),
            NextCheck::At(time) => time,
            NextCheck::Warned => Time::NEVER,
        }
    }

    /// Schedules the next such check, and returns its time.
    pub(super) fn checked(&mut self, now: Time) -> Time {
        self.plan_check(now.after(CHECK_INTERVAL * 2))
    }

    fn plan_check(&mut self, time: Time) -> Time {
        self.entry.next_check = NextCheck::At(time);
        time
    }

    /// Whether to warn about such clients: only once.
    pub(super) fn warns(&mut self) -> bool {
        let warned = NextCheck::Warned;
        self.is_alive() && std::mem::replace(&mut self.entry.next_check, warned) != warned
    }

    /// What to watch while its blockers stay the same.
    pub(super) fn to_watch(&self) -> Vec<Watched> {
        let blockers = &self.entry.blockers;
        if blockers.len() > FEW {
            return vec![None];
        }
        blockers.iter().map(|member| Some(member.child.clone())).collect()
    }

    /// Applies the nodes that block it, requested when `missed` had this value. Returns the watches
    /// that are no longer needed, to be dropped without holding the mutex.
    pub(super) fn see(&mut self, blockers: Vec<Member>, missed: u64, now: Time) -> Vec<Ahead> {
        self.answered(missed);
        if self.entry.blockers == blockers {
            return Vec::new();
        }
        self.entry.blockers = blockers;
        (self.entry.blocked, self.entry.proof) = (now, now.after(PROOF));
        let needed = self.to_watch();
        self.watches.extract_if(.., |watch| !needed.contains(&watch.watched)).collect()
    }

    /// Whether to ask now for proof that the blocking nodes exist: after a while, and then less and
    /// less often.
    pub(super) fn wants_proof(&mut self, now: Time) -> bool {
        let due = now >= self.entry.proof;
        if due {
            let pause = self.entry.blocked.until(now).clamp(PROOF, PROOF * 12);
            self.entry.proof = now.after(pause);
        }
        due
    }
}

/// The most nodes that are watched one by one. If there are more, the whole line is watched.
const FEW: usize = 64;

/// How long a node may block a ticket before a proof is requested.
const PROOF: Duration = Duration::from_secs(5);

/// The delay before a held lock is first checked for clients that do not see it; later checks come
/// after twice that time.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Marks a place as doubtful until the reply comes.
pub(super) struct Doubt<'a> {
    record: &'a TicketRecord,
    settled: bool,
}

impl<'a> Doubt<'a> {
    pub(super) fn new(record: &'a TicketRecord) -> Self {
        // From before the request on: a task that removes the ticket meanwhile must look.
        record.place().doubtful = true;
        Doubt { record, settled: false }
    }

    /// Records that the reply has come.
    pub(super) fn settle(mut self) {
        self.settled = true;
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        let mut place = self.record.place();
        place.entry.moving = false;
        // Another task may have looked before the request was carried out.
        place.doubtful = !self.settled;
    }
}

#[cfg(test)]
mod tests {
    use super::super::dialect::READERS;
    use super::*;
    use crate::clock;
    use crate::stores::ephemeral::ticket::tests::ticket;

    fn place(due: Time) -> Place {
        Place::new(&ticket(1, 1), &Arc::from(""), due, NodeEntry::new())
    }

    #[test]
    fn a_ticket_that_was_given_up_is_not_entered_again() {
        let now = clock::now();
        let later = now.after(Duration::from_secs(30));
        let mut given_up = place(now);
        assert!(given_up.want(later), "it is asked for through an outage");
        assert_eq!(given_up.lapse(now.after(Duration::from_secs(20))), None);
        assert_eq!(given_up.lapse(later.after(Duration::from_secs(10))), Some(false));
        assert!(!given_up.want(later), "what was sent for it is being removed");
        assert!(!given_up.retire(), "that is for the task that removes it");
        let mut unmade = place(now);
        assert!(unmade.retire() && !unmade.want(later));
        assert_eq!(unmade.lapse(later), None, "nobody looks for what was forgotten");
    }

    /// As after a downgrade whose reply was lost.
    #[test]
    fn a_place_under_another_name_has_moved_to_the_weight_of_that_name() {
        let mut node =
            Place::new(&ticket(READERS, READERS), &Arc::from(""), Time::NEVER, NodeEntry::new());
        let names = ["WRIT", "READ", "WRIT"].map(|kind| {
            let child = format!("_c_12345678-0000-0000-0000-000000000001-__{kind}__0000000007");
            Member::read(&child).expect("a place")
        });
        for (name, expected) in names.iter().zip([(READERS, false), (1, true), (1, true)]) {
            node.is_at(name, 5, READERS);
            assert_eq!((node.weight, node.entry.moved), expected, "{}", name.child);
        }
    }

    /// Until its node is known, and while it moves, any of them may be its own.
    #[test]
    fn a_node_is_disowned_only_if_the_ticket_surely_has_another() {
        let mut node = place(Time::NEVER);
        let own = "_c_12345678-0000-0000-0000-000000000001-lock-0000000001";
        let other = own.replace("0001", "0002");
        assert!(!node.disowns(own), "no node is known");
        node.is_at(&Member::read(own).expect("a place"), 5, 1);
        assert!(!node.disowns(own) && node.disowns(&other));
        node.doubtful = true;
        assert!(!node.disowns(&other), "it may have moved there");
        (node.doubtful, node.entry.moving) = (false, true);
        assert!(!node.disowns(&other), "it may be moving there");
    }

    #[test]
    fn proof_is_asked_for_less_and_less_often() {
        let mut node = place(Time::NEVER);
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        assert!(!node.wants_proof(at(1)), "of nobody");
        let blockers = |number: u64| -> Vec<Member> {
            let child = format!("_c_12345678-0000-0000-0000-000000000001-lock-{number:010}");
            Member::read(&child).into_iter().collect()
        };
        node.see(blockers(1), 0, at(100));
        node.see(blockers(1), 0, at(103)); // no news
        let asked: Vec<_> = (100..300).filter(|second| node.wants_proof(at(*second))).collect();
        assert_eq!(asked, [105, 110, 120, 140, 180, 240]);
        node.see(blockers(2), 0, at(300));
        assert!(!node.wants_proof(at(304)) && node.wants_proof(at(305)));
    }
}
