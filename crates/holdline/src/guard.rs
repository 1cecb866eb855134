//! The guard of a held lock: its token, its deadline, notice of loss, and the ways to let go.

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::held_lock::HeldLock;
use crate::loss::Loss;
use crate::loss_notice::{GuardEnd, LossNotice};
use crate::names::Name;
use crate::options::OnLoss;
use crate::renewer::{self, PendingRelease};
use crate::store::{Capabilities, Seq, check_lease};
use holdline_kernel::Lease;
use std::future::Future;
use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// A guard's permit of the local queue, given back when the guard is done.
pub(crate) trait Handover: Send + Sync {
    /// Offers the lock, still held, to the next waiter of this process.
    fn hand_over(&mut self, held: &Arc<HeldLock>, token: Seq) -> bool;
    /// Gives back what is no longer needed after a downgrade to this weight.
    fn downgrade(&mut self, weight: u32);
}

/// A held lock. Dropping it releases the lock in the background; [`unlock`](Guard::unlock) releases
/// it and says how that went.
///
/// It is renewed in the background until it is released (unless it was taken with a fixed lease).
/// That can fail, and the process can be stopped for longer than the lease: what is guarded must
/// therefore be stopped when the lock is [lost](Guard::lost), as [`protect`](Guard::protect) does,
/// or be written with the fencing [token](Guard::token) to something that checks it.
#[must_use = "dropping the guard at once releases the lock at once"]
pub struct Guard {
    held: Arc<HeldLock>,
    token: Seq,
    pass: Option<Box<dyn Handover>>,
    on_loss: OnLoss,
    end: GuardEnd,
    /// Set when the lock is another guard's by now.
    passed_on: bool,
    /// Set when the lock has left this guard.
    empty: bool,
}

impl Guard {
    pub(crate) fn new(held: Arc<HeldLock>, token: Seq, pass: Option<Box<dyn Handover>>) -> Self {
        let (end, on_loss) = (GuardEnd::default(), OnLoss::Stop);
        Guard { held, token, pass, on_loss, end, passed_on: false, empty: false }
    }

    pub(crate) fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// Takes the lock out, for another guard in this process.
    pub(crate) fn into_parts(mut self) -> (Arc<HeldLock>, Seq) {
        (self.empty, self.passed_on) = (true, true);
        (Arc::clone(&self.held), self.token)
    }

    /// The name of the lock.
    pub fn name(&self) -> &Name {
        &self.held.line
    }

    /// The fencing token: higher than that of every earlier holder of this name.
    ///
    /// Give it to whatever the lock guards, with reads and with writes, and let that refuse a token
    /// lower than the highest it has seen (see [`Fence`](crate::Fence)).
    pub fn token(&self) -> u64 {
        self.token.0
    }

    /// The id that [`inspect`](crate::Client::inspect) shows for this holder.
    pub fn ticket(&self) -> crate::store::TicketId {
        self.held.ticket().id
    }

    /// Whether the lock is certainly still held. Once false, it stays false.
    ///
    /// It turns false a margin before anybody else can be admitted, also when the process was
    /// stopped or the store went silent.
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// How long the lock is certainly held from now, if no further renewal succeeds.
    pub fn remaining(&self) -> Duration {
        if self.is_valid() { clock::now().until(self.held.until()) } else { Duration::ZERO }
    }

    /// [`remaining`](Guard::remaining) as an instant of the standard library's clock, which does
    /// not count time that the machine is suspended.
    pub fn deadline(&self) -> Instant {
        clock::instant_in(self.remaining())
    }

    /// How long from now until somebody else can be admitted, as far as this process can know: the
    /// time that is left to stop the work. Before a loss it is a margin more than
    /// [`remaining`](Guard::remaining); after one it is what is left of that margin, or zero if the
    /// store said that the lock is gone, as after it was broken by force.
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

