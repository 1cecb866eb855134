//! The batchers of a connection, which sends the calls of a lane in batches.
//!
//! The server carries out the calls of a connection one after another, and waits for its disk at
//! the end of each. So while a few messages are in flight, further calls are queued, and the queue
//! is sent as one message when a reply arrives: several statements in one transaction, with one
//! commit. A call that finds the connection idle is sent at once, by itself.
//!
//! Tasks on the store's thread send the calls and read their replies, so a caller that is not
//! polled holds up no other call.
//!
//! Each call has its own answer. A batch that the server refuses, which undoes all of it, is
//! [divided](crate::stores::queue::division). It has at most one call for each line, in the order
//! of names, so that the batches of two processes cannot deadlock; and it waits for a locked row
//! for a shorter time than a single call does. Departures are not batched with other calls, because
//! their commits are not waited for.

use super::session::{self, Lane, Session};
use crate::names::Name;
use crate::stores::queue::calls::Answer;
use crate::stores::queue::division::{self, Carrier};
use crate::stores::queue::sql::Fault;
use crate::sync::Mutex;
use futures_util::FutureExt;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// A statement with its parameters, and the conditions for batching it.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) sql: String,
    /// The line that it operates on. A call without one is always sent by itself.
    pub(super) line: Option<Name>,
    /// Whether its commit is waited for.
    pub(super) durable: bool,
    pub(super) lane: Lane,
}

pub(super) type Queued = division::Queued<Call>;

/// The queue of a lane's calls, to be sent in batches.
#[derive(Default)]
pub(super) struct Batcher(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of messages in flight.
    in_flight: usize,
    queue: VecDeque<Queued>,
}

/// The number of messages in flight at which further calls are queued. The server works on the
/// second while the reply to the first is on its way.
const UNBATCHED: usize = 2;
/// The maximum number of calls in a batch: it holds their lines until it commits.
const MAX_CALLS: usize = 32;
/// The first statement of a batch: how many milliseconds it waits for a locked row. See `line.sql`.
const SHORT_WAIT: &str = "SELECT set_config('holdline.lock_timeout', '100', true)";

impl Call {
    /// A call that is sent by itself.
    pub(super) fn alone(sql: String) -> Self {
        Call { sql, line: None, durable: true, lane: Lane::Foreground }
    }

    /// Whether it is the background's, and no departure: a renewal of a lease.
    pub(super) fn renews(&self) -> bool {
        self.lane == Lane::Background && self.line.is_some() && self.durable
    }
}

impl Batcher {
    /// Queues a call. Returns whether there is to be another message in flight: then
    /// [`next`](Self::next) must be called until it is empty.
    fn queue(&self, call: Queued) -> bool {
        let mut state = self.0.lock();
        state.queue.push_back(call);
        let more = state.in_flight < UNBATCHED;
        state.in_flight += usize::from(more);
        more
    }

    /// The batch that replaces a message no longer in flight; empty if nothing is queued. It has
    /// the oldest call and the calls that can go with it. Calls for the same line stay in order.
    fn next(&self) -> Vec<Queued> {
        let mut state = self.0.lock();
        let (mut batch, mut rest) = (Vec::<Queued>::new(), VecDeque::<Queued>::new());
        let mut given_up = Vec::new();
        for queued in std::mem::take(&mut state.queue) {
            if queued.reply.is_closed() {
                given_up.push(queued);
                continue;
            }
            let fits = batch.first().is_none_or(|first| {
                let lines = first.call.line.is_some() && queued.call.line.is_some();
                lines && first.call.durable == queued.call.durable
            });
            let mut before = batch.iter().chain(&rest);
            if fits
                && batch.len() < MAX_CALLS
                && before.all(|other| other.call.line != queued.call.line)
            {
                batch.push(queued);
            } else {
                rest.push_back(queued);
            }
        }
        state.queue = rest;
        if batch.is_empty() {
            state.in_flight -= 1;
        }
        drop(state); // a waker may drop its task, with another call, on the spot
        given_up.into_iter().for_each(Queued::refuse);
        batch.sort_by(|one, other| one.call.line.cmp(&other.call.line));
        batch
    }
}

