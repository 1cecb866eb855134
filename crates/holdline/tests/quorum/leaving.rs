//! What is given up on a quorum is given up on every node that answers, and not only on the
//! majority whose answers come first: several tickets' remains, each on a few nodes, would keep
//! others out together. G6.

use crate::{client, name, nodes, quorum, ticket};
use futures_util::FutureExt;
use holdline::store::{Enter, Standing, Store, TicketId};
use holdline::{Mutex, Name};
use holdline_conformance::{Chaos, Fault, Op};
use holdline_testkit::{soon, until};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Less than the time that a node has for a departure.
const SLOW: Fault = Fault::Delay(Duration::from_millis(40));

const NOWHERE: [usize; 0] = [];

/// On which nodes somebody stands in the line.
async fn taken(nodes: &[Arc<Chaos>]) -> Vec<usize> {
    let mut taken = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        if !node.snapshot(&name()).await.expect("works").places.is_empty() {
            taken.push(at);
        }
    }
    taken
}

/// Dropped where the answers are on their way: the renewer gives the ticket up.
#[tokio::test]
async fn what_was_dropped_is_on_no_node_when_it_has_settled() {
    for slow in [[0, 1], [1, 3], [3, 4]] {
        let nodes = nodes(5);
        let (client, other) = (client(&nodes), client(&nodes));
        for at in slow {
            nodes[at].always(Op::Leave, SLOW);
        }
        nodes[2].calls(Op::Enter, 0, 1, Fault::Stutter(1));
        let lock = Mutex::new(&client, "x");
        {
            let mut acquisition = Box::pin(lock.lock());
            assert!(futures_util::poll!(&mut acquisition).is_pending());
            assert_ne!(taken(&nodes).await, NOWHERE, "it is on its way in");
        }
        soon("all that was given up", client.settle()).await;
        assert_eq!(taken(&nodes).await, NOWHERE, "slow were {slow:?}");
        drop(lock.lock().await.expect("nobody is there"));
        soon("all that was given up", client.settle()).await;
        assert_eq!(taken(&nodes).await, NOWHERE, "slow were {slow:?}");
        assert_eq!(other.list("").await.expect("works"), []);
    }
}

/// "Not now" means that nothing is left and nothing can come; so nobody gives it up afterwards.
#[tokio::test]
async fn a_try_that_fails_is_on_no_node() {
    for missing in [None, Some(Fault::FailBefore), Some(Fault::HangBefore)] {
        let nodes = nodes(5);
        // A rival has two of them, or a bare majority; one may be away.
        for rivals in [2, 3] {
            for node in &nodes[..rivals] {
                node.enter(&name(), &ticket(1), &Arc::from(""), Enter::Try).await.expect("works");
            }
            if let Some(fault) = missing {
                let ops = [Op::Enter, Op::Leave, Op::Snapshot];
                for op in ops {
                    nodes[0].always(op, fault);
                }
            }
            if rivals == 2 {
                // It is decided by those who say no, and by those who do not say anything.
                nodes[2].always(Op::Enter, Fault::FailBefore);
            }
            nodes[3].always(Op::Leave, Fault::Stutter(3));
            nodes[4].always(Op::Leave, Fault::Stutter(3));
            let standing =
                quorum(&nodes).enter(&name(), &ticket(2), &Arc::from(""), Enter::Try).await;
            for node in &nodes {
                node.heal();
            }
            let standing = standing.expect("a majority answers");
            assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
            assert_eq!(taken(&nodes).await, (0..rivals).collect::<Vec<_>>(), "{missing:?}");
        }
    }
}

