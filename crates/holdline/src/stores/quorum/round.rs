//! One round: a request to all nodes at once, each with a time limit, and the result of the
//! answers.

use super::fault::late;
use super::node::Node;
use crate::clock;
use crate::error::{Error, Result};
use crate::names::Name;
use crate::store::Async;
use holdline_kernel::{Tally, Time, Verdict, Vote};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// A node's answer: its vote, and its value.
pub(super) type Answer<T> = (Vote, T);

/// How long the other nodes have after a majority has answered, if all answers are wanted.
const GRACE: Duration = Duration::from_millis(250);

/// How long the other nodes have to confirm a departure after a majority has, while the caller
/// waits. Less than the shortest limit of a call, 50 ms.
const MOMENT: Duration = Duration::from_millis(25);

/// When a round ends, at the latest at its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// As soon as the other answers cannot change the result.
    Decided,
    /// A moment after that: a caller's own limit may be short.
    Soon,
    /// When all have answered, or take much longer than a majority took.
    MostAnswered,
    /// When all have answered.
    AllAnswered,
}

struct Slot<'a, T> {
    node: &'a Node,
    state: State<'a, T>,
}

enum State<'a, T> {
    Asked(Async<'a, Answer<T>>),
    Answered(Result<Answer<T>>),
}

/// The requests of one round.
pub(super) struct Round<'a, T> {
    line: &'a Name,
    slots: Vec<Slot<'a, T>>,
    tally: Tally,
    timeout: Duration,
    /// Which nodes are left out, because they are silent and enough others can say yes. Decided
    /// once: of a node that falls silent meanwhile, the answer may be needed.
    left_out: Vec<bool>,
}

/// The outcome of a round.
pub(super) struct Outcome<T> {
    /// `None` for a node that was not waited for.
    answers: Vec<Option<Result<Answer<T>>>>,
    verdict: Verdict,
    noes: u32,
    tally: Tally,
}

impl<'a, T> Round<'a, T> {
    /// Creates a round about this line, in which each node has this time limit.
    pub(super) fn new(nodes: &[Node], line: &'a Name, timeout: Duration) -> Self {
        Round::among(nodes, line, timeout, |_| true)
    }

