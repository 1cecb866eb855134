//! The blocking API, on the memory store.

use holdline::blocking::{BlockingRoute, Client, open};
use holdline::store::Lines;
use holdline::{Fence, OnLoss, Owner};
use holdline_conformance::{Chaos, Fault, Op};
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

/// Work that blocks the thread itself: by a method of its guard, by another lock, in a runtime.
#[test]
fn protected_work_may_block() {
    let client = open("memory:").expect("memory opens");
    let time = Duration::from_secs(60);
    let guard = client.mutex("x").lock().expect("works");
    guard.protect(|| guard.extend(time)).expect("held").expect("held");
    assert!(guard.remaining() + Duration::from_secs(5) >= time);
    let other = guard.try_protect(|| client.mutex("y").lock()).expect("held, and works");
    let both = client.multi(["a", "b"]).lock().expect("works");
    both.protect(|| other.unlock()).expect("held").expect("held");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("it is built");
    assert_eq!(both.protect(|| runtime.block_on(async { 7 })).expect("held"), 7);
    let leader = client.election("e").campaign("one").expect("works");
    leader.protect(|| leader.proclaim("two")).expect("leads").expect("leads");
    let member = client.group("g").join("a").expect("works");
    let BlockingRoute::Mine(key) = member.route("key").expect("works") else { panic!("alone") };
    assert_eq!(key.protect(|| member.members()).expect("owned").expect("works").len(), 1);
}

#[test]
fn what_is_lost_during_protected_work_is_told() {
    let client = open("memory:").expect("memory opens");
    let guard = client.mutex("x").lock().expect("works");
    let id = guard.ticket();
    let work = || {
        client.force_unlock("x", id, "test").expect("works").expect("it was there");
        assert!(guard.lost_within(Duration::from_secs(5)));
    };
    assert!(guard.protect(work).expect_err("lost meanwhile").is_lost());
    let guard = client.mutex("y").on_loss(OnLoss::Continue).lock().expect("works");
    client.force_unlock("y", guard.ticket(), "test").expect("works").expect("it was there");
    assert!(guard.lost_within(Duration::from_secs(5)));
    assert_eq!(guard.protect(|| 7).expect("it goes on all the same"), 7);
}

/// As at the end of `main`: the lock must be free when the process has ended.
#[test]
fn a_dropped_guard_waits_for_its_release() {
    let memory = open("memory:").expect("memory opens");
    let chaos = Chaos::new(Arc::clone(memory.as_async().store()));
    let client = Client::new(chaos.client());
    chaos.always(Op::Leave, Fault::Delay(Duration::from_millis(200)));
    drop(client.mutex("m").lock().expect("works"));
    drop(client.rwlock("rw").write().expect("works"));
    drop(client.reentrant("re").lock(&Owner::new()).expect("works"));
    drop(client.multi(["a", "b"]).lock().expect("works"));
    drop(client.election("e").campaign("one").expect("works"));
    drop(client.group("g").join("here").expect("works"));
    assert_eq!(memory.list("").expect("works"), []);
}

/// A thread that drives tasks must not be blocked.
#[test]
fn a_guard_that_a_task_drops_is_released_in_the_background() {
    let memory = open("memory:").expect("memory opens");
    let chaos = Chaos::new(Arc::clone(memory.as_async().store()));
    let client = Client::new(chaos.client());
    chaos.always(Op::Leave, Fault::FailBefore);
    let guard = client.mutex("x").lease(Duration::from_secs(3600)).lock().expect("works");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("it is built");
    runtime.block_on(async move { drop(guard) });
    assert_eq!(memory.list("").expect("works").len(), 1);
    chaos.heal();
    client.settle();
    assert_eq!(memory.list("").expect("works"), []);
}

/// Each recipe's async methods are there for threads, too: the same names, as often.
#[test]
fn every_async_method_is_there_for_threads() {
    let recipes = [
        include_str!("../../src/recipes/election.rs"),
        include_str!("../../src/recipes/multi.rs"),
        include_str!("../../src/recipes/mutex.rs"),
        include_str!("../../src/recipes/reentrant.rs"),
        include_str!("../../src/recipes/rwlock.rs"),
        include_str!("../../src/recipes/semaphore.rs"),
    ]
    .concat();
    let others = [include_str!("../../src/client.rs"), include_str!("../../src/guard.rs")].concat();
    let blocking =
        [include_str!("../../src/blocking.rs"), include_str!("../../src/blocking/macros.rs")]
            .concat();
    let count = |text: &str, start: &str, name: &str| {
        let is_it = |line: &&str| {
            let rest = line.trim().strip_prefix(start).and_then(|line| line.strip_prefix(name));
            rest.is_some_and(|rest| rest.starts_with(['(', '<']))
        };
        text.lines().filter(is_it).count()
    };
    // Written once for all guards; a task's own; an iterator's name on another type.
    let once = ["unlock", "lost", "loss", "protect", "try_protect", "extend"];
    let none = ["scope", "next"];
    let names = |text: &str| -> Vec<String> {
        let heads = text.lines().filter_map(|line| line.trim().strip_prefix("pub async fn "));
        let name = |head: &str| head.split(['(', '<']).next().unwrap_or_default().to_owned();
        heads.map(name).filter(|name| !none.contains(&name.as_str())).collect()
    };
    for name in names(&recipes).iter().chain(&names(&others)) {
        let wanted = count(&recipes, "pub async fn ", name).max(1);
        let found = count(&blocking, "pub fn ", name);
        let enough = if once.contains(&name.as_str()) { 1 } else { wanted };
        assert!(found >= enough, "{name}: {wanted} async, {found} blocking");
    }
    assert!(names(&recipes).len() > 20);
    let options = [include_str!("../../src/options.rs"), &recipes].concat();
    let options = options.lines().filter_map(|line| line.trim().strip_prefix("pub fn "));
    let options: Vec<_> = options.filter_map(|head| head.split_once("(mut self")).collect();
    for (name, _) in options.iter().filter(|(name, _)| *name != "every") {
        assert!(blocking.contains(&format!("{name}(")), "the option {name}");
    }
    assert!(options.len() >= 10);
}

