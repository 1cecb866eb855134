//! A simulated client that runs the library's own code: a quorum whose nodes are simulated servers,
//! or the engine for ephemeral entries with one simulated server.
//!
//! A request becomes a message, its reply is put into the outbox when it arrives, and the futures
//! are polled whenever a reply has arrived or a time limit has passed by the client's clock.
//! Anything may happen between two polls; a future may even never be polled again.

use crate::client::Timer;
use crate::invariants::{Fact, Lock};
use crate::server::{Answer, Request};
use crate::world::{Event, Message, World};
use holdline::clock::simulated;
use holdline::store::{self, AsyncStore, Capabilities, Enter, QueueEntry, QueueSnapshot, Store};
use holdline::stores::quorum::Quorum;
use holdline::stores::simulated::{Asked, Change, Entries, Server, Task, Told};
use holdline::{Name, Result};
use holdline_kernel::{Seq, Standing, Ticket, TicketId, Time};
use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A library call under way.
type Call = Pin<Box<dyn Future<Output = Answer>>>;

/// A simulated client of the library's own code.
pub(crate) struct StoreClient {
    store: Arc<dyn Store>,
    /// The same, if it is the engine; its tasks; and the number of each line's last news.
    entries: Option<Entries>,
    tasks: Vec<Task>,
    heard: BTreeMap<Lock, u64>,
    outbox: Arc<Outbox>,
    calls: BTreeMap<u64, Call>,
    /// The wait for a notice about a ticket.
    notice: Option<(TicketId, Task)>,
    /// The held tickets that may be lost.
    hints: Arc<Mutex<Vec<TicketId>>>,
    /// The time of the next check of its time limits.
    look: Time,
}

/// The results of a poll.
struct Polled {
    done: Vec<(u64, Answer)>,
    noticed: Option<TicketId>,
    hints: Vec<TicketId>,
    /// When to poll again.
    wake: Time,
}

/// A waker that records that something must be polled again.
#[derive(Debug, Default)]
struct Again(AtomicBool);

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Requests to the nodes, and their replies.
#[derive(Debug, Default)]
struct Outbox(Mutex<Requests>);

#[derive(Debug, Default)]
struct Requests {
    count: u64,
    out: Vec<(u64, usize, Lock, Request)>,
    /// The requests, each with its reply once that has arrived.
    asked: BTreeMap<u64, Option<Answer>>,
}

/// A server as a node of a client's quorum.
#[derive(Clone, Debug)]
struct Node {
    server: usize,
    outbox: Arc<Outbox>,
}

impl Debug for StoreClient {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClient").field("calls", &self.calls.keys()).finish_non_exhaustive()
    }
}

impl Outbox {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    async fn ask(&self, line: &Name, request: Request) -> Answer {
        let number = {
            let mut requests = self.outbox.requests();
            requests.count += 1;
            let number = requests.count;
            requests.asked.insert(number, None);
            let lock = line.as_str().parse().expect("locks go by their number");
            requests.out.push((number, self.server, lock, request));
            number
        };
        poll_fn(|_| {
            let mut requests = self.outbox.requests();
            match requests.asked.get(&number) {
                Some(Some(_)) => {
                    let answer = requests.asked.remove(&number).flatten();
                    Poll::Ready(answer.unwrap_or(Answer::Failed))
                }
                _ => Poll::Pending,
            }
        })
        .await
    }
}

impl AsyncStore for Node {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        _note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        match self.ask(line, Request::Enter(*ticket, how)).await {
            Answer::Stands(Ok(standing)) => Ok(standing),
            Answer::Stands(Err(refusal)) => Err(store::refuse(line, ticket, refusal)),
            other => panic!("no answer to an enter: {other}"),
        }
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        match self.ask(line, Request::Leave(id)).await {
            Answer::Left(there) => Ok(there),
            other => panic!("no answer to a leave: {other}"),
        }
    }

    async fn watch(&self, _line: &Name, _id: TicketId) -> Result<Option<Seq>> {
        std::future::pending().await
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        match self.ask(line, Request::Look).await {
            Answer::Holder(id) => Ok(QueueSnapshot {
                capacity: 1,
                places: id.map(holder_entry).into_iter().collect(),
                evictions: Vec::new(),
            }),
            other => panic!("no answer to a look: {other}"),
        }
    }

    async fn list(&self, _prefix: &str) -> Result<Vec<Name>> {
        unimplemented!("nobody lists")
    }

    async fn evict(&self, line: &Name, id: TicketId, _reason: &str) -> Result<Option<Seq>> {
        match self.ask(line, Request::Evict(id)).await {
            Answer::Evicted(seq) => Ok(seq),
            other => panic!("no answer to an eviction: {other}"),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair_queue: true,
            fencing_tokens: true,
            notifications: true,
            weighted: true,
            read_write: true,
            token_ranges: true,
            crash_release: false,
            survives_failover: false,
            survives_restart: true,
            lease_min: Duration::from_millis(100),
            lease_max: Duration::from_secs(24 * 3600),
        }
    }

    fn background_handle(&self) -> Self {
        self.clone()
    }

    fn on_loss_hint(&self, _: store::LossHint) {}

    fn address(&self) -> String {
        format!("node:{}", self.server)
    }
}

