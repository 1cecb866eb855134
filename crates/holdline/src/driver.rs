//! The driver: the only place where an acquisition, a store, a timer and cancellation meet.
//!
//! The acquisition decides ([`holdline_kernel::Acquisition`]), the store is asked, and this loop
//! carries messages between them. Whatever becomes of the future, no place is left behind: from
//! before the first request until the grant, a small guard stands ready to hand the ticket to the
//! renewer, which leaves the line in the background.

use crate::clock::{self, within};
use crate::error::{Error, ErrorKind, Result};
use crate::handles::StoreHandles;
use crate::held_lock::HeldLock;
use crate::renewer::{self, PendingRelease};
use crate::request::AcquireRequest;
use crate::store::{Enter, Seq, Standing, Ticket, TicketId};
use holdline_kernel::{Acquisition, Action, Event, LeaseTimer, Time, WaitMode};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

/// The shortest interval at which an acquisition that waits for room looks whether the store is
/// away.
const ROOM_CHECK: Duration = Duration::from_millis(50);

/// Acquires, or says that it was not to be had in the time given.
///
/// # Cancel safety
///
/// Dropping the future at any point leaves no lasting place in the line.
pub(crate) async fn acquire(
    handles: &Arc<StoreHandles>,
    request: &AcquireRequest,
) -> Result<Option<Arc<HeldLock>>> {
    if !room(handles, request).await? {
        return Ok(None);
    }
    let mut acquisition = new_acquisition(handles, request);
    let mut action = acquisition.restart();
    let mut on_cancel = CancelGuard { handles, request, id: None };
    let mut ticket = request.ticket()?;
    // A request about this ticket was not answered: it may come late, and take a place.
    let (mut doubtful, mut last_error) = (false, None);
    let (mut told_to_wait, mut silences) = (false, 0);
    loop {
        let event = match action {
            Action::Send(how) => {
                on_cancel.id = Some(ticket.id);
                let sent = clock::now();
                let outcome = enter(handles, request, &ticket, how, sent).await;
                silences = if outcome.is_none() { silences + 1 } else { 0 };
                told_to_wait |= matches!(outcome, Some(Ok(Standing::Waiting { .. })));
                match outcome {
                    Some(Ok(standing)) => {
                        // Nothing is left of it, and nothing can come.
                        if !doubtful && matches!(standing, Standing::Waiting { seq: None, .. }) {
                            on_cancel.id = None;
                        }
                        Event::Reply { sent, standing }
                    }
                    Some(Err(error)) if !error.retryable() => return Err(error),
                    failed => {
                        // What the store itself said says more than that there was no time left.
                        let error = failed.and_then(Result::err).or(last_error);
                        last_error = Some(error.unwrap_or_else(|| silence(handles, request)));
                        doubtful = true;
                        Event::Failed
                    }
                }
            }
            Action::Wait { until, seq } => {
                let told = notice(handles, request, &ticket, seq.is_some());
                within(until, told).await.flatten().map_or(Event::Woken, Event::AdmittedByNotice)
            }
            Action::Grant { seq, sent } => {
                let timer = LeaseTimer::new(request.lease, sent, request.renew);
                let timer = request.renewed_often(timer);
                return Ok(Some(on_cancel.granted(ticket, seq, timer)));
            }
            Action::GrantOnNotice { seq, until } => {
                let timer = LeaseTimer::trusted(request.lease, clock::now(), until);
                let timer = request.renewed_often(timer);
                return Ok(Some(on_cancel.granted(ticket, seq, timer)));
            }
            Action::Restart => {
                if doubtful {
                    on_cancel.give_up();
                }
                (ticket, doubtful) = (request.ticket()?, false);
                action = acquisition.restart();
                continue;
            }
            Action::GiveUp => return Ok(None),
            // Only the last answer is late, to a question that was asked when the time was up.
            Action::Fail if told_to_wait && silences == 1 && clock::now() >= request.limit => {
                return Ok(None);
            }
            Action::Fail => return Err(last_error.unwrap_or_else(|| silence(handles, request))),
        };
        action = acquisition.step(clock::now(), fastrand::u64(..), event);
    }
}

