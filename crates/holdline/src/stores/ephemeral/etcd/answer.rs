//! Answers, checked against their requests.
//!
//! A server is not trusted to send what was requested: an answer that does not fit is an error that
//! says so, and never a lock.

use super::address::Address;
use super::shared::Shared;
use crate::error::{Error, ErrorKind, Result};
use holdline_etcd_client::{
    Answer,
    proto::{
        self, Delete, DeleteAnswer, Done, Header, KeyValue, Op, Range, RangeAnswer, RequestOp, Txn,
        TxnAnswer,
    },
};
use std::time::Duration;

/// The answer to a transaction.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) revision: i64,
    pub(super) succeeded: bool,
    /// The ranges found, in the order of the requests.
    pub(super) ranges: Vec<RangeAnswer>,
    /// The revision of the write; 0 if nothing was written.
    pub(super) written: i64,
    /// Whether a key was deleted.
    pub(super) deleted: bool,
    /// Whether an earlier attempt may have been carried out, too.
    pub(super) repeated: bool,
}

impl Found {
    /// Removes and returns the last range found.
    pub(super) fn pop(&mut self) -> RangeAnswer {
        self.ranges.pop().unwrap_or_default()
    }

    /// Removes and returns the first range found, which is one key.
    pub(super) fn first(&mut self) -> Option<KeyValue> {
        let first = (!self.ranges.is_empty()).then(|| self.ranges.remove(0));
        first.and_then(|mut range| range.kvs.pop())
    }
}

