//! Losses that come from outside.

use holdline::Mutex;
use holdline_testkit::etcd::{Servers, start};
use holdline_testkit::flaky_links::FlakyLinks;
use holdline_testkit::{Link, Way, soon, until};
use std::time::{Duration, Instant};

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

/// A waiter that is admitted moves to the lock's own lease. If that was revoked meanwhile, it moves
/// to a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_lost_while_its_lock_is_waited_for_is_replaced() {
    let Some(servers) = start(1) else { return };
    let (client, other) = (servers.client().await, servers.client().await);
    let long = |client, name| Mutex::new(client, name).lease(Duration::from_secs(600));
    // A try has no lease to wait on.
    let warm = long(&client, "warm").try_lock().await.expect("it is there").expect("it is free");
    let leases = servers.leases();
    assert_eq!(leases.len(), 1);
    warm.unlock().await.expect("held");
    let held = Mutex::new(&other, "x").lock().await.expect("it is there");
    let lock = long(&client, "x");
    let waiter = tokio::spawn(async move { lock.lock().await });
    let waits = async || other.inspect("x").await.is_ok_and(|info| info.waiters.len() == 1);
    until("a waiter", waits).await;
    servers.say(&["lease", "revoke", &leases[0]]);
    held.unlock().await.expect("held");
    let guard = soon("the lock", waiter).await.expect("no panic").expect("on a new lease");
    assert!(guard.is_valid());
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

/// etcd that comes back without its data (by another term of leadership, too): holders are told at
/// the next sign of life, waiters go on, and tokens begin anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_its_data_is_loss_and_not_the_end() {
    let Some(mut servers) = start(1) else { return };
    servers.kill(0);
    servers.restart(0);
    let (one, two) = (servers.client().await, servers.client().await);
    for _ in 0..10 {
        let guard = Mutex::new(&one, "x").lock().await.expect("there");
        guard.unlock().await.expect("held");
    }
    let lock = Mutex::new(&one, "x").lease(Duration::from_secs(600));
    let guard = lock.lock().await.expect("there");
    let token = guard.token();
    let waiting = tokio::spawn(async move { Mutex::new(&two, "x").lock().await });
    until("a waiter", async || one.inspect("x").await.is_ok_and(|info| info.waiters.len() == 1))
        .await;
    servers.kill(0);
    servers.restart_empty(0);
    let next = soon("the next", waiting).await.expect("no panic").expect("there");
    soon("the loss", guard.lost()).await;
    assert!(next.is_valid() && next.token() < token, "{} after {token}", next.token());
    next.unlock().await.expect("held");
    drop(guard);
    let again = soon("the lock", Mutex::new(&one, "x").lock()).await.expect("there");
    again.unlock().await.expect("held");
}

/// The file for a backup of the only member.
fn backup(servers: &Servers) -> String {
    servers.data(0).with_extension("backup").to_str().expect("text").to_owned()
}

/// Restarts the only member with the data of the backup.
fn restore(servers: &mut Servers) {
    servers.kill(0);
    let (data, file) = (servers.data(0), backup(servers));
    std::fs::remove_dir_all(&data).expect("it is there");
    let folder = data.to_str().expect("text");
    let at = ["--data-dir", folder, "--name", "m0", "--initial-cluster", "m0=http://127.0.0.1:1"];
    let peer = ["--initial-advertise-peer-urls", "http://127.0.0.1:1"];
    servers.say(&[&["snapshot", "restore", &file], &at[..], &peer].concat());
    servers.restart(0);
}

/// A lease that is given up, although etcd has it and the key on it: the key is not removed before
/// its holder's own deadline, so that no other gets the lock while the holder has yet to be told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_given_up_is_not_revoked_under_its_holder() {
    let Some(mut servers) = start(1) else { return };
    let client = servers.client().await;
    let lock = Mutex::new(&client, "x").lease(Duration::from_secs(60));
    let guard = lock.lock().await.expect("it is there");
    servers.say(&["snapshot", "save", &backup(&servers)]);
    let later = Mutex::new(&client, "y").lock().await.expect("it is there");
    restore(&mut servers);
    soon("the loss", guard.lost()).await;
    let other = soon("another lease", Mutex::new(&client, "z").lock()).await.expect("there");
    assert_eq!(servers.keys().iter().filter(|key| key.starts_with("x/")).count(), 1);
    other.unlock().await.expect("held");
    // Once its holder is gone, it is.
    drop((guard, later));
    until("the revocation", async || servers.keys().is_empty()).await;
}

