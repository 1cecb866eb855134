//! Servers whose copies differ.

use holdline::{Mutex, open};
use holdline_testkit::zookeeper::{raw, start};
use holdline_testkit::{soon, until};
use std::time::Duration;
use zookeeper_client as zk;

/// A place that never was, first in the line.
const PHANTOM: &str = "/x/_c_12345678-0000-0000-0000-000000000001-lock-0000000000";
/// One whose number somebody else will get.
const DUPLICATE: &str = "/x/_c_00000000-0000-0000-0000-000000000002-lock-0000000002";
/// One for which nobody waits.
const IDLE: &str = "/z/_c_12345678-0000-0000-0000-000000000003-lock-0000000000";

async fn create(raw: &zk::Client, path: &str) {
    let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    raw.create(path, b"", &options).await.expect("works");
}

async fn has(raw: &zk::Client, path: &str) -> bool {
    raw.check_stat(path).await.expect("works").is_some()
}

/// ZOOKEEPER-1549, 5010: a server that was cut off from the others while they agreed on something
/// else may keep what it had written by itself. Nobody ever removes that; so a client that waits
/// behind it on that server waits for ever, though all others know nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_only_one_server_has_keeps_nobody_out_for_long() {
    let Some(mut servers) = start(3) else { return };
    let odd = (servers.leader() + 1) % 3;
    let mut hosts = servers.hosts();
    let host = hosts.remove(odd);
    let others = open(&format!("zookeeper://{}", hosts.join(","))).await.expect("a good URL");
    // The first number is used up.
    let lock = Mutex::new(&others, "x");
    soon("the lock", lock.lock()).await.expect("works").unlock().await.expect("held");
    let healthy = raw(&hosts[0]).await;
    create(&healthy, "/z").await;
    // It has all of that.
    let astray = raw(&host).await;
    astray.sync("/z").await.expect("works");
    drop(astray);
    servers.kill(odd);
    let create_all = async |host: &str| {
        let raw = raw(host).await;
        for path in [PHANTOM, DUPLICATE, IDLE] {
            create(&raw, path).await;
        }
    };
    servers.alone(odd, create_all).await;
    // As many transactions of the others: those of the same numbers it will take for its own.
    for at in 0..50 {
        create(&healthy, &format!("/y{at}")).await;
    }
    servers.restart(odd);
    let astray = raw(&host).await;
    for path in [PHANTOM, DUPLICATE, IDLE] {
        assert!(has(&astray, path).await && !has(&healthy, path).await, "the copies agree");
    }

    let client = open(&format!("zookeeper://{host}")).await.expect("a good URL");
    // A leave that finds nothing to delete cleans up as well.
    let idle = client.inspect("z").await.expect("works").holders[0].id;
    assert_eq!(client.force_unlock("z", idle, "test").await.expect("works"), None);
    assert!(!has(&astray, IDLE).await);

    let guard = soon("the lock", lock.lock()).await.expect("works");
    let waiter = Mutex::new(&client, "x");
    let waiter = tokio::spawn(async move { waiter.lock().await });
    // Long enough to be asked for proof: who really is there keeps its place.
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert!(guard.is_valid() && !waiter.is_finished());
    assert!(!has(&astray, DUPLICATE).await, "two of one number");
    assert_eq!(others.inspect("x").await.expect("works").holders[0].id, guard.ticket());
    let token = guard.token();
    guard.unlock().await.expect("held");
    until("no phantom", async || !has(&astray, PHANTOM).await).await;
    let next = soon("the next", waiter).await.expect("no panic").expect("works");
    assert!(next.token() > token);
    next.unlock().await.expect("held");
}
