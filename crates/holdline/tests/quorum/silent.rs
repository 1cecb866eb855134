//! A quorum with nodes that say nothing: they cost the others nothing, and count again when they
//! are back. And what a quorum refuses, and what it tells of evictions.

use crate::{client, name, nodes, quorum, ticket};
use holdline::store::{Enter, Standing, Store, Ticket};
use holdline::stores::memory::Memory;
use holdline::stores::quorum::Quorum;
use holdline::{ErrorKind, Mutex, open};
use holdline_conformance::{Chaos, Fault, Op};
use holdline_testkit::{soon, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const OPS: [Op; 5] = [Op::Enter, Op::Leave, Op::Snapshot, Op::List, Op::Evict];

fn all(node: &Chaos, fault: Fault) {
    for op in OPS {
        node.always(op, fault);
    }
}

fn calls(node: &Chaos) -> usize {
    OPS.iter().map(|op| node.count(*op)).sum()
}

/// With all nodes that are left needed, rivals who each have some of them end that, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rivals_end_their_ties_on_a_bare_majority() {
    for fault in [Fault::HangBefore, Fault::FailBefore] {
        let spaces: Vec<Arc<dyn Store>> = (0..5).map(|_| Arc::new(Memory::new()) as _).collect();
        let inside = Arc::new(AtomicU32::new(0));
        let rivals: Vec<_> = (0..4)
            .map(|rival| {
                // Each as a process of its own, which reaches the nodes in an order of its own.
                let node = |(at, space): (usize, &Arc<dyn Store>)| {
                    let node = Chaos::new(Arc::clone(space));
                    let delay = Duration::from_millis(((at + rival) % 5) as u64);
                    all(&node, if at == 1 || at == 2 { fault } else { Fault::Delay(delay) });
                    Arc::new(node)
                };
                let nodes: Vec<_> = spaces.iter().enumerate().map(node).collect();
                let lock = Mutex::new(&client(&nodes), "x");
                let inside = Arc::clone(&inside);
                tokio::spawn(async move {
                    for _ in 0..10 {
                        let guard = lock.lock().await.expect("a majority is there");
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        guard.unlock().await.expect("held");
                    }
                })
            })
            .collect();
        for rival in rivals {
            soon("an end", rival).await.expect("no rival fails");
        }
    }
}

/// The others may be a majority, and have no place of this lock: it depends on the silent node. One
/// renewal of three suffices, whichever it is. G14.
#[tokio::test]
async fn a_silent_node_that_a_lock_depends_on_is_asked() {
    let nodes = nodes(3);
    let (quorum, name, note) = (quorum(&nodes), name(), Arc::from(""));
    nodes[2].enter(&name, &ticket(1), &note, Enter::Try).await.expect("works");
    let enter = async |how| quorum.enter(&name, &ticket(2), &note, how).await;
    let standing = enter(Enter::Try).await.expect("works");
    let Standing::Admitted(token) = standing else { panic!("two of three are enough") };
    nodes[1].calls(Op::Enter, 0, 1, Fault::HangBefore);
    let error = enter(Enter::Keep(token)).await.expect_err("only one says that it has it");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("did not answer in time"), "{error}");
    let standing = enter(Enter::Keep(token)).await.expect("both answer");
    assert_eq!(standing, Standing::Admitted(token));
}

/// A try that fails waits only a moment for each node to confirm that nothing is left there. A node
/// that takes longer is not silent.
#[tokio::test]
async fn a_node_that_confirms_a_departure_late_is_not_silent() {
    let nodes = nodes(3);
    let (quorum, name, note) = (quorum(&nodes), name(), Arc::from(""));
    for node in &nodes[..2] {
        node.enter(&name, &ticket(1), &note, Enter::Try).await.expect("works");
    }
    nodes[2].always(Op::Leave, Fault::HangBefore);
    let standing = quorum.enter(&name, &ticket(2), &note, Enter::Try).await.expect("works");
    assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    assert_eq!(nodes[2].under_way(Op::Leave), 1, "it has not confirmed yet");
    quorum.list("").await.expect("works");
    assert_eq!(nodes[2].count(Op::List), 1, "it is asked, too");
}

