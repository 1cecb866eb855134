//! Those who wait, stand by or observe go on after restarts and freezes of the servers.

use holdline::{Client, Election, Mutex, open};
use holdline_testkit::zookeeper::{Servers, start};
use holdline_testkit::{Server, contested, gives_up_on_a_frozen_server, persist, released, soon};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};

const WAITERS: usize = 6;
const STANDBYS: usize = 3;
const OBSERVERS: usize = 2;
/// For an election, a session that goes on after that, and a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Does something to all members while there are such, each with a client of its own.
async fn all_go_on(count: usize, befall: impl AsyncFn(&mut Servers)) {
    let Some(mut servers) = start(count) else { return };
    let url = servers.url();
    let client = async || open(&url).await.expect("a good URL");
    let holder = client().await;
    let guard = soon("the lock", persist(Mutex::new(&holder, "x"))).await;
    let leader = soon("a leader", Election::new(&holder, "e").campaign("first")).await;
    let leader = leader.expect("the servers are there");
    let (mut waiters, mut standbys, mut observers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..WAITERS {
        let lock = Mutex::new(&client().await, "x");
        waiters.push(tokio::spawn(async move {
            let guard = lock.lock().await?;
            let token = guard.token();
            let _may_be_lost = guard.unlock().await; // frozen just now
            Ok::<u64, holdline::Error>(token)
        }));
    }
    for _ in 0..STANDBYS {
        let election = Election::new(&client().await, "e");
        standbys.push(tokio::spawn(async move { election.campaign("next").await }));
    }
    for _ in 0..OBSERVERS {
        let observing = client().await;
        // It rides out the outage of servers that have answered it.
        let answered = async || observing.inspect("e").await.is_ok();
        holdline_testkit::until("an answer", answered).await;
        let mut observer = Election::new(&observing, "e").observe();
        observers.push(tokio::spawn(async move {
            loop {
                match observer.next().await {
                    Ok(Some(leader)) if leader.value == "next" => return Ok(()),
                    Ok(_) => {}
                    Err(error) => return Err(error),
                }
            }
        }));
    }
    let others: Client = client().await;
    holdline_testkit::until("all are there", async || {
        let lines = (others.inspect("x").await, others.inspect("e").await);
        matches!(lines, (Ok(x), Ok(e)) if x.waiters.len() == WAITERS && e.waiters.len() == STANDBYS)
    })
    .await;
    befall(&mut servers).await;
    let mut token = guard.token();
    let _may_be_lost = (guard.unlock().await, leader.resign().await);
    let mut tokens = Vec::new();
    for waiter in waiters {
        let got = tokio::time::timeout(LIMIT, waiter).await.expect("in time").expect("no panic");
        tokens.push(got.expect("it went on waiting"));
    }
    tokens.sort_unstable();
    for next in tokens {
        assert!(next > token, "a token of the past");
        token = next;
    }
    for observer in observers {
        soon("an observer", observer).await.expect("no panic").expect("it goes on");
    }
    while !standbys.is_empty() {
        let (first, _, rest) = soon("a standby", futures_util::future::select_all(standbys)).await;
        let next = first.expect("no panic").expect("it went on standing by");
        let _ = next.resign().await;
        standbys = rest;
    }
}

async fn freeze(servers: &Servers, time: Duration) {
    let all = servers.hosts().len();
    (0..all).for_each(|at| servers.signal(at, Signal::STOP));
    tokio::time::sleep(time).await;
    (0..all).for_each(|at| servers.signal(at, Signal::CONT));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_ends_nobody() {
    all_go_on(1, async |servers| {
        for _ in 0..3 {
            servers.between_lives(|_| {});
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
}

/// Shorter than a session, and longer than one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_frozen_ends_nobody() {
    all_go_on(1, async |servers| {
        freeze(servers, Duration::from_secs(12)).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        freeze(servers, Duration::from_secs(30)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_that_is_frozen_and_restarts_ends_nobody() {
    all_go_on(3, async |servers| {
        freeze(servers, Duration::from_secs(12)).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        freeze(servers, Duration::from_secs(30)).await;
        servers.between_lives(|_| {});
    })
    .await;
}

/// Servers that are frozen vouch for a session only until it could be over: a lock may be kept for
/// as long as that, though its lease is shorter, but no longer. Its holder is told while nobody
/// else can be in, and who comes next is behind it. By the clock its time is over, however late it
/// is told.
async fn a_freeze_ends_locks_in_time(count: usize) {
    const SESSION: Duration = Duration::from_secs(6);
    let Some(servers) = start(count) else { return };
    let url = format!("{}?session={}", servers.url(), SESSION.as_secs());
    let (one, two) = (open(&url).await.expect("a good URL"), servers.client().await);
    let lock = Mutex::new(&one, "x").lease(Duration::from_millis(2500));
    // Longer than its lease, so that it is renewed.
    let time = Duration::from_secs(4);
    let (guard, rival) = contested(&lock, &Mutex::new(&two, "x"), &two, time).await;
    (0..count).for_each(|at| servers.signal(at, Signal::STOP));
    let frozen = Instant::now();
    soon("the loss", guard.lost()).await;
    println!("{count} servers: told {:?} after they were frozen", frozen.elapsed());
    tokio::time::sleep_until((frozen + SESSION).into()).await;
    assert!(!guard.is_valid(), "the session may be over");
    tokio::time::sleep_until((frozen + SESSION * 2).into()).await;
    assert!(!rival.is_finished(), "nobody could let it in");
    (0..count).for_each(|at| servers.signal(at, Signal::CONT));
    let (next, _) = soon("the rival", rival).await.expect("no panic");
    let guard = Arc::into_inner(guard).expect("nobody else has it");
    assert!(guard.unlock().await.expect_err("lost").is_lost());
    next.unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_frozen_for_longer_than_a_session_ends_its_locks_in_time() {
    a_freeze_ends_locks_in_time(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_frozen_for_longer_than_a_session_ends_its_locks_in_time() {
    a_freeze_ends_locks_in_time(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gives_up_on_a_frozen_server() {
    let Some(servers) = start(1) else { return };
    gives_up_on_a_frozen_server(&servers).await;
}

/// What does not wait for a lock has an answer within two seconds, whatever the servers do. G25.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_servers_keep_only_waiters() {
    let Some(servers) = start(3) else { return };
    let known = servers.client().await;
    soon("a lock", persist(Mutex::new(&known, "x"))).await.unlock().await.expect("held");
    // A signal alone may come after a first answer.
    servers.servers.iter().for_each(Server::pause);
    for client in [known, servers.client().await] {
        let (mut try_took, mut look_took) = (Duration::MAX, Duration::MAX);
        for _ in 0..3 {
            let began = Instant::now();
            let tried = Mutex::new(&client, "x").try_lock().await;
            assert!(tried.is_err(), "{tried:?} after {:?}", began.elapsed());
            try_took = try_took.min(began.elapsed());
            let began = Instant::now();
            assert!(client.inspect("x").await.is_err());
            look_took = look_took.min(began.elapsed());
        }
        // A busy machine may be late, but not each time.
        let limit = Duration::from_millis(2300);
        assert!(try_took < limit && look_took < limit, "{try_took:?}, {look_took:?}");
    }
    (0..3).for_each(|at| servers.signal(at, Signal::CONT));
}

/// One dead member is no reason to be late: the others are asked meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_member_is_passed_over() {
    let Some(servers) = start(3) else { return };
    let follower = (servers.leader() + 1) % 3;
    servers.signal(follower, Signal::STOP);
    let mut late = 0;
    for number in 0..12 {
        let client = servers.client().await;
        match Mutex::new(&client, format!("x{number}")).try_lock().await {
            Ok(guard) => released(guard.expect("it is free")).await,
            Err(error) => late += u32::from(error.retryable()),
        }
    }
    // A busy machine may be late; but a third of them would be, as many as ask the hung one first.
    assert!(late < 3, "{late} of 12 had no answer");
    servers.signal(follower, Signal::CONT);
}
