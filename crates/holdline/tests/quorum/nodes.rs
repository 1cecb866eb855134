//! A quorum with nodes that fail, forget and lag behind. (The conformance suite runs it healthy.)

use crate::{client, is_renewed, name, nodes, ticket};
use futures_util::FutureExt;
use holdline::store::{Enter, Standing, Store, Ticket};
use holdline::stores::memory::Memory;
use holdline::stores::quorum::Quorum;
use holdline::{Client, ErrorKind, Mutex, open};
use holdline_conformance::{Chaos, Fault, Op};
use holdline_testkit::until;
use std::sync::Arc;
use std::time::Duration;

/// Nodes, and a client over them.
fn with_client(count: usize) -> (Vec<Arc<Chaos>>, Client) {
    let nodes = nodes(count);
    let client = client(&nodes);
    (nodes, client)
}

fn break_down(node: &Chaos) {
    for op in [Op::Enter, Op::Leave, Op::Snapshot, Op::Evict] {
        node.always(op, Fault::FailBefore);
    }
}

#[tokio::test]
async fn a_minority_may_fail_and_a_majority_may_not() {
    let (nodes, client) = with_client(5);
    let lock = Mutex::new(&client, "x");
    break_down(&nodes[0]);
    break_down(&nodes[3]);
    let guard = lock.lock().await.expect("three of five are enough");
    guard.unlock().await.expect("held to the end");
    break_down(&nodes[4]);
    let error = lock.try_lock().await.expect_err("two of five are not");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let words = error.to_string();
    assert_eq!(words.matches("was made to fail").count(), 3, "each node's own words: {words}");
    for node in &nodes {
        node.heal();
    }
    client.settle().await;
    let guard = lock.lock().await.expect("healed");
    guard.unlock().await.expect("nothing was left behind");
}

#[tokio::test]
async fn a_silent_node_costs_a_part_of_the_lease_and_no_more() {
    let (nodes, client) = with_client(3);
    nodes[1].always(Op::Enter, Fault::HangBefore);
    nodes[1].always(Op::Leave, Fault::HangBefore);
    let start = std::time::Instant::now();
    let guard = Mutex::new(&client, "x").lock().await.expect("two of three are enough");
    guard.unlock().await.expect("held to the end");
    assert!(start.elapsed() < Duration::from_secs(1), "it took {:?}", start.elapsed());
}

