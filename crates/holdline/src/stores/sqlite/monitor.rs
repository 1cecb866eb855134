//! The watchtower: one thread for each store, from the first time that anybody has to wait.
//!
//! It receives the notices that other processes send, and every 50 ms, while somebody here waits,
//! it looks at the liveness locks of those who stand in the way. A process that died is buried: its
//! places are removed, which admits and wakes the next.

use super::liveness::{LivenessDir, PeerLock};
use super::operations::News;
use super::rows::Process;
use crate::clock;
use crate::names::Name;
use crate::store::TicketId;
use crate::sync::Mutex;
use holdline_kernel::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io;
use std::mem;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// How often to look at the liveness locks.
const TICK: Duration = Duration::from_millis(50);
/// So many ticks without anybody waiting, and the thread sleeps until it is called.
const IDLE_TICKS: u32 = 20;
/// So many tickets go into one message.
const BATCH: usize = 1024;

/// What the thread and those who wait share.
#[derive(Debug)]
pub(super) struct Monitor {
    state: Mutex<State>,
    /// Nothing if the system gave no socket; then nobody can send here, and waiters look by
    /// themselves.
    inbox: Option<UnixDatagram>,
    /// To call the thread by: a byte into the one is heard at the other.
    wakeup: (UnixDatagram, UnixDatagram),
    liveness_dir: Arc<LivenessDir>,
}

#[derive(Debug, Default)]
struct State {
    posts: HashMap<TicketId, WaitEntry>,
    sights: HashMap<Process, Watched>,
    asleep: bool,
    closed: bool,
}

/// Somebody who waits.
#[derive(Debug)]
struct WaitEntry {
    line: Name,
    /// How many wait by this ticket; a retry may overlap with what it retries.
    waiters: usize,
    watching: Vec<Process>,
    /// Whom to watch has to be found out again.
    stale: bool,
}

#[derive(Debug)]
struct Watched {
    peer: PeerLock,
    posts: usize,
}

/// What a look around found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Processes that died.
    pub(super) dead: Vec<Process>,
    /// Who has to find out again whom to watch.
    pub(super) stale: Vec<(Name, TicketId)>,
}

/// What the thread does when it has found or heard something.
pub(super) trait MonitorHandler {
    /// A process sent news of tickets.
    fn heard(&self, news: News, ids: &mut dyn Iterator<Item = TicketId>);
    /// A look around found something.
    fn found(&self, monitor: &Monitor, findings: Findings);
}

impl Monitor {
    /// a monitor that hears what is sent to this process.
    pub(super) fn new(liveness_dir: Arc<LivenessDir>, process: Process) -> io::Result<Self> {
        let inbox = UnixDatagram::bind(liveness_dir.socket(process))
            .and_then(|inbox| inbox.set_nonblocking(true).map(|()| inbox));
        if let Err(error) = &inbox {
            tracing::warn!(%error, "no socket for wakes; waiting by looking often");
        }
        let wakeup = UnixDatagram::pair()?;
        wakeup.0.set_nonblocking(true)?;
        wakeup.1.set_nonblocking(true)?;
        Ok(Monitor { state: Mutex::default(), inbox: inbox.ok(), wakeup, liveness_dir })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether others can wake who waits here.
    pub(super) fn hears(&self) -> bool {
        self.inbox.is_some()
    }

    /// Somebody begins to wait.
    pub(super) fn register_wait(&self, line: &Name, id: TicketId) {
        let mut state = self.state();
        let post = state.posts.entry(id).or_insert_with(|| WaitEntry {
            line: line.clone(),
            waiters: 0,
            watching: Vec::new(),
            stale: false,
        });
        post.waiters += 1;
        self.wake_up(&mut state);
    }

    /// Nobody waits by this any more.
    pub(super) fn unregister(&self, id: TicketId) {
        let mut state = self.state();
        let Some(post) = state.posts.get_mut(&id) else { return };
        post.waiters -= 1;
        if post.waiters == 0
            && let Some(post) = state.posts.remove(&id)
        {
            state.unwatch(&post.watching);
        }
    }

    /// Says whom somebody who waits has to watch.
    pub(super) fn watch(&self, id: TicketId, processes: Vec<Process>) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(post) = state.posts.get_mut(&id) else { return };
        let before = mem::replace(&mut post.watching, processes);
        for process in &post.watching {
            if let Some(watched) = state.sights.get_mut(process) {
                watched.posts += 1;
            } else if let Some(peer) = self.liveness_dir.peer(*process) {
                state.sights.insert(*process, Watched { peer, posts: 1 });
            }
        }
        state.unwatch(&before);
    }

