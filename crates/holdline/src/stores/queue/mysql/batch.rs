//! The batcher of a list of connections: quick statements that wait for a connection are sent
//! together.
//!
//! A connection carries one call at a time, and the server waits for its disk at the end of each.
//! So a call whose turn it is takes along the quick statements that wait for theirs: one message,
//! one transaction, one commit. Each call has its own answer.
//!
//! A batch does not wait for rows that other clients have locked, since its own rows are locked
//! meanwhile, and InnoDB cannot wait for less than a second. It first locks all rows with `NOWAIT`,
//! so it cannot deadlock either. A batch that the server refuses is undone, and
//! [divided](crate::stores::queue::division).
//!
//! A refused batch keeps the rows that it has locked until the client undoes it. The client may
//! have stopped, so the server closes the connection after a second of silence.

use super::connection::ask;
use super::text::{self, Statement};
use crate::stores::queue::calls::Answer;
use crate::stores::queue::division;
use crate::stores::queue::in_flight::RequestInFlight;
use crate::stores::queue::sql::Fault;
use crate::sync::Mutex;
use holdline_kernel::Time;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// The maximum number of calls in a batch: it holds their rows until it commits.
const MAX_CALLS: usize = 64;

/// A call that waits for a connection.
pub(super) type Queued = division::Queued<Statement>;

/// The calls that wait for a connection, oldest first.
#[derive(Default)]
pub(super) struct Batcher(Mutex<State>);

#[derive(Default)]
struct State {
    numbers: u64,
    waiting: BTreeMap<u64, Queued>,
}

impl Batcher {
    /// Queues a call, and returns its number, and where its answer will be.
    pub(super) fn queue(
        &self,
        call: Statement,
        request: Option<RequestInFlight>,
        limit: Time,
    ) -> (u64, oneshot::Receiver<Result<Answer, Fault>>) {
        let (reply, answer) = oneshot::channel();
        let mut state = self.0.lock();
        state.numbers += 1;
        let number = state.numbers;
        state.waiting.insert(number, Queued { call, limit, request, reply });
        (number, answer)
    }

    /// Refuses a call that nobody waits for, unless it has been taken.
    pub(super) fn withdraw(&self, number: u64) {
        let call = self.0.lock().waiting.remove(&number);
        if let Some(call) = call {
            call.refuse();
        }
    }

    /// Takes the call of this number, and the oldest of those that can go with it. Empty if it has
    /// been taken.
    pub(super) fn take(&self, number: u64) -> Vec<Queued> {
        let mut state = self.0.lock();
        // A call is abandoned if its runtime has ended.
        state.waiting.retain(|_, queued| !queued.reply.is_closed());
        let Some(first) = state.waiting.remove(&number) else { return Vec::new() };
        let (alone, mut batch) = (first.call.line.is_none(), vec![first]);
        if alone {
            return batch;
        }
        let quick = state.waiting.iter().filter(|(_, queued)| queued.call.line.is_some());
        let chosen: Vec<u64> = quick.map(|(number, _)| *number).take(MAX_CALLS - 1).collect();
        batch.extend(chosen.iter().filter_map(|number| state.waiting.remove(number)));
        batch
    }
}

/// The start of a batch. If the server then waits for a second for the client, which it does only
/// after an error, it closes the connection.
const BEGIN: [&str; 2] = ["SET SESSION wait_timeout = 1", "START TRANSACTION READ WRITE"];
/// The end of [`BEGIN`]'s time limit.
const PATIENT: &str = "SET SESSION wait_timeout = DEFAULT";

/// Sends a batch as one message. After a conflict nothing of it is left; after another error its
/// transaction may be open for a second.
pub(super) async fn send(conn: &mut Conn, batch: &[Queued]) -> Result<Vec<Answer>, Fault> {
    let answers = transaction(conn, batch).await;
    if answers.as_ref().is_err_and(Fault::conflict) {
        ask(conn, &format!("ROLLBACK; {PATIENT}")).await?;
    }
    answers
}

