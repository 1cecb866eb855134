//! Losses that come from outside.

use crate::server::{soon, start, until};
use holdline::{Mutex, Semaphore};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_lease_is_loss_and_never_a_new_place() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let guards = [
        Mutex::new(&client, "x").lock().await.expect("it is there"),
        Mutex::new(&client, "y").lock().await.expect("it is there"),
    ];
    let leases = servers.leases();
    assert_eq!(leases.len(), 1);
    servers.say(&["lease", "revoke", &leases[0]]);
    for guard in &guards {
        soon("the loss", guard.lost()).await;
        assert!(!guard.is_valid());
    }
    assert_eq!(servers.keys(), Vec::<String>::new());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(servers.keys(), Vec::<String>::new(), "it was entered again");
    let [first, second] = guards;
    assert!(first.unlock().await.expect_err("lost").is_lost());
    let again = Mutex::new(&client, "x").lock().await.expect("on a new lease");
    assert!(!servers.leases().contains(&leases[0]));
    assert!(second.unlock().await.expect_err("lost").is_lost());
    again.unlock().await.expect("held");
}

/// A lease that was revoked while nobody held anything is found out by the first who enters.
#[tokio::test]
async fn a_lease_lost_while_idle_costs_the_next_nothing() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    Mutex::new(&client, "x").lock().await.expect("there").unlock().await.expect("held");
    servers.say(&["lease", "revoke", &servers.leases()[0]]);
    let guard = Mutex::new(&client, "x").lock().await.expect("there");
    guard.unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_key_is_noticed_at_once() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let lock = Mutex::new(&client, "x").lease(Duration::from_secs(600));
    let guard = lock.lock().await.expect("it is there");
    servers.say(&["del", "x/", "--prefix"]);
    soon("the loss", guard.lost()).await;
    assert!(guard.unlock().await.expect_err("lost").is_lost());
}

/// Go's waiter waits on for ever after its own key is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_lease_dies_takes_a_new_place() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let guard = Mutex::new(&one, "x").lock().await.expect("it is there");
    let holders = servers.leases();
    let waiter = tokio::spawn(async move { Mutex::new(&two, "x").lock().await });
    until("a waiter", async || one.inspect("x").await.expect("works").waiters.len() == 1).await;
    let leases = servers.leases();
    let dying = leases.iter().find(|lease| !holders.contains(lease)).expect("the waiter's");
    servers.say(&["lease", "revoke", dying]);
    until("a new place", async || {
        let waiters = one.inspect("x").await.expect("works").waiters.len();
        waiters == 1 && !servers.leases().contains(dying)
    })
    .await;
    guard.unlock().await.expect("held");
    let next = soon("its turn", waiter).await.expect("no panic").expect("it is there");
    next.unlock().await.expect("held");
}

/// In Go's client this has left zombies behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_does_not_disturb_waiters() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let guard = Mutex::new(&one, "x").lock().await.expect("it is there");
    let permits = Semaphore::new(&one, "s", 2).acquire(2).await.expect("it is there");
    let (mutex, semaphore) = (Mutex::new(&two, "x"), Semaphore::new(&two, "s", 2));
    let waiter = tokio::spawn(async move { mutex.lock().await });
    let other = tokio::spawn(async move { semaphore.acquire(1).await });
    until("waiters", async || {
        let waiters = async |name| one.inspect(name).await.expect("works").waiters.len();
        waiters("x").await + waiters("s").await == 2
    })
    .await;
    for round in 0..5 {
        servers.say(&["put", "elsewhere", &round.to_string()]);
    }
    let text = servers.say(&["get", "elsewhere", "-w", "json"]);
    let revision = text.split("\"revision\":").nth(1).and_then(|rest| rest.split(',').next());
    servers.say(&["compact", revision.expect("it tells")]);
    guard.unlock().await.expect("held");
    permits.unlock().await.expect("held");
    let next = soon("its turn", waiter).await.expect("no panic").expect("it is there");
    let permit = soon("its turn", other).await.expect("no panic").expect("it is there");
    next.unlock().await.expect("held");
    permit.unlock().await.expect("held");
}