/// A try whose departure no majority confirms is in doubt, and its ticket gets nothing any more.
#[tokio::test]
async fn a_try_that_cannot_leave_is_in_doubt() {
    let nodes = nodes(5);
    for node in &nodes[..3] {
        node.enter(&name(), &ticket(1), &Arc::from(""), Enter::Try).await.expect("works");
        node.always(Op::Leave, Fault::FailBefore);
    }
    let quorum = quorum(&nodes);
    let enter = async || quorum.enter(&name(), &ticket(2), &Arc::from(""), Enter::Try).await;
    let error = enter().await.expect_err("it may be there");
    assert!(error.retryable(), "{error}");
    for node in &nodes {
        node.heal();
    }
    for node in &nodes {
        node.leave(&name(), TicketId(1)).await.expect("works");
    }
    let standing = enter().await.expect("works");
    assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    quorum.leave(&name(), TicketId(2)).await.expect("works");
    // The nodes that failed are told again first.
    let admitted = async || matches!(enter().await, Ok(Standing::Admitted(_)));
    until("it has left for certain", admitted).await;
}

/// The two who stand in for a victim are gone with the answer, and when nobody waits for it.
#[tokio::test]
async fn a_force_unlock_leaves_nobody_behind() {
    let nodes = nodes(5);
    let quorum = quorum(&nodes);
    let (name, note) = (name(), Arc::from(""));
    quorum.enter(&name, &ticket(1), &note, Enter::Try).await.expect("works");
    nodes[1].always(Op::Leave, SLOW);
    nodes[4].always(Op::Leave, SLOW);
    let number = quorum.evict(&name, TicketId(1), "a test").await.expect("works");
    assert!(number.is_some());
    assert_eq!(taken(&nodes).await, NOWHERE);

    quorum.enter(&name, &ticket(2), &note, Enter::Try).await.expect("works");
    nodes[0].always(Op::Evict, Fault::HangBefore);
    assert!(quorum.evict(&name, TicketId(2), "a test").now_or_never().is_none(), "it hangs");
    let behind = async |node: &Chaos| node.snapshot(&name).await.expect("works").places.len();
    // Less than what they would lapse after.
    let limit = tokio::time::Instant::now() + Duration::from_secs(2);
    for node in &nodes {
        node.heal();
    }
    while behind(&nodes[2]).await > 0 {
        assert!(tokio::time::Instant::now() < limit, "those who stood in are still there");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// More departures than a node is asked for at once wait, and are not put off.
#[tokio::test]
async fn many_tries_that_fail_are_on_no_node() {
    let nodes = nodes(5);
    let quorum = Arc::new(quorum(&nodes));
    let names: Vec<Name> = (0..300).map(|n| Name::new(format!("n {n}")).expect("fine")).collect();
    for name in &names {
        for node in &nodes[..3] {
            node.enter(name, &ticket(1), &Arc::from(""), Enter::Try).await.expect("works");
        }
    }
    nodes[4].always(Op::Leave, Fault::Stutter(3));
    let tries = names.iter().zip(2..).map(|(name, id)| {
        let quorum = Arc::clone(&quorum);
        async move { quorum.enter(name, &ticket(id), &Arc::from(""), Enter::Try).await }
    });
    for standing in futures_util::future::join_all(tries).await {
        assert!(matches!(standing, Ok(Standing::Waiting { seq: None, .. })), "{standing:?}");
    }
    // A busy machine may have left some to the worker.
    until("all are told", async || nodes[4].list("").await.expect("works").is_empty()).await;
    let most = nodes[4].most_at_once(Op::Leave);
    assert!((64..=65).contains(&most), "{most} at once");
}

/// A lock that is given up while a node is asked for its place again: once for all renewals until
/// the answer. The request ends with the lock, so its place does not come after the departure.
#[tokio::test]
async fn a_place_that_is_asked_for_again_does_not_outlast_the_lock() {
    let nodes = nodes(5);
    let quorum = quorum(&nodes);
    let (name, note, mut ticket) = (name(), Arc::from(""), ticket(1));
    ticket.lease = Duration::from_secs(5); // two tenths of it later it is asked for
    nodes[4].calls(Op::Enter, 0, 1, Fault::FailBefore);
    let standing = quorum.enter(&name, &ticket, &note, Enter::Try).await.expect("works");
    let Standing::Admitted(token) = standing else { panic!("four of five are enough") };
    nodes[4].always(Op::Enter, Fault::Delay(Duration::from_secs(60)));
    let asked = nodes[4].count(Op::Enter);
    let renewal = async || quorum.enter(&name, &ticket, &note, Enter::Keep(token)).await;
    until("it is asked for", async || {
        assert_eq!(renewal().await.expect("works"), Standing::Admitted(token));
        nodes[4].count(Op::Enter) > asked
    })
    .await;
    for _ in 0..20 {
        assert_eq!(renewal().await.expect("works"), Standing::Admitted(token));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(nodes[4].count(Op::Enter), asked + 1, "it has not answered yet");
    quorum.leave(&name, ticket.id).await.expect("works");
    // The request would take seconds otherwise. When it has ended, it leaves once more.
    others_run().await;
    assert_eq!((nodes[4].under_way(Op::Enter), nodes[4].count(Op::Leave)), (0, 2));
    assert_eq!(taken(&nodes).await, NOWHERE);
}

/// The same for a lock that a renewal finds lost.
#[tokio::test]
async fn a_place_that_is_asked_for_again_does_not_outlast_a_lock_that_is_lost() {
    let nodes = nodes(3);
    let quorum = quorum(&nodes);
    let (name, note, mut ticket) = (name(), Arc::from(""), ticket(1));
    ticket.lease = Duration::from_secs(5); // two tenths of it later it is asked for
    nodes[2].calls(Op::Enter, 0, 1, Fault::FailBefore);
    let standing = quorum.enter(&name, &ticket, &note, Enter::Try).await.expect("works");
    let Standing::Admitted(token) = standing else { panic!("two of three are enough") };
    nodes[2].always(Op::Enter, Fault::Delay(Duration::from_secs(60)));
    let renewal = async || quorum.enter(&name, &ticket, &note, Enter::Keep(token)).await;
    until("it is asked for", async || {
        assert_eq!(renewal().await.expect("works"), Standing::Admitted(token));
        nodes[2].under_way(Op::Enter) > 0
    })
    .await;
    nodes[0].leave(&name, ticket.id).await.expect("works");
    nodes[1].leave(&name, ticket.id).await.expect("works");
    assert_eq!(renewal().await.expect("two say so"), Standing::Lost);
    others_run().await;
    assert_eq!((nodes[2].under_way(Op::Enter), nodes[2].count(Op::Leave)), (0, 1));
}

/// Lets the other tasks of this thread run.
async fn others_run() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Each time, also after the worker has once had nothing left to do.
#[tokio::test]
async fn a_departure_that_failed_on_a_node_is_repeated() {
    let nodes = nodes(3);
    let quorum = quorum(&nodes);
    for id in 1..=3 {
        let standing = quorum.enter(&name(), &ticket(id), &Arc::from(""), Enter::Try).await;
        assert!(matches!(standing, Ok(Standing::Admitted(_))), "{standing:?}");
        nodes[2].calls(Op::Leave, 0, 2, Fault::FailBefore); // also the first attempt after that
        assert!(quorum.leave(&name(), TicketId(id)).await.expect("two are enough"));
        until("it is told", async || taken(&nodes).await == NOWHERE).await;
    }
}

/// The node does not answer 64 requests, so the next one waits, until its caller has enough.
#[tokio::test]
async fn a_departure_that_waits_for_its_turn_is_not_dropped() {
    let nodes = nodes(3);
    let quorum = quorum(&nodes);
    let names: Vec<Name> = (0..65).map(|n| Name::new(format!("n {n}")).expect("fine")).collect();
    for (name, id) in names.iter().zip(1..) {
        let standing = quorum.enter(name, &ticket(id), &Arc::from(""), Enter::Try).await;
        assert!(matches!(standing, Ok(Standing::Admitted(_))), "{standing:?}");
    }
    nodes[2].calls(Op::Leave, 0, 64, Fault::HangBefore);
    for (name, id) in names.iter().zip(1..) {
        assert!(quorum.leave(name, TicketId(id)).await.expect("two are enough"));
    }
    until("it is told", async || {
        let view = nodes[2].snapshot(&names[64]).await.expect("works");
        view.places.is_empty()
    })
    .await;
}

/// A silent node is left out of the round, and told by the worker.
#[tokio::test]
async fn a_silent_node_is_told_of_a_departure() {
    let nodes = nodes(5);
    let client = client(&nodes);
    let lock = Mutex::new(&client, "x").lease(Duration::from_secs(600)); // it does not lapse
    let guard = lock.lock().await.expect("works");
    until("everywhere", async || taken(&nodes).await == [0, 1, 2, 3, 4]).await;
    nodes[4].always(Op::Snapshot, Fault::HangBefore);
    client.inspect("x").await.expect("a majority is there"); // here it is found out
    guard.unlock().await.expect("held");
    nodes[4].heal();
    until("it is told", async || taken(&nodes).await == NOWHERE).await;
}

/// A departure is on its way to every node, also a slow one, when its caller goes on: what the
/// caller asks for next comes behind it.
#[tokio::test]
async fn a_departure_is_sent_at_once() {
    let nodes = nodes(3);
    for node in &nodes {
        node.always(Op::Leave, SLOW);
    }
    let quorum = quorum(&nodes);
    let name = name();
    let left = quorum.leave(&name, TicketId(1));
    assert!(left.now_or_never().is_none(), "they are slow");
    assert!(nodes.iter().all(|node| node.count(Op::Leave) == 1));
}

/// Two of four nodes refuse a ticket, and the other two fail: no majority can say yes. That is a
/// refusal, not an outage.
#[tokio::test]
async fn half_of_the_nodes_are_enough_to_refuse() {
    let nodes = nodes(4);
    let (quorum, note) = (quorum(&nodes), Arc::from(""));
    for (at, node) in nodes.iter().enumerate() {
        if at < 2 {
            node.enter(&name(), &ticket(1), &note, Enter::Try).await.expect("works");
        } else {
            node.calls(Op::Enter, 0, 1, Fault::FailBefore);
        }
    }
    let refused = quorum.enter(&name(), &ticket(2), &note, Enter::Try).await.expect("no outage");
    assert!(matches!(refused, Standing::Waiting { seq: None, .. }), "{refused:?}");
}

/// Once it has been repeated, the same ticket may come back, though the node has not yet been told
/// of another's departure.
#[tokio::test]
async fn a_departure_that_was_repeated_is_over_while_another_is_not() {
    let nodes = nodes(3);
    let (mine, note) = (quorum(&nodes), Arc::from(""));
    for node in &nodes[..2] {
        node.enter(&name(), &ticket(1), &note, Enter::Try).await.expect("works");
    }
    nodes[2].always(Op::Leave, Fault::FailBefore);
    for id in [2, 3] {
        let standing = mine.enter(&name(), &ticket(id), &note, Enter::Try).await.expect("works");
        assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    }
    nodes[2].heal();
    nodes[2].calls(Op::Leave, 1, u32::MAX, Fault::FailBefore);
    let repeated = nodes[2].count(Op::Leave) + 2; // the first one's, and then the other's
    until("it is repeated", async || nodes[2].count(Op::Leave) >= repeated).await;
    for node in &nodes[..2] {
        node.leave(&name(), TicketId(1)).await.expect("works");
    }
    nodes[0].calls(Op::Enter, 0, 1, Fault::FailBefore);
    let standing = mine.enter(&name(), &ticket(2), &note, Enter::Try).await.expect("works");
    assert!(matches!(standing, Standing::Admitted(_)), "the others are enough: {standing:?}");
}

/// A node fails as a try leaves it, and is told later. By then the same ticket may have come back,
/// and hold: what it had before is not given up any more. G1.
#[tokio::test]
async fn a_departure_that_is_repeated_does_not_meet_the_same_ticket_again() {
    let nodes = nodes(3);
    let (mine, rival, note) = (quorum(&nodes), quorum(&nodes), Arc::from(""));
    for node in &nodes[..2] {
        node.enter(&name(), &ticket(1), &note, Enter::Try).await.expect("works");
    }
    nodes[2].calls(Op::Leave, 0, 2, Fault::FailBefore);
    let enter = async || mine.enter(&name(), &ticket(2), &note, Enter::Try).await.expect("works");
    let standing = enter().await;
    assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    until("the repetition has begun", async || nodes[2].count(Op::Leave) == 2).await;
    for node in &nodes[..2] {
        node.leave(&name(), TicketId(1)).await.expect("works");
    }
    nodes[0].calls(Op::Enter, 0, 1, Fault::FailBefore);
    let held = matches!(enter().await, Standing::Admitted(_));
    until("it is repeated", async || nodes[2].count(Op::Leave) >= 3).await;
    let other = rival.enter(&name(), &ticket(3), &note, Enter::Try).await.expect("works");
    assert!(!(held && matches!(other, Standing::Admitted(_))), "two hold");
}

/// The same while the departure is under way for longer than the try waits for it.
#[tokio::test]
async fn a_departure_that_is_under_way_does_not_meet_the_same_ticket_again() {
    let nodes = nodes(3);
    let (mine, rival, note) = (quorum(&nodes), quorum(&nodes), Arc::from(""));
    for node in &nodes[..2] {
        node.enter(&name(), &ticket(1), &note, Enter::Try).await.expect("works");
    }
    nodes[2].calls(Op::Leave, 0, 1, Fault::Delay(Duration::from_millis(250)));
    let enter = async || mine.enter(&name(), &ticket(2), &note, Enter::Try).await;
    let standing = enter().await.expect("works");
    assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    for node in &nodes[..2] {
        node.leave(&name(), TicketId(1)).await.expect("works");
    }
    nodes[0].calls(Op::Enter, 0, 1, Fault::FailBefore);
    let held = matches!(enter().await, Ok(Standing::Admitted(_)));
    until("it has left", async || nodes[2].under_way(Op::Leave) == 0).await;
    let other = rival.enter(&name(), &ticket(3), &note, Enter::Try).await.expect("works");
    assert!(!(held && matches!(other, Standing::Admitted(_))), "two hold");
}

/// Nor is it brought in again there before.
#[tokio::test]
async fn a_repair_waits_for_the_departure_of_the_same_ticket() {
    let nodes = nodes(3);
    let (quorum, note, mut mine) = (quorum(&nodes), Arc::from(""), ticket(2));
    mine.lease = Duration::from_secs(2); // two tenths of it later it would be brought in
    for node in &nodes[..2] {
        node.enter(&name(), &ticket(1), &note, Enter::Try).await.expect("works");
    }
    nodes[2].always(Op::Leave, Fault::FailBefore);
    let enter = async |how| quorum.enter(&name(), &mine, &note, how).await.expect("works");
    let standing = enter(Enter::Try).await;
    assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    for node in &nodes[..2] {
        node.leave(&name(), TicketId(1)).await.expect("works");
    }
    let standing = enter(Enter::Try).await;
    let Standing::Admitted(token) = standing else { panic!("two are enough: {standing:?}") };
    let renewed = async || matches!(enter(Enter::Keep(token)).await, Standing::Admitted(_));
    let since = Instant::now();
    while since.elapsed() < mine.lease / 4 {
        assert!(renewed().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(nodes[2].count(Op::Enter), 1, "only the first try");
    nodes[2].heal();
    until("it is brought in", async || renewed().await && nodes[2].count(Op::Enter) > 1).await;
    assert_eq!(taken(&nodes).await, [0, 1, 2]);
}