/// Once it is known to be silent, a node is asked in the background only, and by one question at a
/// time; and it counts again when it answers.
#[tokio::test]
async fn a_silent_node_is_asked_in_the_background_only() {
    let nodes = nodes(5);
    let client = client(&nodes);
    let lock = Mutex::new(&client, "x");
    lock.lock().await.expect("works").unlock().await.expect("held");
    for node in &nodes[3..] {
        all(node, Fault::HangBefore);
    }
    client.inspect("x").await.expect("a majority is there"); // here it is found out
    let before: Vec<usize> = nodes.iter().map(|node| calls(node)).collect();
    for _ in 0..100 {
        client.inspect("x").await.expect("a majority is there");
        client.list("").await.expect("a majority is there");
    }
    let asked = |at: usize| calls(&nodes[at]) - before[at];
    for at in 0..3 {
        assert_eq!(asked(at), 200, "node {at}");
    }
    for at in 3..5 {
        assert!(asked(at) <= 1, "node {at} was asked {} times", asked(at));
    }
    for node in &nodes {
        node.heal();
    }
    // The question that hangs has its time first.
    until("the silent ones count again", async || {
        client.inspect("x").await.expect("a majority is there");
        let before = [calls(&nodes[3]), calls(&nodes[4])];
        client.list("").await.expect("a majority is there");
        calls(&nodes[3]) > before[0] && calls(&nodes[4]) > before[1]
    })
    .await;
    all(&nodes[0], Fault::FailBefore);
    all(&nodes[1], Fault::HangBefore);
    let guard = soon("the lock", lock.lock()).await.expect("a majority is there");
    guard.unlock().await.expect("held");
}

