//! A held lock: the state that its guard and the renewer share.
//!
//! The state only moves forward, from held to lost or released; what was released may still turn
//! out to have been gone. A holder whose deadline has passed is never revived, not even by a
//! renewal that was in time: once [`HeldLock::is_valid`] has returned false, it stays false.

use crate::clock;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::handles::StoreHandles;
use crate::loss::{Evicted, Loss};
use crate::metrics::LockMetrics;
use crate::names::Name;
use crate::store::{Enter, Seq, Standing, Store, Ticket};
use crate::sync::{Mutex, contained};
use holdline_kernel::{Lease, LeaseTimer, Next, Time};
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The time limit for asking the store whether a lock was broken by force.
const CAUSE_TIME: Duration = Duration::from_secs(1);

const HELD: u8 = 0;
const LOST: u8 = 1;
const RELEASED: u8 = 2;
/// Lost, because the store has no such holder: another may be admitted already.
const GONE: u8 = 3;

/// The place of a lock's holder in the local queue. It ends when the guard does, or when the lock
/// is lost: from then on the tasks behind it ask the store, as other processes do.
pub(crate) trait LocalPlace: Send + Sync {
    /// Offers the lock, still held, to the next waiter of this process.
    fn hand_over(&mut self, held: &Arc<HeldLock>, token: Seq) -> bool;
    /// Notes that the store is asked to release the lock: from now on only it knows who holds it.
    fn releases(&mut self);
    /// Returns the permits that a downgrade to this weight frees.
    fn downgrade(&mut self, weight: u32);
}

/// One lock, from its grant to its end.
pub(crate) struct HeldLock {
    pub(crate) handles: Arc<StoreHandles>,
    pub(crate) line: Name,
    pub(crate) seq: Seq,
    pub(crate) since: Time,
    pub(crate) metrics: LockMetrics,
    state: AtomicU8,
    deadline: Deadline,
    /// The cause of the loss, once it is known for certain.
    cause: OnceLock<Loss>,
    changing: Mutex<Changing>,
    local_place: Mutex<Option<Box<dyn LocalPlace>>>,
    loss: Notify,
}

/// The state that renewals use and change.
struct Changing {
    hold: LeaseTimer,
    ticket: Ticket,
    /// The longest lease ever requested.
    longest_lease: Duration,
    note: Arc<str>,
    /// The number of changes of the weight and the note.
    changes: u64,
    /// The lock's time in the renewer's schedule; [`Time::NEVER`] if it is not in it.
    due: Time,
}

impl HeldLock {
    pub(crate) fn new(
        handles: Arc<StoreHandles>,
        line: Name,
        ticket: Ticket,
        note: Arc<str>,
        seq: Seq,
        hold: LeaseTimer,
        metrics: LockMetrics,
    ) -> Self {
        metrics.held(1.0);
        let (deadline, longest_lease) = (Deadline::new(hold.until()), ticket.lease);
        let changing = Changing { hold, ticket, longest_lease, note, changes: 0, due: Time::NEVER };
        HeldLock {
            handles,
            line,
            seq,
            since: clock::now(),
            metrics,
            state: AtomicU8::new(HELD),
            deadline,
            cause: OnceLock::new(),
            changing: Mutex::new(changing),
            local_place: Mutex::new(None),
            loss: Notify::new(),
        }
    }

    /// Keeps the holder's place in the local queue until it is taken, or the lock is lost.
    pub(crate) fn keep_local_place(&self, place: Box<dyn LocalPlace>) {
        *self.local_place.lock() = Some(place);
        if self.is_over() {
            drop(self.take_local_place());
        }
    }

