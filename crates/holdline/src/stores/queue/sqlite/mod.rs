//! The store `sqlite:PATH`: lines of tickets in a file, for the processes of one machine.
//!
//! - `address` parses the URL, `database` opens the database, `schema` creates and checks its
//!   tables, `errors` converts errors, `machine` is the clock of its leases.
//! - `rows` keeps the kernel's places in tables, `evictions` the notes about evictions, and
//!   `operations` makes each operation a transaction.
//! - `executor` runs transactions, on the caller's thread or on a worker.
//! - `liveness` has a lock file per process, `monitor` is the thread that receives notices and
//!   detects dead processes, `observe` notifies observers of changes, and `shared` is the state of
//!   handles and threads. `sharing` is for several users.
//! - `examine` examines the file for `doctor`.
//!
//! A process sends notices directly to the sockets of the processes that it admits. Nothing depends
//! on their arrival: everything is decided in the database.

mod address;
mod database;
mod errors;
mod evictions;
#[cfg(feature = "doctor")]
mod examine;
mod executor;
mod liveness;
mod machine;
#[cfg(all(test, feature = "simulation"))]
mod model;
mod monitor;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod observe;
mod operations;
mod rows;
mod schema;
mod shared;
mod sharing;

pub use address::{MACHINE_PATH, default_path};

use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, Enter, Lines, LossHint, QueueSnapshot, Seq, Standing, Store,
    Subscription, Ticket, TicketId, refuse,
};
use crate::stores::queue;
use crate::sync::{Mutex, contained};
use crate::thread::in_background;
use address::Address;
use errors::refused;
#[cfg(feature = "doctor")]
pub(crate) use examine::examine;
use executor::Pending;
use liveness::OwnLock;
use operations::{Done, Entered, Outlook};
use rows::Owner;
use rusqlite::Connection;
use shared::Shared;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// A store in a file, shared by all processes of this machine that name the same file.
#[derive(Clone, Debug)]
pub struct File {
    handle: Arc<Handle>,
    /// Whether all that may touch the disk goes to the worker, so that a disk that hangs does not
    /// block the caller's thread. Such a handle renews and leaves; it does not begin to wait.
    worker_only: bool,
}

/// The state of all clones of a store. The threads hold only the shared part, so dropping the last
/// clone ends them.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    worker: Mutex<Option<Sender<(Job, Pending)>>>,
    /// Permits for the worker's queue.
    room: Arc<Semaphore>,
}

type Job = Box<dyn FnOnce(&Arc<Shared>, Pending) + Send>;

/// The capacity of the worker's queue; more operations wait in their own futures.
const QUEUE: usize = 1024;
/// The poll interval of a waiter without a socket to be woken by.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

