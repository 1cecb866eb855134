//! `quorum:URL,URL,...`: a store made of stores (Redlock). A lock is held when a majority of the
//! nodes admit it in time; any two majorities share a node, and that node admits one holder.
//!
//! The nodes know nothing of each other. A ticket is tried on all of them at once. If a majority
//! does not admit it, it leaves them all, and the caller tries again after a random pause. There is
//! no queue: tickets with places in one order on some nodes and in another order on others would
//! wait for each other.
//!
//! # Tokens
//!
//! Every node counts for itself, so the highest number of a majority would not always rise: a later
//! majority may leave out the node that was ahead. Before it reports an admission, the quorum
//! therefore raises the counters of a majority to the token ([`Ticket::min_token`]). A later
//! majority shares a node with that one, and gets a higher number there. The proof is in
//! `docs/decisions/0007-quorum-tokens.md`. To avoid a second round, a ticket asks from the start
//! for a number slightly ahead of all nodes' clocks (`lead.rs`).
//!
//! Nodes without tokens (strings in Redis, which other libraries keep too) make a quorum without
//! tokens: all numbers are 0, and no counters need raising.

mod evict;
mod fault;
mod grant;
pub(crate) mod lazy;
mod lead;
mod leaving;
mod node;
mod round;
mod view;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, Enter, LossHint, QueueSnapshot, Seq, Standing, Store, Ticket,
    TicketId,
};
use crate::sync::Mutex;
pub(crate) use fault::{enough, twice, unfit};
use grant::{Grant, NodePlace};
use holdline_kernel::{Tally, Vote};
use lead::Lead;
use node::Node;
use round::{Round, Until};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;

/// A store made of stores.
#[derive(Clone, Debug)]
pub struct Quorum {
    nodes: Arc<[Node]>,
    shared: Arc<Shared>,
    /// When a departure is complete: as soon as a majority has answered. In the background all
    /// nodes that are not silent must confirm it, because the place then counts as released.
    until: Until,
}

#[derive(Debug)]
struct Shared {
    /// The tickets that hold.
    held: Mutex<HashMap<TicketId, Grant>>,
    /// Notified when a ticket that held does not hold any more.
    left: Notify,
    /// The tickets that are leaving after a try, or whose grant was found lost. If the caller stops
    /// waiting, or no majority confirms the departure, the same ticket may ask again, and a late
    /// departure would remove its new place. So such a ticket is not admitted until it is given up.
    over: Mutex<HashSet<TicketId>>,
    lead: Lead,
}

/// The time limit of one node for an answer that no lease depends on.
const SURVEY: Duration = Duration::from_millis(500);

impl Quorum {
    /// Creates a quorum of these nodes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for fewer than three nodes, or for duplicates;
    /// [`ErrorKind::Unsupported`] if a node does not let its numbers be chosen, unless no node has
    /// tokens at all.
    pub fn new(nodes: impl IntoIterator<Item = Arc<dyn Store>>) -> Result<Self> {
        Quorum::of(nodes.into_iter().map(|node| (node, false)).collect())
    }

    /// The same, with a flag for each node that is known to be silent.
    pub(crate) fn of(nodes: Vec<(Arc<dyn Store>, bool)>) -> Result<Self> {
        enough(nodes.len())?;
        let stores = || nodes.iter().map(|(store, _)| store);
        for (at, node) in stores().enumerate() {
            if stores().take(at).any(|other| Arc::ptr_eq(other, node)) {
                return Err(twice(&node.address(), &node.address()));
            }
        }
        let fenced = stores().filter(|node| node.capabilities().fencing_tokens).count();
        for node in stores() {
            let Capabilities { fencing_tokens, token_ranges, .. } = node.capabilities();
            if fenced > 0 && !token_ranges {
                return Err(unfit(&node.address(), fencing_tokens));
            }
        }
        let shared = Shared {
            held: Mutex::default(),
            left: Notify::new(),
            over: Mutex::default(),
            lead: Lead::new(),
        };
        let nodes = nodes.into_iter().map(|(store, silent)| Node::new(store, silent)).collect();
        Ok(Quorum { nodes, shared: Arc::new(shared), until: Until::Decided })
    }

