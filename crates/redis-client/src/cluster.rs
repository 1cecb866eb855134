//! A cluster: which node serves which slot, and a connection to each node.
//!
//! Every node has a connection of its own, made on first use, so a node that is slow, stands still
//! or is gone delays only the commands for its own keys. A redirected command was not carried out,
//! and is sent on. Nothing else is repeated here, because the second answer may differ from the
//! first: a departure then finds nothing to remove.

use crate::config::{Config, Kind};
use crate::connection::{Attempt, Connection, Outcome, ended};
use crate::fault::{Fault, broken, says};
use crate::slots::{Slots, slot_of};
use futures_util::StreamExt;
use futures_util::future::{join_all, try_join_all};
use futures_util::stream::FuturesUnordered;
use holdline_base::clock::{self, within};
use holdline_base::sync::Mutex;
use holdline_base::{Error, ErrorKind};
use holdline_kernel::Time;
use redis::{Cmd, RedisError, ServerErrorKind, Value};
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A node's host and port.
pub(crate) type Node = (String, u16);

/// The most redirections of one command.
const MOST: u32 = 5;

/// The shortest time between two lookups of who serves which slot.
const PAUSE: Duration = Duration::from_millis(250);

/// The nodes of a cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    config: Arc<Config>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Which node serves which slot, once that is known.
    slots: Option<Slots>,
    nodes: HashMap<Node, Arc<Connection>>,
    /// Whether another node may serve a slot by now. The next command starts a lookup.
    doubtful: bool,
    /// The node that redirected a command last, or to which it was redirected: it knows more.
    informed: Option<Node>,
    /// The lookup in progress.
    lookup: Option<Attempt<()>>,
    /// The earliest time of the next lookup.
    not_before: Time,
}

impl Cluster {
    pub(crate) fn new(config: Arc<Config>) -> Self {
        Cluster { config, state: Arc::default() }
    }

