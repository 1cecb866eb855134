//! Outages: a Redis server that restarts, stands still, or fails over, under holders, waiters,
//! standbys and observers. All of those who wait ride it out, in order where the store kept the
//! line, and nothing is granted twice.

use crate::fake;
use futures_util::future::join_all;
use holdline::{Client, Election, Guard, Mutex, open};
use holdline_testkit::redis::{Server, behind_sentinels, cluster_with, private};
use holdline_testkit::{soon, until};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const SAFE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
const WAITERS: usize = 6;
/// Longer than anything here takes, so that a hang is told from slowness.
const LIMIT: Duration = Duration::from_secs(90);

/// What the waiters did.
#[derive(Default)]
struct Record {
    inside: AtomicUsize,
    /// The clients that were admitted, by number, and their tokens.
    admitted: Lock<Vec<(usize, u64)>>,
}

impl Record {
    fn admitted(&self) -> Vec<(usize, u64)> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A client is in: alone, as long as it is sure of its lock.
    async fn enter(&self, number: usize, guard: Guard) {
        assert!(guard.is_valid());
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two are in");
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner).push((number, guard.token()));
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        guard.unlock().await.expect("held");
    }
}

async fn ends<T>(what: &str, task: JoinHandle<T>) -> T {
    let done = tokio::time::timeout(LIMIT, task).await;
    done.unwrap_or_else(|_| panic!("never: {what}")).expect("no panic")
}

fn lock(client: &Client, lease: Duration) -> Mutex {
    Mutex::new(client, "x").lease(lease)
}

/// A holder, and waiters in their order, each with a client of its own.
struct Setup {
    holder: Guard,
    record: Arc<Record>,
    waiters: Vec<JoinHandle<()>>,
    beside: Client,
}

async fn setup(url: &str, lease: Duration) -> Setup {
    let holder = lock(&open(url).await.expect("opens"), lease).lock().await.expect("works");
    let beside = open(url).await.expect("opens");
    let record = Arc::new(Record::default());
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        let client = open(url).await.expect("opens");
        let lock = lock(&client, lease);
        let record = Arc::clone(&record);
        waiters.push(tokio::spawn(async move {
            let guard = lock.lock().await.expect("a waiter rides it out");
            record.enter(number, guard).await;
        }));
        if beside.capabilities().fair_queue {
            until("it waits", async || places(&beside).await.len() == number + 1).await;
        }
    }
    Setup { holder, record, waiters, beside }
}

/// Those who wait, in their order.
async fn places(client: &Client) -> Vec<u128> {
    let info = client.inspect("x").await;
    info.map_or_else(|_| Vec::new(), |info| info.waiters.iter().map(|one| one.id.0).collect())
}

impl Setup {
    /// All are admitted, one after the other, with rising tokens if there are any.
    async fn all_get_it(self) -> Vec<usize> {
        for waiter in self.waiters {
            ends("all are admitted", waiter).await;
        }
        let admitted = self.record.admitted();
        assert_eq!(admitted.len(), WAITERS);
        if self.beside.capabilities().fencing_tokens {
            assert!(admitted.is_sorted_by(|one, next| one.1 < next.1), "{admitted:?}");
        }
        admitted.into_iter().map(|(number, _)| number).collect()
    }
}

