//! The state shared by the handles and the threads of a store: the executor, and this process's
//! liveness lock, monitor and sockets.

use super::address::Address;
use super::database::Site;
use super::errors::refused;
use super::executor::Executor;
use super::liveness::{LivenessDir, OwnLock};
use super::monitor::{self, Findings, Monitor};
use super::operations::{self, Done, Entered, Notice, NoticeKind, Noticed, Outlook};
use super::rows::Process;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{Standing, Ticket, TicketId};
use crate::stores::waiters::Waiters;
use crate::sync::{Mutex, contained};
use holdline_kernel::Time;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open file store.
pub(super) struct Shared {
    pub(super) executor: Executor,
    pub(super) waiters: Waiters,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) observers: Arc<super::observe::Observers>,
    process_state: Mutex<ProcessState>,
    /// Whether the places of a dead process could not be removed at the last attempt.
    removal_failed: AtomicBool,
}

/// The liveness lock, monitor and socket of this process, each created on first use.
#[derive(Debug, Default)]
struct ProcessState {
    liveness_dir: Option<Arc<LivenessDir>>,
    own_lock: Option<Arc<OwnLock>>,
    monitor: Option<Arc<Monitor>>,
    outbox: Option<Arc<UnixDatagram>>,
    tickets: Tickets,
    /// Whether the last handle was dropped. The worker may still have work then.
    closed: bool,
}

/// The tickets that may have a place, and until when: a release may fail until the lease is over.
///
/// Each keeps the liveness lock whose number its place has, also when this process has taken
/// another one since: others may have the old one's file open, and still check it.
#[derive(Debug, Default)]
struct Tickets {
    until: HashMap<TicketId, (Time, Arc<OwnLock>)>,
    /// The number of tickets at which those whose leases are over are removed.
    sweep_at: usize,
}

/// The number of tickets at which they are first removed; after that, at twice the number left.
const KEPT: usize = 1024;
/// One in this many new processes removes the files of dead processes even if it never waits.
const SWEEP_ODDS: u8 = 32;

impl Shared {
    pub(super) fn open(address: Address) -> Result<Self> {
        let executor = Executor::open(Site::find(address)?)?;
        let process_state = Mutex::default();
        Ok(Shared {
            executor,
            waiters: Waiters::default(),
            #[cfg(any(target_os = "linux", target_os = "android"))]
            observers: Arc::default(),
            process_state,
            removal_failed: AtomicBool::new(false),
        })
    }

