//! What this process knows about one of its tickets.

use super::dialect::Dialect;
use super::layout::{self, Member};
use super::session::Session;
use crate::names::Name;
use crate::store::{LossHint, Seq, Ticket, TicketId};
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::task::AbortHandle;

/// One ticket of this process, from before its node is made until after it is deleted.
#[derive(Debug)]
pub(super) struct TicketRecord {
    pub(super) id: TicketId,
    pub(super) line: Name,
    /// The node under which its line stands.
    pub(super) parent: String,
    pub(super) capacity: u32,
    /// The session that its node is on. A ticket never moves to another one.
    pub(super) session: Arc<Session>,
    place: Mutex<Place>,
    /// Its standing may have changed.
    pub(super) news: Notify,
}

/// What changes about it.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is one fact, and most may be so together")]
pub(super) struct Place {
    /// The transaction that made its node: its token. 0 as long as that is not known.
    pub(super) create: i64,
    /// Its number in the line.
    pub(super) seq: i64,
    /// Its node's name, once it is known.
    pub(super) child: String,
    /// That is not the node that it came with.
    pub(super) moved: bool,
    /// It is on its way to another node: that the old one goes means nothing.
    pub(super) moving: bool,
    pub(super) weight: u32,
    pub(super) lease: Duration,
    pub(super) note: Arc<str>,
    pub(super) admitted: bool,
    /// It is gone from the store, or must be taken for that.
    pub(super) gone: bool,
    /// We are giving it up ourselves.
    pub(super) leaving: bool,
    /// A node may be there of which we do not know: look before anything else.
    pub(super) doubtful: bool,
    /// It has lapsed, and a task is removing it.
    sweeping: bool,
    /// Until it is known what became of its first request.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// Something about it has changed or was missed: ask the store.
    pub(super) unsure: bool,
    /// Nobody has said since then that it is still wanted: it lapses.
    pub(super) due: Time,
    /// When to look next whether clients have come that do not see it.
    patrol: Time,
    /// It was told that there are some.
    pub(super) warned: bool,
    /// Those who keep it out, as few as may be.
    pub(super) blockers: Vec<Member>,
    /// Since when it is those, and when to ask for proof of them.
    blocked: Time,
    proof: Time,
    /// The watches over those.
    pub(super) watches: Vec<Watching>,
    /// Whether those are being watched.
    pub(super) listens: bool,
    /// The node of its own that is being watched.
    pub(super) guarded: String,
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
    pub(super) fn new(
        line: &Name,
        parent: String,
        ticket: &Ticket,
        note: &Arc<str>,
        session: Arc<Session>,
        due: Time,
    ) -> Self {
        TicketRecord {
            id: ticket.id,
            line: line.clone(),
            parent,
            capacity: ticket.capacity,
            session,
            place: Mutex::new(Place::new(ticket, note, due)),
            news: Notify::new(),
        }
    }

    pub(super) fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock()
    }

    /// One of which nothing is known but that it has a node, which is to be removed.
    pub(super) fn orphan(id: TicketId, line: &Name, parent: String, session: Arc<Session>) -> Self {
        let lease = Duration::ZERO;
        let (weight, capacity, token_count, min_token) = (1, 1, 1, 0);
        let ticket =
            Ticket { id, weight, capacity, lease, wait_lease: lease, token_count, min_token };
        let record = TicketRecord::new(line, parent, &ticket, &Arc::from(""), session, Time::NEVER);
        {
            let mut place = record.place();
            (place.gone, place.sweeping, place.doubtful) = (true, true, true);
        }
        record
    }

    /// The path of a child of its line.
    pub(super) fn path(&self, child: &str) -> String {
        format!("{}/{child}", self.parent)
    }

    /// The path of its node. None as long as there is none that we know of.
    pub(super) fn own(&self) -> Option<String> {
        let place = self.place();
        (place.create != 0).then(|| self.path(&place.child))
    }

    /// Whether the store may have a node of this ticket, as far as is known here.
    pub(super) fn may_be_there(&self) -> bool {
        let place = self.place();
        !self.session.has_ended() && (place.create != 0 || place.doubtful)
    }

    /// What its node's path begins with when it is made.
    pub(super) fn stem(&self, dialect: Dialect, ticket: &Ticket) -> String {
        let elects = layout::elects(ticket, &self.place().note);
        self.path(&dialect.stem(ticket, elects))
    }

    /// Its node is there.
    pub(super) fn born(&self, member: &Member, create: i64) {
        let mut place = self.place();
        place.child.clone_from(&member.child);
        place.seq = member.seq;
        place.create = create;
        place.doubtful = false;
        let permit = place.permit.take();
        drop(place);
        drop(permit);
    }

    /// Whether it is wanted no more, and so to be swept away: then it is gone.
    pub(super) fn lapse(&self, now: Time, loss_hint: &OnceLock<LossHint>) -> bool {
        let Some(held) = self.place().lapse(now) else { return false };
        self.news.notify_one();
        if held && let Some(loss_hint) = loss_hint.get() {
            loss_hint(self.id);
        }
        true
    }

    /// It is gone, and whoever cares is told, unless we are giving it up ourselves.
    pub(super) fn lose(&self, loss_hint: &OnceLock<LossHint>) {
        let held = {
            let mut place = self.place();
            // While we are giving it up, the answer to that says whether it was there.
            if place.gone || place.leaving {
                return;
            }
            place.gone = true;
            place.admitted
        };
        self.news.notify_one();
        if held && let Some(loss_hint) = loss_hint.get() {
            loss_hint(self.id);
        }
    }

    /// Something has changed: whoever waits is to look.
    pub(super) fn stir(&self) {
        self.place().unsure = true;
        self.news.notify_one();
    }
}

