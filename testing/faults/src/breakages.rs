//! Breakages of a store: an action on its servers or on the links to them, and its reversal. Each
//! store's module has its parts.

use crate::inject::Breakage;
use holdline_checker::FaultKind;
use holdline_testkit::{Link, Server, Way, redis};
use std::any::Any;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A breakage of a part that can be repaired.
pub(crate) struct Reversible<T> {
    pub(crate) kind: FaultKind,
    /// The duration, in leases.
    pub(crate) duration: (f64, f64),
    pub(crate) part: Arc<T>,
    pub(crate) breaks: fn(&T),
    pub(crate) repairs: fn(&T),
}

/// Undoes a breakage when it is dropped.
struct Undo<T> {
    part: Arc<T>,
    repairs: fn(&T),
}

impl<T> Drop for Undo<T> {
    fn drop(&mut self) {
        (self.repairs)(&self.part);
    }
}

impl<T: Send + Sync + 'static> Breakage for Reversible<T> {
    fn kind(&self) -> FaultKind {
        self.kind.clone()
    }

    fn span(&self) -> (f64, f64) {
        self.duration
    }

    fn start(&self) -> Box<dyn Any> {
        // A panic halfway repairs it as well.
        let undo = Undo { part: Arc::clone(&self.part), repairs: self.repairs };
        (self.breaks)(&self.part);
        Box::new(undo)
    }
}

/// The same breakage on several nodes: on each in turn, and every other time on two at once.
pub(crate) struct Nodes {
    each: Vec<Arc<dyn Breakage>>,
    turn: AtomicUsize,
}

impl Nodes {
    pub(crate) fn up_to_two(each: Vec<Arc<dyn Breakage>>) -> Arc<dyn Breakage> {
        Arc::new(Nodes { each, turn: AtomicUsize::new(0) })
    }
}

impl Breakage for Nodes {
    fn kind(&self) -> FaultKind {
        self.each[0].kind()
    }

    fn span(&self) -> (f64, f64) {
        self.each[0].span()
    }

    fn start(&self) -> Box<dyn Any> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let nodes = self.each.iter().cycle().skip(turn % self.each.len()).take(1 + turn % 2);
        Box::new(nodes.map(|node| node.start()).collect::<Vec<_>>())
    }
}

/// A fault that the checker has no word for.
pub(crate) fn kind(word: &str) -> FaultKind {
    FaultKind::Other(word.to_owned())
}

/// A duration shorter than a lease, so that a holder can keep its lock.
pub(crate) const SHORT: (f64, f64) = (0.1, 0.7);
/// A duration longer than a lease, so that no holder can.
pub(crate) const LONG: (f64, f64) = (1.2, 2.0);
/// No duration beyond that of the action.
pub(crate) const INSTANT: (f64, f64) = (0.0, 0.0);

/// A server that several breakages may act on, one at a time.
pub(crate) type Shared<T> = Arc<Mutex<T>>;

pub(crate) fn lock<T>(process: &Mutex<T>) -> MutexGuard<'_, T> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A store's server, of any kind.
pub(crate) trait Process: DerefMut<Target = Server> + Send + 'static {}

impl<T: DerefMut<Target = Server> + Send + 'static> Process for T {}

/// The server crashes, and comes back with its data.
pub(crate) fn restarts<T: Process>(process: &Shared<T>) -> Arc<dyn Breakage> {
    Arc::new(Reversible {
        kind: FaultKind::StoreRestart,
        duration: (0.0, 0.5),
        part: Arc::clone(process),
        breaks: |process| lock(process).kill(),
        repairs: |process| {
            Server::restart(&mut lock(process)).unwrap_or_else(|why| panic!("{why}"));
        },
    })
}

/// The server crashes, and comes back without its data after a while.
pub(crate) fn forgets(process: &Shared<redis::Server>, duration: (f64, f64)) -> Arc<dyn Breakage> {
    Arc::new(Reversible {
        kind: kind("restart_empty"),
        duration,
        part: Arc::clone(process),
        breaks: |process| lock(process).kill(),
        repairs: |process| {
            let mut process = lock(process);
            process.forget();
            process.restart();
        },
    })
}

/// The server is stopped, for less than a lease and for more than one.
pub(crate) fn stops<T: Process>(process: &Shared<T>) -> Vec<Arc<dyn Breakage>> {
    let stops = |word: &str, duration| -> Arc<dyn Breakage> {
        Arc::new(Reversible {
            kind: kind(word),
            duration,
            part: Arc::clone(process),
            breaks: |process| lock(process).pause(),
            repairs: |process| lock(process).resume(),
        })
    };
    vec![stops("server_stop_short", SHORT), stops("server_stop_long", LONG)]
}

/// All breakages of a link: cut, stalled either way, slow, and with replies lost after the server
/// has acted.
pub(crate) fn links(link: &Arc<Link>) -> Vec<Arc<dyn Breakage>> {
    let breakage = |kind, duration, breaks| -> Arc<dyn Breakage> {
        Arc::new(Reversible { kind, duration, part: Arc::clone(link), breaks, repairs: Link::mend })
    };
    vec![
        breakage(FaultKind::Partition, (0.1, 1.5), Link::cut),
        breakage(kind("requests_stalled"), (0.1, 1.5), |link| link.stall(Way::Requests)),
        breakage(kind("replies_stalled"), (0.1, 1.5), |link| link.stall(Way::Replies)),
        breakage(FaultKind::Slow, (0.2, 1.0), |link| link.delay(Duration::from_millis(40))),
        breakage(kind("replies_lost"), (0.1, 0.2), |link| {
            for _ in 0..4 {
                link.lose_next_reply();
            }
        }),
    ]
}