    /// Refuses calls in a forked child of the process that opened the store.
    pub(super) fn in_opening_process(&self) -> Result<()> {
        if self.executor.in_opening_process() {
            return Ok(());
        }
        let message = format!(
            "the lock database {} was opened before this process was forked off; open it again",
            self.executor.site.name.display()
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }

    fn failed(&self, error: io::Error) -> crate::error::Error {
        refused(
            "keep the files that show this process to be alive in",
            &self.executor.site.live(),
            error,
        )
    }

    /// The folder of the liveness locks and sockets.
    fn liveness_dir(&self) -> io::Result<Arc<LivenessDir>> {
        let mut process_state = self.process_state.lock();
        if let Some(liveness_dir) = &process_state.liveness_dir {
            return Ok(Arc::clone(liveness_dir));
        }
        let liveness_dir = Arc::new(self.executor.site.liveness_dir()?);
        process_state.liveness_dir = Some(Arc::clone(&liveness_dir));
        Ok(liveness_dir)
    }

    /// This process's liveness lock, which other processes can see.
    pub(super) fn own_lock(self: &Arc<Self>) -> Result<Arc<OwnLock>> {
        let (own_lock, new) = self.visible_lock(&mut self.process_state.lock())?;
        if new && fastrand::u8(..SWEEP_ODDS) == 0 {
            self.try_start_monitor();
        }
        Ok(own_lock)
    }

    /// This process's liveness lock, and whether it is new. Threads that need it at once wait for
    /// one and the same.
    ///
    /// A liveness lock that was removed is replaced, also with its folder. Then the folder may be
    /// new, and the monitor is restarted.
    fn visible_lock(&self, process_state: &mut ProcessState) -> Result<(Arc<OwnLock>, bool)> {
        if process_state.closed {
            let message = "the lock database was closed by its last user";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        if let Some(own_lock) = &process_state.own_lock
            && own_lock.is_visible()
        {
            return Ok((Arc::clone(own_lock), false));
        }
        if let Some(monitor) = process_state.monitor.take() {
            monitor.close();
        }
        let created = self.executor.site.liveness_dir().and_then(|liveness_dir| {
            let own_lock = liveness_dir.create_own()?;
            Ok((Arc::new(liveness_dir), own_lock))
        });
        let (liveness_dir, own_lock) = created.map_err(|error| self.failed(error))?;
        let own_lock = Arc::new(own_lock);
        process_state.liveness_dir = Some(liveness_dir);
        process_state.own_lock = Some(Arc::clone(&own_lock));
        Ok((own_lock, true))
    }

    /// Lets executed programs inherit this process's liveness lock, and the earlier ones whose
    /// numbers its places have.
    pub(super) fn inherit_by_exec(&self) -> Result<()> {
        let process_state = self.process_state.lock();
        let inherit = || {
            let own_lock = process_state.own_lock.as_deref().ok_or(io::ErrorKind::NotFound)?;
            own_lock.inherit()?;
            process_state.tickets.until.values().try_for_each(|(_, own_lock)| own_lock.inherit())
        };
        inherit().map_err(|error| self.failed(error))
    }

    /// The monitor, if it runs.
    pub(super) fn monitor(&self) -> Option<Arc<Monitor>> {
        self.process_state.lock().monitor.clone()
    }

    /// Whether the monitor runs, as far as that is known without waiting for another thread, which
    /// may be at the disk.
    pub(super) fn surely_has_monitor(&self) -> bool {
        self.process_state.try_lock().is_some_and(|state| state.monitor.is_some())
    }

    /// Whether other processes can wake the waiters of this one.
    pub(super) fn has_inbox(&self) -> bool {
        self.monitor().is_some_and(|monitor| monitor.has_inbox())
    }

    /// Starts the monitor if possible. Without it, an eviction is noticed at the next renewal.
    pub(super) fn try_start_monitor(self: &Arc<Self>) {
        if let Err(error) = self.start_monitor() {
            tracing::debug!(%error, "no thread or socket for notices");
        }
    }

    /// Starts the monitor unless it runs. Without it, waiters poll.
    pub(super) fn start_monitor(self: &Arc<Self>) -> Result<Arc<Monitor>> {
        let mut process_state = self.process_state.lock();
        if let Some(monitor) = &process_state.monitor {
            return Ok(Arc::clone(monitor));
        }
        let process = self.visible_lock(&mut process_state)?.0.process;
        let liveness_dir = process_state.liveness_dir.clone();
        let created = liveness_dir
            .ok_or_else(|| io::ErrorKind::NotFound.into())
            .and_then(|liveness_dir| Monitor::new(liveness_dir, process));
        let monitor = Arc::new(created.map_err(|error| self.failed(error))?);
        let (shared, runs) = (Arc::clone(self), Arc::clone(&monitor));
        std::thread::Builder::new()
            .name("holdline-wake".to_owned())
            .spawn(move || {
                contained(|| shared.sweep());
                runs.run(&shared);
            })
            .map_err(|error| self.failed(error))?;
        process_state.monitor = Some(Arc::clone(&monitor));
        Ok(monitor)
    }

    /// Registers a wait for a ticket, until the result is dropped.
    pub(super) fn register_wait(self: &Arc<Self>, line: &Name, id: TicketId) -> Result<Wait> {
        let monitor = self.start_monitor()?;
        monitor.register_wait(line, id);
        Ok(Wait { monitor, id })
    }

    /// Records whether a ticket may have a place, and the liveness lock of its number.
    pub(super) fn note(&self, ticket: &Ticket, entered: &Entered, own_lock: &Arc<OwnLock>) {
        match entered.outcome {
            Ok(Standing::Admitted(_) | Standing::Waiting { seq: Some(_), .. }) => {
                let until = clock::now().after(ticket.lease.max(ticket.wait_lease));
                self.process_state.lock().tickets.insert(ticket.id, until, own_lock);
            }
            Ok(Standing::Lost) => self.forget(ticket.id),
            Ok(Standing::Waiting { seq: None, .. }) | Err(_) => {}
        }
    }

    /// Records that a ticket no longer has a place.
    pub(super) fn forget(&self, id: TicketId) {
        self.process_state.lock().tickets.until.remove(&id);
    }

    /// This process's number, if it has one.
    fn own(&self) -> Option<Process> {
        self.process_state.lock().own_lock.as_ref().map(|own_lock| own_lock.process)
    }

    /// The dead processes among these, and whether any other has no liveness lock: it may have been
    /// removed since it was seen.
    pub(super) fn dead_of(&self, processes: &[Process]) -> Result<(Vec<Process>, bool)> {
        let liveness_dir = self.liveness_dir().map_err(|error| self.failed(error))?;
        let own = self.own();
        let mut others = processes.to_vec();
        others.sort_unstable();
        others.dedup();
        others.retain(|one| Some(*one) != own);
        let mut missing = false;
        others.retain(|one| {
            let peer = liveness_dir.peer(*one);
            missing |= peer.is_none();
            peer.is_some_and(|it| it.is_free())
        });
        Ok((others, missing))
    }

    /// A function that tells whether a process is alive, and checks each process only once.
    pub(super) fn liveness_check(&self) -> impl FnMut(Process) -> bool {
        let find = || LivenessDir::find(&self.executor.site.live()).ok().map(Arc::new);
        let known = self.process_state.lock().liveness_dir.clone();
        let liveness_dir = known.or_else(find);
        let mut known: HashMap<_, _> = self.own().map(|own| (own, true)).into_iter().collect();
        move |process| {
            // Without a liveness lock to check, only the lease decides.
            let look = || liveness_dir.as_ref()?.peer(process).map(|peer| !peer.is_free());
            *known.entry(process).or_insert_with(|| look().unwrap_or(true))
        }
    }

    /// Removes the files of a process that is dead and has no places.
    pub(super) fn clear(&self, process: Process) {
        if let Ok(liveness_dir) = self.liveness_dir() {
            liveness_dir.clear(process);
        }
    }

    /// Sends the notices of a transaction, and returns its result.
    pub(super) fn deliver<T>(&self, mut done: Done<T>) -> T {
        if !done.notices.is_empty() {
            self.tell(&mut done.notices);
        }
        done.value
    }

    fn tell(&self, notices: &mut [Notice]) {
        let own = self.own();
        notices.sort_by_key(|notice| (notice.process, notice.kind as u8));
        for same in notices.chunk_by(|a, b| (a.process, a.kind) == (b.process, b.kind)) {
            let (to, kind) = (same[0].process, same[0].kind);
            if Some(to) == own {
                self.on_notice(kind, same.iter().map(|notice| notice.place));
                continue;
            }
            let places: Vec<Noticed> = same.iter().map(|notice| notice.place).collect();
            let sent = self.liveness_dir().and_then(|liveness_dir| {
                let outbox = self.outbox()?;
                monitor::send(&outbox, &liveness_dir, to, kind, &places)
            });
            if let Err(error) = sent {
                // It may be dead, or have no socket; then it polls if it waits.
                tracing::debug!(process = to, %error, "a notice was not delivered");
            }
        }
    }

    fn outbox(&self) -> io::Result<Arc<UnixDatagram>> {
        let mut process_state = self.process_state.lock();
        if let Some(outbox) = &process_state.outbox {
            return Ok(Arc::clone(outbox));
        }
        let outbox = UnixDatagram::unbound()?;
        outbox.set_nonblocking(true)?;
        let outbox = Arc::new(outbox);
        process_state.outbox = Some(Arc::clone(&outbox));
        Ok(outbox)
    }

    /// Removes the places and files of all dead processes.
    fn sweep(&self) {
        let Ok(liveness_dir) = self.liveness_dir() else { return };
        let (stale, orphans) = liveness_dir.stale_locks();
        for process in orphans {
            liveness_dir.clear(process);
        }
        for process in stale {
            let Some(peer) = liveness_dir.peer(process) else { continue }; // proves nothing
            // Not before its lock is held: one that was free because it was just being created then
            // stays unused, so that a process without places has none for good.
            peer.if_free(|| {
                if self.remove_places_of(process) {
                    liveness_dir.remove(process);
                }
            });
        }
    }

    /// Removes all places of a dead process. Returns whether that succeeded.
    fn remove_places_of(&self, process: Process) -> bool {
        loop {
            let done = self.executor.run(|conn| operations::remove_places_of(conn, process));
            match done.map(|done| self.deliver(done)) {
                Ok(true) => {}
                Ok(false) => {
                    self.removal_failed.store(false, Ordering::Relaxed);
                    return true;
                }
                // While others wait, this is tried again and again.
                Err(error) => {
                    if self.removal_failed.swap(true, Ordering::Relaxed) {
                        tracing::debug!(%error, "places of a dead process still cannot be removed");
                    } else {
                        tracing::warn!(%error, "places of a dead process cannot be removed yet");
                    }
                    return false;
                }
            }
        }
    }

    /// Reads again which processes a waiting ticket must watch.
    fn update_watched(&self, monitor: &Monitor, line: &Name, id: TicketId) {
        match self.executor.run(|conn| operations::outlook(conn, line, id)) {
            Ok(Done { value: Outlook::Waits(processes), .. }) => monitor.watch(id, processes),
            Ok(Done { value: Outlook::Decided, .. }) => self.waiters.wake(id),
            Err(_) => monitor.mark_stale(id),
        }
    }

    /// Handles a notice about tickets, of this process or another.
    pub(super) fn on_notice(&self, kind: NoticeKind, places: impl Iterator<Item = Noticed>) {
        let monitor = if kind == NoticeKind::First { self.monitor() } else { None };
        for (id, seq) in places {
            match kind {
                NoticeKind::Admitted => self.waiters.admit(id, seq),
                NoticeKind::First => monitor.iter().for_each(|monitor| monitor.mark_stale(id)),
                NoticeKind::Evicted => self.waiters.evicted(id),
            }
        }
    }

    /// Handles dead processes, and tickets to look up again. Returns whether the places of the dead
    /// processes are removed.
    pub(super) fn on_findings(&self, monitor: &Monitor, findings: Findings) -> bool {
        let mut all_removed = true;
        for process in findings.dead {
            let removed = self.remove_places_of(process);
            if removed {
                self.clear(process);
            }
            all_removed &= removed;
        }
        for (line, id) in findings.stale {
            self.update_watched(monitor, &line, id);
        }
        all_removed
    }

    /// Ends the monitor and removes this process's files when the last handle is dropped.
    pub(super) fn close(&self) {
        if !self.executor.in_opening_process() {
            return; // a forked child: the files are its parent's
        }
        let mut process_state = self.process_state.lock();
        process_state.closed = true;
        if let Some(monitor) = process_state.monitor.take() {
            monitor.close();
        }
        let own_lock = process_state.own_lock.take();
        if let (Some(own_lock), Some(liveness_dir)) = (&own_lock, &process_state.liveness_dir)
            && process_state.tickets.are_over(clock::now())
            && self.executor.idle()
        {
            liveness_dir.remove(own_lock.process);
        }
        // Otherwise the file of the liveness lock stays, unlocked, so that other processes remove
        // the remaining places.
        process_state.tickets.until.clear();
        drop(own_lock);
        drop(process_state);
        self.executor.close();
    }
}

impl Tickets {
    fn insert(&mut self, id: TicketId, until: Time, own_lock: &Arc<OwnLock>) {
        if self.until.len() >= self.sweep_at.max(KEPT) {
            let now = clock::now();
            self.until.retain(|_, (until, _)| now < *until);
            self.sweep_at = self.until.len() * 2;
        }
        let kept = self.until.get(&id).map_or(until, |(kept, _)| until.max(*kept));
        self.until.insert(id, (kept, Arc::clone(own_lock)));
    }

    fn are_over(&self, now: Time) -> bool {
        self.until.values().all(|(until, _)| *until <= now)
    }
}

/// A registered wait, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct Wait {
    monitor: Arc<Monitor>,
    id: TicketId,
}

impl Wait {
    /// Sets the processes to watch.
    pub(super) fn watch(&self, processes: Vec<Process>) {
        self.monitor.watch(self.id, processes);
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.monitor.unregister(self.id);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("executor", &self.executor).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::File;
    use super::*;
    use crate::store::AsyncStore;
    use crate::stores::waiters::tests::Panics;
    use futures_util::FutureExt;
    use rustix::fs::FlockOperation;
    use rustix::io::Errno;
    use std::collections::HashSet;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Barrier;
    use std::task::Context;
    use std::time::Duration;

    fn shared(folder: &tempfile::TempDir) -> Arc<Shared> {
        let address = Address::of(folder.path().join("locks.db"));
        Arc::new(Shared::open(address).expect("a new database"))
    }

    #[test]
    fn threads_that_begin_at_once_have_one_liveness_lock() {
        const THREADS: usize = 8;
        let folder = tempfile::tempdir().expect("a folder");
        for _ in 0..50 {
            let (shared, start) = (shared(&folder), Barrier::new(THREADS));
            let begin = || {
                start.wait();
                shared.own_lock().expect("a liveness lock").process
            };
            let processes: HashSet<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(begin)).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            assert_eq!(processes.len(), 1, "{processes:?}");
            shared.close();
        }
    }