    /// Why the lock was lost; `None` while it is held.
    ///
    /// If the store said that the lock is gone, it is asked whether somebody broke it, and by whom
    /// and why; that takes a second at most. Otherwise the answer is there at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn loss(&self) -> Option<Loss> {
        if self.is_valid() { None } else { Some(self.held.cause().await) }
    }

    /// Notice of the loss that does not borrow the guard: for another task, or a handler.
    pub fn loss_notice(&self) -> LossNotice {
        self.end.notice(&self.held)
    }

    /// Does `work` under the lock: stops it and returns an error of kind
    /// [`Lost`](ErrorKind::Lost) if the lock is lost before it is done, even when the process was
    /// stopped in between. Under [`OnLoss::Continue`] the work goes on.
    ///
    /// An error does not say that the work did nothing: it says that others may have held the lock
    /// before it ended, so that its effects must be checked or rolled back. It says why the lock
    /// was lost, as [`loss`](Guard::loss) does; the store is asked for that after `work` was
    /// dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, wherever it is; the lock stays held.
    pub async fn protect<F: Future>(&self, work: F) -> Result<F::Output> {
        if self.on_loss == OnLoss::Continue {
            return Ok(work.await);
        }
        match protect(|| self.is_valid(), self.lost(), work).await {
            Some(output) => Ok(output),
            None => Err(self.lost_error().await),
        }
    }

    /// [`protect`](Guard::protect) for work that can fail itself: one `?` serves both.
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
    /// # Errors
    ///
    /// That of `work`, or as [`protect`](Guard::protect), as the error type of `work`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, wherever it is; the lock stays held.
    pub async fn try_protect<T, E: From<Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.protect(work).await?
    }

    /// Makes sure that the lock is held for at least `by` from now, unless it is broken by force,
    /// even if no renewal succeeds. Never shortens what is left.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if it is lost; [`ErrorKind::Invalid`] if the store takes no such lease;
    /// other kinds if the store could not be asked, which leaves the lock as it was.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lock held, extended or not.
    pub async fn extend(&self, by: Duration) -> Result<()> {
        self.check().await?;
        let margin = self.held.margin();
        let lease = Lease { length: by.saturating_add(margin), margin };
        // The drift allowance is a part of the lease, and what is added for it needs one too.
        let drift = lease.drift() + lease.drift() / 50;
        let lease = Lease { length: lease.length.saturating_add(drift), ..lease };
        check_lease(&*self.held.handles.store, lease.length)?;
        self.held.renew(&*self.held.handles.store, Some(lease)).await?;
        self.check().await
    }

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if it was lost before: others may have held it in the meantime.
    /// [`ErrorKind::Unknown`] if the store did not confirm; the release goes on in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background, as dropping the guard does.
    pub async fn unlock(mut self) -> Result<()> {
        if self.hand_over() {
            return Ok(());
        }
        let held = Arc::clone(&self.held);
        renewer::unregister(&held);
        let was_valid = held.release();
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
                // The release has begun: most often entries from now on go along with it, or
                // behind it.
                self.pass = None;
            }
            polled
        });
        let left = clock::within(limit, call).await;
        held.handles.note(left.as_ref());
        match left {
            Some(Ok(there)) => {
                self.empty = true;
                if was_valid && !there {
                    held.set_gone();
                }
                if was_valid && there { Ok(()) } else { Err(self.lost_error().await) }
            }
            // In the rest dropping self goes on trying. What is known is said, whatever is not.
            _ if !was_valid => Err(self.lost_error().await),
            Some(Err(error)) => Err(self.doubt(Some(error))),
            None => Err(self.doubt(None)),
        }
    }

    /// Passes the lock on to the next waiter of this process, if handoff was asked for.
    fn hand_over(&mut self) -> bool {
        let Some(pass) = &mut self.pass else { return false };
        if self.held.is_valid() && pass.hand_over(&self.held, self.token) {
            (self.empty, self.passed_on) = (true, true);
        }
        self.empty
    }

    /// Lowers the weight, and tells the store.
    pub(crate) async fn downgrade(&mut self, weight: u32) -> Result<()> {
        self.held.change(Some(weight), None);
        self.held.renew(&*self.held.handles.store, None).await?;
        self.check().await?;
        if let Some(pass) = &mut self.pass {
            pass.downgrade(weight);
        }
        Ok(())
    }

    /// Replaces what others see about this holder.
    pub(crate) async fn annotate(&self, note: Arc<str>) -> Result<()> {
        self.held.change(None, Some(note));
        self.held.renew(&*self.held.handles.store, None).await?;
        self.check().await
    }

    /// An error if the lock is lost.
    pub(crate) async fn check(&self) -> Result<()> {
        if self.is_valid() { Ok(()) } else { Err(self.lost_error().await) }
    }

    /// The error that says that this lock is lost, and why.
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

/// Runs `work` as long as `valid`, looking before every step and after the last.
pub(crate) async fn protect<F: Future>(
    valid: impl Fn() -> bool,
    lost: impl Future<Output = ()>,
    work: F,
) -> Option<F::Output> {
    let (mut lost, mut work) = (pin!(lost), pin!(work));
    poll_fn(|cx| {
        if !valid() || lost.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        match work.as_mut().poll(cx) {
            Poll::Ready(output) if valid() => Poll::Ready(Some(output)),
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.empty || self.hand_over() {
            return self.end.end(!self.passed_on && self.held.was_lost());
        }
        renewer::unregister(&self.held);
        self.held.release();
        self.end.end(self.held.was_lost());
        let mut leave = PendingRelease::of(&self.held);
        leave.then = mem::take(&mut self.pass).map(|pass| Box::new(pass) as _);
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
    use futures_util::FutureExt;
    use std::cell::Cell;
    use std::future::pending;

    /// As after a process was stopped: the lock is lost, and nobody has been told yet.
    #[test]
    fn protected_work_takes_no_step_after_the_loss() {
        let (valid, steps) = (Cell::new(true), Cell::new(0));
        let work = poll_fn(|_| {
            steps.set(steps.get() + 1);
            Poll::<()>::Pending
        });
        let mut protected = pin!(protect(|| valid.get(), pending(), work));
        assert_eq!(protected.as_mut().now_or_never(), None);
        valid.set(false);
        assert_eq!(protected.as_mut().now_or_never(), Some(None));
        assert_eq!(steps.get(), 1);
    }
}
