//! Strings in Redis, with all that keep locks so, on one server and on a majority of five; and
//! Redisson's own layout.

use crate::peer::Peer;
use crate::suite::{Form, Row, fresh};
use crate::toolchain::{Language, newest_go};
use crate::{hosts, server};
use holdline::{ErrorKind, Mutex, open};
use std::time::Duration;

/// One server, with our URL's options.
async fn one(options: &str, language: Language, theirs: &'static str) {
    let Some(url) = server("HOLDLINE_TEST_REDIS") else { return };
    let client = open(&format!("{url}{options}")).await.expect("opens");
    let servers = hosts(&url);
    Row { client, ours: Form::Mutex, language, theirs, servers }.exclude().await;
}

/// One server, and a peer whose waiters are told of releases, by these options.
async fn told(options: &str, language: Language, theirs: &'static str) {
    let Some(url) = server("HOLDLINE_TEST_REDIS") else { return };
    let client = open(&format!("{url}{options}")).await.expect("opens");
    let servers = hosts(&url);
    let row = Row { client, ours: Form::Mutex, language, theirs, servers };
    row.exclude_where_lapses_are_not_told().await;
}

/// A majority of five: Redlock.
async fn five(language: Language, theirs: &'static str) {
    let Some(url) = server("HOLDLINE_TEST_REDIS_FIVE") else { return };
    let ours = url.replace(',', "?scheme=string,") + "?scheme=string";
    let client = open(&ours).await.expect("opens");
    let servers = hosts(&url);
    Row { client, ours: Form::Mutex, language, theirs, servers }.exclude().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redsync() {
    one("?scheme=string", Language::Go, "redsync").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redsync_on_five() {
    five(Language::Go, "redsync").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redislock() {
    one("?scheme=string", Language::Go, "redislock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_redlock() {
    one("?scheme=string", Language::Node, "redlock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_redlock_on_five() {
    five(Language::Node, "redlock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_py() {
    one("?scheme=string", Language::Python, "redis-py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redisson() {
    one("?scheme=redisson", Language::Java, "redisson").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redissons_fenced_lock() {
    one("?scheme=redisson", Language::Java, "redisson-fenced").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_redlock_4() {
    one("?scheme=string", Language::Node, "redlock4").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn springs_spin_lock() {
    one("?scheme=string&prefix=spring:", Language::Java, "spring-spin").await;
}

/// Its waiters sleep until a message, or for their own lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn springs_pub_sub_lock() {
    let options = "?scheme=string&prefix=spring:&signal_channel=spring-channel:";
    told(options, Language::Java, "spring-pub-sub").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rslock() {
    one("?scheme=string", Language::Rust, "rslock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rslock_on_five() {
    five(Language::Rust, "rslock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redlock_universal() {
    one("?scheme=string", Language::Node, "redlock-universal").await;
}

/// Its waiters sleep until their own lease is over, unless a list tells them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_redis_lock() {
    let options = "?scheme=string&prefix=lock:&signal_list=lock-signal:";
    told(options, Language::Python, "python-redis-lock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rueidislock() {
    if !newest_go().await {
        return println!("rueidislock needs a newer Go");
    }
    one("?scheme=string&prefix=rueidislock:0:", Language::Go, "rueidislock").await;
}

/// Its default: a majority of three keys, on one server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rueidislock_with_three_keys() {
    if !newest_go().await {
        return println!("rueidislock needs a newer Go");
    }
    let Some(url) = server("HOLDLINE_TEST_REDIS") else { return };
    let node = |number| format!("{url}?scheme=string&prefix=rueidislock:{number}:");
    let client = open(&format!("quorum:{},{},{}", node(0), node(1), node(2))).await.expect("opens");
    let (servers, theirs) = (hosts(&url), "rueidislock-three");
    let row = Row { client, ours: Form::Mutex, language: Language::Go, theirs, servers };
    row.exclude().await;
}

/// It shares a key with us, but no rules: each keeps out while the other is in, and we say why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redissons_read_write_lock() {
    let Some(url) = server("HOLDLINE_TEST_REDIS") else { return };
    let client = open(&format!("{url}?scheme=redisson")).await.expect("opens");
    let lease = Duration::from_secs(20);
    let Some(mut peer) = Peer::start(Language::Java, &hosts(&url), lease).await else { return };
    for kind in ["redisson-read", "redisson-write"] {
        let name = fresh(kind);
        let guard = Mutex::new(&client, &name).lock().await.expect("works");
        assert!(!peer.try_lock(kind, &name).await, "it sees that the name is taken");
        assert!(guard.is_valid());
        guard.unlock().await.expect("held");
        assert!(peer.try_lock(kind, &name).await, "it is free");
        let error = Mutex::new(&client, &name).try_lock().await.expect_err("theirs");
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error:?}");
        assert!(error.to_string().contains("Redisson's read-write lock"), "{error}");
        peer.unlock().await;
        let guard = Mutex::new(&client, &name).try_lock().await.expect("works").expect("free");
        guard.unlock().await.expect("held");
    }
}
