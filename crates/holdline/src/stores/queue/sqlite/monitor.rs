//! The monitor: one thread per store, started when a ticket first has to wait.
//!
//! It receives the notices of other processes. While tickets of this process wait, it checks every
//! 50 ms the liveness locks of the processes that block them. When one is dead, its places are
//! removed, which admits and wakes the next.

use super::liveness::{LivenessDir, PeerLock};
use super::operations::{NoticeKind, Noticed};
use super::rows::Process;
use super::shared::Shared;
use crate::clock;
use crate::names::Name;
use crate::store::{Seq, TicketId};
use crate::sync::{Mutex, contained};
use holdline_kernel::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::mem;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

/// The interval between checks of the liveness locks.
const TICK: Duration = Duration::from_millis(50);
/// The longest interval: it doubles while the places of dead processes cannot be removed.
const LONGEST: Duration = Duration::from_secs(1);
/// The number of ticks without a waiter after which the thread sleeps until woken.
const IDLE_TICKS: u32 = 20;
/// The most places in one message.
const BATCH: usize = 512;
/// The length of a place in a message: the ticket's id and the place's number.
const PLACE: usize = 16 + 8;

/// The state of the thread and of the waiters.
#[derive(Debug)]
pub(super) struct Monitor {
    state: Mutex<State>,
    /// The socket that receives notices. `None` if the system provides none; then waiters poll.
    inbox: Option<UnixDatagram>,
    /// A socket pair that wakes the thread: a byte sent to the first is received at the second.
    wakeup: (UnixDatagram, UnixDatagram),
    liveness_dir: Arc<LivenessDir>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<TicketId, WaitEntry>,
    watched: HashMap<Process, Watched>,
    asleep: bool,
    closed: bool,
}

/// A waiting ticket.
#[derive(Debug)]
struct WaitEntry {
    line: Name,
    /// The number of waits for this ticket; a retry may overlap with the call that it repeats.
    waiters: usize,
    /// Processes in `State::watched`, where this entry counts.
    watching: Vec<Process>,
    /// Whether `watching` must be read from the database again.
    stale: bool,
}

#[derive(Debug)]
struct Watched {
    peer: PeerLock,
    entries: usize,
}

/// The result of a check of the liveness locks.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Processes that died.
    pub(super) dead: Vec<Process>,
    /// The tickets whose `watching` must be read again.
    pub(super) stale: Vec<(Name, TicketId)>,
}

impl Monitor {
    /// Creates a monitor with a socket for notices to this process.
    pub(super) fn new(liveness_dir: Arc<LivenessDir>, process: Process) -> io::Result<Self> {
        let inbox = liveness_dir.bind_socket(process);
        if let Err(error) = &inbox {
            tracing::warn!(%error, "no socket for wakes; waiting by looking often");
        }
        let wakeup = UnixDatagram::pair()?;
        wakeup.0.set_nonblocking(true)?;
        wakeup.1.set_nonblocking(true)?;
        Ok(Monitor { state: Mutex::default(), inbox: inbox.ok(), wakeup, liveness_dir })
    }

    /// Whether other processes can wake the waiters of this one.
    pub(super) fn has_inbox(&self) -> bool {
        self.inbox.is_some()
    }

    /// Registers a wait for a ticket.
    pub(super) fn register_wait(&self, line: &Name, id: TicketId) {
        let mut state = self.state.lock();
        let entry = state.entries.entry(id).or_insert_with(|| WaitEntry {
            line: line.clone(),
            waiters: 0,
            watching: Vec::new(),
            stale: false,
        });
        entry.waiters += 1;
        self.wake_up(&mut state);
    }

    /// Ends a wait for a ticket.
    pub(super) fn unregister(&self, id: TicketId) {
        let mut state = self.state.lock();
        let Some(entry) = state.entries.get_mut(&id) else { return };
        entry.waiters -= 1;
        if entry.waiters == 0
            && let Some(entry) = state.entries.remove(&id)
        {
            state.unwatch(&entry.watching);
        }
    }

