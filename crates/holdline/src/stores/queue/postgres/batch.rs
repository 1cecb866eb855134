//! The batcher of a lane of a connection: calls that queue while others are in flight are sent
//! together.
//!
//! The server carries out the calls of a connection one after another, and waits for its disk at
//! the end of each. So while a few messages are in flight, further calls are queued, and the queue
//! is sent as one message when a reply arrives: several statements in one transaction, with one
//! commit. A call that finds the connection idle is sent at once, by itself.
//!
//! Each call has its own answer. A batch that the server refuses, which undoes all of it, is
//! [divided](crate::stores::queue::division). It has at most one call for each line, in the order
//! of names, so that the batches of two processes cannot deadlock; and it waits for a locked row
//! for a shorter time than a single call does. Departures are not batched with other calls, because
//! their commits are not waited for.

use super::encode;
use super::errors::LOCKED;
use super::session::{self, AbortOnDrop, Lane, Session};
use crate::clock;
use crate::names::Name;
use crate::stores::queue::calls::Answer;
use crate::stores::queue::division::Division;
use crate::stores::queue::sql::{Fault, answered};
use crate::sync::Mutex;
use futures_util::future::join_all;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A statement with its parameters, and the conditions for batching it.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) sql: String,
    /// The line that it operates on. A call without one is always sent by itself.
    pub(super) line: Option<Name>,
    /// Whether its commit is waited for.
    pub(super) durable: bool,
    pub(super) lane: Lane,
    /// Whether its reply may be long. Then it is sent by itself.
    pub(super) long: bool,
}

/// The queue of a lane's calls, to be sent in batches.
#[derive(Debug, Default)]
pub(super) struct Batcher(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of messages in flight.
    in_flight: usize,
    queue: VecDeque<Queued>,
}

#[derive(Debug)]
struct Queued {
    call: Call,
    reply: oneshot::Sender<Result<Answer, Fault>>,
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
        Call { sql, line: None, durable: true, lane: Lane::Foreground, long: false }
    }
}

impl Batcher {
    /// Queues a call, unless it can be sent now; then it counts as in flight.
    fn queue(&self, call: &Call) -> Option<oneshot::Receiver<Result<Answer, Fault>>> {
        let mut state = self.0.lock();
        if state.in_flight < UNBATCHED {
            state.in_flight += 1;
            return None;
        }
        let (reply, answer) = oneshot::channel();
        state.queue.push_back(Queued { call: call.clone(), reply });
        Some(answer)
    }

    /// The batch that replaces a message no longer in flight; empty if nothing is queued. It has
    /// the oldest call and the calls that can go with it. Calls for the same line stay in order.
    fn next(&self) -> Vec<Queued> {
        let mut state = self.0.lock();
        state.queue.retain(|queued| !queued.reply.is_closed());
        let (mut batch, mut rest) = (Vec::<Queued>::new(), VecDeque::<Queued>::new());
        for queued in std::mem::take(&mut state.queue) {
            let fits = batch.first().is_none_or(|first| first.call.durable == queued.call.durable);
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
        batch.sort_by(|one, other| one.call.line.cmp(&other.call.line));
        batch
    }
}

/// A message of a lane in flight. When it is dropped, the next batch is sent.
struct InFlight(Arc<Session>, Lane);

impl Drop for InFlight {
    fn drop(&mut self) {
        let InFlight(session, lane) = self;
        let batch = session.calls(*lane).batcher.next();
        if let (false, Ok(runtime)) = (batch.is_empty(), session::runtime()) {
            runtime.spawn(Arc::clone(session).send_batch(batch, *lane));
        }
    }
}

impl Session {
    /// Makes a call, by itself or in a batch. The caller limits the time.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call is carried out or not.
    pub(super) async fn call(self: &Arc<Self>, call: &Call) -> Result<Answer, Fault> {
        if call.long {
            return self.send_long(&call.sql).await;
        }
        if call.line.is_none() {
            return self.send(&call.sql).await;
        }
        let Some(answer) = self.calls(call.lane).batcher.queue(call) else {
            let _in_flight = InFlight(Arc::clone(self), call.lane);
            return self.send(&call.sql).await;
        };
        answer.await.unwrap_or_else(|_| Err(Fault::Broken("its thread has ended".to_owned())))
    }

    async fn send(&self, sql: &str) -> Result<Answer, Fault> {
        Ok(encode::answer(self.client.simple_query(sql).await?))
    }

    /// Sends a call whose reply may be long, and reads the reply in the background: the connection
    /// passes replies on in order, so one that is not read would hold up all later ones, and the
    /// caller may not be polled.
    async fn send_long(self: &Arc<Self>, sql: &str) -> Result<Answer, Fault> {
        let (session, sql) = (Arc::clone(self), sql.to_owned());
        let runtime = session::runtime().map_err(Fault::from)?;
        let reading = runtime.spawn(async move { session.send(&sql).await });
        // A call whose time is over must not keep the connection of a silent server open.
        let _abort = AbortOnDrop(reading.abort_handle());
        reading.await.unwrap_or_else(|_| Err(Fault::Broken("its thread has ended".to_owned())))
    }

    async fn send_batch(self: Arc<Self>, batch: Vec<Queued>, lane: Lane) {
        let _in_flight = InFlight(Arc::clone(&self), lane);
        let limit = clock::now().after(self.timeout);
        let mut division = Division::new(batch);
        while let Some(batch) = division.next() {
            match answered(limit, self.send_together(&batch)).await {
                Ok(answers) => {
                    for (one, answer) in batch.into_iter().zip(answers) {
                        let _ = one.reply.send(Ok(answer)); // unless the caller has given up
                    }
                }
                Err(fault) if fault.undone() => {
                    division.refused(batch, fault.conflict() || fault.is(&LOCKED));
                }
                Err(fault) => {
                    for one in batch {
                        let _ = one.reply.send(Err(fault.clone()));
                    }
                }
            }
        }
        let session = &self;
        let alone = division.alone().into_iter().map(|one| async move {
            let answer = answered(limit, session.send(&one.call.sql)).await;
            let _ = one.reply.send(answer);
        });
        join_all(alone).await;
    }

    /// Sends a batch as one message.
    async fn send_together(&self, batch: &[Queued]) -> Result<Vec<Answer>, Fault> {
        let statements = batch.iter().map(|one| &*one.call.sql);
        let sql = [SHORT_WAIT].into_iter().chain(statements).collect::<Vec<_>>().join("; ");
        let mut answers = encode::answers(self.client.simple_query(&sql).await?);
        if answers.len() != batch.len() + 1 {
            let found = answers.len();
            return Err(Fault::Broken(format!(
                "{found} answers to {} statements",
                batch.len() + 1
            )));
        }
        Ok(answers.split_off(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Answers = Vec<oneshot::Receiver<Result<Answer, Fault>>>;

    /// A batcher with the maximum of messages in flight and these calls in its queue.
    fn queued(calls: &[(&str, bool)]) -> (Batcher, Answers) {
        let batcher = Batcher::default();
        let call = |line: &str, durable| Call {
            sql: line.to_owned(),
            line: Some(Name::new(line).expect("a name")),
            durable,
            ..Call::alone(String::new())
        };
        for _ in 0..UNBATCHED {
            assert!(batcher.queue(&call("first", true)).is_none(), "it is sent at once");
        }
        let queue = |&(line, durable)| batcher.queue(&call(line, durable)).expect("queued");
        let answers = calls.iter().map(queue).collect();
        (batcher, answers)
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
