//! `quorum:URL,URL,...`: a store made of stores (Redlock). A lock is held when a majority of the
//! nodes say so in time; any two majorities share a node, and that node admits one holder.
//!
//! The nodes know nothing of each other. A ticket is tried on all of them at once; if a majority
//! does not admit it, it leaves them all, and the caller tries again after a random pause. There is
//! no queue: places taken on some nodes in one order and on others in another would wait for each
//! other.
//!
//! # Tokens
//!
//! Every node counts for itself, so the highest number of a majority would not rise by itself: a
//! later majority may leave out the node that was ahead. Before it says "admitted", the quorum
//! therefore lifts the counters of a majority to the token ([`Ticket::floor`]). A later majority
//! shares a node with that one, and gets a higher number there. The proof is in
//! `docs/decisions/0007-quorum-tokens.md`. To need no second round, a ticket asks from the start
//! for a number a little ahead of all nodes' clocks; what "ahead" means is learnt from their
//! answers.
//!
//! Nodes without tokens (strings in Redis, which other libraries keep too) make a quorum without
//! tokens: all numbers are 0, and there is nothing to lift.

mod evict;
mod grant;
pub(crate) mod lazy;
mod leaving;
mod node;
mod round;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    Alarm, Async, EVICTIONS_KEPT, Enter, Eviction, Promises, Seq, Standee, Standing, Store, Ticket,
    TicketId, View,
};
use grant::{Grant, Seat};
use holdline_kernel::{Tally, Vote};
use node::Node;
use round::Round;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A store made of stores.
#[derive(Clone, Debug)]
pub struct Quorum {
    nodes: Arc<[Node]>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The tickets that hold.
    held: Mutex<HashMap<TicketId, Grant>>,
    /// The tickets that are leaving after a try. If the caller stops waiting meanwhile, it asks
    /// again by the same ticket; and a leave that is late would take away what that gets.
    over: Mutex<HashSet<TicketId>>,
    /// How far the nodes' numbers are ahead of this machine's clock, in microseconds; [`UNKNOWN`]
    /// before the first answer. Only ever a guess that saves a round.
    ahead: AtomicI64,
}

const UNKNOWN: i64 = i64::MIN;

/// The time that one node has for an answer that no lease depends on.
const SURVEY: Duration = Duration::from_millis(500);

/// How far a ticket's number is to lie beyond the newest that is known, to be ahead of all nodes.
const LEAD_MICROS: i64 = 20_000;

impl Quorum {
    /// A store made of these.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] with fewer than three nodes, or with one of them twice;
    /// [`ErrorKind::Unsupported`] with a node that does not let its numbers be chosen, unless none
    /// of them has tokens at all.
    pub fn new(nodes: impl IntoIterator<Item = Arc<dyn Store>>) -> Result<Self> {
        Quorum::of(nodes.into_iter().map(|node| (node, false)).collect())
    }

    /// The same, of which some are silent as far as is known.
    pub(crate) fn of(nodes: Vec<(Arc<dyn Store>, bool)>) -> Result<Self> {
        enough(nodes.len())?;
        let stores = || nodes.iter().map(|(store, _)| store);
        for (at, node) in stores().enumerate() {
            if stores().take(at).any(|other| Arc::ptr_eq(other, node)) {
                return Err(twice(&node.address(), &node.address()));
            }
        }
        let fenced = stores().filter(|node| node.promises().fences).count();
        for node in stores() {
            let Promises { fences, spans, .. } = node.promises();
            if fenced > 0 && !spans {
                return Err(unfit(&node.address(), fences));
            }
        }
        let shared = Shared {
            held: Mutex::default(),
            over: Mutex::default(),
            ahead: AtomicI64::new(UNKNOWN),
        };
        let nodes = nodes.into_iter().map(|(store, silent)| Node::new(store, silent)).collect();
        Ok(Quorum { nodes, shared: Arc::new(shared) })
    }