impl Place {
    fn new(ticket: &Ticket, note: &Arc<str>, due: Time) -> Self {
        Place {
            create: 0,
            seq: 0,
            child: String::new(),
            moved: false,
            moving: false,
            weight: ticket.weight,
            lease: ticket.lease,
            note: Arc::clone(note),
            admitted: false,
            gone: false,
            leaving: false,
            doubtful: false,
            sweeping: false,
            permit: None,
            unsure: false,
            due,
            patrol: Time::NEVER,
            warned: false,
            blockers: Vec::new(),
            blocked: Time::NEVER,
            proof: Time::NEVER,
            watches: Vec::new(),
            listens: false,
            guarded: String::new(),
        }
    }

    /// It is wanted, for its lease or its wait lease from then on. Its token, and whether it is
    /// admitted; nothing if it is gone.
    ///
    /// All in one step, as [`Place::lapse`] is: a place that is wanted never looks as if it were
    /// not, and one that was found not to be wanted is never wanted again.
    pub(super) fn stand(&mut self, ticket: &Ticket, began: Time, new: bool) -> Option<(Seq, bool)> {
        if self.gone {
            return None;
        }
        if !self.admitted && !self.unsure && self.blockers.is_empty() {
            self.admitted = true;
        }
        let time = if self.admitted { ticket.lease } else { ticket.wait_lease };
        let until = began.after(time);
        self.due = if new { until } else { self.due.max(until) };
        Some((self.token(), self.admitted))
    }

    /// Its session is over for us, and it keeps others out for as long as the servers have it: it
    /// is to be removed. One that is held is not, before its holder is sure to know of the loss.
    pub(super) fn abandon(&mut self, now: Time) {
        if !self.admitted {
            self.due = self.due.min(now);
        }
    }

    /// It is asked for again, and so wanted until then. False if it was given up before: what was
    /// sent for it is being removed, and nothing may be made for it any more.
    pub(super) fn want(&mut self, until: Time) -> bool {
        let wanted = !self.gone && !self.leaving && !self.sweeping;
        if wanted {
            self.due = self.due.max(until);
        }
        wanted
    }

    /// Whether nothing was made for it, and nobody looks for that: it may be forgotten. Nobody
    /// will begin to look for it then.
    pub(super) fn retire(&mut self) -> bool {
        let unmade = self.create == 0 && !self.doubtful;
        unmade && !std::mem::replace(&mut self.sweeping, true)
    }

    /// Whether a child of its line that carries its id is not its node, but another one.
    pub(super) fn disowns(&self, child: &str) -> bool {
        self.create != 0 && !self.doubtful && !self.moving && self.child != child
    }

    /// If it is wanted no more, it is gone, and being given up: then whether somebody held it who
    /// has not been told.
    fn lapse(&mut self, now: Time) -> Option<bool> {
        // One that is just entering may have set out late.
        let grace = Duration::from_secs(if self.create == 0 { 10 } else { 0 });
        if self.leaving || self.sweeping || now < self.due.after(grace) {
            return None;
        }
        self.sweeping = true;
        Some(!std::mem::replace(&mut self.gone, true) && self.admitted)
    }

    /// Since when it is time to look whether clients have come that do not see this lock; for one
    /// that is held.
    pub(super) fn patrol_since(&mut self, now: Time) -> Option<Time> {
        if !self.admitted || self.gone || self.leaving || self.warned {
            return None;
        }
        if self.patrol == Time::NEVER {
            self.patrol = now.after(PATROL);
        }
        (self.patrol <= now).then_some(self.patrol)
    }

    /// That was done.
    pub(super) fn patrolled(&mut self, now: Time) {
        self.patrol = now.after(PATROL * 2);
    }

