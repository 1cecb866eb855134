//! Advisory locks of PostgreSQL that are shared with other libraries, by `keys=`: sqlx, Symfony's
//! Lock, and the migrations of golang-migrate, Rails and sqlx.

use crate::peer::{LONG, Peer};
use crate::suite::fresh;
use crate::toolchain::{Language, newest_go};
use holdline::{Mutex, open};
use holdline_testkit::postgres;
use std::time::Duration;

/// A library whose lock we share.
struct Other {
    /// Our name for its keys, and its program's for its locks.
    kind: &'static str,
    language: Language,
    /// Whether it can wait.
    waits: bool,
}

impl Other {
    /// All that must hold where the two exclude each other by a lock of this name.
    async fn exclude(&self, name: &str) {
        let Other { kind, language, waits } = *self;
        let Some(server) = postgres::start(kind) else { return };
        let url = format!("{}?scheme=advisory&keys={kind}", server.url());
        let client = open(&url).await.expect("opens");
        let Some(mut peer) = Peer::start(language, &server.hosts()[0], LONG).await else { return };
        let lock = Mutex::new(&client, name);
        let guard = lock.try_lock().await.expect("works").expect("free");
        assert!(!peer.try_lock(kind, name).await, "we hold it");
        peer.say(&format!("lock {kind} {name}")).await;
        if waits {
            let early = peer.answer_within(Duration::from_millis(300)).await;
            assert_eq!(early, None, "it waits");
            guard.unlock().await.expect("it was held");
        } else {
            assert_eq!(peer.answer().await, "refused");
            guard.unlock().await.expect("it was held");
            peer.say(&format!("lock {kind} {name}")).await;
        }
        assert_eq!(peer.answer().await, "held -");
        assert!(lock.try_lock().await.expect("works").is_none(), "they hold it");
        peer.unlock().await;
        let guard = lock.lock_within(LONG).await.expect("works").expect("they gave it back");
        guard.unlock().await.expect("it was held");
        // One that is killed frees it: it was a session's.
        peer.lock(kind, name).await;
        peer.kill().await;
        let guard = lock.lock_within(LONG).await.expect("works").expect("its session has ended");
        guard.unlock().await.expect("it was held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn golang_migrate() {
    if !newest_go().await {
        return println!("golang-migrate needs a newer Go");
    }
    let other = Other { kind: "golang-migrate", language: Language::Go, waits: true };
    other.exclude(&format!("public/{}/postgres", fresh("migrations"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rails_migrations() {
    let other = Other { kind: "rails", language: Language::Ruby, waits: false };
    other.exclude("postgres").await; // the database
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn symfony() {
    let other = Other { kind: "symfony", language: Language::Php, waits: true };
    other.exclude(&fresh("symfony")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlx() {
    let other = Other { kind: "sqlx", language: Language::Rust, waits: true };
    other.exclude(&fresh("sqlx")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlx_migrations() {
    let other = Other { kind: "sqlx-migrate", language: Language::Rust, waits: true };
    other.exclude("postgres").await; // the database
}