/// etcd that is restored from a backup, in which a holder's lease is there and its key is not, and
/// a key is there that was given up since: the lease alone proves nothing, and keeps no such key.
/// The term of leadership is the same as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_older_data_is_loss_and_not_the_end() {
    let Some(mut servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let lock = Mutex::new(&one, "x");
    let given_up = Mutex::new(&one, "y").lock().await.expect("it is there");
    servers.say(&["snapshot", "save", &backup(&servers)]);
    given_up.unlock().await.expect("held");
    let guard = lock.lock().await.expect("it is there");
    assert_eq!(servers.leases().len(), 1);
    restore(&mut servers);
    let rival = soon("the rival", Mutex::new(&two, "x").lock()).await.expect("there");
    soon("the loss", guard.lost()).await;
    assert!(rival.is_valid() && !guard.is_valid());
    rival.unlock().await.expect("held");
    let given_up = soon("what was given up", Mutex::new(&two, "y").lock()).await.expect("there");
    given_up.unlock().await.expect("held");
    drop(guard);
    let again = soon("the lock", lock.lock()).await.expect("there");
    again.unlock().await.expect("held");
}

/// A client that enters between the look at the line and the removal of the victim is not fenced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_fences_the_victim_and_nobody_else() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(&*servers.hosts()[0]).expect("a port is free");
    let remover = holdline::open(&format!("etcd://{}", link.address())).await.expect("a good URL");
    let (one, two) = (servers.client().await, servers.client().await);
    // So that it has a lease.
    let warm = Mutex::new(&two, "warm").lock().await.expect("it is there");
    let victim = Mutex::new(&one, "x").lock().await.expect("it is there");
    let id = remover.inspect("x").await.expect("it is there").holders[0].id;
    let grants = servers.calls("LeaseGrant");
    link.delay(Duration::from_millis(200));
    let removal = tokio::spawn(async move { remover.force_unlock("x", id, "a test").await });
    until("that it has looked", async || servers.calls("LeaseGrant") > grants).await;
    let next = soon("the next", Mutex::new(&two, "x").lock()).await.expect("it is there");
    let fence = soon("the removal", removal).await.expect("no panic").expect("it is there");
    let fence = fence.expect("it held");
    assert!(victim.token() < fence, "{fence} does not fence {}", victim.token());
    assert!(fence <= next.token(), "{fence} fences the next, {}", next.token());
    next.unlock().await.expect("held");
    warm.unlock().await.expect("held");
}

/// All watches share a stream, and its member may fall silent while leases are kept alive through
/// another one. A holder hears of its removal by force all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_is_heard_of_although_the_first_member_has_fallen_silent() {
    let Some(servers) = start(1) else { return };
    let host = servers.hosts()[0].clone();
    let flaky = FlakyLinks::to("etcd", &[host.clone(), host], "");
    let (client, other) = (flaky.client().await, servers.client().await);
    let long = Mutex::new(&client, "long").lease(Duration::from_secs(600));
    let long = long.try_lock().await.expect("it is there").expect("it is free");
    until("the stream of watches", async || servers.calls("Watch") > 0).await;
    let link = flaky.links.iter().find(|link| link.open() > 0).expect("it is connected");
    // For less than a sign of life of that lease may take, but for longer than such a try.
    link.stall(Way::Requests);
    let short = Mutex::new(&client, "short").lease(Duration::from_secs(1));
    let short = soon("the other way", short.lock()).await.expect("there");
    link.mend();
    let lease = Duration::from_secs(10);
    let lock = Mutex::new(&client, "x").lease(lease);
    let guard = soon("the lock", lock.lock()).await.expect("the other way");
    until("its watch", async || servers.messages("Watch") >= 3).await;
    link.stall(Way::Both);
    let removed = other.force_unlock("x", guard.ticket(), "a test").await;
    removed.expect("it is there").expect("it held");
    let began = Instant::now();
    soon("the loss", guard.lost()).await;
    assert!(began.elapsed() < lease * 3 / 4, "after {:?}", began.elapsed());
    link.mend();
    drop((short, long, guard));
}
