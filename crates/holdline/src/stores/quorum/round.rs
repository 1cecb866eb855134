//! One round of questions to all nodes at once, each with a limit, and what the answers amount to.

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Async, Store};
use futures_util::FutureExt;
use holdline_kernel::{Tally, Time, Verdict, Vote};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// A node's answer: its vote, and what came with it.
pub(super) type Answer<T> = (Vote, T);

enum Node<'a, T> {
    Asked(Async<'a, Answer<T>>),
    Answered(Result<Answer<T>, String>),
}

/// The questions of one round.
pub(super) struct Round<'a, T> {
    nodes: Vec<Node<'a, T>>,
    tally: Tally,
    patience: Duration,
}

/// What came of a round.
pub(super) struct Outcome<T> {
    answers: Vec<Result<Answer<T>, String>>,
    verdict: Verdict,
    noes: u32,
    tally: Tally,
}

impl<'a, T> Round<'a, T> {
    pub(super) fn new(tally: Tally, patience: Duration) -> Self {
        Round { nodes: Vec::new(), tally, patience }
    }

    pub(super) fn ask(&mut self, question: Async<'a, Answer<T>>) {
        self.nodes.push(Node::Asked(question));
    }

    /// A node whose answer is known already.
    pub(super) fn answered(&mut self, answer: Answer<T>) {
        self.nodes.push(Node::Answered(Ok(answer)));
    }

    /// Runs until the outcome is certain. Every node has been sent its question by then; what those
    /// do that have not answered is unknown.
    pub(super) async fn run(self, sent: Time) -> Outcome<T> {
        self.drive(sent, false).await
    }

    /// Runs until all have answered, or the time is up.
    pub(super) async fn run_all(self, sent: Time) -> Outcome<T> {
        self.drive(sent, true).await
    }

    async fn drive(mut self, sent: Time, all: bool) -> Outcome<T> {
        let limit = sent.after(self.patience);
        let answers = poll_fn(|cx| {
            let mut open = false;
            // All are polled each time, the first time to send them off.
            for node in &mut self.nodes {
                if let Node::Asked(question) = node {
                    match question.as_mut().poll(cx) {
                        Poll::Ready(answer) => {
                            *node = Node::Answered(answer.map_err(|error| format!("{error:#}")));
                        }
                        Poll::Pending => open = true,
                    }
                }
            }
            let decided = self.verdict() != Verdict::Open;
            if !open || (decided && !all) { Poll::Ready(()) } else { Poll::Pending }
        });
        let _ = clock::within(limit, answers).await;
        self.outcome()
    }

    fn verdict(&self) -> Verdict {
        let mut tally = self.tally;
        for node in &self.nodes {
            if let Node::Answered(answer) = node {
                tally.count(answer.as_ref().map_or(Vote::Unknown, |(vote, _)| *vote));
            }
        }
        tally.verdict()
    }

    fn outcome(self) -> Outcome<T> {
        let silent = || "it did not answer in time".to_owned();
        let tally = self.tally;
        let mut count = tally;
        let mut noes = 0;
        let mut answers = Vec::with_capacity(self.nodes.len());
        for node in self.nodes {
            let answer = match node {
                Node::Answered(answer) => answer,
                Node::Asked(_) => Err(silent()),
            };
            let vote = answer.as_ref().map_or(Vote::Unknown, |(vote, _)| *vote);
            noes += u32::from(vote == Vote::No);
            count.count(vote);
            answers.push(answer);
        }
        Outcome { answers, verdict: count.verdict(), noes, tally }
    }
}

impl<T> Outcome<T> {
    /// Whether a majority said yes.
    pub(super) fn met(&self) -> bool {
        self.verdict == Verdict::Met
    }

    /// Whether so many said no that the silent ones do not matter.
    pub(super) fn hopeless_by_no(&self) -> bool {
        let mut rest = self.tally;
        (0..self.noes).map(|_| rest.count(Vote::No)).last() == Some(Verdict::Failed)
    }

    /// One thing of each answer, or the default of those that did not answer.
    pub(super) fn answers<U: Default>(&self, of: impl Fn(&Answer<T>) -> U) -> Vec<U> {
        self.each().map(|answer| answer.map_or_else(U::default, &of)).collect()
    }

    /// Each node's answer, if it gave one.
    pub(super) fn each(&self) -> impl Iterator<Item = Option<&Answer<T>>> {
        self.answers.iter().map(|answer| answer.as_ref().ok())
    }

    /// The answers of those who gave one.
    pub(super) fn into_answers(self) -> impl Iterator<Item = Answer<T>> {
        self.answers.into_iter().flatten()
    }

    /// What went wrong with each node, if anything did.
    pub(super) fn failures(&self) -> Vec<Option<String>> {
        self.answers.iter().map(|answer| answer.as_ref().err().cloned()).collect()
    }
}

/// The longest that is waited for a node behind everybody's back.
const LATE: Duration = Duration::from_secs(5);

/// A question that is asked to its end, whether or not anybody still waits for the answer: one that
/// is dropped early may not have been sent yet. Without a runtime (in the simulation, which sends
/// at once) it is as any other.
pub(super) fn to_its_end<T: Send + 'static>(
    question: impl Future<Output = Result<Answer<T>>> + Send + 'static,
) -> Async<'static, Answer<T>> {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return Box::pin(question) };
    let gone = || Err(Error::new(ErrorKind::Unavailable, "it did not answer in time"));
    let limit = clock::now().after(LATE);
    let mut question = Box::pin(clock::within(limit, question));
    // Begun here, so that it is ahead of what this caller asks the node next.
    if let Some(answer) = question.as_mut().now_or_never() {
        return Box::pin(std::future::ready(answer.unwrap_or_else(gone)));
    }
    let task = runtime.spawn(question);
    Box::pin(async move { task.await.ok().flatten().unwrap_or_else(gone) })
}

/// Says for each node what went wrong there.
pub(super) fn detail(nodes: &[Arc<dyn Store>], failures: &[Option<String>]) -> String {
    let each = nodes.iter().zip(failures).filter_map(|(node, failure)| {
        failure.as_ref().map(|failure| format!("{}: {failure}", node.address()))
    });
    let each: Vec<String> = each.collect();
    if each.is_empty() { "all answered, too late".to_owned() } else { each.join("; ") }
}
