//! The guard of a held lock: its token, its deadline, its loss, and its release.

use crate::availability::Call;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::held_lock::{HeldLock, LocalPlace};
use crate::loss::Loss;
use crate::loss_notice::{GuardEnd, LossNotice};
use crate::names::Name;
use crate::options::OnLoss;
use crate::owner_info::OwnerInfo;
use crate::renewer::{self, PendingRelease};
use crate::store::{Capabilities, Seq, check_lease, unsupported};
use holdline_kernel::Lease;
use pin_project_lite::pin_project;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The time limit of one answer to a guard that extends or changes its lock.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// The guard of a held lock. Dropping it releases the lock in the background;
/// [`unlock`](Guard::unlock) releases it and reports the result.
///
/// A process that ends at once after a drop may end before the release: then most stores keep the
/// lock for the rest of its lease. [`Client::settle`](crate::Client::settle), as the last call of
/// `main`, waits for the release.
///
/// The lock is renewed in the background until it is released (unless it has a fixed lease).
/// Renewal can fail, and the process can be paused for longer than the lease. So either stop the
/// guarded work when the lock is [lost](Guard::lost), as [`protect`](Guard::protect) does, or pass
/// the fencing [token](Guard::token) to a resource that checks it. A guard whose lock is lost keeps
/// nobody out, in this process or another.
#[must_use = "dropping the guard at once releases the lock at once"]
pub struct Guard {
    held: Arc<HeldLock>,
    token: Seq,
    on_loss: OnLoss,
    end: GuardEnd,
    /// Whether the lock has passed to another guard.
    passed_on: bool,
    /// Set when the lock has left this guard.
    empty: bool,
}

impl Guard {
    pub(crate) fn new(held: Arc<HeldLock>, token: Seq) -> Self {
        let (end, on_loss) = (GuardEnd::default(), OnLoss::Stop);
        Guard { held, token, on_loss, end, passed_on: false, empty: false }
    }

    pub(crate) fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// Takes the lock out of the guard, for another guard in this process.
    pub(crate) fn into_parts(mut self) -> (Arc<HeldLock>, Seq) {
        (self.empty, self.passed_on) = (true, true);
        (Arc::clone(&self.held), self.token)
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.held.line
    }

    /// The fencing token: higher than that of every earlier holder of this lock; or 0 if the store
    /// has no tokens. [`fenced`](crate::Mutex::fenced) refuses such a store.
    ///
    /// Pass it to the guarded resource with every read and write, and have the resource reject any
    /// token lower than the highest it has seen (see [`Fence`](crate::Fence)).
    pub fn token(&self) -> u64 {
        self.token.0
    }

    /// The id of this holder, as in [`inspect`](crate::Client::inspect).
    pub fn ticket(&self) -> crate::store::TicketId {
        self.held.ticket().id
    }

    /// Whether the lock is certainly still held. Once false, it stays false.
    ///
    /// It turns false a margin before another client can be admitted, even if the process was
    /// paused or the store stopped answering. Two cases are different, in which the next holder may
    /// already have the lock: it was broken by force, or it was that of a database session (schemes
    /// `row`, `advisory` and `named`) which has ended.
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// How long the lock is certainly still held if no further renewal succeeds.
    pub fn remaining(&self) -> Duration {
        if self.is_valid() { clock::now().until(self.held.until()) } else { Duration::ZERO }
    }

    /// [`remaining`](Guard::remaining) as an instant of the standard library's clock, which does
    /// not count the time for which the machine is suspended.
    pub fn deadline(&self) -> Instant {
        clock::instant_in(self.remaining())
    }

    /// The time left to stop the work: how long until another client can be admitted, as far as
    /// this process knows.
    ///
    /// Before a loss it is a margin longer than [`remaining`](Guard::remaining); after a loss it is
    /// the rest of that margin, or zero if the store reported that the lock is gone, as after a
    /// forced unlock.
    pub fn time_to_stop(&self) -> Duration {
        clock::now().until(self.held.rival_from())
    }