    pub(crate) fn with_local_place<T>(
        &self,
        work: impl FnOnce(&mut (dyn LocalPlace + 'static)) -> T,
    ) -> Option<T> {
        self.local_place.lock().as_deref_mut().map(work)
    }

    /// Takes the place in the local queue, which lets the next task pass when it is dropped.
    pub(crate) fn take_local_place(&self) -> Option<Box<dyn LocalPlace>> {
        self.local_place.lock().take()
    }

    pub(crate) fn until(&self) -> Time {
        self.deadline.until()
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.state.load(Ordering::Acquire) == HELD && !self.deadline.has_passed(clock::now())
    }

    pub(crate) fn ticket(&self) -> Ticket {
        self.changing.lock().ticket
    }

    /// When another ticket may be admitted, as far as is known: at once if the store reported a
    /// loss.
    pub(crate) fn rival_from(&self) -> Time {
        if self.is_gone() {
            return Time(0);
        }
        self.until().after(self.margin())
    }

    /// When the lease is over even by the slowest clock.
    pub(crate) fn lapses(&self) -> Time {
        let drift = self.changing.lock().hold.lease().drift();
        self.rival_from().after(drift)
    }

    /// How long the store may keep the place from now on, without further requests.
    pub(crate) fn longest_lease(&self) -> Duration {
        self.changing.lock().longest_lease
    }

    /// The holder's margin: how long before another ticket can be admitted it learns of a loss.
    pub(crate) fn margin(&self) -> Duration {
        self.changing.lock().hold.lease().margin
    }

    fn is_gone(&self) -> bool {
        self.state.load(Ordering::Acquire) == GONE
    }

    /// The cause of the loss. If the store has no such holder, it is asked whether the lock was
    /// broken by force; otherwise this returns at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(crate) async fn cause(&self) -> Loss {
        if let Some(cause) = self.cause.get() {
            return cause.clone();
        }
        if !self.is_gone() {
            return Loss::Expired;
        }
        let look = self.handles.store.snapshot(&self.line);
        let Some(Ok(view)) = clock::within(clock::now().after(CAUSE_TIME), look).await else {
            return Loss::Gone;
        };
        let id = self.ticket().id;
        let broken = view.evictions.iter().rev().find(|eviction| eviction.id == id);
        let found = broken.map_or(Loss::Gone, |eviction| {
            let Evicted { by, reason, .. } = Evicted::read(id, &eviction.note);
            Loss::Broken { by, reason }
        });
        self.cause.get_or_init(|| found).clone()
    }

    /// The error for the loss, with its cause.
    pub(crate) async fn lost_error(&self) -> Error {
        Error::lost(&self.line, self.cause().await)
    }

    /// Resolves when the lock is lost (or released). At the deadline it does so without the
    /// renewer, which others' code may block: a subscriber, say, whose output nobody reads.
    pub(crate) async fn gone(&self) {
        loop {
            let mut notice = std::pin::pin!(self.loss.notified());
            notice.as_mut().enable();
            if !self.is_valid() {
                return;
            }
            if Handle::try_current().is_ok() {
                let left = clock::now().until(self.until());
                let _ = tokio::time::timeout(left, notice).await;
            } else {
                notice.await; // there are no timers
            }
        }
    }

    /// Releases the lock, or loses it if its deadline has passed. Returns whether it was held.
    pub(crate) fn release(&self) -> bool {
        let ended = {
            let _changing = self.changing.lock(); // see `is_lost`
            self.is_valid() && self.change_state(HELD, RELEASED)
        };
        if !ended {
            self.lose();
            return false;
        }
        self.metrics.released(clock::now(), self.since);
        self.metrics.held(-1.0);
        contained(|| self.loss.notify_waiters());
        true
    }

    /// Records that the store had no such holder when it was asked to release it.
    pub(crate) fn released_too_late(&self) {
        if self.change_state(RELEASED, GONE) {
            self.report_loss(&Loss::Gone);
        }
    }

    /// Marks the lock as lost. Returns whether it was held before.
    pub(crate) fn lose(&self) -> bool {
        self.lose_as(LOST)
    }

    /// Changes the state, if it is as expected. Returns whether it was.
    fn change_state(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn lose_as(&self, how: u8) -> bool {
        let was_held = self.change_state(HELD, how);
        // First of all: the rest calls others' code, which may take its time. A waker is such code,
        // too, and the drop of a guard goes on if it panics.
        contained(|| self.loss.notify_waiters());
        if was_held {
            contained(|| drop(self.take_local_place()));
            self.metrics.released(clock::now(), self.since);
            self.metrics.held(-1.0);
            self.report_loss(if how == GONE { &Loss::Gone } else { &Loss::Expired });
        }
        was_held
    }

    /// Counts and logs a loss, with this cause unless another is known. A panic of the recorder or
    /// the subscriber ends here: this may be the drop of a guard, perhaps during another panic.
    fn report_loss(&self, why: &Loss) {
        contained(|| {
            self.metrics.lost();
            let why = self.cause.get().unwrap_or(why);
            tracing::warn!(name = %self.line, token = self.seq.0, %why, "lock lost");
        });
    }

    /// Marks the lock as lost because no thread renews it any more.
    pub(crate) fn lose_unrenewed(&self) {
        self.set_due(Time::NEVER);
        if self.is_valid() {
            let _ = self.cause.set(Loss::Unrenewed);
        }
        self.lose();
    }

    /// Whether it is certainly lost. False while it is valid, and if it was released while valid,
    /// even if the store does not know yet.
    pub(crate) fn is_lost(&self) -> bool {
        // A release at the instant of the deadline is seen before it or after it.
        let _changing = self.changing.lock();
        !self.is_valid() && self.state.load(Ordering::Acquire) != RELEASED
    }

    /// Whether it was lost before it was released.
    pub(crate) fn was_lost(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), LOST | GONE)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) != HELD
    }

    /// The renewer's next step at `now`, and when it is due again, if ever.
    pub(crate) fn next(&self, now: Time) -> (Next, Time) {
        let mut changing = self.changing.lock();
        let next = changing.hold.next(now);
        let again = if next == Next::Lose { Time::NEVER } else { changing.hold.due() };
        changing.due = again;
        (next, again)
    }

    /// When the lock is due for the first time: at once, if the reply came late.
    pub(crate) fn first_due(&self) -> Time {
        self.changing.lock().hold.due()
    }

    /// Sets the lock's time in the renewer's schedule; kept here so that a release finds the entry.
    pub(crate) fn set_due(&self, due: Time) -> Time {
        std::mem::replace(&mut self.changing.lock().due, due)
    }

    pub(crate) fn verify(&self, now: Time) {
        self.changing.lock().hold.verify(now);
    }

    /// Changes what later renewals send: the weight (only downward) and the note.
    pub(crate) fn change(&self, weight: Option<u32>, note: Option<Arc<str>>) {
        let mut changing = self.changing.lock();
        changing.changes += 1;
        if let Some(weight) = weight {
            changing.ticket.weight = weight;
        }
        if let Some(note) = note {
            changing.note = note;
        }
    }

    /// The note that renewals send.
    pub(crate) fn note(&self) -> Arc<str> {
        Arc::clone(&self.changing.lock().note)
    }

    /// The number of changes so far. If it is higher when a renewal ends, the renewal may have
    /// undone them in the store.
    pub(crate) fn changes(&self) -> u64 {
        self.changing.lock().changes
    }

    /// Renews once, for `lease` or as before, and applies the answer. For a fixed lease this checks
    /// the place and updates the weight and the note, but does not extend it. An error is not a
    /// loss: the caller may retry until the deadline.
    pub(crate) async fn renew(&self, store: &dyn Store, lease: Option<Lease>) -> Result<()> {
        let sent = clock::now();
        let (lease, mut ticket, note) = {
            let mut changing = self.changing.lock();
            let same = changing.hold.is_renewed().then(|| changing.hold.lease());
            let lease = lease.or(same);
            let asked = lease.map_or(Duration::ZERO, |lease| lease.length);
            changing.longest_lease = changing.longest_lease.max(asked);
            (lease, changing.ticket, Arc::clone(&changing.note))
        };
        // The time left, which extends nothing: the lease ends later in the store than here.
        let left = sent.until(self.until()).max(Duration::from_millis(1));
        ticket.lease = lease.map_or(left, |lease| lease.length);
        match store.enter(&self.line, &ticket, &note, Enter::Keep(self.seq)).await? {
            Standing::Admitted(_) => match lease {
                Some(lease) => self.renewed(lease, sent),
                None => self.changing.lock().hold.confirmed(sent),
            },
            Standing::Lost | Standing::Waiting { .. } => {
                // If it was released meanwhile, the store lacks it for that reason.
                if !self.lose_as(GONE) {
                    self.change_state(LOST, GONE);
                }
            }
        }
        Ok(())
    }

    fn renewed(&self, lease: Lease, sent: Time) {
        let mut changing = self.changing.lock();
        changing.hold.confirmed(sent);
        // After the deadline the holder may already have been notified of the loss.
        if self.deadline.has_passed(clock::now()) {
            return;
        }
        let mut hold = changing.hold;
        hold.renewed(lease, sent);
        if self.deadline.put_off(changing.hold.until(), hold.until()) {
            changing.hold = hold;
        }
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if *self.state.get_mut() == HELD {
            self.metrics.held(-1.0);
        }
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLock")
            .field("line", &self.line)
            .field("token", &self.seq.0)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::metrics::Recipe;
    use crate::renewer;
    use crate::store::TicketId;
    use crate::stores::memory::Memory;

    /// A lock that was requested `ago`, and that the store does not know.
    pub(crate) fn asked_for(ago: Duration, id: TicketId, lease: Lease) -> HeldLock {
        let handles = Arc::new(StoreHandles::new(Arc::new(Memory::new())));
        let metrics = LockMetrics::new(&handles.metrics, Recipe::Mutex, None);
        let ticket = Ticket {
            id,
            weight: 1,
            capacity: 1,
            lease: lease.length,
            wait_lease: lease.length,
            token_count: 1,
            min_token: 0,
        };
        let sent = Time(clock::now().0 - u64::try_from(ago.as_nanos()).expect("not so long"));
        let timer = LeaseTimer::new(lease, sent, true);
        let line = Name::new("x").expect("a name");
        HeldLock::new(handles, line, ticket, Arc::from(""), Seq(1), timer, metrics)
    }

    impl HeldLock {
        /// Shortens the interval of its renewals.
        pub(crate) fn renew_every(&self, interval: Duration) {
            let mut changing = self.changing.lock();
            changing.hold = changing.hold.every(interval, clock::now());
        }
    }

    /// A lock whose deadline has passed, unnoticed so far.
    fn past() -> (HeldLock, Lease) {
        let lease = Lease { length: Duration::from_millis(100), margin: Duration::ZERO };
        (asked_for(Duration::from_secs(1), TicketId(1), lease), lease)
    }

    #[test]
    fn a_reply_that_comes_after_the_deadline_revives_nothing() {
        let (held, lease) = past();
        held.renewed(lease, clock::now());
        assert!(!held.is_valid());
    }

    /// Nothing else asks for a lock with a fixed lease.
    #[tokio::test(flavor = "current_thread")]
    async fn a_fixed_lease_that_is_confirmed_is_not_asked_for_again() {
        let lease = Lease { length: Duration::from_secs(10), margin: Duration::ZERO };
        for extended in [None, Some(lease)] {
            let mut held = asked_for(Duration::ZERO, TicketId(1), lease);
            let (store, ticket) = (Arc::clone(&held.handles.store), held.ticket());
            let entered = store.enter(&held.line, &ticket, &held.note(), Enter::Queue).await;
            let Ok(Standing::Admitted(seq)) = entered else { panic!("{entered:?}") };
            held.seq = seq;
            held.changing.lock().hold = LeaseTimer::new(lease, held.since, false);
            held.verify(held.since);
            held.renew(&*store, extended).await.expect("memory works");
            let until = held.changing.lock().hold.until();
            assert_eq!(held.next(clock::now()).0, Next::Sleep(until));
        }
    }

    #[test]
    fn what_is_released_after_its_deadline_was_lost() {
        let (held, _) = past();
        assert!(!held.release());
        assert!(held.was_lost() && held.is_lost());
    }

    /// Two threads see the same end of a lock, also at the instant of its deadline.
    #[test]
    fn a_lock_is_either_released_or_lost() {
        for id in 0..3_000 {
            let length = Duration::from_millis(100);
            let lease = Lease { length, margin: Duration::ZERO };
            let ago = lease.usable().saturating_sub(Duration::from_micros(200));
            let held = asked_for(ago, TicketId(id), lease);
            let (released, lost) = std::thread::scope(|scope| {
                let asks = scope.spawn(|| {
                    while held.is_valid() {}
                    held.is_lost()
                });
                let left = held.until().0.saturating_sub(u64::try_from(id % 300).expect("few"));
                while clock::now() < Time(left) {}
                (held.release(), asks.join().expect("no panic"))
            });
            assert!(released != lost, "{id}: released: {released}, lost: {lost}");
        }
    }

    /// Another ticket may come after the margin, and by the slowest clock after the drift.
    #[test]
    fn a_lease_is_over_after_the_margin_and_the_drift() {
        let (length, margin) = (Duration::from_secs(10), Duration::from_secs(1));
        let lease = Lease { length, margin };
        let held = asked_for(Duration::ZERO, TicketId(1), lease);
        assert_eq!(held.rival_from(), held.until().after(margin));
        assert_eq!(held.lapses(), held.rival_from().after(lease.drift()));
        assert!(held.lose_as(GONE));
        assert_eq!(held.rival_from(), Time(0));
    }

    /// The renewer's end costs the locks that were held then; others were lost before.
    #[test]
    fn a_lock_that_had_expired_was_not_lost_with_the_renewer() {
        let (held, lease) = past();
        held.lose_unrenewed();
        assert_eq!(held.cause.get(), None);
        let held = asked_for(Duration::ZERO, TicketId(1), lease);
        held.lose_unrenewed();
        assert_eq!(held.cause.get(), Some(&Loss::Unrenewed));
    }

    /// A reply that comes after the first renewal was due leaves time for three all the same: the
    /// first is sent at once.
    #[tokio::test]
    async fn a_lock_that_was_granted_late_is_renewed_three_times() {
        renewer::start().expect("there is a thread");
        let lease = Lease { length: Duration::from_secs(3600), margin: Duration::ZERO };
        let late = || asked_for(lease.length * 3 / 10, TicketId(0x1a7e), lease);
        let (held, mut now, mut renewals) = (late(), clock::now(), 0);
        while held.next(now).0 == Next::Renew {
            renewals += 1;
            now = held.first_due();
        }
        assert_eq!((renewals, held.next(now).0), (3, Next::Lose));
        // The store does not have it, which the renewer finds out by the first.
        let held = Arc::new(late());
        renewer::register(&held);
        let gone = clock::timeout(Duration::from_secs(60), held.gone()).await;
        assert!(gone.is_some(), "it is not due for another quarter of an hour");
    }

    /// So that a release finds the lock's entry in the schedule.
    #[test]
    fn a_lock_knows_when_it_is_due() {
        let lease = Lease { length: Duration::from_secs(10), margin: Duration::ZERO };
        let held = asked_for(Duration::ZERO, TicketId(1), lease);
        let (next, again) = held.next(held.first_due());
        assert_eq!((next, held.set_due(Time::NEVER)), (Next::Renew, again));
        assert!(again > clock::now());
    }
}
