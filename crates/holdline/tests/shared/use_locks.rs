//! All that a user of locks does, for tests of the least rights: a part of the binaries of stores.

use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::soon;

/// Locks, tries, waits, looks and breaks, from two stores as of two programs.
pub(crate) async fn use_locks(url: &str) {
    let clients = [open(url).await.expect("it may open"), open(url).await.expect("again")];
    let [lock, other] = clients.each_ref().map(|client| Mutex::new(client, "x"));
    let guard = lock.lock().await.expect("it may lock");
    assert!(other.try_lock().await.expect("it may try").is_none());
    let waiting = {
        let other = other.clone();
        tokio::spawn(async move { other.lock().await })
    };
    guard.unlock().await.expect("it was held");
    let guard = soon("the waiter", waiting).await.expect("no panic").expect("it may wait");
    let info = clients[0].inspect("x").await.expect("it may look");
    clients[0].list("").await.expect("at all of them, too");
    let broken = clients[0].force_unlock("x", info.holders[0].id, "a test").await;
    assert!(broken.expect("it may break").is_some());
    soon("the holder hears of it", guard.lost()).await;
    assert_eq!(guard.unlock().await.expect_err("it is lost").kind(), ErrorKind::Lost);
    let guard = soon("the next", lock.lock()).await.expect("it is free");
    guard.unlock().await.expect("it was held");
}
