//! A contested lock: one client holds it and another waits, for a test to act on.

use crate::Private;
use crate::eventually::{persist, soon, until};
use holdline::{Client, Guard, Mutex, clock};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How often holding a lock for a while is attempted.
const TRIES: usize = 20;

/// Acquires a lock, has the other client wait behind it, and returns when the first has held it for
/// this time. On a busy machine a short lease may expire before it is renewed: then everything is
/// repeated. `looks` is a client of the same line.
///
/// # Panics
///
/// If two hold it at once, or if it is lost each time.
pub async fn contested(
    lock: &Mutex,
    rival: &Mutex,
    looks: &Client,
    time: Duration,
) -> (Arc<Guard>, JoinHandle<(Guard, u64)>) {
    for _ in 0..TRIES {
        let guard = Arc::new(soon("the lock", persist(lock.clone())).await);
        let next = behind(&guard, rival.clone());
        until("a waiter", async || {
            let waits = |info: holdline::LockInfo| info.waiters.len() == 1;
            !guard.is_valid() || looks.inspect(guard.name().as_str()).await.is_ok_and(waits)
        })
        .await;
        tokio::time::sleep(time).await;
        let is_in = next.is_finished();
        if guard.is_valid() {
            assert!(!is_in, "two hold it");
            return (guard, next);
        }
        drop(guard);
        let (next, _) = soon("the rival", next).await.expect("no panic");
        // A busy machine may have lost this one too.
        let _ = next.unlock().await;
    }
    panic!("the lock was lost {TRIES} times before anything was done to it");
}

/// Waits behind a guard, in a task that returns the next guard and the time of its grant, in
/// nanoseconds of [`clock`]. It panics if the first guard is still valid then: by the clock it is
/// not, however late its holder is notified.
pub fn behind(held: &Arc<Guard>, lock: Mutex) -> JoinHandle<(Guard, u64)> {
    let (held, token) = (Arc::downgrade(held), held.token());
    tokio::spawn(async move {
        let next = persist(lock).await;
        let at = clock::now().0;
        assert!(held.upgrade().is_none_or(|held| !held.is_valid()), "two hold it");
        assert!(next.token() > token, "a token of the past");
        (next, at)
    })
}

/// A waiter that rides out an outage of five seconds, while the first of these servers, which
/// answers all clients, is frozen: it gives up soon after, and takes nothing for an answer
/// meanwhile.
///
/// # Panics
///
/// If it is otherwise.
pub async fn gives_up_on_a_frozen_server(servers: &Private) {
    let client = async || holdline::open(&servers.url()).await.expect("a good URL");
    let (holder, waiting) = (client().await, client().await);
    let guard = soon("the lock", persist(Mutex::new(&holder, "frozen"))).await;
    let lock = Mutex::new(&waiting.clone().outage(Duration::from_secs(5)), "frozen");
    let waiter = tokio::spawn(async move { lock.lock().await });
    until("a waiter", async || {
        holder.inspect("frozen").await.is_ok_and(|info| info.waiters.len() == 1)
    })
    .await;
    servers.servers[0].pause();
    let mut away = false;
    until("an error", async || {
        let is_away = waiting.unavailable_for().is_some();
        assert!(is_away || !away, "a frozen server answered");
        away = is_away;
        waiter.is_finished()
    })
    .await;
    let error = waiter.await.expect("no panic").expect_err("nobody answers");
    assert_eq!(error.kind(), holdline::ErrorKind::Unavailable, "{error}");
    servers.servers[0].resume();
    drop(guard);
}
