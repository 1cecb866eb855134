//! Strings in Redis, with all that keep locks so, on one server and on a majority of five; and
//! Redisson's own layout.

use crate::suite::{Form, Row};
use crate::toolchain::Language;
use crate::{hosts, server};
use holdline::open;

/// One server, with our URL's options.
async fn one(options: &str, language: Language, theirs: &'static str) {
    let Some(url) = server("HOLDLINE_TEST_REDIS") else { return };
    let client = open(&format!("{url}{options}")).await.expect("opens");
    let servers = hosts(&url);
    Row { client, ours: Form::Mutex, language, theirs, servers }.exclude().await;
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