    fn held(&self) -> MutexGuard<'_, HashMap<TicketId, Grant>> {
        self.shared.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn over(&self) -> MutexGuard<'_, HashSet<TicketId>> {
        self.shared.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self) -> Tally {
        Tally::new(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX))
    }

    /// How long one node may take: much less than the lease, so that a dead one costs little of it.
    fn patience(lease: Duration) -> Duration {
        (lease / 10).clamp(Duration::from_millis(50), Duration::from_millis(500))
    }

    /// A number ahead of all nodes' clocks, as far as is known.
    fn lead(&self) -> u64 {
        let ahead = self.shared.ahead.load(Ordering::Relaxed);
        match ahead {
            UNKNOWN => 0,
            ahead => clock::wall_micros().saturating_add_signed(ahead + LEAD_MICROS),
        }
    }

    /// Learns from a node's number that was not asked for.
    fn learn(&self, floor: u64, seq: Seq) {
        if seq.0 != floor {
            let ahead = i64::try_from(seq.0).unwrap_or(i64::MAX)
                - i64::try_from(clock::wall_micros()).unwrap_or(i64::MAX);
            // One that was asked for tells nothing new; one from the clock or a counter does.
            let _ = self.shared.ahead.fetch_max(ahead, Ordering::Relaxed);
        }
    }

    /// Not admitted, and no place: the caller comes back with a new ticket.
    fn not_now() -> Standing {
        Standing::Waiting { seq: None, again: Duration::from_millis(fastrand::u64(5..50)) }
    }

    /// A new ticket: on all nodes at once, or on none.
    async fn try_all(&self, line: &Name, ticket: &Ticket, note: &Arc<str>) -> Result<Standing> {
        let sent = clock::now();
        let ticket = &Ticket { floor: self.lead(), ..*ticket };
        let mut round = Round::new(&self.nodes, line, Self::patience(ticket.lease));
        for node in self.nodes.iter() {
            round.ask(
                node,
                Box::pin(async move {
                    let standing = node.store.enter(line, ticket, note, Enter::Try).await?;
                    Ok(match standing {
                        Standing::Admitted(seq) => (Vote::Yes, Some(seq)),
                        Standing::Waiting { .. } | Standing::Lost => (Vote::No, None),
                    })
                }),
            );
        }
        // Who does not know the nodes' clocks yet waits for all answers, to learn from them.
        let learn = ticket.floor == 0 && self.promises().fences;
        let outcome = if learn { round.run_all(sent).await } else { round.run(sent).await };
        let seqs: Vec<Option<Seq>> = outcome.answers(|answer| answer.1);
        seqs.iter().flatten().for_each(|seq| self.learn(ticket.floor, *seq));
        if outcome.met() {
            let token = seqs.iter().flatten().copied().max().unwrap_or(Seq(0));
            return self.lift(line, ticket, note, seqs, token).await;
        }
        if outcome.hopeless_by_no() {
            // Whoever did not answer may have admitted it as well.
            self.over().insert(ticket.id);
            self.leave_all(line, ticket.id, Self::patience(ticket.lease)).await.ok();
            self.over().remove(&ticket.id);
            return Ok(Self::not_now());
        }
        // Nothing is certain: asked again by the same ticket, the nodes answer the same way.
        Err(self.unavailable(line, outcome.failures()))
    }

    /// Makes sure that a majority will give out no number up to the token any more.
    async fn lift(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        seqs: Vec<Option<Seq>>,
        token: Seq,
    ) -> Result<Standing> {
        let sent = clock::now();
        let ticket = &Ticket { floor: token.0, ..*ticket };
        let mut round = Round::new(&self.nodes, line, Self::patience(ticket.lease));
        for (node, seq) in self.nodes.iter().zip(&seqs) {
            match *seq {
                Some(seq) if seq == token => round.answered(node, (Vote::Yes, Some(seq))),
                Some(seq) => round.ask(
                    node,
                    Box::pin(async move {
                        let standing =
                            node.store.enter(line, ticket, note, Enter::Keep(seq)).await?;
                        let kept = matches!(standing, Standing::Admitted(_));
                        Ok((if kept { Vote::Yes } else { Vote::No }, kept.then_some(seq)))
                    }),
                ),
                // It has not answered; the renewal will bring it in.
                None => round.answered(node, (Vote::No, None)),
            }
        }
        let outcome = round.run(sent).await;
        if !outcome.met() {
            return Err(self.unavailable(line, outcome.failures()));
        }
        let seats = seqs.into_iter().map(|seq| seq.map_or(Seat::Missing(sent), Seat::Taken));
        self.held().insert(ticket.id, Grant { token, seats: seats.collect() });
        Ok(Standing::Admitted(token))
    }

    async fn leave_all(&self, line: &Name, id: TicketId, patience: Duration) -> Result<bool> {
        self.held().remove(&id);
        let sent = clock::now();
        let mut round = Round::new(&self.nodes, line, patience);
        for node in self.nodes.iter() {
            if round.leaves_out(node) {
                node.leave_later(line, id);
                round.leave_out(node);
            } else {
                round.ask(node, node.leave(line, id));
            }
        }
        // It was there if it was on a majority; what lapses may last longest on a few nodes.
        let outcome = round.run(sent).await;
        let answers: Vec<bool> = outcome.each().flatten().map(|(_, there)| *there).collect();
        if answers.len() >= self.tally().majority() as usize {
            let there = answers.iter().filter(|there| **there).count();
            return Ok(there >= self.enough(answers.len()) && !outcome.hopeless_by_no());
        }
        Err(self.unavailable(line, outcome.failures()))
    }

    /// The error of a round without a majority. It is worth trying again, unless so many nodes
    /// refuse for good that the others are not enough.
    fn unavailable<'a>(
        &self,
        line: &Name,
        failures: impl Iterator<Item = Option<&'a Error>>,
    ) -> Error {
        let failures = self.nodes.iter().zip(failures);
        let failures: Vec<(&Node, &Error)> =
            failures.filter_map(|(node, failure)| Some((node, failure?))).collect();
        let spare = self.nodes.len() - self.tally().majority() as usize;
        let mut hopeless = failures.iter().filter(|(_, failure)| !failure.retryable());
        let kind = hopeless.nth(spare).map_or(ErrorKind::Unavailable, |(_, error)| error.kind());
        let mut each: Vec<String> = failures
            .iter()
            .map(|(node, failure)| format!("{}: {failure:#}", node.store.address()))
            .collect();
        if each.is_empty() {
            each.push("all answered, too late".to_owned());
        }
        let message = format!(
            "too few of the {} nodes answered in time about lock \"{line}\": {}",
            self.nodes.len(),
            each.join("; ")
        );
        Error::new(kind, message)
    }

    /// On how many of so many nodes that answered a lock must be seen to be held: it is on a
    /// majority of all, of which some may not have answered. On fewer, somebody tries, or is just
    /// leaving.
    fn enough(&self, answered: usize) -> usize {
        let silent = self.nodes.len() - answered.min(self.nodes.len());
        (self.tally().majority() as usize).saturating_sub(silent).max(1)
    }

    /// Asks all nodes something that changes nothing, and takes what a majority says.
    async fn survey<'a, T: Send + 'a>(
        &'a self,
        line: &'a Name,
        question: impl Fn(&'a dyn Store) -> Async<'a, T>,
    ) -> Result<Vec<T>> {
        let mut round = Round::new(&self.nodes, line, SURVEY);
        for node in self.nodes.iter() {
            let answer = question(&*node.store);
            round.ask(node, Box::pin(async move { Ok((Vote::Yes, Some(answer.await?))) }));
        }
        let outcome = round.run_all(clock::now()).await;
        if !outcome.met() {
            return Err(self.unavailable(line, outcome.failures()));
        }
        Ok(outcome.into_answers().filter_map(|(_, answer)| answer).collect())
    }
}