    /// Whom somebody watches is no longer right.
    pub(super) fn doubt(&self, id: TicketId) {
        if let Some(post) = self.state().posts.get_mut(&id) {
            post.stale = true;
        }
    }

    /// Ends the thread.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.asleep = true;
        self.wake_up(&mut state);
    }

    fn wake_up(&self, state: &mut State) {
        if mem::take(&mut state.asleep) {
            let _ = self.wakeup.0.send(&[0]); // full: then it rings already
        }
    }

    /// The thread.
    pub(super) fn run(&self, handler: &dyn MonitorHandler) {
        let mut next = clock::now().after(TICK);
        let mut idle = 0;
        let mut buffer = vec![0; 1 + 16 * BATCH];
        while let Some(limit) = self.plan(idle, next) {
            self.listen(limit, &mut buffer, handler);
            let now = clock::now();
            if now < next {
                continue;
            }
            next = now.after(TICK);
            let (findings, anybody) = self.look_around();
            idle = if anybody { 0 } else { idle + 1 };
            if !findings.dead.is_empty() || !findings.stale.is_empty() {
                handler.found(self, findings);
            }
        }
    }

    /// Until when to listen; nothing if it is over.
    fn plan(&self, idle: u32, next: Time) -> Option<Time> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        state.asleep = idle >= IDLE_TICKS && state.posts.is_empty();
        Some(if state.asleep { Time::NEVER } else { next })
    }

    /// Waits for a message, or until `limit`, and takes in all that has come.
    fn listen(&self, limit: Time, buffer: &mut [u8], handler: &dyn MonitorHandler) {
        let wait = (limit != Time::NEVER).then(|| clock::now().until(limit));
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let inbox = self.inbox.as_ref().unwrap_or(&self.wakeup.1);
        let mut fds = [&self.wakeup.1, inbox].map(|fd| PollFd::new(fd, PollFlags::IN));
        if !matches!(poll(&mut fds, wait.as_ref()), Ok(1..)) {
            return;
        }
        while self.wakeup.1.recv(buffer).is_ok() {}
        while let Ok(length) = inbox.recv(buffer) {
            if let Some((&kind, ids)) = buffer[..length].split_first()
                && let Some(news) = read_kind(kind)
            {
                let (ids, _) = ids.as_chunks();
                handler.heard(news, &mut ids.iter().map(|id| TicketId(u128::from_be_bytes(*id))));
            }
        }
    }

    fn look_around(&self) -> (Findings, bool) {
        let mut state = self.state();
        let state = &mut *state;
        let sights = &mut state.sights;
        let dead: Vec<Process> = sights
            .extract_if(|_, watched| watched.peer.is_free())
            .map(|(process, _)| process)
            .collect();
        let mut stale = Vec::new();
        for (id, post) in &mut state.posts {
            if mem::take(&mut post.stale) || post.watching.iter().any(|one| dead.contains(one)) {
                stale.push((post.line.clone(), *id));
            }
        }
        (Findings { dead, stale }, !state.posts.is_empty())
    }
}

impl State {
    fn unwatch(&mut self, processes: &[Process]) {
        for process in processes {
            if let Some(watched) = self.sights.get_mut(process) {
                watched.posts -= 1;
                if watched.posts == 0 {
                    self.sights.remove(process);
                }
            }
        }
    }
}

const KINDS: [(u8, News); 3] = [(b'a', News::Admitted), (b'f', News::First), (b'e', News::Evicted)];

fn read_kind(kind: u8) -> Option<News> {
    KINDS.iter().find(|(byte, _)| *byte == kind).map(|(_, news)| *news)
}

/// Sends news to a process. If that fails, its owner will look by itself a little later.
pub(super) fn send(
    outbox: &UnixDatagram,
    liveness_dir: &LivenessDir,
    to: Process,
    news: News,
    ids: &[TicketId],
) -> io::Result<()> {
    let address = liveness_dir.socket(to);
    let kind = KINDS.iter().find(|(_, one)| *one == news).map_or(0, |(byte, _)| *byte);
    for ids in ids.chunks(BATCH) {
        let mut message = Vec::with_capacity(1 + 16 * ids.len());
        message.push(kind);
        message.extend(ids.iter().flat_map(|id| id.0.to_be_bytes()));
        for _ in 0..8 {
            match outbox.send_to(&message, &address) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::yield_now();
                }
                sent => {
                    sent?;
                    break;
                }
            }
        }
    }
    Ok(())
}
