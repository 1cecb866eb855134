//! The blocking API, on the memory store.

use holdline::blocking::open;
use holdline::{Fence, Owner};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn threads_take_turns_and_the_fence_agrees() {
    let client = open("memory:").expect("memory opens");
    let fence = Arc::new(Fence::default());
    let threads = (0..8).map(|_| {
        let (client, fence) = (client.clone(), fence.clone());
        std::thread::spawn(move || {
            for _ in 0..50 {
                let guard = client.mutex("x").lock().expect("memory works");
                fence.check(guard.token()).expect("tokens rise");
                guard.unlock().expect("held to the end");
            }
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().expect("no thread fails");
    }
}

#[test]
fn every_recipe_blocks_and_lets_go() {
    let client = open("memory:").expect("memory opens");
    let brief = Duration::from_millis(20);

    let guard = client.mutex("m").lock().expect("works");
    assert!(client.mutex("m").try_lock().expect("works").is_none());
    assert!(client.mutex("m").lock_within(brief).expect("works").is_none());
    assert_eq!(guard.protect(|| 7).expect("held"), 7);
    assert!(!guard.lost_within(brief));
    guard.unlock().expect("held");

    let writer = client.rwlock("rw").write().expect("works");
    assert!(client.rwlock("rw").read_within(brief).expect("works").is_none());
    let reader = writer.downgrade().map_err(|(_, error)| error).expect("held");
    client.rwlock("rw").read().expect("readers share").unlock().expect("held");
    assert!(client.rwlock("rw").write_within(brief).expect("works").is_none());
    drop(reader);

    let two = client.semaphore("s", 3).acquire(2).expect("works");
    assert!(client.semaphore("s", 3).acquire_within(2, brief).expect("works").is_none());
    two.unlock().expect("held");

    let me = Owner::new();
    let outer = client.reentrant("re").lock(&me).expect("works");
    let inner = client.reentrant("re").lock(&me).expect("does not wait for itself");
    outer.unlock().expect("one of two");
    assert!(inner.is_valid());
    inner.unlock().expect("the last");

    let both = client.multi(["b", "a"]).lock().expect("works");
    assert!(client.multi(["c", "b"]).lock_within(brief).expect("works").is_none());
    both.unlock().expect("held");

    let leader = client.election("e").campaign("one").expect("works");
    leader.proclaim("two").expect("leads");
    assert_eq!(client.election("e").leader().expect("works").expect("somebody").value, "two");
    leader.resign().expect("led to the end");

    client.settle();
    assert!(client.list("").expect("works").is_empty());
}

#[test]
fn a_broken_lock_is_told_and_fenced() {
    let client = open("memory:").expect("memory opens");
    let guard = client.mutex("x").lock().expect("works");
    let info = client.inspect("x").expect("works");
    let token = client.force_unlock("x", info.holders[0].id, "test").expect("works");
    assert!(token.expect("it was there") > guard.token());
    assert!(guard.lost_within(Duration::from_secs(5)));
    assert!(guard.protect(|| ()).expect_err("lost").is_lost());
}