/// At least three nodes.
pub(crate) fn enough(nodes: usize) -> Result<()> {
    if nodes >= 3 {
        return Ok(());
    }
    let message =
        format!("a quorum of {nodes} makes no sense: it takes three nodes to survive one");
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Two nodes are the same store, by these addresses.
pub(crate) fn twice(one: &str, other: &str) -> Error {
    let message = if one == other {
        format!("{one} is given twice as a node of the quorum")
    } else {
        format!("{one} and {other} are the same store, given twice as a node of the quorum")
    };
    let message = format!("{message}; each node must be another server, independent of the others");
    Error::new(ErrorKind::Invalid, message)
}

/// A node that cannot be one beside nodes with tokens.
pub(crate) fn unfit(address: &str, fences: bool) -> Error {
    let message = if fences {
        format!(
            "{address} cannot be a node of a quorum, as it lets nobody raise its tokens; use Redis, \
             file or memory stores, or this store alone: it survives the loss of a minority of its \
             servers by itself"
        )
    } else {
        format!(
            "{address} gives no tokens, but other nodes of the quorum do; use nodes of one kind: \
             all with ?scheme=string, for locks without tokens, or none"
        )
    };
    Error::new(ErrorKind::Unsupported, message)
}

/// What several nodes say of evictions: each once, in the order of the nodes that know it.
fn merged(evictions: impl Iterator<Item = Eviction>) -> Vec<Eviction> {
    let mut all: Vec<Eviction> = Vec::new();
    for eviction in evictions {
        if !all.iter().any(|known| known.id == eviction.id) {
            all.push(eviction);
        }
    }
    let surplus = all.len().saturating_sub(EVICTIONS_KEPT);
    all.split_off(surplus)
}

/// One place, as several nodes have it. What it says about itself is what most of them say: those
/// that a change has not reached yet are the fewer.
fn together(seen: Vec<Standee>, enough: usize) -> Option<Standee> {
    let says = |note: &Arc<str>| seen.iter().filter(|place| place.note == *note).count();
    let note = Arc::clone(&seen.iter().max_by_key(|place| says(&place.note))?.note);
    let admitted = seen.iter().filter(|place| place.admitted).count() >= enough;
    let seq = seen.iter().map(|place| place.seq).max()?;
    let expires_in = seen.iter().map(|place| place.expires_in).max()?;
    let first = seen.into_iter().next()?;
    Some(Standee { seq, admitted, expires_in, note, ..first })
}

impl Store for Quorum {
    fn enter<'a>(
        &'a self,
        line: &'a Name,
        ticket: &'a Ticket,
        note: &'a Arc<str>,
        how: Enter,
    ) -> Async<'a, Standing> {
        Box::pin(async move {
            if ticket.capacity != 1 {
                let message = "a quorum keeps mutexes only, not semaphores or read-write locks";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            match how {
                Enter::Keep(token) => self.keep(line, ticket, note, token).await,
                Enter::Try | Enter::Queue if self.over().remove(&ticket.id) => Ok(Self::not_now()),
                Enter::Try | Enter::Queue => {
                    // Asked again, it has the token that it had; nodes that were late must not
                    // raise it.
                    let known = self.held().get(&ticket.id).map(|grant| grant.token);
                    if let Some(token) = known
                        && let kept @ Standing::Admitted(_) =
                            self.keep(line, ticket, note, token).await?
                    {
                        return Ok(kept);
                    }
                    self.try_all(line, ticket, note).await
                }
            }
        })
    }

    fn leave<'a>(&'a self, line: &'a Name, id: TicketId) -> Async<'a, bool> {
        Box::pin(async move {
            self.over().remove(&id);
            self.leave_all(line, id, Duration::from_millis(500)).await
        })
    }

    fn watch<'a>(&'a self, _line: &'a Name, _id: TicketId) -> Async<'a, Option<Seq>> {
        Box::pin(std::future::pending())
    }

    fn look<'a>(&'a self, line: &'a Name) -> Async<'a, View> {
        Box::pin(async move {
            let mut views = self.survey(line, |node| node.look(line)).await?;
            let enough = self.enough(views.len());
            let evictions = views.iter_mut().flat_map(|view| mem::take(&mut view.evictions));
            let evictions = merged(evictions);
            let mut all: BTreeMap<TicketId, Vec<Standee>> = BTreeMap::new();
            for place in views.into_iter().flat_map(|view| view.places) {
                all.entry(place.id).or_default().push(place);
            }
            let mut places: Vec<Standee> = all
                .into_values()
                .filter_map(|seen| together(seen, enough))
                .filter(|place| place.admitted) // others have it on a few nodes, for a moment
                .collect();
            places.sort_by_key(|place| place.seq);
            let capacity = u32::from(!places.is_empty());
            Ok(View { capacity, places, evictions })
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Async<'a, Vec<Name>> {
        Box::pin(async move {
            let any = Name::new(if prefix.is_empty() { "*" } else { prefix })?;
            let lists = self.survey(&any, |node| node.list(prefix)).await?;
            let enough = self.enough(lists.len());
            let mut names: BTreeMap<Name, usize> = BTreeMap::new();
            for name in lists.into_iter().flatten() {
                *names.entry(name).or_default() += 1;
            }
            Ok(names.into_iter().filter(|(_, on)| *on >= enough).map(|(name, _)| name).collect())
        })
    }

    fn evict<'a>(
        &'a self,
        line: &'a Name,
        id: TicketId,
        reason: &'a str,
    ) -> Async<'a, Option<Seq>> {
        Box::pin(self.remove(line, id, reason))
    }

    fn promises(&self) -> Promises {
        let all = |promise: fn(&Promises) -> bool| {
            self.nodes.iter().all(|node| promise(&node.store.promises()))
        };
        let lease = |pick: fn(Promises) -> Duration| {
            self.nodes.iter().map(move |n| pick(n.store.promises()))
        };
        Promises {
            queues: false,
            fences: all(|promises| promises.fences),
            wakes: false,
            weights: false,
            spans: all(|promises| promises.spans),
            swaps: false,
            crash_release: all(|promises| promises.crash_release),
            survives_failover: true,
            survives_restart: all(|promises| promises.survives_restart),
            lease_min: lease(|promises| promises.lease_min).max().unwrap_or_default(),
            lease_max: lease(|promises| promises.lease_max).min().unwrap_or_default(),
        }
    }

    fn twin(&self) -> Arc<dyn Store> {
        let nodes = self.nodes.iter().map(Node::twin).collect();
        Arc::new(Quorum { nodes, shared: Arc::clone(&self.shared) })
    }

    fn alarm(&self, alarm: Alarm) {
        self.nodes.iter().for_each(|node| node.store.alarm(Arc::clone(&alarm)));
    }

    fn address(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| node.store.address()).collect();
        format!("quorum:{}", nodes.join(","))
    }
}
