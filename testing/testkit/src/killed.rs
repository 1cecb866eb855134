//! Kills each of three members in turn, among them the leader and those in use, while one client
//! holds a lock and another waits for it.

use crate::Private;
use crate::eventually::{soon, until};
use holdline::{Client, Mutex};
use std::time::Duration;

/// Kills and restarts each of three members, and checks the guarantees meanwhile.
///
/// # Panics
///
/// If one is violated.
pub async fn in_turn(one: &Client, two: &Client, members: &mut Private) {
    let mut last = 0;
    for at in 0..3 {
        let guard = soon("the lock", Mutex::new(one, "x").lock()).await.expect("it is there");
        assert!(guard.token() > last);
        let waiting = Mutex::new(two, "x");
        let waiter = tokio::spawn(async move { waiting.lock().await });
        until("a waiter", async || {
            one.inspect("x").await.is_ok_and(|info| info.waiters.len() == 1)
        })
        .await;
        members.kill(at);
        tokio::time::sleep(Duration::from_secs(3)).await; // an election, and some renewals
        assert!(guard.is_valid(), "member {at} took the lock along");
        assert!(!waiter.is_finished());
        last = guard.token();
        soon("the release", guard.unlock()).await.expect("held");
        let next = soon("the next", waiter).await.expect("no panic").expect("it is there");
        assert!(next.token() > last);
        last = next.token();
        // A dead member makes no calls fail, and is not tried again and again.
        for _ in 0..50 {
            let guard = Mutex::new(one, "y").lock().await.expect("the others are there");
            guard.unlock().await.expect("held");
        }
        next.unlock().await.expect("held");
        members.restart(at);
    }
}
