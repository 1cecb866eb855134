//! Batches of calls, and the division of a batch that the server has refused, and has undone.
//!
//! If a row is locked, the batch is divided in halves, and they again, so that the calls for other
//! rows do not wait for that one. What is left, for locked rows, is sent call by call after all
//! others. After another refusal all calls are sent one by one, so that none can fail the others.

use super::calls::Answer;
use super::in_flight::RequestInFlight;
use super::sql::Fault;
use crate::clock;
use holdline_kernel::Time;
use std::collections::VecDeque;
use std::mem;
use tokio::sync::oneshot;

/// A connection, or several, that carry batches.
pub(super) trait Carrier: Sync {
    type Call: Send + Sync;

    /// Sends several calls as one message. If one is refused, all are undone.
    fn together(
        &self,
        batch: &[Queued<Self::Call>],
    ) -> impl Future<Output = Result<Vec<Answer>, Fault>> + Send;

    /// Sends a call by itself.
    fn alone(
        &self,
        call: &Queued<Self::Call>,
    ) -> impl Future<Output = Result<Answer, Fault>> + Send;
}

/// A call that has yet to be answered. Its caller waits elsewhere.
pub(super) struct Queued<C> {
    pub(super) call: C,
    /// When its caller gives up.
    pub(super) limit: Time,
    /// The request to take a place, which is in flight until it is answered.
    pub(super) request: Option<RequestInFlight>,
    pub(super) reply: oneshot::Sender<Result<Answer, Fault>>,
}

impl<C> Queued<C> {
    /// Whether the caller waits, and has time left.
    fn is_wanted(&self) -> bool {
        !self.reply.is_closed() && clock::now() < self.limit
    }

    /// Answers the caller, if it still waits. The request is in flight no more, unless the answer
    /// leaves it in doubt.
    fn answer(self, answer: Result<Answer, Fault>) {
        if let Some(request) = self.request
            && !answer.as_ref().is_err_and(Fault::in_doubt)
        {
            request.answered();
        }
        let _ = self.reply.send(answer);
    }

    /// Answers a call that is not sent.
    pub(super) fn refuse(self) {
        self.answer(Err(Fault::Unsent("nobody waits for it, or its time is over".to_owned())));
    }
}

/// Sends calls together, as far as the server allows that, and answers each. A call that is not
/// wanted any more is not sent.
pub(super) async fn send<C: Carrier>(carrier: &C, calls: Vec<Queued<C::Call>>) {
    let mut division = Division::new(calls);
    while let Some(batch) = division.next() {
        let (batch, late): (Vec<_>, Vec<_>) = batch.into_iter().partition(Queued::is_wanted);
        late.into_iter().for_each(Queued::refuse);
        if batch.len() < 2 {
            division.alone.extend(batch);
            continue;
        }
        match carrier.together(&batch).await {
            Ok(answers) => {
                for (call, answer) in batch.into_iter().zip(answers) {
                    call.answer(Ok(answer));
                }
            }
            Err(fault) if fault.undone() => division.refused(batch, fault.locked()),
            Err(fault) => {
                for call in batch {
                    call.answer(Err(fault.clone()));
                }
            }
        }
    }
    for call in division.alone {
        if call.is_wanted() {
            let answer = carrier.alone(&call).await;
            call.answer(answer);
        } else {
            call.refuse();
        }
    }
}

/// The parts of a batch that have yet to be sent.
#[derive(Debug)]
struct Division<C> {
    parts: VecDeque<Vec<C>>,
    /// The calls to send alone.
    alone: Vec<C>,
}

impl<C> Division<C> {
    fn new(calls: Vec<C>) -> Self {
        Division { parts: VecDeque::from([calls]), alone: Vec::new() }
    }

    /// The next part to send as a batch; `None` if all that are left are to be sent alone.
    fn next(&mut self) -> Option<Vec<C>> {
        // A single call has no others to wait for.
        if self.alone.is_empty() && self.parts.len() == 1 && self.parts[0].len() < 2 {
            self.alone = mem::take(&mut self.parts).into_iter().flatten().collect();
        }
        self.parts.pop_front()
    }

    /// Takes a part back that was refused, and whether the reason is that a row is locked.
    fn refused(&mut self, mut part: Vec<C>, locked: bool) {
        if locked && part.len() > 1 {
            let half = part.split_off(part.len() / 2);
            self.parts.extend([part, half]);
        } else {
            self.alone.extend(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts that are sent as batches, and the calls that are then sent alone.
    fn sent(calls: Vec<u32>, locked: &[u32]) -> (Vec<Vec<u32>>, Vec<u32>) {
        let (mut division, mut batches) = (Division::new(calls), Vec::new());
        while let Some(part) = division.next() {
            batches.push(part.clone());
            if part.iter().any(|call| locked.contains(call)) {
                division.refused(part, true);
            }
        }
        (batches, division.alone)
    }

    #[test]
    fn a_batch_that_is_not_refused_is_not_divided() {
        assert_eq!(sent(vec![1, 2, 3], &[]), (vec![vec![1, 2, 3]], vec![]));
    }

    #[test]
    fn a_single_call_is_sent_alone() {
        assert_eq!(sent(vec![1], &[]), (vec![], vec![1]));
        assert_eq!(sent(vec![], &[]), (vec![], vec![]));
    }

    #[test]
    fn only_calls_for_locked_rows_are_sent_alone() {
        let (batches, alone) = sent((0..64).collect(), &[7, 40]);
        assert_eq!(alone, [7, 40]);
        assert!(batches.len() <= 2 * 2 * 6 + 1, "{batches:?}");
        let (batches, alone) = sent(vec![1, 2], &[1]);
        assert_eq!((batches, alone), (vec![vec![1, 2], vec![1], vec![2]], vec![1]));
    }

    #[test]
    fn after_another_refusal_all_are_sent_alone() {
        let mut division = Division::new(vec![1, 2, 3]);
        let part = division.next().expect("a batch");
        division.refused(part, false);
        assert!(division.next().is_none());
        assert_eq!(division.alone, [1, 2, 3]);
    }
}
