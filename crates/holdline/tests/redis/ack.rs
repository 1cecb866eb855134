//! `?ack=`: a lock counts only when so many replicas have it.

use holdline::{Client, ErrorKind, Mutex, open};
use holdline_testkit::redis::{Server, private};
use std::time::{Duration, Instant};

/// A primary and two replicas that follow it.
async fn three() -> Option<(Server, [Server; 2])> {
    let primary = private("primary", &["--repl-diskless-sync-delay", "0"])?;
    let of = ["--replicaof", "127.0.0.1", &primary.port().to_string()];
    let replicas = [private("replica", &of)?, private("replica", &of)?];
    let until = Instant::now() + Duration::from_secs(20);
    let online = |info: String| info.matches("state=online").count();
    while online(primary.query(&["INFO", "replication"])) < 2 {
        assert!(Instant::now() < until, "the replicas follow");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Some((primary, replicas))
}

async fn client(server: &Server, query: &str) -> Client {
    open(&format!("{}?ack_timeout=300ms&{query}", server.url())).await.expect("opens")
}

/// How often the server was asked for this command.
fn calls(server: &Server, command: &str) -> u64 {
    let stats: String = server.query(&["INFO", "commandstats"]);
    let field = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&field)?.split(',').next());
    line.map_or(0, |count| count.parse().expect("a number"))
}

#[tokio::test]
async fn replicas_that_follow_confirm() {
    let Some((primary, replicas)) = three().await else { return };
    for query in ["ack=2", "ack=majority", "ack=all", "ack=all&scheme=redisson&prefix=r:"] {
        let client = client(&primary, query).await;
        Mutex::new(&client, "warm").lock().await.expect("works").unlock().await.expect("held");
        let before = (calls(&primary, "wait"), calls(&primary, "evalsha"));
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        let after = (calls(&primary, "wait"), calls(&primary, "evalsha"));
        assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1), "{query}");
        if query != "ack=majority" {
            let key = if query.contains("redisson") { "r:x" } else { "holdline:{x}" };
            for replica in &replicas {
                assert_eq!(replica.query::<i64>(&["EXISTS", key]), 1, "{query}: it is there");
            }
        }
        guard.unlock().await.expect("held");
        assert_eq!(calls(&primary, "wait"), after.0, "leaving needs no confirmation");
    }
}

#[tokio::test]
async fn without_enough_of_them_there_is_no_lock_and_nothing_is_left() {
    let Some((primary, replicas)) = three().await else { return };
    let all = client(&primary, "ack=all").await;
    let most = client(&primary, "ack=majority").await;
    let five = client(&primary, "ack=5").await;
    let string = client(&primary, "ack=2&scheme=string&prefix=s:").await;
    // So that each has seen both of them.
    for (client, name) in [(&all, "a"), (&most, "b"), (&string, "c")] {
        Mutex::new(client, name).lock().await.expect("works").unlock().await.expect("held");
    }
    replicas[1].pause();
    for (client, name) in [(&all, "a"), (&five, "f"), (&string, "c")] {
        let lock = Mutex::new(client, name);
        let error = lock.try_lock().await.expect_err("one replica is stopped");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("1 replicas confirmed"), "{error}");
        let error = lock.lock_within(Duration::from_secs(1)).await.expect_err("still stopped");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        client.settle().await;
        assert!(client.inspect(name).await.expect("works").holders.is_empty(), "given back");
    }
    // Of three servers two are a majority.
    let guard = Mutex::new(&most, "b").lock().await.expect("one replica is enough");
    guard.unlock().await.expect("held");
    replicas[1].resume();
    let guard = Mutex::new(&all, "a").lock().await.expect("it follows again");
    guard.unlock().await.expect("held");
}

#[tokio::test]
async fn a_renewal_that_is_not_confirmed_is_none() {
    let Some((primary, replicas)) = three().await else { return };
    let client = client(&primary, "ack=all").await;
    let lease = Duration::from_secs(2);
    let guard = Mutex::new(&client, "x").lease(lease).lock().await.expect("works");
    tokio::time::sleep(lease * 3 / 2).await;
    assert!(guard.is_valid(), "renewed, with confirmation");
    replicas[0].pause();
    tokio::time::timeout(lease * 2, guard.lost()).await.expect("lost when its lease is over");
    assert!(guard.unlock().await.expect_err("lost").is_lost());
}