    /// Resolves when the lock is lost; at once if it already is.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) {
        self.held.gone().await;
    }

    /// The cause of the loss; `None` while the lock is held.
    ///
    /// If the store reported that the lock is gone, the store is asked whether the lock was broken
    /// by force, by which process and why; that takes a second at most. Otherwise the answer is
    /// immediate.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn loss(&self) -> Option<Loss> {
        if self.is_valid() { None } else { Some(self.held.cause().await) }
    }

    /// A loss notice: it does not borrow the guard, so another task or a handler can wait for the
    /// loss.
    pub fn loss_notice(&self) -> LossNotice {
        self.end.notice(&self.held)
    }

    /// Runs `work` under the lock. If the lock is lost before the work is done, stops it and
    /// returns an error of kind [`Lost`](ErrorKind::Lost), even if the process was paused
    /// meanwhile. Under [`OnLoss::Continue`] the work goes on to its end, and its output is
    /// returned even if the lock was lost; [`unlock`](Guard::unlock) reports the loss.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost). It does not mean that the work did nothing. It means that others
    /// may have held the lock before the work ended, so its effects must be checked or rolled back.
    /// It carries the cause, as [`loss`](Guard::loss) does; the store is asked for it only after
    /// `work` has been dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` at its current await point; the lock stays held.
    pub async fn protect<F: Future>(&self, work: F) -> Result<F::Output> {
        match self.protected(work).await {
            Some(output) => Ok(output),
            None => Err(self.lost_error().await),
        }
    }

    /// [`protect`](Guard::protect) for work that is itself fallible: one `?` handles both errors.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = holdline::open("memory:").await?;
    /// let guard = holdline::Mutex::new(&client, "nightly-report").lock().await?;
    /// let work = async { "42".parse::<u32>().map_err(Box::<dyn std::error::Error>::from) };
    /// let answer = guard.try_protect(work).await?;
    /// # assert_eq!(answer, 42); Ok(()) }
    /// ```
    ///
    /// The error type of `work` must be made from this crate's [`Error`]. If it is another crate's,
    /// such as `sqlx::Error`, use `protect(work).await??` in a function whose error is made from
    /// both.
    ///
    /// # Errors
    ///
    /// The error of `work`, or that of [`protect`](Guard::protect), converted to the error type of
    /// `work`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` at its current await point; the lock stays held.
    pub async fn try_protect<T, E: From<Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        match self.protected(work).await {
            Some(output) => output,
            None => Err(self.lost_error().await.into()),
        }
    }

    fn protected<F: Future>(&self, work: F) -> impl Future<Output = Option<F::Output>> {
        protect(self.on_loss, || self.is_valid(), self.lost(), work)
    }

    /// Extends the lease so that the lock is held for at least `by` from now, even if no renewal
    /// succeeds, unless it is broken by force. Never shortens the lease.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the lock is lost; [`ErrorKind::Invalid`] if the store does not accept
    /// so long a lease; other kinds if the store could not be asked within 5 s, which leaves the
    /// lock unchanged here.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock stays held, extended or not.
    pub async fn extend(&self, by: Duration) -> Result<()> {
        self.check().await?;
        let margin = self.held.margin();
        let lease = Lease { length: by.saturating_add(margin), margin };
        let store = &*self.held.handles.store;
        // The drift allowance is part of the lease.
        let length = Lease::by_any_clock(lease.length).max(store.capabilities().lease_min);
        let lease = Lease { length, ..lease };
        check_lease(store, lease.length)?;
        self.renew(Some(lease)).await
    }

    /// Renews the lock at once, for `lease` or as before. An error if it is lost, or if the store
    /// does not answer in time.
    async fn renew(&self, lease: Option<Lease>) -> Result<()> {
        let handles = &self.held.handles;
        let limit = clock::now().after(ANSWER_TIME).min(self.held.until());
        let outcome = renewer::ask(&self.held, &*handles.store, lease, limit).await;
        self.check().await?;
        outcome.unwrap_or_else(|| Err(handles.silence(self.name())))
    }

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the lock was lost before: others may have held it in the meantime.
    /// [`ErrorKind::Unknown`] if the store did not confirm the release, which is retried in the
    /// background.
    ///
    /// An error says nothing about work that [`protect`](Guard::protect) has returned: that work is
    /// done, under the lock. Do not repeat it; log the error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background, as dropping the guard does.
    pub async fn unlock(mut self) -> Result<()> {
        if self.hand_over() {
            return Ok(());
        }
        let was_valid = self.begin_release();
        let held = Arc::clone(&self.held);
        let limit =
            (held.ticket().lease / 3).clamp(Duration::from_millis(250), Duration::from_secs(5));
        let limit = clock::now().after(limit);
        let mut call = held.handles.store.leave(&held.line, held.ticket().id);
        // An entry that overtakes the departure then waits in the queue, and is notified.
        let Capabilities { fair_queue, notifications, .. } = held.handles.store.capabilities();
        let follows = held.ticket().capacity == 1 && fair_queue && notifications;
        let call = poll_fn(|cx| {
            let polled = call.as_mut().poll(cx);
            if follows {
                // The release has begun: from now on, most entries are sent along with it, or after
                // it.
                drop(held.take_local_place());
            }
            polled
        });
        let left = clock::within(limit, call).await;
        held.handles.note(Call::Release, left.as_ref());
        match left {
            Some(Ok(there)) => {
                self.empty = true;
                drop(held.take_local_place());
                if was_valid && !there {
                    held.released_too_late();
                }
                if was_valid && there { Ok(()) } else { Err(self.lost_error().await) }
            }
            // Otherwise dropping self keeps trying. A loss that is known is reported all the same.
            _ if !was_valid => Err(self.lost_error().await),
            Some(Err(error)) => Err(self.doubt(Some(error))),
            None => Err(self.doubt(None)),
        }
    }

    /// Ends the hold before the store is asked to release the lock. Returns whether it was held.
    fn begin_release(&mut self) -> bool {
        renewer::unregister(&self.held);
        self.held.with_local_place(LocalPlace::releases);
        self.held.release()
    }

    /// Passes the lock to the next waiter of this process, if handoff is enabled.
    fn hand_over(&mut self) -> bool {
        let offer =
            |place: &mut (dyn LocalPlace + 'static)| place.hand_over(&self.held, self.token);
        if self.held.is_valid() && self.held.with_local_place(offer) == Some(true) {
            (self.empty, self.passed_on) = (true, true);
            drop(self.held.take_local_place());
        }
        self.empty
    }

    /// Lowers the weight, here and in the store.
    pub(crate) async fn downgrade(&mut self, weight: u32) -> Result<()> {
        let store = &*self.held.handles.store;
        if !store.capabilities().weighted {
            return Err(unsupported(store, "downgrades of read-write locks"));
        }
        self.change(Some(weight), None).await?;
        self.held.with_local_place(|place| place.downgrade(weight));
        Ok(())
    }

    /// The note that others see about this holder.
    pub(crate) fn note(&self) -> OwnerInfo {
        OwnerInfo::read(&self.held.note())
    }

    /// Replaces the note that others see about this holder.
    pub(crate) async fn annotate(&self, note: Arc<str>) -> Result<()> {
        self.change(None, Some(note)).await
    }

    /// Changes the weight or the note, here and in the store. If this fails or is dropped, the
    /// renewer sends the change.
    async fn change(&self, weight: Option<u32>, note: Option<Arc<str>>) -> Result<()> {
        self.held.change(weight, note);
        let mut asking = Asking(Some(&self.held));
        self.renew(None).await?;
        asking.0 = None;
        Ok(())
    }

    /// An error if the lock is lost.
    pub(crate) async fn check(&self) -> Result<()> {
        if self.is_valid() { Ok(()) } else { Err(self.lost_error().await) }
    }

    /// The error for the loss of this lock, with its cause.
    pub(crate) async fn lost_error(&self) -> Error {
        self.held.lost_error().await
    }

    fn doubt(&self, cause: Option<Error>) -> Error {
        let message = format!(
            "{} did not confirm the release of lock \"{}\"; it is being retried in the background, \
             and ends with its lease in any case",
            self.held.handles.store.address(),
            self.name()
        );
        match cause {
            Some(cause) => Error::because(ErrorKind::Unknown, message, cause),
            None => Error::new(ErrorKind::Unknown, message),
        }
    }
}