/// A renewal asks a silent node for nothing, not even a missing place; but whether it answers.
#[tokio::test]
async fn a_lock_gets_its_place_on_a_node_that_was_silent() {
    let nodes = nodes(3);
    let (quorum, name, note) = (quorum(&nodes), name(), Arc::from(""));
    nodes[2].calls(Op::Snapshot, 0, 1, Fault::HangBefore);
    quorum.snapshot(&name).await.expect("a majority is there"); // here it is found out
    let background = quorum.background_handle(); // as the renewer has one
    let standing = quorum.enter(&name, &ticket(1), &note, Enter::Try).await.expect("works");
    let Standing::Admitted(token) = standing else { panic!("two of three are enough") };
    assert_eq!(nodes[2].count(Op::Enter), 0, "it is left out");
    until("it has the place, too", async || {
        let kept = background.enter(&name, &ticket(1), &note, Enter::Keep(token)).await;
        assert_eq!(kept.expect("a majority is there"), Standing::Admitted(token));
        !nodes[2].snapshot(&name).await.expect("works").places.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_lock_is_renewed_through_the_silence_of_a_minority() {
    let nodes = nodes(5);
    let client = client(&nodes);
    let lease = Duration::from_millis(600);
    let guard = Mutex::new(&client, "x").lease(lease).lock().await.expect("works");
    all(&nodes[0], Fault::HangBefore);
    all(&nodes[4], Fault::HangBefore);
    let (before, renewals) = (nodes[2].count(Op::Enter), 12); // four leases
    until("renewals", async || nodes[2].count(Op::Enter) >= before + renewals).await;
    assert!(guard.is_valid());
    guard.unlock().await.expect("held");
}

/// What a node was not told while it was away, it is told when it is back.
#[tokio::test]
async fn a_place_on_a_node_that_was_away_is_given_up_later() {
    for fault in [Fault::FailBefore, Fault::HangBefore] {
        let nodes = nodes(5);
        let client = client(&nodes);
        let name = name();
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        until("everywhere", async || {
            nodes[4].snapshot(&name).await.is_ok_and(|view| view.places.len() == 1)
        })
        .await;
        nodes[4].always(Op::Leave, fault);
        guard.unlock().await.expect("held");
        nodes[4].heal();
        until("given up", async || {
            nodes[4].snapshot(&name).await.is_ok_and(|view| view.places.is_empty())
        })
        .await;
    }
}

/// What no retry helps is not waited for: as with one store.
#[tokio::test]
async fn what_a_majority_refuses_for_good_is_told_so() {
    let nodes = nodes(5);
    let (name, note) = (name(), Arc::from(""));
    for (at, node) in nodes.iter().enumerate().take(3) {
        let other = Ticket { capacity: 5, ..ticket(at as u128) };
        node.enter(&name, &other, &note, Enter::Try).await.expect("a semaphore is taken");
    }
    let lock = Mutex::new(&client(&nodes), "x");
    let error = soon("an error", lock.lock()).await.expect_err("a semaphore has the name");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error:#}");
}

/// What a minority refuses for good can be had again once one of the others is back.
#[tokio::test]
async fn what_a_minority_refuses_for_good_may_yet_be_had() {
    let nodes = nodes(5);
    let (quorum, name, note) = (quorum(&nodes), name(), Arc::from(""));
    for (at, node) in nodes.iter().enumerate().take(2) {
        let other = Ticket { capacity: 5, ..ticket(at as u128) };
        node.enter(&name, &other, &note, Enter::Try).await.expect("a semaphore is taken");
    }
    nodes[2].calls(Op::Enter, 0, 1, Fault::FailBefore);
    let enter = async || quorum.enter(&name, &ticket(7), &note, Enter::Try).await;
    let error = enter().await.expect_err("three of five fail");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    assert!(matches!(enter().await.expect("one is back"), Standing::Admitted(_)));
}

/// Each eviction once, oldest first, also if some of the nodes do not know it.
#[tokio::test]
async fn the_evictions_of_the_nodes_are_told_once_each() {
    let nodes = nodes(5);
    let quorum = quorum(&nodes);
    let (name, note) = (name(), Arc::from(""));
    for number in 1..=3 {
        let away = &nodes[number as usize];
        all(away, Fault::FailBefore);
        let ticket = ticket(number);
        quorum.enter(&name, &ticket, &note, Enter::Try).await.expect("a majority is there");
        let words = format!("reason {number}");
        let number = quorum.evict(&name, ticket.id, &words).await.expect("a majority is there");
        number.expect("it was there");
        away.heal();
    }
    let evictions = quorum.snapshot(&name).await.expect("works").evictions;
    let told: Vec<_> = evictions.iter().map(|it| (it.id.0, it.note.to_string())).collect();
    let words = [1, 2, 3].map(|number: u128| (number, format!("reason {number}")));
    assert_eq!(told, words);
}

#[tokio::test]
async fn a_node_that_is_given_twice_is_refused() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let error = Quorum::new([store.clone(), Arc::new(Memory::new()), store]).expect_err("twice");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let here = folder.path().display();
    let mut urls = vec!["quorum:memory:twice-a,memory:twice-b,memory:twice-a".to_owned()];
    if cfg!(feature = "sqlite") {
        std::fs::write(folder.path().join("b"), "").expect("there is room");
        std::fs::hard_link(folder.path().join("b"), folder.path().join("c")).expect("a link");
        urls.push(format!(
            "quorum:sqlite:{here}/a,memory:twice-b,sqlite://{here}/./a?network=allow"
        ));
        urls.push(format!("quorum:memory:twice-b,sqlite:{here}/b,sqlite:{here}/c"));
    }
    if cfg!(feature = "redis") {
        // Refused before it is asked: nobody is there.
        let one = "redis://me:canary@localhost:1";
        urls.push(format!("quorum:{one},memory:twice-b,redis://127.0.0.1:1/0?prefix=holdline:"));
    }
    for url in urls {
        let error = open(&url).await.expect_err(&url);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
        let words = error.to_string();
        assert!(words.contains("twice") && !words.contains("canary"), "{words}");
    }
}

#[cfg(all(feature = "etcd", feature = "zookeeper"))]
#[tokio::test]
async fn nodes_whose_tokens_nobody_can_raise_are_refused_with_advice() {
    for url in ["etcd://127.0.0.1:1", "zookeeper://127.0.0.1:1"] {
        let url = format!("quorum:memory:advice-a,{url},memory:advice-b");
        let error = open(&url).await.expect_err("no least token");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("this store alone"), "{error}");
    }
}