impl File {
    /// Opens the store in this file, which is created if it does not exist. Its folder must exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Denied`] if the file cannot be written or created, [`ErrorKind::Corrupt`] if it
    /// is not a lock database of this version, [`ErrorKind::Unsupported`] on a network file system,
    /// or if the file has another name (a hard link).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        File::at(Address::of(path.as_ref()))
    }

    /// Opens the store at this URL: `sqlite:PATH` or `sqlite:///absolute/path`, optionally with
    /// `?mode=660`, `?group=NAME`, `?busy_timeout=2s` or `?network=allow`, joined by `&`.
    ///
    /// # Errors
    ///
    /// As [`File::open`], and [`ErrorKind::Invalid`] if the URL is invalid.
    pub fn open_url(url: &str) -> Result<Self> {
        File::at(Address::parse(url.strip_prefix("sqlite:").unwrap_or(url))?)
    }

    /// Opens the default file: see [`default_path`].
    ///
    /// # Errors
    ///
    /// As [`File::open`], and [`ErrorKind::Invalid`] if there is no default.
    pub fn open_default() -> Result<Self> {
        File::at(Address::default_file()?)
    }

    /// Lets programs executed by this process from now on inherit its liveness lock. The locks that
    /// it holds then last, without renewal, until the last of these programs has ended or their
    /// leases are over. Meant for an `exec` that replaces this process; a child started in this way
    /// keeps the locks of a parent that has died.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Denied`] if this process has no lock of this store, or the system refuses.
    pub fn inherit_by_exec(&self) -> Result<()> {
        self.shared().inherit_by_exec()
    }

    fn at(address: Address) -> Result<Self> {
        let shared = Arc::new(Shared::open(address)?);
        let room = Arc::new(Semaphore::new(QUEUE));
        let handle = Arc::new(Handle { shared, worker: Mutex::new(None), room });
        Ok(File { handle, worker_only: false })
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Runs a transaction: at once if possible, otherwise on the worker.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl Fn(&Shared, &Connection) -> rusqlite::Result<Done<T>> + Send + 'static,
    ) -> Result<T> {
        let shared = self.shared();
        shared.in_opening_process()?;
        let done = if self.worker_only {
            None
        } else {
            shared.executor.try_write(|conn| work(shared, conn))
        };
        let Some(done) = done else { return self.run_on_worker(work).await };
        let value = shared.deliver(done?);
        if shared.executor.take_checkpoint() {
            self.checkpoint_on_worker();
        }
        Ok(value)
    }

    /// Checkpoints the log after the notices have been sent, and on the worker.
    fn checkpoint_on_worker(&self) {
        let job = |shared: &Arc<Shared>, pending| {
            drop(pending); // no operation
            shared.executor.checkpoint();
        };
        if let Err((_, job)) = self.handle.send(Box::new(job)) {
            self.handle.run(job);
        }
    }

    /// Runs a transaction on the worker, unless its future is dropped before it begins.
    async fn run_on_worker<T: Send + 'static>(
        &self,
        work: impl Fn(&Shared, &Connection) -> rusqlite::Result<Done<T>> + Send + 'static,
    ) -> Result<T> {
        let limit = self.shared().executor.limit();
        self.on_worker(move |shared, wanted| {
            shared.executor.run_with_retry(limit, wanted, |conn| work(shared, conn))
        })
        .await
    }

    /// Runs work on the worker, unless its future is dropped before it begins; afterwards it may be
    /// no longer `wanted`.
    async fn on_worker<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Shared>, &dyn Fn() -> bool) -> Result<Done<T>> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let room = Arc::clone(&self.handle.room).acquire_owned().await;
        let job = move |shared: &Arc<Shared>, pending| {
            let wanted = || !reply.is_closed();
            let done = wanted().then(|| work(shared, &wanted));
            drop((pending, room)); // before the reply: the next operation need not come here
            if let Some(done) = done {
                let _ = reply.send(done.map(|done| shared.deliver(done)));
            }
            if shared.executor.take_checkpoint() {
                shared.executor.checkpoint();
            }
        };
        if let Err((error, job)) = self.handle.send(Box::new(job)) {
            if !self.worker_only {
                return Err(error);
            }
            self.handle.run(job); // a renewal that may block its thread is better than none
        }
        answer.await.unwrap_or_else(|_| {
            let path = self.shared().executor.site.name.display();
            let message = format!("the thread that writes the lock database {path} has panicked");
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    async fn try_enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Entered> {
        let (line, ticket, note) = (line.clone(), *ticket, Some(Arc::clone(note)));
        let enter = move |shared: &Shared, conn: &Connection, own_lock: &Arc<OwnLock>| {
            let owner = Owner { process: own_lock.process, note: note.clone() };
            let done = operations::enter(conn, &line, &ticket, how, &owner)?;
            shared.note(&ticket, &done.value, own_lock);
            Ok(done)
        };
        if !self.worker_only {
            let own_lock = self.shared().own_lock()?;
            return self.ask(move |shared, conn| enter(shared, conn, &own_lock)).await;
        }
        self.shared().in_opening_process()?;
        let limit = self.shared().executor.limit();
        self.on_worker(move |shared, wanted| {
            let own_lock = shared.own_lock()?;
            shared.executor.run_with_retry(limit, wanted, |conn| enter(shared, conn, &own_lock))
        })
        .await
    }

    /// Starts the monitor, to receive notice of an eviction from a lock that is held for a long
    /// time.
    fn expect_evictions(&self) {
        let shared = self.shared();
        if !self.worker_only {
            shared.try_start_monitor();
        } else if !shared.surely_has_monitor() {
            let job = |shared: &Arc<Shared>, pending| {
                drop(pending); // no operation
                shared.try_start_monitor();
            };
            drop(self.handle.send(Box::new(job))); // the next renewal tries again
        }
    }

    /// Removes the places of the dead processes among these. Returns whether there were any, or
    /// another process may have removed them.
    async fn remove_dead(&self, processes: &[rows::Process]) -> Result<bool> {
        let (dead, missing) = self.shared().dead_of(processes)?;
        let any = missing || !dead.is_empty();
        for process in dead {
            while self.ask(move |_, conn| operations::remove_places_of(conn, process)).await? {}
            self.shared().clear(process);
        }
        Ok(any)
    }
}

impl Handle {
    /// Queues a job for the worker, which is started if need be. A job that cannot be queued is
    /// returned.
    fn send(&self, job: Job) -> Result<(), (Error, Job)> {
        let mut worker = self.worker.lock();
        if worker.is_none() {
            match self.start_worker() {
                Ok(jobs) => *worker = Some(jobs),
                Err(error) => return Err((error, job)),
            }
        }
        // Counted before the lock is released, so that no later operation overtakes it.
        let job = (job, self.shared.executor.announce());
        worker.as_ref().expect("it runs").send(job).expect("it runs as long as it has a sender");
        Ok(())
    }

    fn start_worker(&self) -> Result<Sender<(Job, Pending)>> {
        let (jobs, inbox) = mpsc::channel::<(Job, Pending)>();
        let shared = Arc::clone(&self.shared);
        let started =
            std::thread::Builder::new().name("holdline-file".to_owned()).spawn(move || {
                for (job, pending) in inbox {
                    // Its caller's waker may panic.
                    contained(|| job(&shared, pending));
                }
            });
        let path = &self.shared.executor.site.name;
        started.map_err(|error| refused("start the thread that writes", path, error))?;
        Ok(jobs)
    }

    /// Runs a job on this thread.
    fn run(&self, job: Job) {
        job(&self.shared, self.shared.executor.announce());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The renewer may be the last user. It must not wait for the disk, and nearly always has a
        // worker.
        let worker = if in_background() { self.worker.lock().take() } else { None };
        let left = worker.is_some_and(|worker| {
            let close: Job = Box::new(|shared, pending| {
                drop(pending); // no operation
                shared.close();
            });
            worker.send((close, self.shared.executor.announce())).is_ok()
        });
        if !left {
            self.shared.close();
        }
    }
}

impl AsyncStore for File {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        // The monitor is needed only if the ticket has to wait, so the first attempt goes without.
        let quick =
            if how == Enter::Queue && self.shared().monitor().is_none() { Enter::Try } else { how };
        let mut entered = self.try_enter(line, ticket, note, quick).await?;
        let refused = matches!(entered.outcome, Ok(Standing::Waiting { seq: None, .. }));
        if refused && how == Enter::Queue {
            if let Err(error) = self.shared().start_monitor() {
                tracing::warn!(%error, "no thread or socket for wakes; waiting by looking often");
            }
            entered = self.try_enter(line, ticket, note, how).await?;
        } else if refused && self.remove_dead(&entered.blockers).await? {
            entered = self.try_enter(line, ticket, note, how).await?;
        }
        match entered.outcome.map_err(|refusal| refuse(line, ticket, refusal))? {
            Standing::Admitted(seq) => {
                if matches!(how, Enter::Keep(_)) {
                    self.expect_evictions();
                }
                Ok(Standing::Admitted(seq))
            }
            Standing::Waiting { seq: Some(seq), again } => {
                let again = if self.shared().has_inbox() { again } else { again.min(LOOK_AGAIN) };
                Ok(Standing::Waiting { seq: Some(seq), again })
            }
            other => Ok(other),
        }
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let name = line.clone();
        self.ask(move |shared, conn| {
            let done = operations::leave(conn, &name, id)?;
            shared.forget(id);
            Ok(done)
        })
        .await
    }

    async fn watch(&self, line: &Name, id: TicketId) -> Result<Option<Seq>> {
        let entry = self.shared().register_wait(line, id)?;
        let outlook = {
            let line = line.clone();
            self.ask(move |_, conn| operations::outlook(conn, &line, id)).await?
        };
        let Outlook::Waits(processes) = outlook else { return Ok(None) };
        entry.watch(processes);
        Ok(self.shared().waiters.wait(id).await)
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let line = line.clone();
        let shared = self.shared();
        shared.in_opening_process()?;
        // Not behind the worker, which may be waiting for the write lock.
        let done = shared
            .executor
            .try_read(|conn| operations::snapshot(conn, &line, &mut shared.liveness_check()));
        if let Some(done) = done {
            return Ok(done?.value);
        }
        self.run_on_worker(move |shared, conn| {
            operations::snapshot(conn, &line, &mut shared.liveness_check())
        })
        .await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let prefix = prefix.to_owned();
        self.shared().in_opening_process()?;
        // There may be very many locks: too slow for the caller's thread.
        self.run_on_worker(move |shared, conn| {
            operations::list(conn, &prefix, &mut shared.liveness_check())
        })
        .await
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let (name, note) = (line.clone(), note.to_owned());
        self.ask(move |_, conn| operations::evict(conn, &name, id, &note)).await
    }

    /// Listens to the kernel's file notifications, if available.
    fn subscribe(&self, _lines: &Lines) -> Subscription {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        return self.shared().observers.subscribe(&self.shared().executor.site);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        Subscription::none()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { crash_release: true, survives_restart: true, ..queue::CAPABILITIES }
    }

    fn background_handle(&self) -> Self {
        // It shares the connection: one that is stuck waits for the write lock, as another would.
        // But a disk that hangs must not block the renewer, which renews other stores' locks too.
        File { worker_only: true, ..self.clone() }
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        self.shared().waiters.loss.set(loss_hint);
    }

    fn address(&self) -> String {
        format!("sqlite:{}", self.shared().executor.site.name.display())
    }
}

/// Opens the default file.
pub(crate) fn open_default() -> Result<Arc<dyn Store>> {
    Ok(Arc::new(File::open_default()?))
}

/// Opens the store for the part of a URL after `sqlite:`.
pub(crate) fn open(rest: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(File::open_url(rest)?))
}