/// The same, but leaves it to the server to undo what it refuses.
pub(super) async fn transaction(conn: &mut Conn, batch: &[Queued]) -> Result<Vec<Answer>, Fault> {
    let lines = batch.iter().filter_map(|queued| queued.call.line.as_ref());
    let mut statements: Vec<String> = BEGIN.into_iter().map(str::to_owned).collect();
    statements.push(text::lock_lines(lines));
    let preceding = statements.len();
    statements.extend(batch.iter().map(|queued| queued.call.literal()));
    statements.extend(["COMMIT", PATIENT].map(str::to_owned));
    let mut result = conn.query_iter(statements.join("; ")).await?;
    for _ in 0..preceding {
        result.collect::<mysql_async::Row>().await?; // and goes on to the next result
    }
    let mut answers = Vec::new();
    for _ in batch {
        let (changed, insert_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
        answers.push(Answer { changed, insert_id, ..Answer::default() });
        result.collect::<mysql_async::Row>().await?;
    }
    result.drop_result().await?;
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::text::Key;
    use super::*;
    use crate::names::Name;
    use crate::store::TicketId;
    use crate::stores::queue::mysql::config::Scheme;

    type Answers = Vec<oneshot::Receiver<Result<Answer, Fault>>>;

    /// A batcher with a quick statement for each name, and one without a name for each "".
    fn queued(names: &[&str]) -> (Batcher, Answers) {
        let batcher = Batcher::default();
        let queue = |name: &&str| {
            let statement = match Name::new(*name) {
                Ok(line) => text::quick_leave(&Key::new(Scheme::Table, &line), TicketId(1)),
                Err(_) => Statement::text("CALL x()"),
            };
            batcher.queue(statement, None, Time(0)).1
        };
        let answers = names.iter().map(queue).collect();
        (batcher, answers)
    }

    fn lines(batch: &[Queued]) -> Vec<&str> {
        let lines = batch.iter().map(|queued| queued.call.line.as_ref());
        lines.map(|line| line.map_or("", Key::name)).collect()
    }

    #[test]
    fn a_call_takes_quick_statements_along_and_is_in_every_batch_of_its_own() {
        let (batcher, _answers) = queued(&["a", "", "b", "c"]);
        assert_eq!(lines(&batcher.take(3)), ["b", "a", "c"]);
        assert!(batcher.take(1).is_empty(), "it was taken along");
        assert_eq!(lines(&batcher.take(2)), [""]);
    }

    #[test]
    fn what_is_no_quick_statement_is_sent_alone() {
        let (batcher, _answers) = queued(&["", "a"]);
        assert_eq!(lines(&batcher.take(1)), [""]);
        assert_eq!(lines(&batcher.take(2)), ["a"]);
    }

    #[test]
    fn a_call_is_withdrawn_unless_it_was_taken() {
        let (batcher, mut answers) = queued(&["a", "b", "c"]);
        batcher.withdraw(1);
        assert!(matches!(answers[0].try_recv(), Ok(Err(Fault::Unsent(_)))));
        let batch = batcher.take(2);
        assert_eq!(lines(&batch), ["b", "c"]);
        batcher.withdraw(3);
        assert!(answers[2].try_recv().is_err(), "it is in the batch");
    }

    #[test]
    fn an_abandoned_call_is_not_sent() {
        let (batcher, mut answers) = queued(&["a", "b"]);
        answers.remove(0);
        assert_eq!(lines(&batcher.take(2)), ["b"]);
        assert!(batcher.0.lock().waiting.is_empty());
    }

    #[test]
    fn batches_have_a_bound() {
        let names: Vec<_> = (0..=MAX_CALLS).map(|n| format!("n{n}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let (batcher, _answers) = queued(&names);
        assert_eq!(batcher.take(1).len(), MAX_CALLS);
    }

    #[test]
    fn values_are_written_in_their_places() {
        let line = Name::new("it's ?").expect("a name");
        let literal = text::quick_leave(&Key::new(Scheme::Table, &line), TicketId(255)).literal();
        assert!(literal.contains("front = 9223372036854775807, due = 9223372036854775807"));
        assert!(literal.contains("name = UNHEX('69742773203f') AND places"), "{literal}");
        assert!(literal.contains("id = UNHEX('000000000000000000000000000000ff')"), "{literal}");
    }
}