    /// Sends a command to the node that serves its key, within the time limit.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, Fault> {
        let sent = clock::now();
        let mut question = Question { cluster: self, sent, ended: false };
        let asked = pin!(self.follow(command));
        let reply = within(sent.after(self.config.timeout), asked).await;
        let reply = reply.unwrap_or(Err(Fault::Silence));
        question.ended = true;
        if reply.as_ref().is_err_and(may_have_moved) {
            self.state.lock().doubtful = true;
        }
        reply
    }

    /// Sends a command to the node that serves its key, and on to those that it is redirected to.
    async fn follow(&self, command: &Cmd) -> Result<Value, Fault> {
        let slot = slot_of(command);
        let mut node = self.primary_of(slot).await?;
        let mut reply = self.connection(&node).ask_one(command, false).await;
        for _ in 0..MOST {
            let Err(Fault::Refused(error)) = &reply else { break };
            let asking = error.kind() == ServerErrorKind::Ask.into();
            let Some(next) = target(error, &node) else { break };
            if !asking {
                self.moved(slot, &next);
            }
            reply = self.connection(&next).ask_one(command, asking).await;
            node = next;
        }
        reply
    }

    /// Sends a command that needs no key to one node after another, each a moment after the one
    /// before, until one gives a reply that is accepted.
    async fn ask_any<T>(
        &self,
        command: &Cmd,
        accept: impl Fn(&Node, Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut asked = FuturesUnordered::new();
        let (mut nodes, mut fault) = (self.candidates().into_iter(), Fault::Silence);
        loop {
            let next = nodes.next();
            let last = next.is_none();
            asked.extend(next.map(|node| async move {
                let reply = self.connection(&node).ask_one(command, false).await;
                (node, reply)
            }));
            let limit = if last { Time::NEVER } else { clock::now().after(self.moment()) };
            match within(limit, asked.next()).await {
                Some(Some((node, reply))) => match reply.and_then(|value| accept(&node, value)) {
                    Ok(accepted) => return Ok(accepted),
                    Err(refused) => fault = refused,
                },
                Some(None) if last => return Err(fault),
                Some(None) | None => {}
            }
        }
    }

    /// As [`ask_any`](Self::ask_any), for any reply, within the time limit.
    pub(crate) async fn ask_one_of(&self, command: &Cmd) -> Result<Value, Fault> {
        let limit = clock::now().after(self.config.timeout);
        let asked = pin!(self.ask_any(command, |_, value| Ok(value)));
        within(limit, asked).await.unwrap_or(Err(Fault::Silence))
    }

    /// The replies of those primaries that answer in half of the time limit; the first fault if
    /// none does.
    pub(crate) async fn ask_primaries(&self, command: &Cmd) -> Result<Vec<Value>, Fault> {
        let limit = clock::now().after(self.config.timeout / 2);
        let asked = self.primaries().await?.into_iter().map(|primary| async move {
            let asked = pin!(primary.ask_one(command, false));
            within(limit, asked).await.unwrap_or(Err(Fault::Silence))
        });
        let (mut values, mut fault) = (Vec::new(), None);
        for reply in join_all(asked).await {
            match reply {
                Ok(value) => values.push(value),
                Err(other) => fault = fault.or(Some(other)),
            }
        }
        fault.filter(|_| values.is_empty()).map_or(Ok(values), Err)
    }

    /// The keys of all primaries that match a pattern. The caller limits the time. Looks up the
    /// primaries first: nothing would redirect it to a new one.
    pub(crate) async fn scan(&self, pattern: &str) -> Result<Vec<String>, Fault> {
        let lookup = self.lookup(&mut self.state.lock());
        ended(lookup).await?;
        let primaries = self.primaries().await?;
        let scans = primaries.iter().map(|primary| primary.scan_one(pattern));
        Ok(try_join_all(scans).await?.concat())
    }

    /// Looks up who serves which slot, unless that is known.
    pub(crate) async fn connect(&self) -> Result<(), Fault> {
        let lookup = {
            let mut state = self.state.lock();
            if state.slots.is_some() {
                return Ok(());
            }
            self.lookup(&mut state)
        };
        match ended(lookup).await {
            // The command itself has not been sent.
            Err(Fault::Broken(error, _)) => Err(Fault::Broken(error, true)),
            other => other,
        }
    }

    /// Closes the connections to all nodes.
    pub(crate) fn close_current(&self) {
        let nodes: Vec<_> = self.state.lock().nodes.values().cloned().collect();
        for node in nodes {
            node.close_current();
        }
    }

    /// The node that serves a slot; any, if none is known to, which then says so.
    async fn primary_of(&self, slot: u16) -> Result<Node, Fault> {
        self.connect().await?;
        let mut state = self.state.lock();
        let now = clock::now();
        if state.doubtful && now >= state.not_before {
            drop(self.lookup(&mut state)); // it goes on by itself
        }
        let slots = state.slots.as_ref();
        let known = slots.and_then(|slots| slots.node_of(slot).cloned());
        let any = || fastrand::choice(slots.map(Slots::nodes).unwrap_or_default());
        known.or_else(any).ok_or_else(|| broken(true))
    }

    /// The connections to all primaries.
    async fn primaries(&self) -> Result<Vec<Arc<Connection>>, Fault> {
        self.connect().await?;
        let nodes = self.state.lock().slots.as_ref().map(Slots::nodes).unwrap_or_default();
        Ok(nodes.iter().map(|node| self.connection(node)).collect())
    }

    /// Records that a slot is served by another node. So may others be.
    fn moved(&self, slot: u16, node: &Node) {
        let mut state = self.state.lock();
        if let Some(slots) = &mut state.slots {
            slots.moved(slot, node.clone());
        }
        state.informed = Some(node.clone());
        state.doubtful = true;
    }

    /// The connection to a node.
    fn connection(&self, node: &Node) -> Arc<Connection> {
        let mut state = self.state.lock();
        if let Some(connection) = state.nodes.get(node) {
            return Arc::clone(connection);
        }
        let config =
            Config { kind: Kind::Single, hosts: vec![node.clone()], ..Config::clone(&self.config) };
        let connection = Arc::new(Connection::new(config.into(), String::new()));
        state.nodes.insert(node.clone(), Arc::clone(&connection));
        connection
    }

    /// The nodes to ask, in this order: the one that knows most, then those of the URL and those
    /// that are known, in any order.
    fn candidates(&self) -> Vec<Node> {
        let state = self.state.lock();
        let known = state.slots.as_ref().map(Slots::nodes).unwrap_or_default();
        let mut nodes: Vec<Node> = self.config.hosts.iter().cloned().chain(known).collect();
        fastrand::shuffle(&mut nodes);
        nodes.splice(0..0, state.informed.clone());
        let mut seen = HashSet::new();
        nodes.retain(|node| seen.insert(node.clone()));
        nodes
    }

    /// How long a node may take to answer before another is asked as well.
    fn moment(&self) -> Duration {
        self.config.timeout / 8
    }

    /// The lookup in progress, or a new one. It is a task, so that it continues whatever happens to
    /// the calls that wait for it, and delays none that need not.
    fn lookup(&self, state: &mut State) -> watch::Receiver<Outcome<()>> {
        if let Some(lookup) = state.lookup.as_ref().filter(|lookup| lookup.goes_on()) {
            return lookup.outcome.clone();
        }
        state.doubtful = false;
        let (outcome, receiver) = watch::channel(None);
        let until = clock::now().after(self.config.timeout);
        let cluster = self.clone();
        tokio::spawn(async move {
            let asked = pin!(cluster.look_up());
            let found = within(until, asked).await.unwrap_or(Err(Fault::Silence));
            outcome.send_replace(Some(cluster.looked_up(found)));
        });
        let lookup = Attempt { outcome: receiver, until };
        state.lookup.insert(lookup).outcome.clone()
    }

    async fn look_up(&self) -> Result<Slots, Fault> {
        let accept = |(host, _): &Node, reply| {
            Slots::read(&reply, host).ok_or_else(|| {
                let address = self.config.address();
                let message = format!("{address} does not say which node serves which slot");
                Fault::Ours(Error::new(ErrorKind::Unavailable, message))
            })
        };
        self.ask_any(redis::cmd("CLUSTER").arg("SLOTS"), accept).await
    }

    /// Stores what was looked up.
    fn looked_up(&self, found: Result<Slots, Fault>) -> Result<(), Fault> {
        let mut state = self.state.lock();
        state.lookup = None;
        state.not_before = clock::now().after(PAUSE);
        match found {
            Ok(slots) => {
                let used = slots.nodes();
                let hosts = &self.config.hosts;
                state.nodes.retain(|node, _| used.contains(node) || hosts.contains(node));
                state.slots = Some(slots);
                state.informed = None;
                Ok(())
            }
            Err(fault) => {
                state.doubtful = true;
                Err(fault)
            }
        }
    }
}

/// The host and port in a redirection. Some clusters tell no hosts: then it is that of the node
/// that redirects.
fn target(error: &RedisError, by: &Node) -> Option<Node> {
    let (node, _) = error.redirect_node()?;
    let (host, port) = node.rsplit_once(':')?;
    let host = if ["", "?"].contains(&host) { &by.0 } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

/// Whether another node may serve the slot of a command that failed so.
fn may_have_moved(fault: &Fault) -> bool {
    match fault {
        Fault::Silence | Fault::Broken(..) => true,
        Fault::Refused(error) => says(error, "CLUSTERDOWN") || fault.breaks(),
        Fault::Ours(_) => false,
    }
}

/// A command in flight. If its caller gives it up, and not at once, the node may be gone, and
/// another serve in its place.
struct Question<'a> {
    cluster: &'a Cluster,
    sent: Time,
    ended: bool,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if !self.ended && self.sent.until(clock::now()) >= self.cluster.moment() {
            self.cluster.state.lock().doubtful = true;
        }
    }
}
