//! The shared state of an etcd store's handles: the cluster, sessions, tickets and watches.

use super::address::Address;
use super::layout;
use super::sessions::Sessions;
use super::ticket_record::{KeyEntry, Record};
use super::together::Questions;
use super::transfer::Departures;
use super::writes::Late;
use crate::error::Result;
use crate::store::{Lines, Subscription};
use crate::stores::ephemeral::backend::Backend;
use crate::stores::ephemeral::engine;
use crate::stores::ephemeral::table::Table;
use crate::stores::ephemeral::ticket::State;
use crate::stores::ephemeral::view::Watched;
use crate::stores::runtime::Background;
use holdline_etcd_client::{Callback, Cluster, News, Watcher};
use holdline_kernel::Time;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The state that a store's handles share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: Address,
    pub(super) cluster: Arc<Cluster>,
    pub(super) watcher: Arc<Watcher>,
    pub(super) sessions: Sessions,
    /// Leases are granted one at a time, or a start would grant many. Only tasks wait for it or
    /// hold it.
    pub(super) granting: tokio::sync::Mutex<()>,
    pub(super) table: Table<KeyEntry>,
    pub(super) departures: Departures,
    pub(super) questions: Questions,
    /// Keys that must not be created (again), but might be.
    pub(super) late: Late,
    /// Limits concurrent deletions, as far as their callers poll them.
    pub(super) leaving: Semaphore,
    /// Whether the URL's user may read only what is under a lock's own prefix.
    pub(super) narrow: AtomicBool,
}

/// The most keys that are watched one by one.
const FEW: usize = 4;
/// The most concurrent writes of keys. More would only wait in the server.
const ENTERING: usize = 128;
/// The most concurrent deletions.
const LEAVING: usize = 256;

/// The runtime of all etcd stores of this process.
pub(super) static BACKGROUND: Background = Background::new("etcd");

impl Shared {
    /// # Errors
    /// An error means that a certificate or a host of the address is unusable, or that the system
    /// cannot start a thread.
    pub(super) fn new(address: Address) -> Result<Arc<Self>> {
        let (servers, tls) = (address.servers.clone(), address.tls()?);
        let cluster = Arc::new(Cluster::new(servers, tls, address.to_string())?);
        BACKGROUND.start()?;
        let watcher = Watcher::new(Arc::clone(&cluster));
        BACKGROUND.spawn(Watcher::run(Arc::downgrade(&watcher)));
        let shared = Arc::new(Shared {
            address,
            cluster,
            watcher,
            sessions: Sessions::default(),
            granting: tokio::sync::Mutex::new(()),
            table: Table::new(ENTERING),
            departures: Departures::default(),
            questions: Questions::default(),
            late: Late::default(),
            leaving: Semaphore::new(LEAVING),
            narrow: AtomicBool::new(false),
        });
        engine::start_janitor(&shared);
        Ok(shared)
    }

    /// Watches a held ticket's own key, to notice its loss.
    fn watch_own(&self, record: &Record) {
        if record.with(|place| place.entry.view.turn_to_own(place.state == State::Held)) {
            let (key, create) = record.key();
            let watching = self.watcher.watch(&key, Vec::new(), create + 1, self.callback(record));
            drop(record.watch_by(vec![watching]));
        }
    }

    /// One watch on all keys of these lines, on the same stream as the others.
    pub(super) fn subscribe(&self, lines: &Lines) -> Subscription {
        let root = &self.address.prefix;
        let start = match lines {
            Lines::Named(line) => layout::prefix(root, line),
            Lines::Prefix(prefix) => format!("{root}{prefix}").into_bytes(),
        };
        let range_end = layout::end(&start);
        let key = if start.is_empty() { vec![0] } else { start };
        let (notifier, subscription) = Subscription::new();
        let callback = Box::new(move |news: News<'_>| match news {
            News::From(_) => notifier.begin(),
            News::Event(_) | News::Gap => notifier.changed(),
            News::Silence => {} // observers look now and then in any case
        });
        let watching = self.watcher.watch(&key, range_end, 0, callback);
        subscription.complete().keep(watching)
    }

    fn callback(&self, record: &Record) -> Callback {
        let (record, loss) = (Arc::downgrade(record), self.table.loss.clone());
        Box::new(move |news| {
            if let Some(record) = record.upgrade() {
                record.apply(&news, &loss);
            }
        })
    }
}

impl Backend for Shared {
    type Entry = KeyEntry;

    fn table(&self) -> &Table<KeyEntry> {
        &self.table
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        BACKGROUND.spawn(task);
    }

    /// The time limit of one member: the others must have time while the lease lasts.
    fn limit(lease: Duration) -> Duration {
        (lease / 8).clamp(Duration::from_millis(200), Duration::from_secs(1))
    }

    fn look_after(self: &Arc<Self>, record: &Record, _now: Time) -> Time {
        self.watch_own(record);
        Time::NEVER
    }

    fn look_around(self: &Arc<Self>, now: Time) -> bool {
        let no_watch_lingers = self.watcher.tidy();
        self.sessions.tidy(now, &self.cluster);
        no_watch_lingers && self.sessions.is_empty()
    }

    /// Watches the ticket's own key and those ahead of it.
    fn watch_ahead(self: &Arc<Self>, record: &Record) {
        let (own, create, seen, ahead) = {
            let mut place = record.place();
            if place.entry.view.watched == Watched::Ahead || place.state != State::Waiting {
                return;
            }
            let view = &mut place.entry.view;
            view.watched = Watched::Ahead;
            let (ahead, seen) = (view.nearest(FEW + 1), view.seen());
            (place.entry.key.clone(), place.create, seen, ahead)
        };
        let (prefix, callback) = (&record.base.prefix, || self.callback(record));
        let watches = if ahead.len() > FEW {
            // The whole line at once, including its own key.
            vec![self.watcher.watch(prefix, layout::end(prefix), 0, callback())]
        } else {
            // Watches on keys that stay ahead are not recreated.
            drop(record.watch_by(Vec::new()));
            let light = layout::light(prefix);
            let watch = |key: &[u8], seen, from| {
                // A key of weight 1 can only be deleted.
                let puts = record.capacity > 1 && !key.starts_with(&light);
                self.watcher.watch_out((key, puts), seen, from, callback())
            };
            let own = watch(&own, create, create + 1);
            ahead.iter().map(|key| watch(key, seen, 0)).chain([own]).collect()
        };
        drop(record.watch_by(watches));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.sessions.end();
        self.watcher.close();
        self.table.nudge.notify_one();
    }
}