    pub(super) fn token(&self) -> Seq {
        token(self.create)
    }

    /// Takes in who keeps it out.
    pub(super) fn see(&mut self, blockers: Vec<Member>, now: Time) -> Vec<Watching> {
        self.unsure = false;
        if self.blockers == blockers {
            return Vec::new();
        }
        self.blockers = blockers;
        (self.blocked, self.proof) = (now, now.after(PROOF));
        self.listens = false;
        // To be dropped without the lock.
        std::mem::take(&mut self.watches)
    }

    /// Whether to ask now for proof that those who keep it out are there: after a while, and then
    /// less and less often.
    pub(super) fn wants_proof(&mut self, now: Time) -> bool {
        let due = now >= self.proof;
        if due {
            let pause = self.blocked.until(now).clamp(PROOF, PROOF * 12);
            self.proof = now.after(pause);
        }
        due
    }
}

/// So long somebody may keep a place out before proof is asked for.
const PROOF: Duration = Duration::from_secs(5);

/// After this time clients are looked for that do not see a lock; and again after twice this time.
const PATROL: Duration = Duration::from_secs(5);

pub(super) fn token(create: i64) -> Seq {
    Seq(create.unsigned_abs())
}

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
            self.record.place().moving = false;
        }
    }
}

/// A place is being given up. Unless that is done, the intention is taken back.
pub(super) struct Leaving<'a> {
    record: &'a TicketRecord,
    done: bool,
}

impl<'a> Leaving<'a> {
    pub(super) fn new(record: &'a TicketRecord) -> Self {
        record.place().leaving = true;
        Leaving { record, done: false }
    }

    pub(super) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.record.place().leaving = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn ticket() -> Ticket {
        let lease = Duration::from_secs(60);
        let id = TicketId(5);
        Ticket {
            id,
            weight: 1,
            capacity: 1,
            lease,
            wait_lease: lease,
            token_count: 1,
            min_token: 0,
        }
    }

    fn place(due: Time) -> Place {
        let mut place = Place::new(&ticket(), &Arc::from(""), due);
        place.create = 7;
        place
    }

    #[test]
    fn a_place_that_is_taken_never_lapses() {
        let now = clock::now();
        let mut place = place(now.after(Duration::from_secs(90)));
        assert_eq!(place.lapse(now), None);
        assert_eq!(place.stand(&ticket(), now, true), Some((Seq(7), true)));
        assert_eq!(place.lapse(now.after(Duration::from_secs(59))), None);
        // It is held for its lease from then on, and not for what it came with.
        assert_eq!(place.lapse(now.after(Duration::from_secs(60))), Some(true));
    }

    #[test]
    fn proof_is_asked_for_less_and_less_often() {
        let mut place = place(Time::NEVER);
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        assert!(!place.wants_proof(at(1)), "of nobody");
        let blockers = |number: u64| -> Vec<Member> {
            let child = format!("_c_12345678-0000-0000-0000-000000000001-lock-{number:010}");
            Member::read(&child).into_iter().collect()
        };
        place.see(blockers(1), at(100));
        place.see(blockers(1), at(103)); // no news
        let asked: Vec<_> = (100..300).filter(|second| place.wants_proof(at(*second))).collect();
        assert_eq!(asked, [105, 110, 120, 140, 180, 240]);
        place.see(blockers(2), at(300));
        assert!(!place.wants_proof(at(304)) && place.wants_proof(at(305)));
    }

    #[test]
    fn a_ticket_that_was_given_up_is_not_entered_again() {
        let now = clock::now();
        let later = now.after(Duration::from_secs(30));
        let mut place = Place::new(&ticket(), &Arc::from(""), now);
        assert!(place.want(later), "it is asked for through an outage");
        assert_eq!(place.lapse(now.after(Duration::from_secs(20))), None);
        assert_eq!(place.lapse(later.after(Duration::from_secs(10))), Some(false));
        assert!(!place.want(later), "what was sent for it is being removed");
        assert!(!place.retire(), "that is for whoever removes it");
        let mut place = Place::new(&ticket(), &Arc::from(""), now);
        assert!(place.retire() && !place.want(later));
        assert_eq!(place.lapse(later), None, "nobody looks for what was forgotten");
    }

    #[test]
    fn a_place_that_lapsed_is_not_renewed() {
        let now = clock::now();
        let mut place = place(now);
        assert_eq!(place.lapse(now), Some(false), "nobody held it yet");
        assert_eq!(place.lapse(now), None, "it is on its way out");
        assert_eq!(place.stand(&ticket(), now, false), None);
        place.leaving = false; // somebody else tried that, too
        assert_eq!(place.lapse(now), None);
        assert_eq!(place.stand(&ticket(), now, false), None);
    }
}