/// The queue entry of a holder.
fn holder_entry(id: TicketId) -> QueueEntry {
    let (seq, expires_in, note) = (Seq(0), Duration::ZERO, Arc::from(""));
    QueueEntry { id, seq, weight: 1, admitted: true, expires_in, note }
}

impl Server for Node {
    fn ask(&self, line: &Name, asked: Asked) -> Pin<Box<dyn Future<Output = Told> + Send>> {
        let (node, line) = (self.clone(), line.clone());
        Box::pin(async move {
            match Node::ask(&node, &line, Request::Ask(asked)).await {
                Answer::Told(told) => told,
                other => panic!("no answer to the engine: {other}"),
            }
        })
    }
}

/// A client's wall clock, in microseconds: ahead of all servers' clocks, so that a quorum may
/// request numbers ahead of those. It does not request any far ahead of its own machine's.
fn wall(now: Time) -> u64 {
    10_000_000_000 + now.0 / 1_000
}

fn line_of(lock: Lock) -> Name {
    Name::new(lock.to_string()).expect("a number is a name")
}

impl StoreClient {
    /// A client of a quorum of this many nodes.
    pub(crate) fn of_quorum(nodes: usize) -> Self {
        let outbox = Arc::new(Outbox::default());
        let node = |server| Arc::new(Node { server, outbox: Arc::clone(&outbox) }) as Arc<_>;
        let quorum = Quorum::new((0..nodes).map(node)).expect("there are enough nodes");
        StoreClient::new(Arc::new(quorum), None, outbox)
    }

    /// A client that itself decides which entries are admitted.
    pub(crate) fn of_entries() -> Self {
        let outbox = Arc::new(Outbox::default());
        let entries = Entries::new(Arc::new(Node { server: 0, outbox: Arc::clone(&outbox) }));
        StoreClient::new(Arc::new(entries.clone()), Some(entries), outbox)
    }

    fn new(store: Arc<dyn Store>, entries: Option<Entries>, outbox: Arc<Outbox>) -> Self {
        let hints = Arc::<Mutex<Vec<TicketId>>>::default();
        let lost = Arc::clone(&hints);
        store.on_loss_hint(Arc::new(move |id| {
            lost.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        }));
        StoreClient {
            store,
            entries,
            tasks: Vec::new(),
            heard: BTreeMap::new(),
            outbox,
            calls: BTreeMap::new(),
            notice: None,
            hints,
            look: Time(0),
        }
    }

    /// Begins a call to the store, as the driver, the renewer or an operator makes it.
    fn begin(&self, lock: Lock, request: Request) -> Call {
        let (store, line) = (Arc::clone(&self.store), line_of(lock));
        Box::pin(async move {
            let note = Arc::from("");
            let answer: Result<Answer> = match request {
                Request::Enter(ticket, how) => store
                    .enter(&line, &ticket, &note, how)
                    .await
                    .map(|standing| Answer::Stands(Ok(standing))),
                Request::Leave(id) => store.leave(&line, id).await.map(Answer::Left),
                Request::Evict(id) => store.evict(&line, id, "").await.map(Answer::Evicted),
                Request::Look | Request::Sweep | Request::Ask(_) => Ok(Answer::Left(false)),
            };
            answer.unwrap_or(Answer::Failed)
        })
    }