/// Asks the store. `None` if it does not answer in time.
async fn enter(
    handles: &StoreHandles,
    request: &AcquireRequest,
    ticket: &Ticket,
    how: Enter,
    sent: Time,
) -> Option<Result<Standing>> {
    let call = handles.store.enter(&request.line, ticket, &request.note, how);
    let outcome = within(call_limit(request, sent), call).await;
    handles.note(outcome.as_ref());
    outcome
}

/// Waits for room among the places that are still to be given up, and returns whether there was
/// some before the limit: none if the store is slower than its callers give up. An error if it is
/// away, for as long as the acquisition would ride out.
async fn room(handles: &StoreHandles, request: &AcquireRequest) -> Result<bool> {
    let availability = &handles.availability;
    loop {
        let outage = if availability.has_answered() { request.outage } else { Duration::default() };
        let rest = outage.saturating_sub(availability.away_for().unwrap_or_default());
        let check = clock::now().after(rest.max(ROOM_CHECK)).min(request.limit);
        if handles.undone.room(check).await {
            return Ok(true);
        }
        let over = clock::now() >= request.limit;
        match availability.away_for() {
            Some(away) if over || away >= outage => return Err(silence(handles, request)),
            None if over => return Ok(false),
            _ => {}
        }
    }
}

fn new_acquisition(handles: &StoreHandles, request: &AcquireRequest) -> Acquisition {
    let reached = handles.availability.has_answered();
    let acquisition = Acquisition::new(request.mode, request.lease, request.limit)
        .outlasting(request.outage, reached);
    if request.renew { acquisition.trusting(request.wait_lease) } else { acquisition }
}

/// Waits for a notice, for ever if none will come; and says by which place we were admitted, if it
/// is that.
async fn notice(
    handles: &StoreHandles,
    request: &AcquireRequest,
    ticket: &Ticket,
    has_place: bool,
) -> Option<Seq> {
    // Where nobody keeps a place, the notice is that the lock may be free.
    let about = has_place || !handles.store.capabilities().fair_queue;
    let listen = request.mode == WaitMode::Listen && about;
    if listen && let Ok(told) = handles.store.watch(&request.line, ticket.id).await {
        return told;
    }
    pending().await
}

/// When to stop waiting for one answer. Tied to the lease: a later answer would be of little use.
fn call_limit(request: &AcquireRequest, sent: Time) -> Time {
    let one = (request.lease.length / 3).clamp(Duration::from_millis(250), Duration::from_secs(5));
    sent.after(one).min(request.limit.max(sent.after(Duration::from_millis(50))))
}

fn silence(handles: &StoreHandles, request: &AcquireRequest) -> Error {
    let message = format!(
        "{} did not answer in time about lock \"{}\"; check that it runs and can be reached",
        handles.store.address(),
        request.line
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// Hands a ticket whose acquisition came to nothing to the renewer.
struct CancelGuard<'a> {
    handles: &'a Arc<StoreHandles>,
    request: &'a AcquireRequest,
    id: Option<TicketId>,
}

impl CancelGuard<'_> {
    /// The end of an acquisition that came to something: the ticket is the held lock's from now on.
    fn granted(&mut self, ticket: Ticket, seq: Seq, timer: LeaseTimer) -> Arc<HeldLock> {
        self.id = None;
        let (handles, note) = (Arc::clone(self.handles), Arc::clone(&self.request.note));
        let line = self.request.line.clone();
        let metrics = self.request.metrics.clone();
        let held = Arc::new(HeldLock::new(handles, line, ticket, note, seq, timer, metrics));
        renewer::register(&held);
        held
    }

    /// Hands the ticket to the renewer.
    fn give_up(&mut self) {
        if let Some(id) = self.id.take() {
            let longest = self.request.lease.length.max(self.request.wait_lease);
            renewer::release_later(PendingRelease::new(
                self.handles,
                &self.request.line,
                id,
                longest,
            ));
        }
    }
}

impl Drop for CancelGuard<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}
