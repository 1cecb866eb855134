//! Batches of calls, and the division of a batch that the server has refused, and has undone.
//!
//! If a row is locked, the batch is divided in halves, and they again, so that the calls for other
//! rows do not wait for that one. The calls for locked rows are sent after all others, and wait for
//! them. After another refusal all calls are sent one by one, so that none can fail the others.

use super::calls::Answer;
use super::in_flight::RequestInFlight;
use super::sql::Fault;
use crate::clock;
use holdline_kernel::Time;
use std::collections::VecDeque;
use std::slice;
use tokio::sync::oneshot;

/// A connection, or several, that carry calls.
pub(super) trait Carrier: Sync {
    type Call: Send + Sync;

    /// Sends calls as one message, and returns the answer to each. If one of several is refused,
    /// all are undone. If they are `patient`, each waits for a locked row as long as it may;
    /// otherwise hardly at all, since the others wait with it.
    fn carry(
        &self,
        calls: &[Queued<Self::Call>],
        patient: bool,
    ) -> impl Future<Output = Result<Vec<Answer>, Fault>> + Send;
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
    let (mut parts, mut alone) = (VecDeque::from([calls]), Vec::new());
    let mut divided = false;
    while let Some(part) = parts.pop_front() {
        let (mut batch, late): (Vec<_>, Vec<_>) = part.into_iter().partition(Queued::is_wanted);
        late.into_iter().for_each(Queued::refuse);
        if batch.is_empty() || batch.len() == 1 && !divided {
            alone.extend(batch);
            continue;
        }
        match carrier.carry(&batch, false).await {
            Ok(answers) => {
                for (call, answer) in batch.into_iter().zip(answers) {
                    call.answer(Ok(answer));
                }
            }
            Err(fault) if fault.undone() && fault.locked() && batch.len() > 1 => {
                divided = true;
                let half = batch.split_off(batch.len() / 2);
                parts.extend([batch, half]);
            }
            Err(fault) if fault.undone() => alone.extend(batch),
            Err(fault) => {
                for call in batch {
                    call.answer(Err(fault.clone()));
                }
            }
        }
    }
    for call in alone {
        if call.is_wanted() {
            let answers = carrier.carry(slice::from_ref(&call), true).await;
            call.answer(answers.map(|mut answers| answers.pop().unwrap_or_default()));
        } else {
            call.refuse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::stores::queue::sql::ServerError;
    use crate::sync::Mutex;
    use futures_util::FutureExt;
    use std::mem;

    /// A server that refuses calls for some rows. A call is the number of its row.
    struct Server {
        refused: &'static [u32],
        code: &'static str,
        /// The rows of each message, and whether it was patient.
        messages: Mutex<Vec<(Vec<u32>, bool)>>,
    }

    impl Carrier for Server {
        type Call = u32;

        async fn carry(&self, calls: &[Queued<u32>], patient: bool) -> Result<Vec<Answer>, Fault> {
            let rows: Vec<u32> = calls.iter().map(|queued| queued.call).collect();
            self.messages.lock().push((rows.clone(), patient));
            if !rows.iter().any(|row| self.refused.contains(row)) {
                let answer = |row| Answer { changed: u64::from(row), ..Answer::default() };
                return Ok(rows.into_iter().map(answer).collect());
            }
            Err(Fault::Refused(ServerError {
                code: self.code.to_owned(),
                message: String::new(),
                meaning: |_, _| (ErrorKind::Unavailable, String::new()),
                connecting: false,
            }))
        }
    }

    const LOCKED: &str = "55P03";

    fn queued(row: u32) -> (Queued<u32>, oneshot::Receiver<Result<Answer, Fault>>) {
        let (reply, answer) = oneshot::channel();
        (Queued { call: row, limit: Time(u64::MAX), request: None, reply }, answer)
    }

    /// The messages by which these calls are sent. Each call must get its own answer.
    fn sent(rows: &[u32], refused: &'static [u32], code: &'static str) -> Vec<(Vec<u32>, bool)> {
        let server = Server { refused, code, messages: Mutex::default() };
        let (calls, answers): (Vec<_>, Vec<_>) = rows.iter().map(|row| queued(*row)).unzip();
        send(&server, calls).now_or_never().expect("the server answers at once");
        for (row, mut answer) in rows.iter().zip(answers) {
            let answer = answer.try_recv().expect("it is answered");
            let answer = answer.ok().map(|answer| answer.changed);
            assert_eq!(answer, (!refused.contains(row)).then_some(u64::from(*row)));
        }
        mem::take(&mut *server.messages.lock())
    }

    #[test]
    fn a_batch_that_is_not_refused_is_not_divided() {
        assert_eq!(sent(&[1, 2, 3], &[], LOCKED), [(vec![1, 2, 3], false)]);
    }

    #[test]
    fn a_single_call_is_one_message() {
        assert_eq!(sent(&[1], &[], LOCKED), [(vec![1], true)]);
        assert_eq!(sent(&[1], &[1], LOCKED), [(vec![1], true)]);
        assert!(sent(&[], &[], LOCKED).is_empty());
    }

    #[test]
    fn only_calls_for_locked_rows_wait_for_them_and_are_sent_last() {
        let messages = sent(&(0..64).collect::<Vec<_>>(), &[7, 40], LOCKED);
        let (batches, alone) = messages.split_at(messages.len() - 2);
        assert_eq!(alone, [(vec![7], true), (vec![40], true)]);
        assert!(batches.len() <= 2 * 2 * 6 + 1, "{batches:?}");
        assert!(batches.iter().all(|(_, patient)| !patient), "{batches:?}");
    }

    #[test]
    fn after_another_refusal_all_are_sent_by_themselves() {
        let all = (vec![1, 2, 3], false);
        let each = [1, 2, 3].map(|row| (vec![row], true));
        assert_eq!(sent(&[1, 2, 3], &[2], "23505"), [&[all][..], &each].concat());
    }

    #[test]
    fn what_nobody_waits_for_is_not_sent() {
        let server = Server { refused: &[], code: LOCKED, messages: Mutex::default() };
        for waited_for in [vec![], vec![1], vec![1, 2]] {
            let (calls, mut answers): (Vec<_>, Vec<_>) = [1, 2, 3].map(queued).into_iter().unzip();
            answers.truncate(waited_for.len());
            send(&server, calls).now_or_never().expect("the server answers at once");
            let messages = mem::take(&mut *server.messages.lock());
            let rows: Vec<u32> = messages.into_iter().flat_map(|(rows, _)| rows).collect();
            assert_eq!(rows, waited_for);
        }
    }
}