    /// Polls all calls under way, until nothing must be polled again at this time.
    fn poll(&mut self, now: Time) -> Polled {
        let again = Arc::<Again>::default();
        let waker = Waker::from(Arc::clone(&again));
        let mut context = Context::from_waker(&waker);
        let (mut done, mut noticed) = (Vec::new(), None);
        let ((), wake) = simulated::at(now, wall(now), || {
            loop {
                let more = self.entries.as_ref().map_or_else(Vec::new, Entries::tasks);
                self.tasks.extend(more);
                self.tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
                self.calls.retain(|call, future| match future.as_mut().poll(&mut context) {
                    Poll::Ready(answer) => {
                        done.push((*call, answer));
                        false
                    }
                    Poll::Pending => true,
                });
                if let Some((id, notice)) = &mut self.notice
                    && notice.as_mut().poll(&mut context).is_ready()
                {
                    noticed = Some(*id);
                    self.notice = None;
                }
                let new = self.entries.as_ref().map_or_else(Vec::new, Entries::tasks);
                // A quorum's calls wait only for answers and time.
                let woken = again.0.swap(false, Ordering::Relaxed) && self.entries.is_some();
                let is_quiet = new.is_empty() && !woken;
                self.tasks.extend(new);
                if is_quiet {
                    break;
                }
            }
        });
        let hints = &mut *self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        Polled { done, noticed, hints: std::mem::take(hints), wake }
    }
}

impl World {
    pub(crate) fn ask_library(&mut self, client: usize, call: u64, lock: Lock, request: Request) {
        if let Request::Evict(id) = request {
            self.breaking.insert((client, call), (lock, id));
        }
        if let Some(end) = &mut self.clients[client].end {
            end.calls.insert(call, end.begin(lock, request));
            self.look(client);
        }
    }

    /// Drops a call's future.
    pub(crate) fn drop_call(&mut self, client: usize, call: u64) {
        if let Some(end) = &mut self.clients[client].end {
            end.calls.remove(&call);
        }
    }

    /// Handles a server's reply.
    pub(crate) fn delivered(&mut self, client: usize, call: u64, answer: Answer) {
        let Some(end) = &mut self.clients[client].end else {
            return self.replied(client, call, &answer);
        };
        if let Some(asked) = end.outbox.requests().asked.get_mut(&call) {
            *asked = Some(answer);
        }
        self.look(client);
    }

    /// Waits for a notice about a ticket, in a store that has notices of its own.
    pub(crate) fn await_notice(&mut self, client: usize, lock: Lock, id: Option<TicketId>) {
        let Some(end) = &mut self.clients[client].end else { return };
        if end.entries.is_none() {
            return;
        }
        let store = Arc::clone(&end.store);
        end.notice = id.map(|id| {
            let line = line_of(lock);
            let notice: Task = Box::pin(async move { drop(store.watch(&line, id).await) });
            (id, notice)
        });
        if end.notice.is_some() {
            self.look(client);
        }
    }

    /// Handles the news of a change in a line. The number reveals missing news.
    pub(crate) fn hear(&mut self, client: usize, lock: Lock, number: u64, change: Change) {
        let now = self.local(client);
        let Some(end) = &mut self.clients[client].end else { return };
        let (Some(entries), line) = (&end.entries, line_of(lock)) else { return };
        let before = end.heard.entry(lock).or_default();
        if number <= *before {
            return;
        }
        let missed = number > *before + 1;
        *before = number;
        let ((), _) = simulated::at(now, wall(now), || {
            if missed {
                entries.apply(&line, Change::Gap);
            }
            entries.apply(&line, change);
        });
        self.look(client);
    }

    /// Polls a client's calls in the library.
    pub(crate) fn look(&mut self, client: usize) {
        let now = self.local(client);
        let Some(end) = &mut self.clients[client].end else { return };
        let Polled { done, noticed, hints, wake } = end.poll(now);
        let letters = std::mem::take(&mut end.outbox.requests().out);
        let sooner = end.look <= now || wake < end.look;
        if sooner && wake != Time::NEVER {
            end.look = wake;
            self.set_timer(client, wake, Timer::Look);
        }
        for (call, server, lock, request) in letters {
            let line = (lock, server);
            self.disown_stand_in(client, request);
            self.post(client, server, Event::Arrives(Message { client, call, line, request }));
        }
        for (call, answer) in done {
            self.note(format_args!("  the store says to call {call} of client {client}: {answer}"));
            if let Some((lock, id)) = self.breaking.remove(&(client, call)) {
                if let Answer::Evicted(Some(seq)) = answer {
                    self.tell(&Fact::Broken { lock, id, seq });
                }
            } else {
                self.replied(client, call, &answer);
            }
        }
        for id in hints {
            self.verify(client, id);
        }
        if let Some(id) = noticed {
            self.noticed(client, id, Seq(0), false);
        }
    }

    /// Disowns a ticket of the quorum itself, which belongs to none of the client's acquisitions
    /// and may be left behind.
    fn disown_stand_in(&mut self, client: usize, request: Request) {
        if let Request::Enter(Ticket { id, .. }, Enter::Queue) = request {
            self.note(format_args!("  {id:?} stands in for one whom client {client} removes"));
            self.tell(&Fact::Disowned { id });
        }
    }
}