/// A majority's answers end an unlock; what the others have not been asked by then, they still are.
#[tokio::test]
async fn an_unlock_reaches_the_slow_nodes_too() {
    let (nodes, client) = with_client(5);
    for slow in &nodes[3..] {
        slow.always(Op::Leave, Fault::Delay(Duration::from_millis(100)));
    }
    let name = name();
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    guard.unlock().await.expect("held to the end");
    let left = async || {
        let mut left = 0;
        for node in &nodes {
            left += node.snapshot(&name).await.expect("works").places.len();
        }
        left
    };
    let limit = std::time::Instant::now() + Duration::from_secs(5); // half of the lease
    while left().await > 0 {
        assert!(std::time::Instant::now() < limit, "a node was never told");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Gives every node a turn at being left out, so that each majority has somebody who lags behind.
#[tokio::test]
async fn tokens_rise_through_majorities_that_lag() {
    let (nodes, client) = with_client(5);
    let mut last = 0;
    for turn in 0..200_usize {
        // Clients come and go: what one has learnt, the next does not know.
        let fresh = crate::client(&nodes);
        let client = if turn % 3 == 0 { &fresh } else { &client };
        for away in [turn % 5, (turn * 7 + 2) % 5] {
            break_down(&nodes[away]);
        }
        let guard = Mutex::new(client, "x").lock().await.expect("a majority is there");
        assert!(guard.token() > last, "turn {turn}: {} after {last}", guard.token());
        last = guard.token();
        guard.unlock().await.expect("held to the end");
        for node in &nodes {
            node.heal();
        }
        // What the absent ones were not told ends with its lease; do not wait for it here.
        for node in &nodes {
            let view = node.snapshot(&name()).await.expect("healed");
            for place in view.places {
                let name = name();
                node.leave(&name, place.id).await.expect("healed");
            }
        }
    }
}

#[tokio::test]
async fn nodes_that_forget_are_repaired_and_a_majority_that_forgets_is_a_loss() {
    let (nodes, client) = with_client(3);
    let name = name();
    let lock = Mutex::new(&client, "x").lease(Duration::from_millis(600));
    let guard = lock.lock().await.expect("works");
    let id = guard.ticket();
    let holds = |node: Arc<Chaos>| {
        let name = name.clone();
        async move { node.snapshot(&name).await.expect("works").holders().count() == 1 }
    };

    nodes[1].leave(&name, id).await.expect("works"); // it restarts without its data
    while !holds(nodes[1].clone()).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(guard.is_valid());

    nodes[0].leave(&name, id).await.expect("works");
    nodes[2].leave(&name, id).await.expect("works");
    tokio::time::timeout(Duration::from_secs(10), guard.lost()).await.expect("it is told");
    assert!(!guard.is_valid());
}

/// However late the node says that it has given it.
#[tokio::test]
async fn a_place_that_a_slow_node_gives_again_counts_as_well() {
    let (nodes, client) = with_client(3);
    let (name, lock) = (name(), Mutex::new(&client, "x").lease(Duration::from_secs(4)));
    let guard = lock.lock().await.expect("works");
    nodes[1].leave(&name, guard.ticket()).await.expect("works"); // it restarts without its data
    nodes[1].calls(Op::Enter, 1, 1, Fault::DelayReply(Duration::from_millis(600)));
    let holds = async || nodes[1].snapshot(&name).await.expect("works").holders().count() == 1;
    until("it has a place again", holds).await;
    break_down(&nodes[0]);
    is_renewed(&guard, 3).await;
    assert!(guard.is_valid());
    guard.unlock().await.expect("held to the end");
}

/// A try that has failed leaves, and a leave may be late. A caller that stopped waiting for it
/// meanwhile is not let in by the same ticket, whose place that leave would take away. G1.
#[tokio::test]
async fn a_ticket_that_is_leaving_is_not_asked_with_again() {
    let (nodes, client) = with_client(3);
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    let (name, note) = (name(), Arc::from(""));
    let stores = nodes.iter().map(|node| Arc::clone(node) as Arc<dyn Store>);
    let quorum = Quorum::new(stores).expect("enough nodes");
    let ticket = ticket(1);
    for node in &nodes {
        node.always(Op::Leave, Fault::HangBefore);
    }
    assert!(quorum.enter(&name, &ticket, &note, Enter::Try).now_or_never().is_none(), "it leaves");
    for node in &nodes {
        node.heal();
    }
    guard.unlock().await.expect("held to the end");
    let standing = quorum.enter(&name, &ticket, &note, Enter::Try).await.expect("works");
    assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    let later = Mutex::new(&client, "x").lock().await.expect("nobody is there");
    later.unlock().await.expect("held to the end");
}

/// A ticket that is still on its way in when it is removed by force may get a token on one node
/// that is above all that the force was given on the others. G19: its answer is above it all the
/// same.
#[tokio::test]
async fn a_force_unlock_fences_a_victim_that_was_still_coming_in() {
    let spaces: Vec<Arc<dyn Store>> = (0..3).map(|_| Arc::new(Memory::new()) as _).collect();
    let seen: Vec<_> = spaces.iter().map(|space| Arc::new(Chaos::new(space.clone()))).collect();
    let stores = seen.iter().map(|node| Arc::clone(node) as Arc<dyn Store>);
    let force = Quorum::new(stores).expect("enough nodes");
    let quorum = Quorum::new(spaces.clone()).expect("enough nodes");
    let (name, note) = (name(), Arc::from(""));
    let (victim, next) = (ticket(1), ticket(2));

    // It is in on node 2, and not yet on the others, when the force begins, which cannot reach 1.
    spaces[2].enter(&name, &victim, &note, Enter::Try).await.expect("works");
    break_down(&seen[1]);
    seen[2].always(Op::Evict, Fault::Stutter(1));
    let mut removal = force.evict(&name, victim.id, "a test");
    while seen[2].count(Op::Evict) == 0 {
        assert!(futures_util::poll!(&mut removal).is_pending());
        tokio::task::yield_now().await;
    }
    // The clock of node 1 is ahead.
    let ahead = Ticket { min_token: holdline::clock::wall_micros() + 60_000_000, ..victim };
    spaces[1].enter(&name, &ahead, &note, Enter::Try).await.expect("works");
    let standing = quorum.enter(&name, &victim, &note, Enter::Try).await.expect("works");
    let Standing::Admitted(token) = standing else { panic!("two of three are enough") };

    let number = removal.await.expect("two of three are enough").expect("it was there");
    assert!(number > token, "{token:?} is not fenced by {number:?}");
    quorum.leave(&name, victim.id).await.expect("works");
    let standing = quorum.enter(&name, &next, &note, Enter::Try).await.expect("works");
    let Standing::Admitted(later) = standing else { panic!("all are free") };
    assert!(number < later, "{later:?} is fenced by {number:?} as well");
}

/// Each round of a force unlock waits for a silent node to the end of its time; even then the rival
/// who keeps trying is not let in before there is a number. G19.
#[tokio::test]
async fn a_force_unlock_fences_also_with_a_silent_node_and_an_eager_rival() {
    let (nodes, client) = with_client(3);
    for op in [Op::Enter, Op::Leave, Op::Snapshot, Op::Evict] {
        nodes[1].always(op, Fault::HangBefore);
    }
    let guard = Mutex::new(&client, "x").lock().await.expect("two of three are enough");
    let rival = Mutex::new(&crate::client(&nodes), "x");
    let rival = tokio::spawn(async move { rival.lock().await.expect("two of three are enough") });
    let elsewhere = crate::client(&nodes);
    let number = elsewhere.force_unlock("x", guard.ticket(), "a test").await.expect("enough");
    let number = number.expect("it was there");
    let rival = tokio::time::timeout(Duration::from_secs(60), rival).await;
    let rival = rival.expect("it is let in").expect("no panic");
    assert!(guard.token() < number && number < rival.token());
}

/// What no quorum can prevent (see GUARANTEES.md): a majority that restarts without its data, or
/// whose clocks jump past the lease, lets a second holder in. G3: the token tells the resource who
/// is newer.
#[tokio::test]
async fn a_majority_that_forgets_lets_two_in_and_the_token_tells_them_apart() {
    let (nodes, client) = with_client(3);
    let name = name();
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    let fence = holdline::Fence::default();
    fence.check(guard.token()).expect("the first");
    for node in &nodes[..2] {
        assert!(node.leave(&name, guard.ticket()).await.expect("works"));
    }
    let elsewhere = crate::client(&nodes);
    let rival = Mutex::new(&elsewhere, "x").lock().await.expect("a majority is free");
    assert!(guard.is_valid() && rival.is_valid(), "the first learns of it when it renews");
    fence.check(rival.token()).expect("the newer");
    fence.check(guard.token()).expect_err("the older is refused");
    tokio::time::timeout(Duration::from_secs(10), guard.lost()).await.expect("it is told");
    assert!(rival.is_valid());
}

/// A lock may have a bare majority, for a moment. If one node of those forgets it then,
/// and is back at once, a rival finds a majority as well. G3: the token tells who is newer.
#[tokio::test]
async fn one_node_that_forgets_too_soon_lets_two_in() {
    let (nodes, client) = with_client(3);
    let name = name();
    break_down(&nodes[2]);
    let guard = Mutex::new(&client, "x").lock().await.expect("two of three are enough");
    nodes[2].heal();
    assert!(nodes[1].leave(&name, guard.ticket()).await.expect("works"));
    let rival = Mutex::new(&crate::client(&nodes), "x").lock().await.expect("two are free");
    assert!(guard.is_valid() && rival.is_valid(), "the first learns of it when it renews");
    assert!(rival.token() > guard.token());
    tokio::time::timeout(Duration::from_secs(10), guard.lost()).await.expect("it is told");
    assert!(rival.is_valid());
}

/// What no quorum can prevent either: clients that name different nodes. Each has a majority, and
/// renews it, so neither is ever told of the other.
#[tokio::test]
async fn clients_that_differ_in_one_node_do_not_exclude_each_other() {
    // Long, so that no renewal asks the third node again before the rival has it.
    let (lease, more) = (Duration::from_secs(600), Duration::from_secs(700));
    let (mut nodes, client) = with_client(3);
    break_down(&nodes[2]);
    let lock = Mutex::new(&client, "x").lease(lease);
    let guard = lock.lock().await.expect("two of three are enough");
    nodes[2].heal();
    nodes[0] = crate::nodes(1).remove(0);
    let lock = Mutex::new(&crate::client(&nodes), "x").lease(lease);
    let rival = lock.lock().await.expect("two are free");
    guard.extend(more).await.expect("it has its majority");
    rival.extend(more).await.expect("it has another one");
    assert!(guard.is_valid() && rival.is_valid());
}

/// A node that forgets stays away for as long as the lock may count on it. G1.
#[tokio::test]
async fn one_node_that_forgets_and_stays_away_for_a_lease_lets_nobody_in() {
    let (nodes, client) = with_client(3);
    let name = name();
    break_down(&nodes[2]);
    let lease = Duration::from_millis(600);
    let guard = Mutex::new(&client, "x").lease(lease).lock().await.expect("two of three");
    nodes[2].heal();
    let (elsewhere, ticket) = (crate::client(&nodes), guard.ticket());
    assert!(nodes[1].leave(&name, ticket).await.expect("works"));
    break_down(&nodes[1]);
    let away = tokio::time::Instant::now() + lease;
    let node = Arc::clone(&nodes[1]);
    let back = tokio::spawn(async move {
        tokio::time::sleep_until(away).await;
        node.heal();
    });
    let rival = loop {
        match Mutex::new(&elsewhere, "x").lease(lease).lock().await {
            Ok(rival) => break rival,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    };
    assert!(!guard.is_valid(), "its holder gave it up before");
    assert!(rival.token() > guard.token());
    back.await.expect("no panic");
}

/// Also if the nodes are far away: then a request arrives later than it is sent, each time.
#[tokio::test]
async fn an_acquisition_is_one_round_once_the_clocks_are_known() {
    for away in [0, 60] {
        let (nodes, client) = with_client(3);
        for node in &nodes {
            node.always(Op::Enter, Fault::Delay(Duration::from_millis(away)));
        }
        let lock = Mutex::new(&client, "x");
        lock.lock().await.expect("works").unlock().await.expect("held");
        let count = || nodes.iter().map(|node| node.count(Op::Enter)).sum::<usize>();
        let before = count();
        for _ in 0..20 {
            lock.lock().await.expect("works").unlock().await.expect("held");
        }
        let asked = count() - before - 20 * 3;
        // On a busy machine some requests are later than others.
        assert!(asked < 10, "{away} ms: beyond once for each lock, nodes were asked {asked} times");
    }
}

/// Two processes that take turns do not drive each other's requests, and so the tokens, ever
/// farther away from the clocks.
#[tokio::test]
async fn tokens_stay_near_the_clocks_whoever_takes_turns() {
    let (nodes, one) = with_client(3);
    let locks = [Mutex::new(&one, "x"), Mutex::new(&client(&nodes), "x")];
    for turn in [0, 0].into_iter().chain((1..=1000).map(|turn| turn % 2)) {
        let guard = locks[turn].lock().await.expect("works");
        let ahead = guard.token().saturating_sub(holdline::clock::wall_micros());
        assert!(ahead < 1_100_000, "{ahead} microseconds");
        guard.unlock().await.expect("held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rivals_end_their_ties_and_never_overlap() {
    let nodes = nodes(5);
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let last = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let rivals = (0..6).map(|_| {
        let lock = Mutex::new(&client(&nodes), "x"); // each as a process of its own
        let (inside, last) = (inside.clone(), last.clone());
        tokio::spawn(async move {
            for _ in 0..15 {
                let guard = lock.lock().await.expect("works");
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                let before = last.swap(guard.token(), std::sync::atomic::Ordering::SeqCst);
                assert!(before < guard.token());
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                guard.unlock().await.expect("held to the end");
            }
        })
    });
    for rival in rivals.collect::<Vec<_>>() {
        let end = tokio::time::timeout(Duration::from_secs(60), rival).await;
        end.expect("ties end").expect("no rival fails");
    }
}

#[tokio::test]
async fn nonsense_is_refused() {
    for url in ["quorum:", "quorum:memory:a", "quorum:memory:a,memory:b"] {
        let error = open(url).await.expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    for few in 0..3 {
        let stores = (0..few).map(|_| Arc::new(Memory::new()) as Arc<dyn Store>);
        let error = Quorum::new(stores).expect_err("too few");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let client = open("quorum:memory:qa,memory:qb,memory:qc").await.expect("three nodes");
    assert_eq!(client.address(), "quorum:memory:qa,memory:qb,memory:qc");
    let error = holdline::RwLock::new(&client, "x").read().await.expect_err("mutexes only");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
