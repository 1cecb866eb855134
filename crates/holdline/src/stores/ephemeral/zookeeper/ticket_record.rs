//! The ZooKeeper store's part of a ticket: its node, and what is known of those ahead of it.

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
use tokio::task::AbortHandle;

/// A ticket of a ZooKeeper store.
pub(super) type TicketRecord = ticket::TicketRecord<NodeEntry>;
pub(super) type Record = Arc<TicketRecord>;
pub(super) type Place = ticket::Place<NodeEntry>;

/// What does not change about a node while its ticket lives.
#[derive(Debug)]
pub(super) struct Base {
    /// The node under which its line stands.
    pub(super) parent: String,
    /// The session that the node is on. A ticket never moves to another one.
    pub(super) session: Arc<Session>,
}

/// A ticket's node.
#[derive(Debug)]
pub(super) struct NodeEntry {
    /// Its number in the line.
    pub(super) seq: i64,
    /// Its name, once that is known.
    pub(super) child: String,
    /// It is not the node that the ticket came with.
    pub(super) moved: bool,
    /// The ticket is on its way to another node: that the old one goes means nothing.
    pub(super) moving: bool,
    patrol: Patrol,
    /// The nodes that keep it out, as few as may be.
    pub(super) blockers: Vec<Member>,
    /// The time since when it is those, and the time at which to ask for proof of them.
    blocked: Time,
    proof: Time,
    /// Its node is watched, or is about to be.
    pub(super) guarded: bool,
}

/// When to look next whether clients have come that do not see a held lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patrol {
    Unplanned,
    At(Time),
    /// Not any more: it was reported that there are some.
    Warned,
}

impl Entry for NodeEntry {
    type Base = Base;
    type Watch = Watching;

    fn has_room(place: &Place, _capacity: u32) -> bool {
        !place.is_unsure() && place.entry.blockers.is_empty()
    }
}

/// A task that watches a node. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watching(pub(super) AbortHandle);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl TicketRecord {
    /// A ticket whose node is still to be made.
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

    /// One of which nothing is known but that it has a node, which is to be removed.
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

    /// The path of its node. None as long as there is none that we know of.
    pub(super) fn own(&self) -> Option<String> {
        self.with(|place| (place.create != 0).then(|| self.path(&place.entry.child)))
    }

    /// Whether the store may have a node of this ticket, as far as is known here.
    pub(super) fn may_be_there(&self) -> bool {
        let may_be = self.with(|place| place.create != 0 || place.doubtful);
        may_be && !self.base.session.has_ended()
    }

    /// What its node's path begins with when it is made.
    pub(super) fn stem(&self, dialect: Dialect, ticket: &Ticket) -> String {
        let elects = values::word(ticket, &self.place().note).is_some();
        self.path(&dialect.stem(ticket, elects))
    }

    /// Its node is there.
    pub(super) fn born(&self, member: &Member, create: i64) {
        drop(self.with(|place| {
            if place.entry.child != member.child {
                place.entry.child.clone_from(&member.child);
                place.entry.guarded = false;
            }
            place.entry.seq = member.seq;
            place.born(create);
            place.doubtful = false;
            place.permit.take()
        }));
    }

    /// Has the waiter look again: something has changed.
    pub(super) fn stir(&self) {
        self.place().miss();
        self.news.notify_one();
    }
}

impl NodeEntry {
    fn new() -> Self {
        NodeEntry {
            seq: 0,
            child: String::new(),
            moved: false,
            moving: false,
            patrol: Patrol::Unplanned,
            blockers: Vec::new(),
            blocked: Time::NEVER,
            proof: Time::NEVER,
            guarded: false,
        }
    }
}

impl Place {
    /// Has a ticket removed at once whose session is over here: for as long as the servers keep its
    /// node it is in the way of others. One that was held is not, before its holder is sure to know
    /// of the loss.
    pub(super) fn abandon(&mut self, now: Time) {
        if !self.was_held() {
            self.due = self.due.min(now);
        }
    }

    /// Extends a ticket that is asked for again. `false` if it was given up before: what was sent
    /// for it is being removed, and nothing may be made for it any more.
    pub(super) fn want(&mut self, until: Time) -> bool {
        let wanted = self.is_alive();
        if wanted {
            self.due = self.due.max(until);
        }
        wanted
    }

    /// Closes a ticket for which nothing was made, unless a task looks for that: it may be
    /// forgotten.
    pub(super) fn retire(&mut self) -> bool {
        let unmade = self.create == 0 && !self.doubtful;
        unmade && std::mem::replace(&mut self.state, State::Lapsed) != State::Lapsed
    }

    /// Whether a child of its line that carries its id is not its node, but another one.
    pub(super) fn disowns(&self, child: &str) -> bool {
        let NodeEntry { child: own, moving, .. } = &self.entry;
        self.create != 0 && !self.doubtful && !moving && own != child
    }

    /// The time at which to look next whether clients have come that do not see a held lock.
    pub(super) fn patrol(&mut self, now: Time) -> Time {
        if self.state != State::Held {
            return Time::NEVER;
        }
        match self.entry.patrol {
            Patrol::Unplanned => self.plan_patrol(now.after(PATROL)),
            Patrol::At(time) => time,
            Patrol::Warned => Time::NEVER,
        }
    }

    /// Plans the next such look. Returns when it is.
    pub(super) fn patrolled(&mut self, now: Time) -> Time {
        self.plan_patrol(now.after(PATROL * 2))
    }

    fn plan_patrol(&mut self, time: Time) -> Time {
        self.entry.patrol = Patrol::At(time);
        time
    }

    /// Whether to warn of such clients: once.
    pub(super) fn warns(&mut self) -> bool {
        let warned = Patrol::Warned;
        self.is_alive() && std::mem::replace(&mut self.entry.patrol, warned) != warned
    }

    /// Takes in the nodes that keep it out, which were asked for when changes had been missed so
    /// many times.
    pub(super) fn see(&mut self, blockers: Vec<Member>, missed: u64, now: Time) -> Vec<Watching> {
        self.answered(missed);
        if self.entry.blockers == blockers {
            return Vec::new();
        }
        self.entry.blockers = blockers;
        (self.entry.blocked, self.entry.proof) = (now, now.after(PROOF));
        // To be dropped without the lock.
        std::mem::take(&mut self.watches)
    }

    /// Whether to ask now for proof that the nodes that keep it out are there: after a while, and
    /// then less and less often.
    pub(super) fn wants_proof(&mut self, now: Time) -> bool {
        let due = now >= self.entry.proof;
        if due {
            let pause = self.entry.blocked.until(now).clamp(PROOF, PROOF * 12);
            self.entry.proof = now.after(pause);
        }
        due
    }
}

/// The time for which a node may keep a ticket out before proof of it is asked for.
const PROOF: Duration = Duration::from_secs(5);

/// The time after which it is looked for clients that do not see a held lock; and then again each
/// time after twice as long.
const PATROL: Duration = Duration::from_secs(5);

/// Marks a place doubtful until the answer comes.
pub(super) struct Doubt<'a> {
    record: &'a TicketRecord,
    settled: bool,
}

impl<'a> Doubt<'a> {
    pub(super) fn new(record: &'a TicketRecord) -> Self {
        // From before the request on: a task that removes the ticket meanwhile is to look.
        record.place().doubtful = true;
        Doubt { record, settled: false }
    }

    /// The answer is here.
    pub(super) fn settle(mut self) {
        self.settled = true;
        self.record.place().doubtful = false;
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.record.place().entry.moving = false;
        }
    }
}

#[cfg(test)]
mod tests {
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