impl Session {
    /// Makes a call, by itself or in a batch. It goes on if its caller gives up.
    pub(super) fn call(self: &Arc<Self>, call: Queued) -> Result<(), Fault> {
        let runtime = session::runtime().map_err(Fault::from)?;
        let lane = call.call.lane as usize;
        if self.batchers[lane].queue(call) {
            let session = Arc::clone(self);
            runtime.spawn(async move {
                loop {
                    let batch = session.batchers[lane].next();
                    if batch.is_empty() {
                        return;
                    }
                    // A panic ends the calls of this batch, and not the lane.
                    let _ = AssertUnwindSafe(division::send(&*session, batch)).catch_unwind().await;
                }
            });
        }
        Ok(())
    }
}

impl Carrier for Session {
    type Call = Call;

    async fn carry(&self, calls: &[Queued], patient: bool) -> Result<Vec<Answer>, Fault> {
        let first = (!patient).then_some(SHORT_WAIT);
        let statements = calls.iter().map(|one| &*one.call.sql);
        let statements: Vec<&str> = first.into_iter().chain(statements).collect();
        let mut answers = self.send(&statements.join("; ")).await?;
        if answers.len() != statements.len() {
            let (found, asked) = (answers.len(), statements.len());
            return Err(Fault::Broken(format!("{found} answers to {asked} statements")));
        }
        Ok(answers.split_off(statements.len() - calls.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdline_kernel::Time;
    use tokio::sync::oneshot;

    type Answers = Vec<oneshot::Receiver<Result<Answer, Fault>>>;

    /// A batcher with the maximum of messages in flight and these calls in its queue.
    fn queued(calls: &[(&str, bool)]) -> (Batcher, Answers) {
        let (batcher, mut answers) = (Batcher::default(), Vec::new());
        let mut queue = |line: &str, durable| {
            let line = Name::new(line).ok();
            let sql = line.as_ref().map_or("", Name::as_str).to_owned();
            let (reply, answer) = oneshot::channel();
            answers.push(answer);
            let call = Call { line, durable, ..Call::alone(sql) };
            batcher.queue(Queued { call, limit: Time(u64::MAX), request: None, reply })
        };
        for _ in 0..UNBATCHED {
            assert!(queue("first", true), "it is sent at once");
            assert_eq!(batcher.next().len(), 1);
        }
        for &(line, durable) in calls {
            assert!(!queue(line, durable));
        }
        (batcher, answers.split_off(UNBATCHED))
    }

    fn lines(batch: &[Queued]) -> Vec<&str> {
        batch.iter().map(|one| &*one.call.sql).collect()
    }

    #[test]
    fn a_batch_has_one_call_of_a_line_in_the_order_of_names() {
        let (batcher, _answers) = queued(&[("b", true), ("a", true), ("b", true), ("c", true)]);
        assert_eq!(lines(&batcher.next()), ["a", "b", "c"]);
        assert_eq!(lines(&batcher.next()), ["b"]);
        assert!(batcher.next().is_empty());
    }

    #[test]
    fn departures_are_apart_and_calls_of_a_line_stay_in_order() {
        let calls = [("b", true), ("a", false), ("a", true), ("c", false), ("d", true)];
        let (batcher, _answers) = queued(&calls);
        assert_eq!(lines(&batcher.next()), ["b", "d"], "a line's departure is before its entry");
        assert_eq!(lines(&batcher.next()), ["a", "c"]);
        assert_eq!(lines(&batcher.next()), ["a"]);
    }

    #[test]
    fn a_call_without_a_line_is_sent_by_itself() {
        let (batcher, _answers) = queued(&[("", true), ("a", true), ("", true), ("b", true)]);
        assert_eq!(lines(&batcher.next()), [""]);
        assert_eq!(lines(&batcher.next()), ["a", "b"]);
        assert_eq!(lines(&batcher.next()), [""]);
    }

    #[test]
    fn what_was_given_up_is_not_sent() {
        let (batcher, mut answers) = queued(&[("a", true), ("b", true)]);
        answers.remove(0);
        assert_eq!(lines(&batcher.next()), ["b"]);
    }

    #[test]
    fn a_connection_whose_messages_are_answered_is_idle() {
        let (batcher, _answers) = queued(&[]);
        for in_flight in (0..UNBATCHED).rev() {
            assert!(batcher.next().is_empty());
            assert_eq!(batcher.0.lock().in_flight, in_flight);
        }
    }

    #[test]
    fn batches_have_a_bound() {
        let names: Vec<_> = (0..=MAX_CALLS).map(|n| format!("n{n}")).collect();
        let calls: Vec<_> = names.iter().map(|name| (&**name, true)).collect();
        let (batcher, _answers) = queued(&calls);
        assert_eq!(batcher.next().len(), MAX_CALLS);
        assert_eq!(batcher.next().len(), 1);
    }
}