    /// Sets the processes whose liveness locks are checked for a waiting ticket.
    pub(super) fn watch(&self, id: TicketId, processes: Vec<Process>) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(entry) = state.entries.get_mut(&id) else { return };
        let before = mem::take(&mut entry.watching);
        for process in processes {
            if let Some(watched) = state.watched.get_mut(&process) {
                watched.entries += 1;
            } else if let Some(peer) = self.liveness_dir.peer(process) {
                state.watched.insert(process, Watched { peer, entries: 1 });
            } else {
                continue;
            }
            entry.watching.push(process);
        }
        state.unwatch(&before);
    }

    /// Marks the processes watched for a ticket as out of date.
    pub(super) fn mark_stale(&self, id: TicketId) {
        if let Some(entry) = self.state.lock().entries.get_mut(&id) {
            entry.stale = true;
        }
    }

    fn mark_all_stale(&self) {
        self.state.lock().entries.values_mut().for_each(|entry| entry.stale = true);
    }

    /// Stops the thread.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.asleep = true;
        self.wake_up(&mut state);
    }

    fn wake_up(&self, state: &mut State) {
        if mem::take(&mut state.asleep) {
            let _ = self.wakeup.0.send(&[0]); // full: a wake-up is pending already
        }
    }

    /// The main loop of the thread. A panic, say of a subscriber to the log, does not end it.
    pub(super) fn run(&self, shared: &Shared) {
        let mut next = clock::now().after(TICK);
        let (mut idle, mut interval) = (0, TICK);
        let mut buffer = vec![0; 1 + PLACE * BATCH];
        while let Some(limit) = self.plan(idle, next) {
            contained(|| self.listen(limit, &mut buffer, shared));
            if clock::now() < next {
                continue;
            }
            let (findings, anybody) = self.check_locks();
            idle = if anybody { 0 } else { idle + 1 };
            let mut removed = None;
            contained(|| removed = Some(shared.on_findings(self, findings)));
            if removed.is_none() {
                self.mark_all_stale(); // the findings are lost
            }
            interval = if removed == Some(true) { TICK } else { LONGEST.min(interval * 2) };
            next = clock::now().after(interval);
        }
    }

    /// The deadline of the next wait for messages; `None` if the monitor is closed.
    fn plan(&self, idle: u32, next: Time) -> Option<Time> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        state.asleep = idle >= IDLE_TICKS && state.entries.is_empty();
        Some(if state.asleep { Time::NEVER } else { next })
    }

    /// Waits for a message, or until `limit`, and handles all messages that have come.
    fn listen(&self, limit: Time, buffer: &mut [u8], shared: &Shared) {
        let wait = (limit != Time::NEVER).then(|| clock::now().until(limit));
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let inbox = self.inbox.as_ref().unwrap_or(&self.wakeup.1);
        let mut fds = [&self.wakeup.1, inbox].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut fds, wait.as_ref()) {
            Ok(1..) => {}
            Ok(0) | Err(Errno::INTR) => return,
            // The system is short of memory, or at a limit.
            Err(_) => return std::thread::sleep(TICK),
        }
        while self.wakeup.1.recv(buffer).is_ok() {}
        while let Ok(length) = inbox.recv(buffer) {
            if let Some((&kind, places)) = buffer[..length].split_first()
                && let Some(kind) = kind_of(kind)
            {
                let (places, _) = places.as_chunks::<PLACE>();
                shared.on_notice(kind, places.iter().filter_map(read_place));
            }
        }
    }

    fn check_locks(&self) -> (Findings, bool) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let watched = &mut state.watched;
        let dead: Vec<Process> = watched
            .extract_if(|_, watched| watched.peer.is_free())
            .map(|(process, _)| process)
            .collect();
        let mut stale = Vec::new();
        for (id, entry) in &mut state.entries {
            let before = entry.watching.len();
            entry.watching.retain(|one| !dead.contains(one));
            if mem::take(&mut entry.stale) || entry.watching.len() < before {
                stale.push((entry.line.clone(), *id));
            }
        }
        (Findings { dead, stale }, !state.entries.is_empty())
    }
}

impl State {
    fn unwatch(&mut self, processes: &[Process]) {
        for process in processes {
            if let Some(watched) = self.watched.get_mut(process) {
                watched.entries -= 1;
                if watched.entries == 0 {
                    self.watched.remove(process);
                }
            }
        }
    }
}

fn kind_of(byte: u8) -> Option<NoticeKind> {
    let kinds = [NoticeKind::Admitted, NoticeKind::First, NoticeKind::Evicted];
    kinds.into_iter().find(|kind| *kind as u8 == byte)
}

fn read_place(bytes: &[u8; PLACE]) -> Option<Noticed> {
    let (id, seq) = (bytes.first_chunk()?, bytes.last_chunk()?);
    Some((TicketId(u128::from_be_bytes(*id)), Seq(u64::from_be_bytes(*seq))))
}

