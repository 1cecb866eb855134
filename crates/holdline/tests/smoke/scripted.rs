//! A store that answers as a test says, and logs the requests.

use holdline::store::{
    AsyncStore, Capabilities, Enter, Eviction, LossHint, QueueSnapshot, Seq, Standing, Store,
    Ticket, TicketId,
};
use holdline::{Client, Error, ErrorKind, Name, Result};
use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The answer to one request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Is(Standing),
    After(Duration, Standing),
    Fails(ErrorKind),
    Panics,
    Never,
}

/// An answer that the ticket is admitted.
pub(super) const ADMITTED: Answer = Answer::Is(Standing::Admitted(Seq(7)));

/// An answer that the ticket has no place; a schedule says when to ask again.
pub(super) const HELD_BY_OTHERS: Answer = waits(None, Duration::ZERO);

/// An answer that the ticket waits.
pub(super) const fn waits(seq: Option<Seq>, again: Duration) -> Answer {
    Answer::Is(Standing::Waiting { seq, again })
}

/// The answer to each entry, given how many there were before.
type Script = dyn Fn(usize, Enter) -> Answer + Send + Sync;

/// A store that a test scripts. Clones share the script and the log.
#[derive(Clone)]
pub(super) struct Scripted(Arc<Plan>);

struct Plan {
    script: Box<Script>,
    entries: Mutex<Vec<Ticket>>,
    departures: AtomicUsize,
    /// The errors of the next departures.
    failures: Mutex<Vec<ErrorKind>>,
    notice: Option<Seq>,
    evictions: Mutex<Vec<Eviction>>,
    snapshots: AtomicUsize,
}

impl Scripted {
    pub(super) fn new(script: impl Fn(usize, Enter) -> Answer + Send + Sync + 'static) -> Self {
        Scripted::with_notice(None, script)
    }

    /// A store whose notices prove the admission of this place.
    pub(super) fn with_notice(
        notice: Option<Seq>,
        script: impl Fn(usize, Enter) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Scripted(Arc::new(Plan {
            script: Box::new(script),
            entries: Mutex::default(),
            departures: AtomicUsize::new(0),
            failures: Mutex::default(),
            notice,
            evictions: Mutex::default(),
            snapshots: AtomicUsize::new(0),
        }))
    }

    pub(super) fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()))
    }

    /// The tickets of all entries so far.
    pub(super) fn entries(&self) -> Vec<Ticket> {
        self.0.entries.lock().expect("no panic").clone()
    }

    /// The number of departures so far.
    pub(super) fn departures(&self) -> usize {
        self.0.departures.load(Ordering::SeqCst)
    }

    /// The number of snapshots so far.
    pub(super) fn snapshots(&self) -> usize {
        self.0.snapshots.load(Ordering::SeqCst)
    }

    /// Makes the next departures fail.
    pub(super) fn departures_fail(&self, kinds: &[ErrorKind]) {
        *self.0.failures.lock().expect("no panic") = kinds.to_vec();
    }

    /// Adds an eviction to the snapshots.
    pub(super) fn evicted(&self, id: TicketId) {
        let eviction = Eviction { id, note: Arc::from("") };
        self.0.evictions.lock().expect("no panic").push(eviction);
    }
}

fn failed<T>(kind: ErrorKind) -> Result<T> {
    Err(Error::new(kind, "the script says so"))
}

impl AsyncStore for Scripted {
    async fn enter(&self, _: &Name, ticket: &Ticket, _: &Arc<str>, how: Enter) -> Result<Standing> {
        let before = {
            let mut entries = self.0.entries.lock().expect("no panic");
            entries.push(*ticket);
            entries.len() - 1
        };
        match (self.0.script)(before, how) {
            Answer::Is(standing) => Ok(standing),
            Answer::After(time, standing) => {
                tokio::time::sleep(time).await;
                Ok(standing)
            }
            Answer::Fails(kind) => failed(kind),
            Answer::Panics => panic!("the script says so"),
            Answer::Never => pending().await,
        }
    }

    async fn leave(&self, _: &Name, _: TicketId) -> Result<bool> {
        self.0.departures.fetch_add(1, Ordering::SeqCst);
        match self.0.failures.lock().expect("no panic").pop() {
            Some(kind) => failed(kind),
            None => Ok(true),
        }
    }

    async fn watch(&self, _: &Name, _: TicketId) -> Result<Option<Seq>> {
        match self.0.notice {
            Some(seq) => Ok(Some(seq)),
            None => pending().await,
        }
    }

    async fn snapshot(&self, _: &Name) -> Result<QueueSnapshot> {
        self.0.snapshots.fetch_add(1, Ordering::SeqCst);
        let evictions = self.0.evictions.lock().expect("no panic").clone();
        Ok(QueueSnapshot { evictions, ..QueueSnapshot::default() })
    }

    async fn list(&self, _: &str) -> Result<Vec<Name>> {
        Ok(Vec::new())
    }

    async fn evict(&self, _: &Name, _: TicketId, _: &str) -> Result<Option<Seq>> {
        Ok(None)
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
            survives_restart: false,
            lease_min: Duration::from_millis(100),
            lease_max: Duration::from_secs(24 * 3600),
        }
    }

    fn background_handle(&self) -> Self {
        self.clone()
    }

    fn on_loss_hint(&self, _: LossHint) {}

    fn address(&self) -> String {
        "scripted:".to_owned()
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scripted").field(&Store::address(self)).finish()
    }
}
