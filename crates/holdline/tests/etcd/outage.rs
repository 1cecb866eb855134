//! Outages: waiters ride them out, in order; and what does not wait is answered in time.

use futures_util::future::join_all;
use holdline::{Client, Election, Guard, Mutex};
use holdline_testkit::etcd::{Servers, start};
use holdline_testkit::flaky_links::{Cut, FlakyLinks};
use holdline_testkit::{soon, until};
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Cell, PoisonError};
use std::time::{Duration, Instant};

const WAITERS: usize = 8;
const STANDBYS: usize = 4;

/// What all of them share.
#[derive(Default)]
struct Setup {
    over: AtomicBool,
    /// The last who was let in, and how often anybody was.
    last: Cell<Option<Arc<Guard>>>,
    grants: AtomicU64,
    /// How often each of the observers has seen somebody lead.
    seen: AtomicU64,
}

impl Setup {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Takes note of somebody who was let in: alone, and with a higher token.
    fn admit(&self, guard: Guard) -> Arc<Guard> {
        let guard = Arc::new(guard);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = &*last {
            assert!(!before.is_valid() || !guard.is_valid(), "two hold it");
            assert!(before.token() < guard.token(), "a token went back");
        }
        *last = Some(Arc::clone(&guard));
        self.grants.fetch_add(1, Ordering::SeqCst);
        guard
    }
}

/// Wants the lock again and again. A task that ends before it is over has failed.
async fn wait_again(client: Client, setup: Arc<Setup>) {
    let lock = Mutex::new(&client, "x");
    while !setup.is_over() {
        let guard = lock.lock().await.expect("it rides the outage out");
        let guard = setup.admit(guard);
        tokio::time::sleep(Duration::from_millis(30)).await;
        setup.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(guard) = Arc::into_inner(guard) {
            let _ = guard.unlock().await; // lost, perhaps
        }
    }
}

async fn stand_by(client: Client, setup: Arc<Setup>, number: usize) {
    let election = Election::new(&client, "boss");
    while !setup.is_over() {
        let leader = election.campaign(format!("{number}")).await.expect("it goes on");
        tokio::time::sleep(Duration::from_millis(700)).await;
        let _ = leader.resign().await; // lost, perhaps
    }
}

async fn observe(client: Client, setup: Arc<Setup>) {
    let mut observer = Election::new(&client, "boss").observe().every(Duration::from_millis(50));
    while !setup.is_over() {
        let leader = observer.next().await.expect("it goes on");
        setup.seen.fetch_add(u64::from(leader.is_some()), Ordering::SeqCst);
    }
}

/// The faults, one after the other, while all of them wait. After each of them everything goes on.
async fn through(mut servers: Servers, faults: &[Fault]) {
    let setup = Arc::new(Setup::default());
    let mut tasks = Vec::new();
    for number in 0..WAITERS {
        tasks.push(tokio::spawn(wait_again(servers.client().await, Arc::clone(&setup))));
        if number < STANDBYS {
            let client = servers.client().await;
            tasks.push(tokio::spawn(stand_by(client, Arc::clone(&setup), number)));
            tasks.push(tokio::spawn(observe(servers.client().await, Arc::clone(&setup))));
        }
    }
    let count = servers.hosts().len();
    for fault in faults {
        goes_on(&setup, &tasks).await;
        match fault {
            Fault::Frozen(time) => {
                (0..count).for_each(|at| servers.signal(at, Signal::STOP));
                tokio::time::sleep(*time).await;
                (0..count).for_each(|at| servers.signal(at, Signal::CONT));
            }
            Fault::Down(time) => {
                (0..count).for_each(|at| servers.kill(at));
                tokio::time::sleep(*time).await;
                servers.restart_all();
            }
        }
    }
    goes_on(&setup, &tasks).await;
    setup.over.store(true, Ordering::SeqCst);
    // An observer who sees no change goes on until it is dropped.
    for task in tasks {
        task.abort();
        let ended = soon("its end", task).await;
        assert!(ended.is_ok() || ended.is_err_and(|error| error.is_cancelled()), "it failed");
    }
}

enum Fault {
    Frozen(Duration),
    Down(Duration),
}

/// Waits until all have gone on: waiters several times each, and leaders that are seen.
async fn goes_on(setup: &Setup, tasks: &[tokio::task::JoinHandle<()>]) {
    let count = || (setup.grants.load(Ordering::SeqCst), setup.seen.load(Ordering::SeqCst));
    let (grants, seen) = count();
    until("all go on", async || {
        assert!(tasks.iter().all(|task| !task.is_finished()), "somebody gave up");
        count().0 >= grants + 3 * WAITERS as u64 && count().1 >= seen + STANDBYS as u64
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_ride_out_one_server_that_is_away() {
    let Some(servers) = start(1) else { return };
    let seconds = Duration::from_secs;
    let faults = [Fault::Down(seconds(2)), Fault::Frozen(seconds(12)), Fault::Frozen(seconds(30))];
    through(servers, &faults).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_ride_out_three_servers_that_are_away() {
    let Some(servers) = start(3) else { return };
    let seconds = Duration::from_secs;
    let faults = [Fault::Down(seconds(2)), Fault::Frozen(seconds(12)), Fault::Frozen(seconds(30))];
    through(servers, &faults).await;
}

/// A server that accepts and says nothing, and one that has fallen silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_is_told_in_time() {
    let Some(servers) = start(1) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    let (fresh, used) = (flaky.client().await, flaky.client().await);
    Mutex::new(&used, "x").lock().await.expect("there").unlock().await.expect("held");
    flaky.cut(Cut::Silence);
    for client in [fresh, used] {
        let lock = Mutex::new(&client, "x");
        // With the default of 1.8 s. What is on top of that is the machine's.
        let limit = Duration::from_millis(2300);
        let began = Instant::now();
        let (tried, seen, listed, within) = tokio::join!(
            lock.try_lock(),
            client.inspect("x"),
            client.list(""),
            lock.lock_within(Duration::from_millis(1500)),
        );
        assert!(tried.is_err() && seen.is_err() && listed.is_err());
        assert!(!within.is_ok_and(|guard| guard.is_some()));
        assert!(began.elapsed() < limit, "{:?}", began.elapsed());
    }
    flaky.mend();
}

/// A member of three that says nothing costs those who do not wait less than their bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_member_of_three_is_passed_over_in_time() {
    let Some(servers) = start(3) else { return };
    let tries = (0..3).map(async |silent: usize| {
        let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
        let client = flaky.client().await;
        flaky.links[silent].stall(holdline_testkit::Way::Both);
        client.inspect("x").await.expect("the others answer");
    });
    join_all(tries).await;
}
