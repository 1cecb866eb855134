//! The known holes of other clients of ZooKeeper, each with the number of its report, shut here.
//!
//! Where the others are: orphans after an interrupt (CURATOR-79, 205, 462, kazoo#732) in
//! `loss::an_abandoned_acquisition_leaves_no_orphan`, and after a lost answer in
//! `loss::a_lost_answer_makes_no_second_node`; stray children (CURATOR-43) in
//! `dialects::stray_children_are_in_nobodys_way`; numbers that are used up (kazoo#730,
//! ZOOKEEPER-3249) in `dialects::a_line_whose_numbers_are_used_up_is_refused`; waiters that outlive
//! their session in `loss::a_waiter_whose_session_dies_does_not_wait_on`.

use holdline::store::{Enter, Standing, Ticket, TicketId};
use holdline::{Client, Mutex, Name, RwLock};
use holdline_testkit::flaky_links::{Cut, FlakyLinks};
use holdline_testkit::zookeeper::{Servers, start};
use holdline_testkit::{contested, soon, until};
use std::sync::Arc;
use std::time::Duration;
use zookeeper_client as zk;

const LEASE: Duration = Duration::from_millis(1500);

fn flaky(servers: &Servers) -> FlakyLinks {
    FlakyLinks::to("zookeeper", &servers.hosts(), "?session=5s")
}

async fn waiters(client: &Client, name: &str, count: usize) {
    until("waiters", async || {
        client.inspect(name).await.is_ok_and(|info| info.waiters.len() == count)
    })
    .await;
}

async fn children(raw: &zk::Client, path: &str) -> usize {
    raw.list_children(path).await.map_or(0, |children| children.len())
}

/// CURATOR-604, 498, 489: who looks for its node after a lost answer finds one with its id that a
/// session of the past has left, takes it for its own, and "holds" what the servers are about to
/// free for another. Ours removes it, since nobody else has that id, and holds by one of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_session_is_not_ones_own() {
    let Some(servers) = start(1) else { return };
    let (flaky, raw) = (flaky(&servers), servers.raw().await);
    let client = flaky.client().await;
    let warm = Mutex::new(&client, "x").lease(LEASE).lock().await.expect("works");
    warm.unlock().await.expect("held");
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    let id = TicketId(0x1234_5678_0000_0000_0000_0000_0000_0001);
    let old = "/x/_c_12345678-0000-0000-0000-000000000001-lock-";
    let options = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
    let (_, number) = raw.create(old, b"", &options).await.expect("works");
    let old = format!("{old}{number}");
    let (weight, capacity, wait_lease) = (1, 1, LEASE);
    let ticket =
        Ticket { id, weight, capacity, lease: LEASE, wait_lease, token_count: 1, min_token: 0 };
    let note: Arc<str> = Arc::from("");
    flaky.links[0].lose_next_reply();
    until("its turn", async || {
        match soon("an answer", store.enter(&line, &ticket, &note, Enter::Queue)).await {
            Ok(standing) => matches!(standing, Standing::Admitted(_)),
            Err(error) => {
                assert!(error.retryable(), "{error:?}");
                false
            }
        }
    })
    .await;
    let there = raw.check_stat(&old).await.expect("works");
    assert!(there.is_none(), "it took another session's node for its own");
    assert_eq!(children(&raw, "/x").await, 1);
    assert!(store.leave(&line, id).await.expect("works"));
    until("nobody", async || children(&raw, "/x").await == 0).await;
}

/// The same from outside: cut off until the session is over, and back at any moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_twice_after_a_reconnection() {
    let Some(servers) = start(3) else { return };
    let rival = servers.client().await;
    for (round, cut) in (0..).zip(Cut::ALL) {
        let flaky = flaky(&servers);
        let one = Mutex::new(&flaky.client().await, "x").lease(LEASE);
        let (first, next) = contested(&one, &Mutex::new(&rival, "x"), &rival, Duration::ZERO).await;
        flaky.cut(cut);
        soon("the loss", first.lost()).await;
        let old = first.ticket();
        drop(first);
        // Around the moment at which the servers end the session.
        tokio::time::sleep(Duration::from_millis(1000 + 600 * round)).await;
        let again = one.clone();
        let again = tokio::spawn(async move { again.lock().await });
        flaky.mend();
        let (next, _) = soon("the next", next).await.expect("no panic");
        for _ in 0..50 {
            assert!(next.is_valid() && !again.is_finished(), "two hold it");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let info = rival.inspect("x").await.expect("works");
        assert!(info.waiters.iter().all(|waiter| waiter.id != old), "it came back");
        let token = next.token();
        next.unlock().await.expect("held");
        if let Ok(again) = soon("again", again).await.expect("no panic") {
            assert!(again.token() > token);
            again.unlock().await.expect("held");
        }
    }
}

/// CURATOR-678: a release while the connection is lost forgets the lock and leaves its node, for
/// which everybody waits from then on, first of all oneself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_without_a_connection_is_made_up_for() {
    let Some(servers) = start(1) else { return };
    let raw = servers.raw().await;
    for cut in Cut::ALL {
        let flaky = flaky(&servers);
        let client = flaky.client().await;
        let lock = Mutex::new(&client, "x").lease(LEASE);
        let guard = soon("the lock", lock.lock()).await.expect("works");
        flaky.cut(cut);
        let asked = tokio::spawn(guard.unlock());
        tokio::time::sleep(Duration::from_millis(300)).await;
        flaky.mend();
        let _whatever_is_known = soon("an answer", asked).await.expect("no panic");
        soon("what is left to do", client.settle()).await;
        until("no node", async || children(&raw, "/x").await == 0).await;
        let again = soon("again", lock.lock()).await.expect("works");
        again.unlock().await.expect("held");
    }
}

/// CURATOR-621: when a writer becomes a reader, a writer that waits behind it gets in beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_lets_no_writer_in() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let (lock, other) = (RwLock::new(&one, "x"), RwLock::new(&two, "x"));
    let writer = soon("the lock", lock.write()).await.expect("works");
    let queued = tokio::spawn(async move { other.write().await });
    waiters(&one, "x", 1).await;
    let reader = writer.downgrade().await.map_err(|(_, error)| error).expect("held");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(reader.is_valid() && !queued.is_finished(), "a writer beside a reader");
    let token = reader.token();
    reader.unlock().await.expect("held");
    let queued = soon("the writer", queued).await.expect("no panic").expect("works");
    assert!(queued.token() > token);
    queued.unlock().await.expect("held");
}
