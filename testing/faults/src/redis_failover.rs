//! A fault run behind sentinels: the primary dies while its replica lags behind, and the replica
//! takes over without the newest places. Exclusion is not promised then; tokens are.

use crate::breakages::INSTANT;
use crate::client::opened;
use crate::inject::{Breakage, Fault};
use crate::redis::{LEASE, forgetful, strict};
use crate::run::Run;
use crate::{Case, cases};
use holdline_checker::{Expect, FaultKind};
use holdline_testkit::redis::{Server, private, sentinels};
use holdline_testkit::wait_until;
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) const CASES: &[Case] = cases![redis_failover, redis_failover_loses_a_lock_and_fences_it];

/// Two servers behind three sentinels.
struct Topology {
    /// The servers; the first is the current primary.
    pair: Mutex<[Server; 2]>,
    watchers: Vec<Server>,
    url: String,
}

impl Topology {
    fn both(&self) -> MutexGuard<'_, [Server; 2]> {
        self.pair.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the replica lag: it asks in vain for new data, and keeps its own.
    fn lag(&self) {
        let replica = &self.both()[1];
        wait_until("it lags", || ask::<()>(replica, &["REPLICAOF", "127.0.0.1", "1"]).is_some());
    }

    /// Whether all sentinels have agreed on this primary.
    fn agreed(&self, primary: &Server) -> bool {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"];
        let named =
            |one| ask::<(String, u16)>(one, &words).is_some_and(|at| at.1 == primary.port());
        self.watchers.iter().all(named)
    }
}

struct Failover(Arc<Topology>);

/// Makes the killed server follow the other, which has taken over.
struct Rejoin(Arc<Topology>);

/// Asks a server. Sentinels close the connections of a server whose role they change.
fn ask<T: redis::FromRedisValue>(server: &Server, words: &[&str]) -> Option<T> {
    let mut conn = server.client().get_connection().ok()?;
    redis::cmd(words[0]).arg(&words[1..]).query(&mut conn).ok()
}

fn says(server: &Server, words: &str) -> bool {
    ask(server, &["INFO", "replication"]).is_some_and(|text: String| text.contains(words))
}

fn follow(replica: &Server, primary: &Server) {
    let port = primary.port().to_string();
    wait_until("it is told whom to follow", || {
        ask::<()>(replica, &["REPLICAOF", "127.0.0.1", &port]).is_some()
    });
    wait_until("the replica follows", || says(replica, "master_link_status:up"));
}

impl Breakage for Failover {
    fn kind(&self) -> FaultKind {
        FaultKind::Failover
    }

    fn span(&self) -> (f64, f64) {
        INSTANT
    }

    fn start(&self) -> Box<dyn Any> {
        self.0.lag();
        std::thread::sleep(LEASE / 3);
        Box::new(self.kill())
    }
}

impl Failover {
    fn kill(&self) -> Rejoin {
        self.0.both()[0].kill();
        Rejoin(Arc::clone(&self.0))
    }
}

impl Drop for Rejoin {
    fn drop(&mut self) {
        let pair = &mut *self.0.both();
        wait_until("the replica takes over", || {
            says(&pair[1], "role:master") && self.0.agreed(&pair[1])
        });
        pair.swap(0, 1);
        pair[1].restart();
        let port = pair[0].port().to_string();
        let _: Option<()> = ask(&pair[1], &["REPLICAOF", "127.0.0.1", &port]);
        // On a busy machine the sentinels may reconsider, and swap the roles once more.
        wait_until("there is a primary, and a replica that follows", || {
            if self.0.agreed(&pair[1]) {
                pair.swap(0, 1);
            }
            self.0.agreed(&pair[0])
                && says(&pair[0], "role:master")
                && says(&pair[1], "master_link_status:up")
        });
    }
}

fn topology(test: &str) -> Option<Arc<Topology>> {
    let (primary, replica) = (private(test, &[])?, private(test, &[])?);
    follow(&replica, &primary);
    let (watchers, url) = sentinels(primary.port())?;
    Some(Arc::new(Topology { pair: Mutex::new([primary, replica]), watchers, url }))
}

/// Leases outlive the failover, so that two can hold.
const LONG_LEASE: Duration = Duration::from_secs(5);

fn redis_failover() {
    let Some(topology) = topology("redis_failover") else { return };
    let unpromised = vec![forgetful(FaultKind::Failover)];
    // Long sections make few grants.
    let vacuity = Expect { min_acquires: 30, min_share_percent: 0, ..strict() };
    let run = Run::new("redis_failover", topology.url.clone(), Expect { unpromised, ..vacuity });
    let faults = vec![Fault::Store(vec![Arc::new(Failover(topology))])];
    let (time, work) = (run.time.mul_f64(1.5), Duration::from_secs(1));
    Run { faults, time, work, lease: LONG_LEASE, pace: 0, ..run }.go().must_be_ok();
}

/// What no failover can promise (see GUARANTEES.md): a lock that the replica did not have yet is
/// given to another. G3: the token tells the resource which is newer; G4: the holder is told.
fn redis_failover_loses_a_lock_and_fences_it() {
    let Some(topology) = topology("redis_failover") else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = || runtime.block_on(opened(&topology.url));
    let (one, two) = (client(), client());
    let mutex = |client| holdline::Mutex::new(client, "x").lease(Duration::from_secs(30));
    let fence = holdline::Fence::default();
    topology.lag();
    let old = runtime.block_on(mutex(&one).lock()).unwrap();
    drop(Failover(Arc::clone(&topology)).kill());
    fence.check(old.token()).unwrap();
    let next = runtime.block_on(mutex(&two).lock_within(Duration::from_secs(20))).unwrap();
    let next = next.expect("nobody has it on the new primary");
    assert!(next.token() > old.token());
    fence.check(next.token()).unwrap();
    fence.check(old.token()).expect_err("the older is refused");
    runtime.block_on(async { tokio::time::timeout(LONG_LEASE * 3, old.lost()).await }).unwrap();
    drop(old);
    runtime.block_on(next.unlock()).expect("held to the end");
}
