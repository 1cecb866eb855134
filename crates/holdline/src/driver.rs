//! The driver: runs one acquisition against a store, with its timers and its cancellation.
//!
//! The acquisition decides ([`holdline_kernel::Acquisition`]), the store executes, and this loop
//! carries messages between them. Whatever happens to the future, no place is left behind: from
//! before the first request until the grant, a cancel guard is ready to hand the ticket to the
//! renewer, which leaves the line in the background.

use crate::availability::{Call, OUTAGE_CHECK};
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
use tokio::task::coop::consume_budget;

/// The shortest wait between two requests: a store that asks for none, and answers without I/O,
/// would never let another task of the thread run.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// The shortest time limit of one answer, unless the caller's own limit cuts it off. The silence of
/// less time is no outage.
const SHORT_ANSWER: Duration = Duration::from_millis(250);
/// The time that an answer has in any case: also without time to wait, the store is asked.
pub(crate) const SHORTEST_ANSWER: Duration = Duration::from_millis(50);

/// Acquires a lock; `None` if that was not possible in the given time.
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
    // Whether a request for this ticket may arrive late, and take a place; and whether the last
    // answer was that it has none any more.
    let (mut doubtful, mut gone, mut last_error) = (false, false, None);
    loop {
        // A store that is always ready, without I/O, would keep the thread from other tasks.
        consume_budget().await;
        let event = match action {
            Action::Send(how) => {
                on_cancel.id = Some(ticket.id);
                let sent = clock::now();
                let limit = call_limit(request, acquisition.patience(), sent);
                match enter(handles, request, &ticket, how, (sent, limit)).await {
                    Some(Ok(standing)) => {
                        last_error = None;
                        // The store may have repeated the request by which it took its place.
                        doubtful |= standing == Standing::Lost;
                        // The ticket has no place, and no late request can take one.
                        if !doubtful && matches!(standing, Standing::Waiting { seq: None, .. }) {
                            on_cancel.id = None;
                        }
                        gone = standing == Standing::Lost;
                        Event::Reply { sent, standing }
                    }
                    Some(Err(error)) if !error.retryable() => return Err(error),
                    failed => {
                        // The store's own error says more than that the time is up.
                        let error = failed.and_then(Result::err).or(last_error);
                        last_error = Some(error.unwrap_or_else(|| silence(handles, request)));
                        (doubtful, gone) = (true, false);
                        Event::Failed { sent }
                    }
                }
            }
            Action::Wait { until, seq } => {
                wait(handles, request, &ticket, until, seq.is_some()).await
            }
            Action::Grant { seq, sent } => {
                let timer = request.timer(sent);
                return Ok(Some(on_cancel.granted(ticket, seq, timer)));
            }
            Action::GrantOnNotice { seq, until } => {
                let timer = request.trusted_timer(until);
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
            Action::Fail if gone => return Err(undone(handles, request)),
            Action::Fail => return Err(last_error.unwrap_or_else(|| silence(handles, request))),
        };
        action = acquisition.step(clock::now(), fastrand::u64(..), event);
    }
}

/// Sends a request to the store at `sent`. `None` if there is no answer by `limit`.
async fn enter(
    handles: &StoreHandles,
    request: &AcquireRequest,
    ticket: &Ticket,
    how: Enter,
    (sent, limit): (Time, Time),
) -> Option<Result<Standing>> {
    let call = handles.store.enter(&request.line, ticket, &request.note, how);
    let outcome = within(limit, call).await;
    // A store that takes longer than a caller's few milliseconds is not away.
    if outcome.is_some() || limit >= sent.after(SHORT_ANSWER) {
        let call = if matches!(how, Enter::Keep(_)) { Call::Keep } else { Call::Take };
        handles.note(call, outcome.as_ref());
    }
    outcome
}

/// Waits for room among the places that are still to be released. Returns whether there was room
/// before the limit; there is none if the store releases more slowly than callers give up. An error
/// if an outage of the store exceeds the acquisition's limit.
async fn room(handles: &StoreHandles, request: &AcquireRequest) -> Result<bool> {
    let availability = &handles.availability;
    loop {
        let outage = if availability.has_answered() { request.outage } else { Duration::default() };
        let rest = outage.saturating_sub(availability.away_for().unwrap_or_default());
        let check = clock::now().after(rest.max(OUTAGE_CHECK)).min(request.limit);
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

/// Waits for a notice until this time, but at least for a moment.
async fn wait(
    handles: &StoreHandles,
    request: &AcquireRequest,
    ticket: &Ticket,
    until: Time,
    has_place: bool,
) -> Event {
    let until = until.max(clock::now().after(SHORTEST_WAIT)).min(request.limit);
    let told = notice(handles, request, ticket, has_place);
    within(until, told).await.flatten().map_or(Event::Woken, Event::AdmittedByNotice)
}

/// Waits for a notice, for ever if none will come. Returns our place if the notice proves its
/// admission.
async fn notice(
    handles: &StoreHandles,
    request: &AcquireRequest,
    ticket: &Ticket,
    has_place: bool,
) -> Option<Seq> {
    // If the store keeps no places, the notice means that the lock may be free.
    let about = has_place || !handles.store.capabilities().fair_queue;
    let listen = request.mode == WaitMode::Listen && about;
    if listen && let Ok(told) = handles.store.watch(&request.line, ticket.id).await {
        return told;
    }
    pending().await
}

/// The time limit of one answer. It follows from the lease: a later answer would be of little use.
/// An answer after the end of the patience with an outage would be of none.
fn call_limit(request: &AcquireRequest, patience: Time, sent: Time) -> Time {
    let one = (request.lease.length / 3).clamp(SHORT_ANSWER, Duration::from_secs(5));
    let one = sent.after(one).min(patience.max(sent.after(SHORT_ANSWER)));
    one.min(request.limit.max(sent.after(SHORTEST_ANSWER)))
}

fn silence(handles: &StoreHandles, request: &AcquireRequest) -> Error {
    handles.silence(&request.line)
}

/// The error of an acquisition whose requests were carried out and undone, each time.
fn undone(handles: &StoreHandles, request: &AcquireRequest) -> Error {
    let message = format!(
        "{} has lost each place for lock \"{}\" that it had given; check whether its sessions end \
         or its keys are removed",
        handles.store.address(),
        request.line
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// Hands the ticket of a failed acquisition to the renewer when it is dropped.
struct CancelGuard<'a> {
    handles: &'a Arc<StoreHandles>,
    request: &'a AcquireRequest,
    id: Option<TicketId>,
}

impl CancelGuard<'_> {
    /// Ends a successful acquisition: the ticket belongs to the held lock from now on.
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
