//! The driver: the only place where a claim, a store, a timer and cancellation meet.
//!
//! The claim decides ([`holdline_kernel::Claim`]), the store is asked, and this loop carries
//! messages between them. Whatever becomes of the future, no place is left behind: from before the
//! first request until the grant, a small guard stands ready to hand the ticket to the keeper,
//! which leaves the line in the background.

use crate::clock::{self, within};
use crate::error::{Error, ErrorKind, Result};
use crate::held::Held;
use crate::keeper::{self, Leave};
use crate::names::Name;
use crate::store::{Pair, Seq, Standing, Ticket, TicketId};
use holdline_kernel::{Action, Claim, Event, Hold, Lease, Manner, Time};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

/// Everything about an acquisition but the store.
#[derive(Clone, Debug)]
pub(crate) struct Want {
    pub(crate) line: Name,
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
    pub(crate) lease: Lease,
    pub(crate) patience: Duration,
    pub(crate) renew: bool,
    pub(crate) span: u32,
    pub(crate) note: Arc<str>,
    pub(crate) manner: Manner,
    pub(crate) limit: Time,
    /// How long an outage of a store that has answered before may last.
    pub(crate) outage: Duration,
}

/// Acquires, or says that it was not to be had in the time given.
///
/// # Cancel safety
///
/// Dropping the future at any point leaves no lasting place in the line.
pub(crate) async fn acquire(pair: &Arc<Pair>, want: &Want) -> Result<Option<Arc<Held>>> {
    if !pair.undone.room(want.limit).await {
        return no_room(pair, want);
    }
    let mut claim = new_claim(pair, want);
    let mut action = claim.restart();
    let mut abandon = Abandon { pair, want, id: None };
    let mut ticket = want.ticket()?;
    // A request about this ticket was not answered: it may come late, and take a place.
    let mut doubtful = false;
    let mut last_error = None;
    loop {
        let event = match action {
            Action::Send(how) => {
                abandon.id = Some(ticket.id);
                let sent = clock::now();
                let call = pair.store.enter(&want.line, &ticket, &want.note, how);
                let outcome = within(call_limit(want, sent), call).await;
                pair.availability.note(|| pair.store.address(), outcome.as_ref());
                match outcome {
                    Some(Ok(standing)) => {
                        // Nothing is left of it, and nothing can come.
                        if !doubtful && matches!(standing, Standing::Waiting { seq: None, .. }) {
                            abandon.id = None;
                        }
                        Event::Reply { sent, standing }
                    }
                    Some(Err(error)) if !error.retryable() => return Err(error),
                    failed => {
                        // What the store itself said says more than that there was no time left.
                        let error = failed.and_then(Result::err).or(last_error);
                        last_error = Some(error.unwrap_or_else(|| silence(pair, want)));
                        doubtful = true;
                        Event::Failed
                    }
                }
            }
            Action::Wait { until, seq } => {
                // Where nobody keeps a place, the notice is that the lock may be free.
                let about = seq.is_some() || !pair.store.promises().queues;
                let listen = want.manner == Manner::Listen && about;
                let told = within(until, notice(pair, want, &ticket, listen)).await;
                told.flatten().map_or(Event::Woken, Event::Told)
            }
            Action::Grant { seq, sent } => {
                abandon.id = None;
                let hold = Hold::new(want.lease, sent, want.renew);
                return Ok(Some(grant(pair, want, ticket, seq, hold)));
            }
            Action::Trust { seq, until } => {
                abandon.id = None;
                let hold = Hold::trusted(want.lease, clock::now(), until);
                return Ok(Some(grant(pair, want, ticket, seq, hold)));
            }
            Action::Restart => {
                if doubtful {
                    abandon.give_up();
                }
                (ticket, doubtful) = (want.ticket()?, false);
                action = claim.restart();
                continue;
            }
            Action::GiveUp => return Ok(None),
            Action::Fail => return Err(last_error.unwrap_or_else(|| silence(pair, want))),
        };
        action = claim.step(clock::now(), fastrand::u64(..), event);
    }
}

/// Too much is still to be given up: the store is away, or slower than those who give up.
fn no_room(pair: &Pair, want: &Want) -> Result<Option<Arc<Held>>> {
    if pair.availability.away_for().is_some() { Err(silence(pair, want)) } else { Ok(None) }
}

fn new_claim(pair: &Pair, want: &Want) -> Claim {
    let reached = pair.availability.has_answered();
    let claim = Claim::new(want.manner, want.lease, want.limit).outlasting(want.outage, reached);
    if want.renew { claim.trusting(want.patience) } else { claim }
}

/// Waits for a notice, for ever if none will come; and says by which place we were admitted, if it
/// is that.
async fn notice(pair: &Pair, want: &Want, ticket: &Ticket, listen: bool) -> Option<Seq> {
    if listen && let Ok(told) = pair.store.watch(&want.line, ticket.id).await {
        return told;
    }
    pending().await
}

fn grant(pair: &Arc<Pair>, want: &Want, ticket: Ticket, seq: Seq, hold: Hold) -> Arc<Held> {
    let (pair, note) = (Arc::clone(pair), Arc::clone(&want.note));
    let held = Arc::new(Held::new(pair, want.line.clone(), ticket, note, seq, hold));
    keeper::keep(&held);
    held
}

impl Want {
    /// A new ticket for it.
    pub(crate) fn ticket(&self) -> Result<Ticket> {
        Ok(Ticket {
            id: new_id()?,
            weight: self.weight,
            capacity: self.capacity,
            lease: self.lease.length,
            patience: self.patience,
            span: self.span,
            floor: 0,
        })
    }
}

/// 128 bits from the system: nobody else's, ever.
fn new_id() -> Result<TicketId> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = "the system gave no random numbers, without which no lock is safe";
        Error::because(ErrorKind::Denied, message, error)
    })?;
    Ok(TicketId(u128::from_be_bytes(bytes)))
}

/// When to stop waiting for one answer. Tied to the lease: a later answer would be of little use.
fn call_limit(want: &Want, sent: Time) -> Time {
    let one = (want.lease.length / 3).clamp(Duration::from_millis(250), Duration::from_secs(5));
    sent.after(one).min(want.limit.max(sent.after(Duration::from_millis(50))))
}

fn silence(pair: &Pair, want: &Want) -> Error {
    let message = format!(
        "{} did not answer in time about lock \"{}\"; check that it runs and can be reached",
        pair.store.address(),
        want.line
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// Hands a ticket whose acquisition came to nothing to the keeper.
struct Abandon<'a> {
    pair: &'a Arc<Pair>,
    want: &'a Want,
    id: Option<TicketId>,
}

impl Abandon<'_> {
    fn give_up(&mut self) {
        if let Some(id) = self.id.take() {
            let longest = self.want.lease.length.max(self.want.patience);
            keeper::leave(Leave::new(self.pair, &self.want.line, id, longest));
        }
    }
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}
