//! Force unlocks of a quorum that return no number, because none would fence the right holder: the
//! ticket is removed all the same, and nobody stays behind. G19.

use crate::{name, nodes, quorum, ticket};
use holdline::ErrorKind;
use holdline::store::{Enter, Store, TicketId};
use holdline_conformance::{Chaos, Fault, Op};
use std::error::Error;
use std::sync::Arc;

/// The tickets on each node.
async fn tickets(nodes: &[Arc<Chaos>]) -> Vec<Vec<u128>> {
    let mut all = Vec::new();
    for node in nodes {
        let places = node.snapshot(&name()).await.expect("works").places;
        all.push(places.iter().map(|place| place.id.0).collect());
    }
    all
}

/// The victim was on a few nodes only, on its way in or out, and another has the lock.
#[tokio::test]
async fn a_victim_behind_another_holder_gets_no_number() {
    let nodes = nodes(5);
    for (at, node) in nodes.iter().enumerate() {
        let first = ticket(if at < 3 { 1 } else { 2 });
        node.enter(&name(), &first, &Arc::from(""), Enter::Try).await.expect("works");
    }
    let removed = quorum(&nodes).evict(&name(), TicketId(2), "a test").await;
    let error = removed.expect_err("it would fence the other one");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no token to fence it"), "{error}");
    assert!(error.source().is_none(), "all have answered: {error:?}");
    assert_eq!(tickets(&nodes).await, [vec![1], vec![1], vec![1], vec![], vec![]]);
}

/// Two of three nodes fail when it is removed: as the first who stands in is to be admitted, as the
/// second is to get a number, or as all are raised to that.
#[tokio::test]
async fn nodes_that_fail_during_it_are_named() {
    for done in [1, 2, 3] {
        let (nodes, note) = (nodes(3), Arc::from(""));
        let quorum = quorum(&nodes);
        quorum.enter(&name(), &ticket(1), &note, Enter::Try).await.expect("works");
        for node in &nodes[..2] {
            node.calls(Op::Enter, done, u32::MAX, Fault::FailBefore);
        }
        let removed = quorum.evict(&name(), TicketId(1), "a test").await;
        let error = removed.expect_err("there is no majority");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("no token to fence it"), "{error}");
        let cause = error.source().expect("who failed").to_string();
        assert!(cause.contains("too few of the 3 nodes"), "{cause}");
        assert_eq!(tickets(&nodes).await, [[0; 0]; 3], "after {done}");
    }
}

/// Nobody stands in for a ticket that is not there: the line is only looked at.
#[tokio::test]
async fn a_victim_that_is_not_there_disturbs_nobody() {
    let nodes = nodes(3);
    let removed = quorum(&nodes).evict(&name(), TicketId(1), "a test").await;
    assert_eq!(removed.expect("works"), None);
    assert!(nodes.iter().all(|node| node.count(Op::Enter) + node.count(Op::Evict) == 0));
}

#[tokio::test]
async fn a_victim_that_leaves_by_itself_was_not_removed() {
    let (nodes, note) = (nodes(3), Arc::from(""));
    let (quorum, name) = (quorum(&nodes), name());
    quorum.enter(&name, &ticket(1), &note, Enter::Try).await.expect("works");
    for node in &nodes {
        node.calls(Op::Evict, 0, 1, Fault::Stutter(1));
    }
    let mut removal = quorum.evict(&name, TicketId(1), "a test");
    while nodes.iter().any(|node| node.count(Op::Evict) == 0) {
        assert!(futures_util::poll!(&mut removal).is_pending());
    }
    for node in &nodes {
        assert!(node.leave(&name, TicketId(1)).await.expect("works"), "it was there until now");
    }
    assert_eq!(removal.await.expect("works"), None);
    assert_eq!(tickets(&nodes).await, [[0; 0]; 3]);
}