fn kill(server: &mut Server, away: Duration) {
    server.kill();
    std::thread::sleep(away);
    server.restart();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_within_a_few_seconds() {
    for scheme in ["line", "string", "redisson"] {
        let Some(mut server) = private("outage_restart", &SAFE) else { return };
        let url = format!("{}?scheme={scheme}", server.url());
        let setup = setup(&url, Duration::from_secs(20)).await;
        let before = places(&setup.beside).await;
        let away = Duration::from_secs(1);
        server = tokio::task::spawn_blocking(move || {
            kill(&mut server, away);
            server
        })
        .await
        .expect("no panic");
        // Long enough for all to ask again.
        until("the server is back", async || setup.beside.inspect("x").await.is_ok()).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(setup.holder.is_valid(), "{scheme}: renewed after the restart");
        assert!(setup.waiters.iter().all(|waiter| !waiter.is_finished()), "{scheme}");
        let after = places(&setup.beside).await;
        setup.holder.unlock().await.expect("held through the restart");
        let setup = Setup { holder: fresh(&url).await, ..setup };
        let order = setup.all_get_it().await;
        // Under load a place may have lapsed before its owner came back; then it has another.
        if scheme == "line" && before == after {
            assert_eq!(order, (0..WAITERS).collect::<Vec<_>>());
        }
        drop(server);
    }
}

/// Some other lock, for where one is wanted.
async fn fresh(url: &str) -> Guard {
    let client = open(url).await.expect("opens");
    Mutex::new(&client, "other").lock().await.expect("works")
}

/// The holder loses before anybody else is let in, and all the others get their turn.
async fn stands_still(scheme: &str, time: Duration) {
    let Some(server) = private("outage_freeze", &[]) else { return };
    let url = format!("{}?scheme={scheme}", server.url());
    let setup = setup(&url, Duration::from_secs(3)).await;
    server.pause();
    let frozen = Instant::now();
    tokio::time::timeout(LIMIT, setup.holder.lost()).await.expect("it is told by its deadline");
    assert!(!setup.holder.is_valid());
    assert!(frozen.elapsed() < time, "told while the server stands still");
    tokio::time::sleep(time.saturating_sub(frozen.elapsed())).await;
    assert!(setup.record.admitted().is_empty(), "nobody else was let in meanwhile");
    assert!(setup.waiters.iter().all(|waiter| !waiter.is_finished()));
    server.resume();
    setup.all_get_it().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_whose_server_stands_still_for_12_seconds() {
    stands_still("line", Duration::from_secs(12)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_string_whose_server_stands_still_for_12_seconds() {
    stands_still("string", Duration::from_secs(12)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hash_whose_server_stands_still_for_12_seconds() {
    stands_still("redisson", Duration::from_secs(12)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_whose_server_stands_still_for_30_seconds() {
    stands_still("line", Duration::from_secs(30)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standbys_and_observers() {
    let Some(mut server) = private("outage_election", &SAFE) else { return };
    let url = server.url().to_owned();
    let lease = Duration::from_secs(3);
    let election = async || {
        let client = open(&url).await.expect("opens");
        Election::new(&client, "boss").lease(lease)
    };
    let first = election().await.campaign("first").await.expect("works");
    let mut standbys = Vec::new();
    for n in 0..4 {
        let election = election().await;
        standbys.push(tokio::spawn(async move {
            let leader = election.campaign(format!("standby {n}")).await.expect("rides it out");
            leader.resign().await.expect("it leads");
        }));
    }
    let seen: Arc<Lock<Vec<String>>> = Arc::default();
    let mut observer = election().await.observe().every(Duration::from_millis(50));
    let observing = tokio::spawn({
        let seen = Arc::clone(&seen);
        async move {
            loop {
                let leader = observer.next().await.expect("goes on for ever");
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.extend(leader.map(|leader| leader.value));
            }
        }
    });
    let sees = async |what: &str| {
        seen.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|one| one == what)
    };
    until("the observer sees the first", async || sees("first").await).await;
    let mut server = tokio::task::spawn_blocking(move || {
        kill(&mut server, Duration::from_secs(1));
        server
    })
    .await
    .expect("no panic");
    server.pause();
    tokio::time::sleep(Duration::from_secs(12)).await;
    server.resume();
    drop(first);
    for standby in standbys {
        ends("every standby leads", standby).await;
    }
    assert!(!observing.is_finished());
    let last = election().await.campaign("last").await.expect("works");
    until("the observer sees the last", async || sees("last").await).await;
    assert!(!observing.is_finished());
    observing.abort();
    last.resign().await.expect("it leads");
    server.kill();
}

/// The primary stands still until a replica has taken its place, and is then made to follow it: its
/// word counts no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over() {
    for scheme in ["line", "string", "redisson"] {
        let Some((primary, replica, watchers, url)) = behind_sentinels() else { return };
        let setup = setup(&format!("{url}?scheme={scheme}"), Duration::from_secs(30)).await;
        let key = if scheme == "line" { "holdline:{x}" } else { "x" };
        until("the replica has it", async || replica.query::<i64>(&["EXISTS", key]) == 1).await;
        primary.pause();
        until("the replica is the primary", async || {
            replica.query::<String>(&["INFO", "replication"]).contains("role:master")
        })
        .await;
        until("it serves", async || setup.beside.inspect("x").await.is_ok()).await;
        primary.resume();
        until("the other follows", async || {
            primary.query::<String>(&["INFO", "replication"]).contains("role:slave")
        })
        .await;
        assert!(setup.holder.is_valid(), "{scheme}: renewed after the fail-over");
        assert!(setup.waiters.iter().all(|waiter| !waiter.is_finished()));
        setup.holder.unlock().await.expect("held through the fail-over");
        let setup = Setup { holder: fresh(&url).await, ..setup };
        setup.all_get_it().await;
        drop(watchers);
    }
}

/// The node that has the lock: killed and started again, then standing still.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster() {
    for scheme in ["line", "redisson"] {
        let Some(mut nodes) = cluster_with(&SAFE) else { return };
        let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let url = format!("redis+cluster://{}?scheme={scheme}", hosts.join(","));
        let setup = setup(&url, Duration::from_secs(20)).await;
        let key = if scheme == "line" { "holdline:{x}" } else { "x" };
        let slot: u64 = nodes[0].query(&["CLUSTER", "KEYSLOT", key]);
        let slot = slot.to_string();
        let owner = nodes
            .iter()
            .position(|node| node.query::<i64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot]) > 0)
            .expect("somebody has the key");
        let mut nodes = tokio::task::spawn_blocking(move || {
            kill(&mut nodes[owner], Duration::from_secs(1));
            nodes
        })
        .await
        .expect("no panic");
        until("the node is back", async || setup.beside.inspect("x").await.is_ok()).await;
        assert!(setup.holder.is_valid());
        nodes[owner].pause();
        tokio::time::sleep(Duration::from_secs(5)).await;
        nodes[owner].resume();
        until("the node is back", async || setup.beside.inspect("x").await.is_ok()).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(setup.holder.is_valid(), "{scheme}: renewed between the outages");
        assert!(setup.waiters.iter().all(|waiter| !waiter.is_finished()));
        setup.holder.unlock().await.expect("held through both");
        let setup = Setup { holder: fresh(&url).await, ..setup };
        setup.all_get_it().await;
        nodes.clear();
    }
}

/// Each refusal closes the connection, since the sentinels may name another primary by now; but
/// new ones are made with pauses.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_has_become_a_replica_is_not_stormed() {
    let Some(server) = private("outage_replica", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let locks: Vec<_> = (0..16).map(|n| Mutex::new(&client, format!("{n}"))).collect();
    locks[0].lock().await.expect("works").unlock().await.expect("held");
    let connections = || -> u32 {
        let stats: String = server.query(&["INFO", "stats"]);
        let count = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        count.expect("it counts them").trim().parse().expect("a number")
    };
    let _: () = server.query(&["REPLICAOF", "127.0.0.1", "1"]);
    let before = connections();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        for result in join_all(locks.iter().map(Mutex::try_lock)).await {
            let error = result.expect_err("it refuses writes");
            assert!(error.retryable(), "{error:?}");
        }
    }
    let (made, seconds) = (connections() - before, start.elapsed().as_secs() as u32 + 1);
    assert!(made <= 20 * seconds, "{made} connections in {seconds} s");
    let _: () = server.query(&["REPLICAOF", "NO", "ONE"]);
    let guard = ends("it serves again", tokio::spawn(async move { locks[0].lock().await })).await;
    guard.expect("works").unlock().await.expect("held");
}

/// A sentinel that asks for a password, which this client does not have, ends no wait while the
/// others are away (G24).
#[tokio::test]
async fn a_sentinel_that_refuses_the_client_while_the_other_is_away() {
    let Some(server) = private("refusing_sentinel", &[]) else { return };
    let (is_away, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (away, in_vain, port) = (Arc::clone(&is_away), Arc::clone(&asked), server.port());
    let refusing = fake::server(|_| "-NOAUTH Authentication required.\r\n".to_owned());
    let other = fake::server(move |words| match words {
        ["SENTINEL", ..] if away.load(Ordering::SeqCst) => {
            in_vain.fetch_add(1, Ordering::SeqCst);
            "-LOADING it starts\r\n".to_owned()
        }
        ["SENTINEL", ..] => {
            let port = port.to_string();
            format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
        }
        _ => "-ERR unknown command\r\n".to_owned(),
    });
    let url = format!("redis+sentinel://127.0.0.1:{refusing},127.0.0.1:{other}/main");
    let client = open(&url).await.expect("one of them names the primary");
    let lock = Mutex::new(&client, "x");
    lock.lock().await.expect("works").unlock().await.expect("held");
    is_away.store(true, Ordering::SeqCst);
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal"]);
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("both are asked, again and again", async || {
        waiting.is_finished() || asked.load(Ordering::SeqCst) >= 6
    })
    .await;
    is_away.store(false, Ordering::SeqCst);
    let guard = soon("the other is back", waiting).await.expect("no panic");
    guard.expect("it rides that out").unlock().await.expect("held");
}