    fn held(&self) -> MutexGuard<'_, HashMap<TicketId, Grant>> {
        self.shared.held.lock()
    }

    /// Records that a ticket does not hold any more. This ends the requests for its missing places.
    fn forget(&self, id: TicketId) {
        if self.held().remove(&id).is_some() {
            self.shared.left.notify_waiters();
        }
    }

    fn over(&self) -> MutexGuard<'_, HashSet<TicketId>> {
        self.shared.over.lock()
    }

    fn tally(&self) -> Tally {
        Tally::new(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX))
    }

    /// The time limit of one node: much less than the lease, so that a dead node costs little of
    /// it.
    fn node_timeout(lease: Duration) -> Duration {
        (lease / 10).clamp(Duration::from_millis(50), Duration::from_millis(500))
    }

    /// The standing of a ticket that was not admitted and has no place: the caller returns with a
    /// new one.
    fn not_now() -> Standing {
        Standing::Waiting { seq: None, again: Duration::from_millis(fastrand::u64(5..50)) }
    }

    /// Tries a new ticket: on all nodes at once, or on none.
    async fn try_all(&self, line: &Name, ticket: &Ticket, note: &Arc<str>) -> Result<Standing> {
        let sent = clock::now();
        let min_token = self.shared.lead.request().max(ticket.min_token);
        let ticket = &Ticket { min_token, ..*ticket };
        let mut round = Round::new(&self.nodes, line, Self::node_timeout(ticket.lease));
        for node in self.nodes.iter() {
            round.ask(node, async move {
                if !node.has_left(ticket.id).await {
                    return Ok((Vote::No, None));
                }
                let standing = node.store.enter(line, ticket, note, Enter::Try).await?;
                Ok(match standing {
                    Standing::Admitted(seq) => (Vote::Yes, Some(seq)),
                    Standing::Waiting { .. } | Standing::Lost => (Vote::No, None),
                })
            });
        }
        // While the nodes' clocks are unknown, all answers are awaited to learn from them.
        let learn = self.shared.lead.is_unknown() && AsyncStore::capabilities(self).fencing_tokens;
        let until = if learn { Until::MostAnswered } else { Until::Decided };
        let outcome = round.run(sent, until).await;
        let seqs: Vec<Option<Seq>> = outcome.answers(|answer| answer.1);
        self.shared.lead.learn(sent, ticket.min_token, &seqs);
        if outcome.met() {
            let token = seqs.iter().flatten().copied().max().unwrap_or(Seq(0));
            return self.lift(line, ticket, note, seqs, token).await;
        }
        if outcome.hopeless_by_no() || outcome.tied() {
            // A node that did not answer may have admitted it as well.
            self.over().insert(ticket.id);
            // If no majority confirms the departure, the ticket stays in `over` and the caller in
            // doubt: it gives the ticket up.
            let limit = Self::node_timeout(ticket.lease);
            self.leave_all(line, ticket.id, limit, Until::Soon).await?;
            self.over().remove(&ticket.id);
            return Ok(Self::not_now());
        }
        // Nothing is certain. If the same ticket asks again, the nodes answer in the same way.
        Err(self.unavailable(line, outcome.failures()))
    }

    /// Makes sure that no majority gives out a number up to the token any more.
    async fn lift(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        seqs: Vec<Option<Seq>>,
        token: Seq,
    ) -> Result<Standing> {
        let sent = clock::now();
        let ticket = &Ticket { min_token: token.0.max(ticket.min_token), ..*ticket };
        let has = |number: usize| seqs[number].is_some();
        let mut round = Round::among(&self.nodes, line, Self::node_timeout(ticket.lease), has);
        for (node, seq) in self.nodes.iter().zip(&seqs) {
            match *seq {
                Some(seq) if seq == token => round.answered(node, (Vote::Yes, Some(seq))),
                Some(seq) => round.ask(node, async move {
                    let standing = node.store.enter(line, ticket, note, Enter::Keep(seq)).await?;
                    let kept = matches!(standing, Standing::Admitted(_));
                    Ok((if kept { Vote::Yes } else { Vote::No }, kept.then_some(seq)))
                }),
                // It has not answered; the renewal will include it.
                None => round.answered(node, (Vote::No, None)),
            }
        }
        let outcome = round.run(sent, Until::Decided).await;
        if !outcome.met() {
            return Err(self.unavailable(line, outcome.failures()));
        }
        let missing = NodePlace::Missing(sent.after(Self::missing_time(ticket.lease)));
        let node_places = seqs.into_iter().map(|seq| seq.map_or(missing, NodePlace::Taken));
        self.held().insert(ticket.id, Grant { token, node_places: node_places.collect() });
        Ok(Standing::Admitted(token))
    }

    async fn leave_all(
        &self,
        line: &Name,
        id: TicketId,
        timeout: Duration,
        until: Until,
    ) -> Result<bool> {
        self.forget(id);
        let sent = clock::now();
        let mut round = Round::new(&self.nodes, line, timeout);
        for node in self.nodes.iter() {
            if round.leaves_out_next() {
                node.leave_later(line, id);
                round.leave_out(node);
            } else {
                round.ask(node, node.leave(line, id));
            }
        }
        // The place existed if it was on a majority; what expires may last longest on a few nodes.
        let outcome = round.run(sent, until).await;
        let answers: Vec<bool> = outcome.each().flatten().map(|(_, there)| *there).collect();
        if answers.len() >= self.tally().majority() as usize {
            let there = answers.iter().filter(|there| **there).count();
            return Ok(there >= self.enough(answers.len()));
        }
        Err(self.unavailable(line, outcome.failures()))
    }
}

