//! golang-migrate on PostgreSQL: the advisory lock of its migrations, by `keys=golang-migrate`.

use crate::peer::{LONG, Peer};
use crate::suite::fresh;
use crate::toolchain::{Language, newest_go};
use holdline::{Mutex, open};
use holdline_testkit::postgres;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn golang_migrate() {
    const KIND: &str = "golang-migrate";
    if !newest_go().await {
        return println!("golang-migrate needs a newer Go");
    }
    let Some(server) = postgres::start(KIND) else { return };
    let url = format!("{}?scheme=advisory&keys={KIND}", server.url());
    let client = open(&url).await.expect("opens");
    let Some(mut peer) = Peer::start(Language::Go, &server.hosts()[0], LONG).await else { return };
    let name = format!("public/{}/postgres", fresh("migrations"));
    let lock = Mutex::new(&client, &name);
    let guard = lock.try_lock().await.expect("works").expect("free");
    assert!(!peer.try_lock(KIND, &name).await, "we hold it");
    peer.say(&format!("lock {KIND} {name}")).await;
    let early = peer.answer_within(Duration::from_millis(300)).await;
    assert_eq!(early, None, "it waits");
    guard.unlock().await.expect("it was held");
    assert_eq!(peer.answer().await, "held -");
    assert!(lock.try_lock().await.expect("works").is_none(), "they hold it");
    peer.unlock().await;
    let guard = lock.lock_within(LONG).await.expect("works").expect("they gave it back");
    guard.unlock().await.expect("it was held");
    // One that is killed frees it: it was a session's.
    peer.lock(KIND, &name).await;
    peer.kill().await;
    let guard = lock.lock_within(LONG).await.expect("works").expect("its session has ended");
    guard.unlock().await.expect("it was held");
}
