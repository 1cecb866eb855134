//! Evictions: who was removed by force finds by whom and why, in every layout and in a cluster, and
//! nobody else takes that for a lock.

use crate::first::until_listening;
use holdline::store::{EVICTIONS_KEPT, QueueSnapshot};
use holdline::{Client, Mutex, Name, open};
use holdline_testkit::redis::{Server, cluster, private};
use holdline_testkit::soon;
use std::time::Duration;

async fn look(client: &Client, name: &str) -> QueueSnapshot {
    client.store().snapshot(&Name::new(name).expect("good")).await.expect("works")
}

/// Breaks the lock so often; says which tickets were removed.
async fn break_it(client: &Client, name: &str, times: usize) -> Vec<(u128, String)> {
    let mut broken = Vec::new();
    for n in 0..times {
        let guard = Mutex::new(client, name).lock().await.expect("works");
        let reason = format!("reason {n}, in words: {}", "é".repeat(n));
        let token = client.force_unlock(name, guard.ticket(), &reason).await.expect("works");
        assert!(token.is_some());
        broken.push((guard.ticket().0, reason));
        assert!(guard.unlock().await.expect_err("broken").is_lost());
    }
    broken
}

async fn are_kept(client: &Client, name: &str) {
    assert_eq!(look(client, name).await, QueueSnapshot::default());
    for (times, kept) in [(1, 1), (2, 3), (EVICTIONS_KEPT + 1, EVICTIONS_KEPT)] {
        let broken = break_it(client, name, times).await;
        let view = look(client, name).await;
        assert!(view.places.is_empty() && view.capacity == 0, "{view:?}");
        assert_eq!(view.evictions.len(), kept);
        let newest = view.evictions.iter().rev().zip(broken.iter().rev());
        for (eviction, (id, reason)) in newest {
            assert_eq!(eviction.id.0, *id);
            assert!(eviction.note.contains(reason.as_str()), "{eviction:?}");
        }
    }
    // An eviction that finds nobody leaves nothing.
    let before = look(client, name).await;
    let id = holdline::store::TicketId(7);
    assert!(client.force_unlock(name, id, "nobody").await.expect("works").is_none());
    assert_eq!(look(client, name).await, before);
    assert_eq!(client.list("").await.expect("works"), [], "no lock");
}

/// All keys but those of locks and of lines go by themselves within the time given.
fn expire(server: &Server) {
    let keys: Vec<String> = server.query(&["KEYS", "*:v"]);
    assert_eq!(keys.len(), 1, "{keys:?}");
    for key in keys {
        let left: i64 = server.query(&["PTTL", &key]);
        assert!((1..=60_000).contains(&left), "{key}: {left}");
        assert!(server.query::<i64>(&["STRLEN", &key]) < 8 * (4096 + 37));
    }
}

#[tokio::test]
async fn in_every_layout() {
    for scheme in ["line", "string", "redisson"] {
        for (prefix, name) in [("app:", "x"), ("app:", "a{b}c"), ("", "x")] {
            let Some(server) = private("evictions", &[]) else { return };
            let prefix = if scheme == "line" { "app:" } else { prefix };
            let url = format!("{}?scheme={scheme}&prefix={prefix}", server.url());
            let client = open(&url).await.expect("opens");
            are_kept(&client, name).await;
            expire(&server);
        }
    }
}

#[tokio::test]
async fn in_a_cluster() {
    let Some(nodes) = cluster() else { return };
    for scheme in ["line", "string", "redisson"] {
        let url = format!("redis+cluster://127.0.0.1:{}?scheme={scheme}", nodes[0].port());
        let client = open(&format!("{url}&prefix={scheme}:")).await.expect("opens");
        for n in 0..6 {
            are_kept(&client, &format!("name {n}")).await;
        }
    }
}

/// By a notice to its process, and not by its next renewal, which is far off.
#[tokio::test]
async fn the_holder_is_told_at_once() {
    let Some(server) = private("evictions_told", &[]) else { return };
    let client = server.open("").await;
    let lock = Mutex::new(&client, "x").lease(Duration::from_secs(1200));
    let guard = lock.lock().await.expect("works");
    until_listening(&server, 1).await;
    let other = server.open("").await;
    let token = other.force_unlock("x", guard.ticket(), "a test").await.expect("works");
    assert!(token.is_some_and(|token| token > guard.token()));
    soon("it is told", guard.lost()).await;
}

/// Somebody else's key in its place changes nothing but that nothing is noted; nor does a user that
/// may not write there.
#[tokio::test]
async fn breaking_never_fails_for_them() {
    let Some(server) = private("evictions_foreign", &[]) else { return };
    for (scheme, key) in [
        ("line", "line:{x}:v"),
        ("string", "{string:x}:holdline:v"),
        ("redisson", "{redisson:x}:holdline:v"),
    ] {
        let url = format!("{}?scheme={scheme}&prefix={scheme}:", server.url());
        let client = open(&url).await.expect("opens");
        let _: i64 = server.query(&["RPUSH", key, "a list"]);
        break_it(&client, "x", 1).await;
        let _: i64 = server.query(&["DEL", key]);
        // The second has the form of ours, but for a length that leads back to itself.
        for nonsense in ["nonsense of somebody's".to_owned(), format!("{:032}-0037", 7)] {
            let _: () = server.query(&["SET", key, &nonsense]);
            let broken = break_it(&client, "x", 1).await;
            let view = look(&client, "x").await;
            assert_eq!(view.evictions.len(), 1, "{scheme}: {view:?}");
            assert_eq!(view.evictions[0].id.0, broken[0].0);
        }
    }
}