    #[test]
    fn tickets_whose_leases_are_over_are_not_kept() {
        let (mut tickets, now) = (Tickets::default(), clock::now());
        let later = now.after(Duration::from_secs(600));
        let folder = tempfile::tempdir().expect("a folder");
        let own_lock = shared(&folder).own_lock().expect("a liveness lock");
        tickets.insert(TicketId(0), later, &own_lock);
        tickets.insert(TicketId(0), now, &own_lock);
        for id in 1..=3 * KEPT {
            tickets.insert(TicketId(id as u128), now, &own_lock);
        }
        assert!(tickets.until.len() <= KEPT, "{} are kept", tickets.until.len());
        assert!(tickets.until.get(&TicketId(0)).is_some_and(|(until, _)| *until == later));
        assert!(!tickets.are_over(now));
        assert!(tickets.are_over(later));
    }

    /// As on a full disk.
    #[test]
    fn places_that_cannot_be_removed_are_warned_of_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("locks.db");
        let address = Address { busy_timeout: Duration::ZERO, ..Address::of(&path) };
        let shared = Shared::open(address).expect("a new database");
        let other = rusqlite::Connection::open(&path).expect("it is there");
        let place = "INSERT INTO place VALUES ('x', 1, zeroblob(16), 1, 1, 7, 0, '')";
        other.execute_batch(place).expect("a place of process 7");
        let warnings = holdline_testkit::Warnings::default();
        let try_thrice = || {
            other.execute_batch("BEGIN IMMEDIATE").expect("nobody writes");
            for _ in 0..3 {
                assert!(!shared.remove_places_of(7));
            }
            other.execute_batch("ROLLBACK").expect("it began");
            assert!(shared.remove_places_of(7));
        };
        tracing::subscriber::with_default(warnings.subscriber(), || {
            try_thrice();
            assert_eq!(warnings.all().len(), 1);
            try_thrice();
            assert_eq!(warnings.all().len(), 2, "it worked meanwhile");
        });
    }