/// A change of a lock while it is sent. Unless that succeeds, the renewer asks the store at once: a
/// fixed lease has no later renewal that would send the change.
struct Asking<'a>(Option<&'a HeldLock>);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.0 {
            renewer::verify(held.ticket().id);
        }
    }
}

/// Runs `work` while `valid`, which is checked before and after every step. `None` if it was
/// stopped. Under [`OnLoss::Continue`] it runs to its end.
pub(crate) fn protect<F: Future>(
    on_loss: OnLoss,
    valid: impl Fn() -> bool,
    lost: impl Future<Output = ()>,
    work: F,
) -> impl Future<Output = Option<F::Output>> {
    Protected { on_loss, valid, lost, work }
}

pin_project! {
    // An `async` function would have room for the work twice, and the work may be large.
    struct Protected<V, L, F> {
        on_loss: OnLoss,
        valid: V,
        #[pin]
        lost: L,
        #[pin]
        work: F,
    }
}

impl<V: Fn() -> bool, L: Future<Output = ()>, F: Future> Future for Protected<V, L, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let parts = self.project();
        if *parts.on_loss == OnLoss::Continue {
            return parts.work.poll(cx).map(Some);
        }
        if !(parts.valid)() || parts.lost.poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        parts.work.poll(cx).map(|output| (parts.valid)().then_some(output))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.empty || self.hand_over() {
            return self.end.end(!self.passed_on && self.held.was_lost());
        }
        self.begin_release();
        self.end.end(self.held.was_lost());
        let mut leave = PendingRelease::of(&self.held);
        leave.then = self.held.take_local_place().map(|place| Box::new(place) as _);
        renewer::release_later(leave);
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held_lock::tests::asked_for;
    use crate::store::TicketId;
    use futures_util::FutureExt;
    use holdline_testkit::panicking_subscriber;
    use std::cell::Cell;
    use std::future::pending;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;

    /// As after a pause of the process: the lock is lost, but no notice has come yet.
    #[test]
    fn protected_work_takes_no_step_after_the_loss() {
        let (valid, steps) = (Cell::new(true), Cell::new(0));
        let work = poll_fn(|_| {
            steps.set(steps.get() + 1);
            Poll::<()>::Pending
        });
        let mut protected = pin!(protect(OnLoss::Stop, || valid.get(), pending(), work));
        assert_eq!(protected.as_mut().now_or_never(), None);
        valid.set(false);
        assert_eq!(protected.as_mut().now_or_never(), Some(None));
        assert_eq!(steps.get(), 1);
    }

    /// A guard may be dropped while another panic unwinds.
    #[tokio::test]
    async fn a_subscriber_that_panics_about_a_loss_spoils_no_drop() {
        renewer::start().expect("there is a thread");
        let lease = Lease { length: Duration::from_secs(60), margin: Duration::ZERO };
        let held = Arc::new(asked_for(lease.length, TicketId(0xd409), lease));
        let (handles, guard) = (Arc::clone(&held.handles), Guard::new(held, Seq(1)));
        let notice = guard.loss_notice();
        let panics = tracing::subscriber::set_default(panicking_subscriber());
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(guard)));
        drop(panics);
        assert!(dropped.is_ok(), "the drop panicked");
        assert_eq!(notice.ended().now_or_never(), Some(Some(Loss::Expired)));
        handles.undone.none_left().await;
    }

    #[tokio::test]
    async fn protection_has_room_for_the_work_twice_at_most() {
        let client = crate::open("memory:").await.expect("opens");
        let guard = crate::Mutex::new(&client, "room").lock().await.expect("is free");
        let work = || async {
            let large = [0_u8; 10_000];
            tokio::task::yield_now().await;
            Ok::<_, Error>(large.len())
        };
        let (alone, bound) = (size_of_val(&work()), 25_000);
        assert!(alone >= 10_000);
        let (protected, tried) = (guard.protect(work()), guard.try_protect(work()));
        assert!(size_of_val(&protected) < bound && size_of_val(&tried) < bound);
        assert_eq!(Box::pin(protected).await.expect("is held").expect("works"), 10_000);
    }
}