/// The error for an answer that does not fit.
pub(super) fn garbled(address: &Address, what: &str) -> Error {
    let message = format!(
        "{address} gave an answer that does not fit the question: {what}; check that it is etcd, \
         and what is in between"
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// Parses the answer to a transaction.
pub(super) fn read(address: &Address, txn: &Txn, answer: Answer<TxnAnswer>) -> Result<Found> {
    let Answer { body, repeated } = answer;
    let revision = revision(address, body.header)?;
    let mut found = Found { revision, succeeded: body.succeeded, repeated, ..Found::default() };
    read_parts(address, txn, body, &mut found)?;
    Ok(found)
}

/// The possible revisions. There is one after each of them.
const REVISIONS: std::ops::Range<i64> = 1..i64::MAX;

/// The revision of an answer, which every answer has.
fn revision(address: &Address, header: Option<Header>) -> Result<i64> {
    let revision = header.unwrap_or_default().revision;
    let good = REVISIONS.contains(&revision).then_some(revision);
    good.ok_or_else(|| garbled(address, "an answer without a revision"))
}

/// Adds the parts of the answer to a transaction, and to those in it.
fn read_parts(address: &Address, txn: &Txn, body: TxnAnswer, found: &mut Found) -> Result<()> {
    let asked = if body.succeeded { &txn.success } else { &txn.failure };
    let (parts, wanted) = (body.responses.len(), asked.len());
    if parts != wanted {
        let what = format!("a transaction with {parts} parts instead of {wanted}");
        return Err(garbled(address, &what));
    }
    for (RequestOp { op }, part) in asked.iter().zip(body.responses) {
        match (op, part.done) {
            (Some(Op::Range(range)), Some(Done::Range(answer))) => {
                check(address, range, &answer)?;
                found.ranges.push(answer);
            }
            (Some(Op::Put(_)), Some(Done::Put(answer))) => {
                found.written = answer.header.unwrap_or_default().revision;
            }
            (Some(Op::Delete(_)), Some(Done::Delete(answer))) => {
                found.deleted |= answer.deleted > 0;
            }
            (Some(Op::Txn(txn)), Some(Done::Txn(answer))) => {
                read_parts(address, txn, answer, found)?;
            }
            _ => return Err(garbled(address, "a transaction with a part of another kind")),
        }
    }
    Ok(())
}

/// Checks that the answer lies in the requested range, and is complete as far as requested.
fn check(address: &Address, asked: &Range, answer: &RangeAnswer) -> Result<()> {
    let is_in = |key: &[u8]| match asked.range_end.as_slice() {
        [] => key == asked.key,
        [0] => key >= asked.key.as_slice(),
        end => key >= asked.key.as_slice() && key < end,
    };
    let good = |kv: &KeyValue| is_in(&kv.key) && REVISIONS.contains(&kv.create_revision);
    if !answer.kvs.iter().all(good) {
        return Err(garbled(address, "a key that was not asked for"));
    }
    let got = i64::try_from(answer.kvs.len()).unwrap_or(i64::MAX);
    let most = if asked.limit > 0 { asked.limit.min(answer.count) } else { answer.count };
    // Keys created later are counted but left out.
    let fits = if asked.max_create_revision > 0 { got <= most } else { got == most };
    if !fits {
        let what = format!("{got} keys instead of {most}");
        return Err(garbled(address, &what));
    }
    Ok(())
}

impl Shared {
    /// Runs a transaction that writes no place, or that is harmless when repeated.
    pub(super) async fn txn(&self, txn: &Txn, limit: Duration) -> Result<Found> {
        let answer = self.cluster.call(proto::TXN, txn, limit).await?;
        read(&self.address, txn, answer)
    }

    /// Deletes a key, whenever it was created.
    pub(super) async fn delete(&self, delete: &Delete, limit: Duration) -> Result<Found> {
        let Answer { body, repeated } =
            self.cluster.call::<_, DeleteAnswer>(proto::DELETE, delete, limit).await?;
        let revision = revision(&self.address, body.header)?;
        let deleted = body.deleted > 0;
        Ok(Found { revision, succeeded: true, deleted, repeated, ..Found::default() })
    }

    /// Reads keys, and the revision for which they are correct.
    pub(super) async fn range(&self, range: &Range, limit: Duration) -> Result<(i64, RangeAnswer)> {
        let answer: Answer<RangeAnswer> = self.cluster.call(proto::RANGE, range, limit).await?;
        check(&self.address, range, &answer.body)?;
        Ok((revision(&self.address, answer.body.header)?, answer.body))
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout;
    use super::*;

    fn address() -> Address {
        Address::read("etcd", "//host").expect("good")
    }

    fn answer(succeeded: bool, parts: Vec<Done>) -> Answer<TxnAnswer> {
        let header = Some(Header { revision: 9, ..<_>::default() });
        let responses = parts.into_iter().map(|done| proto::ResponseOp { done: Some(done) });
        let body = TxnAnswer { header, succeeded, responses: responses.collect() };
        Answer { body, repeated: false }
    }

    fn found(key: &str, count: i64) -> Done {
        let kv = KeyValue { key: key.into(), create_revision: 3, ..Default::default() };
        Done::Range(RangeAnswer { kvs: vec![kv], count, ..Default::default() })
    }

    #[test]
    fn an_answer_that_does_not_fit_is_named() {
        let read_only = vec![Op::Range(layout::all(b"x/")).into()];
        let txn = Txn { success: read_only.clone(), failure: read_only, ..Txn::default() };
        let read = |parts| read(&address(), &txn, answer(false, parts));
        assert_eq!(read(vec![found("x/1", 1)]).expect("it fits").ranges.len(), 1);
        for (parts, word) in [
            (vec![], "0 parts instead of 1"),
            (vec![Done::Put(proto::PutAnswer::default())], "another kind"),
            (vec![found("y/1", 1)], "not asked for"),
            (vec![found("x/1", 2)], "1 keys instead of 2"),
            (vec![found("x/1", 1), found("x/1", 1)], "2 parts instead of 1"),
        ] {
            let error = read(parts).expect_err(word);
            assert!(error.to_string().contains(word) && error.retryable(), "{error}");
        }
        // An empty message, say, which is an answer without anything.
        let error = revision(&address(), None).expect_err("no header");
        assert!(error.retryable(), "{error}");
        // There could be no place after this one.
        let last = Header { revision: i64::MAX, ..<_>::default() };
        revision(&address(), Some(last)).expect_err("nonsense");
    }
}