    /// Creates a round in which only the nodes with these numbers can say yes.
    pub(super) fn among(
        nodes: &[Node],
        line: &'a Name,
        timeout: Duration,
        can: impl Fn(usize) -> bool,
    ) -> Self {
        let tally = Tally::new(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
        let mut left_out: Vec<bool> = nodes.iter().map(Node::is_silent).collect();
        let there = (0..nodes.len()).filter(|number| can(*number) && !left_out[*number]).count();
        if there < tally.majority() as usize {
            left_out.fill(false);
        }
        Round { line, slots: Vec::with_capacity(nodes.len()), tally, timeout, left_out }
    }

    /// Whether the next node is left out, and only probed in the background.
    pub(super) fn leaves_out_next(&self) -> bool {
        self.left_out.get(self.slots.len()).is_some_and(|left_out| *left_out)
    }

    /// Adds the next node, which is asked unless it is left out.
    pub(super) fn ask(
        &mut self,
        node: &'a Node,
        question: impl Future<Output = Result<Answer<T>>> + Send + 'a,
    ) {
        if self.leaves_out_next() {
            self.leave_out(node);
        } else {
            self.slots.push(Slot { node, state: State::Asked(Box::pin(question)) });
        }
    }

    /// Adds the next node, which is not asked.
    pub(super) fn leave_out(&mut self, node: &'a Node) {
        node.probe(self.line);
        self.slots.push(Slot { node, state: State::Answered(Err(node.left_out())) });
    }

    /// Adds the next node, whose answer is already known.
    pub(super) fn answered(&mut self, node: &'a Node, answer: Answer<T>) {
        self.slots.push(Slot { node, state: State::Answered(Ok(answer)) });
    }

    /// Runs until `until`. By then every node has been sent its request; the result at nodes that
    /// have not answered is unknown.
    pub(super) async fn run(mut self, sent: Time, until: Until) -> Outcome<T> {
        let limit = sent.after(self.timeout);
        let decided = clock::within(limit, self.progress(sent, false)).await.is_some();
        let more = match until {
            _ if !decided => return self.outcome(false),
            Until::Decided => return self.outcome(true),
            Until::Soon => MOMENT,
            Until::MostAnswered => GRACE,
            Until::AllAnswered => self.timeout,
        };
        let limit = limit.min(clock::now().after(more));
        let all = clock::within(limit, self.progress(sent, true)).await.is_some();
        self.outcome(all || until == Until::Soon)
    }

    async fn progress(&mut self, sent: Time, all: bool) {
        poll_fn(|cx| {
            let mut open = false;
            // All are polled each time, which sends the requests at first.
            for Slot { node, state } in &mut self.slots {
                if let State::Asked(question) = state {
                    match question.as_mut().poll(cx) {
                        Poll::Ready(answer) => {
                            node.health.ended(sent, answer.as_ref().err());
                            *state = State::Answered(answer);
                        }
                        Poll::Pending => open = true,
                    }
                }
            }
            if !open || (!all && self.decided()) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Whether the result is decided: a majority said yes, or so many said no or failed that none
    /// can.
    fn decided(&self) -> bool {
        let (mut yes, mut no, mut failed) = (self.tally, 0, 0);
        for Slot { state, .. } in &self.slots {
            match state {
                State::Answered(Ok((Vote::Yes, _))) => _ = yes.count(Vote::Yes),
                State::Answered(Ok(_)) => no += 1,
                State::Answered(Err(_)) => failed += 1,
                State::Asked(_) => {}
            }
        }
        yes.verdict() == Verdict::Met || hopeless(self.tally, no) || failed >= yes.majority()
    }

    /// Nodes that have not answered are silent, unless the round was `decided` without them.
    fn outcome(self, decided: bool) -> Outcome<T> {
        let tally = self.tally;
        let mut count = tally;
        let mut noes = 0;
        let mut answers = Vec::with_capacity(self.slots.len());
        for Slot { node, state } in self.slots {
            let answer = match state {
                State::Answered(answer) => Some(answer),
                State::Asked(_) if decided => None,
                State::Asked(_) => {
                    node.health.silent();
                    Some(Err(late()))
                }
            };
            let vote = match &answer {
                Some(Ok((vote, _))) => *vote,
                Some(Err(_)) | None => Vote::Unknown,
            };
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

    /// Whether so many said no that the silent nodes do not matter.
    pub(super) fn hopeless_by_no(&self) -> bool {
        hopeless(self.tally, self.noes)
    }

    /// Whether a majority answered without agreement: if rivals each have some of these nodes, none
    /// may keep them.
    pub(super) fn tied(&self) -> bool {
        self.noes > 0 && self.each().flatten().count() >= self.tally.majority() as usize
    }

    /// A part of each answer, or the default for nodes that did not answer.
    pub(super) fn answers<U: Default>(&self, of: impl Fn(&Answer<T>) -> U) -> Vec<U> {
        self.each().map(|answer| answer.map_or_else(U::default, &of)).collect()
    }

    /// Each node's answer, if it gave one.
    pub(super) fn each(&self) -> impl Iterator<Item = Option<&Answer<T>>> {
        self.answers.iter().map(|answer| answer.as_ref()?.as_ref().ok())
    }

    /// The answers of the nodes that gave one.
    pub(super) fn into_answers(self) -> impl Iterator<Item = Answer<T>> {
        self.answers.into_iter().flatten().flatten()
    }

    /// The error of each node, if any.
    pub(super) fn failures(&self) -> impl Iterator<Item = Option<&Error>> {
        self.answers.iter().map(|answer| answer.as_ref()?.as_ref().err())
    }
}

/// Whether no majority can say yes any more, given this many noes.
fn hopeless(mut tally: Tally, noes: u32) -> bool {
    (0..noes).map(|_| tally.count(Vote::No)).last() == Some(Verdict::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::quorum::lazy::away;
    use std::sync::Arc;

    /// One is silent, and another falls silent as the requests are made: it is asked all the same.
    #[tokio::test]
    async fn a_round_has_enough_nodes_whatever_other_rounds_find_out() {
        let node = |_| Node::new(Arc::new(away("a test")), false);
        let nodes: Vec<Node> = (0..3).map(node).collect();
        let line = Name::new("x").expect("fine");
        nodes[0].health.silent();
        let mut round = Round::new(&nodes, &line, Duration::from_secs(60));
        nodes[1].health.silent();
        for node in &nodes {
            round.ask(node, std::future::ready(Ok((Vote::Yes, ()))));
        }
        assert!(round.run(clock::now(), Until::Decided).await.met());
    }
}