/// Sends a notice to a process. If that fails, its waiters poll the database a little later.
pub(super) fn send(
    outbox: &UnixDatagram,
    liveness_dir: &LivenessDir,
    to: Process,
    kind: NoticeKind,
    places: &[Noticed],
) -> io::Result<()> {
    let address = liveness_dir.socket(to);
    for places in places.chunks(BATCH) {
        let mut message = Vec::with_capacity(1 + PLACE * places.len());
        message.push(kind as u8);
        for (id, seq) in places {
            message.extend(id.0.to_be_bytes());
            message.extend(seq.0.to_be_bytes());
        }
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

#[cfg(test)]
mod tests {
    use super::super::File;
    use super::super::address::Address;
    use super::*;
    use crate::store::{AsyncStore, Enter, Ticket};
    use holdline_testkit::on_event;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn monitor(folder: &tempfile::TempDir) -> (Arc<LivenessDir>, Monitor) {
        let liveness_dir = LivenessDir::open(&folder.path().join("live"), None, None).unwrap();
        let liveness_dir = Arc::new(liveness_dir);
        let monitor = Monitor::new(Arc::clone(&liveness_dir), 1).unwrap();
        (liveness_dir, monitor)
    }

    #[test]
    fn a_process_whose_first_monitor_failed_gets_its_notices() {
        let folder = tempfile::tempdir().unwrap();
        let (liveness_dir, first) = monitor(&folder);
        drop(first);
        let monitor = Monitor::new(Arc::clone(&liveness_dir), 1).unwrap();
        assert!(monitor.has_inbox());
        let outbox = UnixDatagram::unbound().unwrap();
        let place = (TicketId(1), Seq(1));
        send(&outbox, &liveness_dir, 1, NoticeKind::First, &[place]).unwrap();
        assert!(monitor.inbox.unwrap().recv(&mut [0; 64]).is_ok());
    }

    /// If removing its places failed, say.
    #[test]
    fn a_dead_process_that_still_blocks_is_watched_again() {
        let folder = tempfile::tempdir().unwrap();
        let (liveness_dir, monitor) = monitor(&folder);
        let own_lock = liveness_dir.create_own().unwrap();
        let (process, id) = (own_lock.process, TicketId(1));
        monitor.register_wait(&Name::new("x").unwrap(), id);
        monitor.watch(id, vec![process]);
        assert!(monitor.check_locks().0.dead.is_empty());
        drop(own_lock);
        for _ in 0..3 {
            let findings = monitor.check_locks().0;
            assert_eq!((findings.dead, findings.stale.len()), (vec![process], 1));
            monitor.watch(id, vec![process]);
        }
        monitor.unregister(id);
        assert!(monitor.state.lock().watched.is_empty());
    }

    fn ticket(id: u128) -> Ticket {
        let lease = Duration::from_secs(600);
        let (id, weight, capacity) = (TicketId(id), 1, 1);
        let (wait_lease, token_count, min_token) = (lease, 1, 0);
        Ticket { id, weight, capacity, lease, wait_lease, token_count, min_token }
    }

    /// Runs a monitor for a waiter behind a dead holder whose place cannot be removed, as if the
    /// disk were full, until the log has so many events; and then until the place is removed.
    /// Returns how long the first part took.
    async fn beside_a_dead_holder(panics: bool, events: u64) -> Duration {
        const LONG: Duration = Duration::from_secs(60);
        let count = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&count);
        let log = on_event(tracing::Level::TRACE, move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            assert!(!panics, "as it should");
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let (holder, waiter) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        let (line, note) = (Name::new("x").unwrap(), Arc::from(""));
        for (store, id) in [(&holder, 1), (&waiter, 2)] {
            AsyncStore::enter(store, &line, &ticket(id), &note, Enter::Queue).await.unwrap();
        }
        let other = rusqlite::Connection::open(&path).unwrap();
        let places = || {
            let count = "SELECT count(*) FROM place";
            other.query_row(count, [], |row| row.get::<_, u32>(0)).unwrap()
        };
        assert_eq!(places(), 2);
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        drop(holder);
        let address = Address { busy_timeout: Duration::ZERO, ..Address::of(&path) };
        let shared = Shared::open(address).unwrap();
        let liveness_dir = LivenessDir::find(&folder.path().join("locks.db.live")).unwrap();
        let monitor = Monitor::new(Arc::new(liveness_dir), 1).unwrap();
        monitor.register_wait(&line, TicketId(2));
        monitor.mark_stale(TicketId(2));
        let until = |done: &dyn Fn() -> bool| {
            let began = clock::now();
            while !done() && clock::now() < began.after(LONG) {
                std::thread::sleep(Duration::from_millis(1));
            }
            began.until(clock::now())
        };
        let took = std::thread::scope(|scope| {
            scope.spawn(|| tracing::subscriber::with_default(log, || monitor.run(&shared)));
            let took = until(&|| count.load(Ordering::Relaxed) >= events);
            other.execute_batch("ROLLBACK").unwrap();
            until(&|| places() == 1);
            monitor.close();
            took
        });
        assert_eq!(places(), 1, "that of the dead holder is removed");
        took
    }

    #[tokio::test]
    async fn removals_that_fail_are_repeated_at_growing_intervals() {
        let took = beside_a_dead_holder(false, 5).await;
        // 100, 200, 400 and 800 ms.
        assert!(took >= Duration::from_millis(1_500), "{took:?}");
    }

    #[tokio::test]
    async fn a_log_that_panics_does_not_end_the_monitor() {
        let took = beside_a_dead_holder(true, 3).await;
        assert!(took < Duration::from_secs(60), "it tries again: {took:?}");
    }
}