impl AsyncStore for Quorum {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        if ticket.capacity != 1 {
            let message = "a quorum keeps mutexes only, not semaphores or read-write locks";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        match how {
            Enter::Keep(token) => self.keep(line, ticket, note, token).await,
            Enter::Try | Enter::Queue if self.over().contains(&ticket.id) => Ok(Self::not_now()),
            Enter::Try | Enter::Queue => {
                // If it asks again, it has its earlier token; late nodes must not raise it.
                let known = self.held().get(&ticket.id).map(|grant| grant.token);
                let Some(token) = known else { return self.try_all(line, ticket, note).await };
                let standing = self.keep(line, ticket, note, token).await?;
                if standing == Standing::Lost {
                    // The same ticket must not be tried again: a request for a missing place may be
                    // under way, and would remove what the ticket gets now. Its caller was not told
                    // that it held, so what is left of it need not keep others out.
                    self.over().insert(ticket.id);
                    let limit = Self::node_timeout(ticket.lease);
                    let _ = self.leave_all(line, ticket.id, limit, Until::Soon).await;
                }
                Ok(standing)
            }
        }
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        self.over().remove(&id);
        self.leave_all(line, id, SURVEY, self.until).await
    }

    async fn watch(&self, _line: &Name, _id: TicketId) -> Result<Option<Seq>> {
        std::future::pending().await
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        self.see(line).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        self.names(prefix).await
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        self.remove(line, id, note).await
    }

    fn capabilities(&self) -> Capabilities {
        let all = |promise: fn(&Capabilities) -> bool| {
            self.nodes.iter().all(|node| promise(&node.store.capabilities()))
        };
        let lease = |pick: fn(Capabilities) -> Duration| {
            self.nodes.iter().map(move |n| pick(n.store.capabilities()))
        };
        Capabilities {
            fair_queue: false,
            fencing_tokens: all(|capabilities| capabilities.fencing_tokens),
            notifications: false,
            weighted: false,
            read_write: false,
            token_ranges: all(|capabilities| capabilities.token_ranges),
            crash_release: all(|capabilities| capabilities.crash_release),
            survives_failover: true,
            survives_restart: all(|capabilities| capabilities.survives_restart),
            lease_min: lease(|capabilities| capabilities.lease_min).max().unwrap_or_default(),
            lease_max: lease(|capabilities| capabilities.lease_max).min().unwrap_or_default(),
        }
    }

    fn background_handle(&self) -> Self {
        let nodes = self.nodes.iter().map(Node::background_handle).collect();
        let shared = Arc::clone(&self.shared);
        Quorum { nodes, shared, until: Until::AllAnswered }
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        self.nodes.iter().for_each(|node| node.store.on_loss_hint(Arc::clone(&loss_hint)));
    }

    fn address(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| node.store.address()).collect();
        format!("quorum:{}", nodes.join(","))
    }
}