    /// A process that has created its lock, and not yet taken it, seems to be dead. It must not
    /// take the lock that is about to be removed.
    #[test]
    fn a_sweep_holds_the_lock_of_a_process_whose_places_it_removes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("locks.db");
        let address = Address { busy_timeout: Duration::ZERO, ..Address::of(&path) };
        let shared = Shared::open(address).expect("a new database");
        shared.liveness_dir().expect("a new folder");
        let lock = folder.path().join("locks.db.live/0000000000000007.lock");
        let file = std::fs::File::create(&lock).expect("a liveness lock");
        let other = rusqlite::Connection::open(&path).expect("it is there");
        let place = "INSERT INTO place VALUES ('x', 1, zeroblob(16), 1, 1, 7, 0, '')";
        other.execute_batch(place).expect("a place of process 7");
        other.execute_batch("BEGIN IMMEDIATE").expect("nobody writes");
        let attempts = Arc::new(Mutex::new(Vec::new()));
        let tried = Arc::clone(&attempts);
        // The warning that the places cannot be removed yet.
        let log = holdline_testkit::on_event(tracing::Level::WARN, move |_| {
            let taken = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            tried.lock().push(taken);
        });
        tracing::subscriber::with_default(log, || shared.sweep());
        assert_eq!(*attempts.lock(), [Err(Errno::WOULDBLOCK)]);
        other.execute_batch("ROLLBACK").expect("it began");
        assert!(lock.exists(), "its places are still there");
        shared.sweep();
        assert!(!lock.exists());
    }

    /// The worker may begin it just when the last handle is dropped.
    #[test]
    fn no_monitor_starts_after_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let shared = shared(&folder);
        shared.own_lock().expect("a liveness lock");
        shared.close();
        shared.try_start_monitor();
        assert!(shared.monitor().is_none(), "nobody would end it");
        assert_eq!(shared.own(), None);
    }

    /// They are its parent's.
    #[test]
    fn a_forked_child_leaves_the_files_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let address = Address::of(folder.path().join("locks.db"));
        let mut shared = Shared::open(address).expect("a new database");
        let made = shared.visible_lock(&mut shared.process_state.lock());
        let own_lock = made.expect("a liveness lock").0;
        shared.executor.pid += 1;
        assert!(shared.in_opening_process().is_err_and(|it| it.kind() == ErrorKind::Invalid));
        shared.close();
        assert!(own_lock.is_visible(), "it is removed");
        let liveness_dir = shared.liveness_dir().expect("it is there");
        assert!(!liveness_dir.peer(own_lock.process).expect("it is there").is_free());
    }

    /// The worker may yet take a place in its name, which others then find dead.
    #[test]
    fn the_liveness_lock_of_a_store_that_still_works_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        for works in [true, false] {
            let shared = shared(&folder);
            let made = shared.visible_lock(&mut shared.process_state.lock());
            let process = made.expect("a liveness lock").0.process;
            let job = works.then(|| shared.executor.announce());
            shared.close();
            let liveness_dir = shared.executor.site.liveness_dir().expect("it is there");
            let is_free = liveness_dir.peer(process).map(|peer| peer.is_free());
            assert_eq!(is_free, works.then_some(true));
            drop(job);
        }
    }

    #[tokio::test]
    async fn a_waker_that_panics_ends_no_operation_of_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::open(folder.path().join("locks.db")).expect("a new database");
        let (mut first, mut second) = (pin!(file.list("")), pin!(file.list("")));
        {
            let _both_are_queued = file.shared().process_state.lock();
            let waker = Arc::new(Panics).into();
            assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert!(second.as_mut().now_or_never().is_none());
        }
        assert_eq!(second.await.expect("the worker goes on"), []);
        assert_eq!(first.await.expect("it was answered"), []);
        file.list("").await.expect("the worker goes on");
        assert!(file.shared().executor.idle(), "or all later writes go to the worker");
    }

    /// As the renewer's thread, which would keep the locks of other stores waiting.
    #[tokio::test]
    async fn a_background_thread_that_drops_the_last_handle_does_not_wait_for_the_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::open(folder.path().join("locks.db")).expect("a new database");
        file.list("").await.expect("the worker answers");
        let shared = Arc::clone(file.shared());
        let (dropped, told) = std::sync::mpsc::channel();
        {
            let _disk = shared.process_state.lock();
            let drop_it = async move {
                drop(file);
                let _ = dropped.send(());
            };
            crate::thread::start("a-test", || drop_it).expect("a thread");
            told.recv_timeout(Duration::from_secs(30)).expect("it does not wait");
        }
        while !shared.process_state.lock().closed {
            tokio::task::yield_now().await;
        }
    }
}