#[test]
fn what_tries_does_not_wait() {
    let client = open("memory:").expect("memory opens");
    let me = Owner::new();
    let writer = client.rwlock("rw").try_write().expect("works").expect("free");
    assert!(client.rwlock("rw").try_read().expect("works").is_none());
    let notice = writer.loss_notice();
    writer.extend(Duration::from_secs(5)).expect("held");
    assert!(writer.remaining() >= Duration::from_secs(5));
    writer.unlock().expect("held");
    assert_eq!(notice.wait(), None);
    client.rwlock("rw").try_read().expect("works").expect("free").unlock().expect("held");
    let permit = client.semaphore("s", 1).try_acquire(1).expect("works").expect("free");
    assert!(client.semaphore("s", 1).try_acquire(1).expect("works").is_none());
    let parsed = permit.try_protect(|| "7".parse::<u32>().map_err(|_| "no number".into()));
    let parsed: Result<u32, Box<dyn std::error::Error>> = parsed;
    assert_eq!(parsed.expect("held"), 7);
    let both = client.multi(["a", "b"]).try_lock().expect("works").expect("free");
    assert!(client.multi(["b", "c"]).try_lock().expect("works").is_none());
    both.unlock().expect("held");
    let mine = client.reentrant("re").try_lock(&me).expect("works").expect("free");
    let brief = Duration::from_millis(20);
    let others = client.reentrant("re").lock_within(&Owner::new(), brief).expect("works");
    assert!(others.is_none());
    mine.unlock().expect("held");
    let election = client.election("e");
    let mut observer = election.observe().every(Duration::from_millis(10));
    assert!(observer.next_change().expect("works").is_none(), "nobody leads");
    let leader = election.campaign_within("one", brief).expect("works").expect("free");
    assert_eq!(observer.next_change().expect("works").expect("somebody").value, "one");
    assert_eq!(leader.protect(|| 7).expect("leads"), 7);
    leader.resign().expect("led");
}

#[test]
fn a_group_blocks_and_lets_go() {
    let client = open("memory:").expect("memory opens");
    let group = client.group("g");
    let mut observer = group.observe();
    assert!(observer.next_change().expect("works").is_empty());
    let member = group.join("a").expect("works");
    assert_eq!(observer.next_change().expect("works").owner("key"), Some("a"));
    assert_eq!((member.address(), member.members().expect("works").len()), ("a", 1));
    let BlockingRoute::Mine(key) = member.route("key").expect("works") else { panic!("alone") };
    assert!(key.is_valid() && key.token() == member.token());
    assert_eq!(key.protect(|| 7).expect("owned"), 7);
    let failed = key.try_protect(|| Err::<(), _>(Box::<dyn std::error::Error>::from("bad")));
    assert_eq!(failed.expect_err("it is bad").to_string(), "bad");
    drop(key);
    assert!(!member.lost_within(Duration::from_millis(1)) && member.loss().is_none());
    member.leave().expect("it was there");
    assert!(group.members().expect("works").is_empty());
}

#[test]
fn changes_are_waited_for() {
    let client = open("memory:").expect("memory opens");
    let mut changes = client.changes(Lines::Prefix("a/".to_owned()));
    changes.wait(Duration::from_secs(3600)); // it begins to listen
    let guard = client.mutex("a/b").lock().expect("works");
    changes.wait(Duration::from_secs(3600));
    guard.unlock().expect("held");
}

#[cfg(feature = "doctor")]
#[test]
fn a_store_is_examined() {
    use holdline::doctor::{Examination, Level};
    let report = holdline::blocking::examine("memory:", &Examination::default()).expect("valid");
    assert!(report.answers && report.worst() < Level::Problem, "{report:?}");
    holdline::blocking::examine("nowhere:", &Examination::default()).expect_err("no such store");
}
