//! Quorums: how many nodes, where they are, and which are away, slow, or have another time.

use super::{at_worst, examine, examine_for, found};
use holdline::doctor::Level;
use holdline_testkit::{Link, redis};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_counted_and_looked_at_one_by_one() {
    let Some(mut nodes) = redis::several(3, &["--appendonly", "yes", "--appendfsync", "always"])
    else {
        return;
    };
    let report = examine(&nodes.url()).await;
    at_worst(&report, Level::Warning);
    found(&report, "machines", Level::Warning, "on one machine");
    found(&report, "nodes", Level::Ok, "3 of 3");
    found(&report, "clocks", Level::Ok, "apart");
    found(&report, "lock", Level::Ok, "holdline-doctor");
    let roles = report.findings.iter().filter(|finding| finding.check == "role").count();
    assert_eq!(roles, 3, "{report:#?}");
    nodes.servers[0].kill();
    let report = examine(&nodes.url()).await;
    at_worst(&report, Level::Warning);
    found(&report, "nodes", Level::Warning, "2 of 3");
    found(&report, "reachable", Level::Warning, "failed");
    assert!(report.findings.iter().filter(|it| it.found.contains("failed")).count() == 1);
    nodes.servers[1].kill();
    let report = examine(&nodes.url()).await;
    found(&report, "nodes", Level::Problem, "1 of 3");
    assert!(!report.answers, "{report:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_even_number_is_no_better_than_one_less() {
    let report = examine("quorum:memory:da,memory:db,memory:dc,memory:dd").await;
    found(&report, "nodes", Level::Advice, "4 of 4");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_node_and_a_clock_that_is_off_are_found() {
    let (Some(slow), Some(ahead), Some(good)) =
        (redis::private("slow", &[]), redis::shifted("ahead"), redis::private("good", &[]))
    else {
        return;
    };
    ahead.shift(60);
    let link = Link::to(("127.0.0.1", slow.port())).expect("it runs");
    link.delay(Duration::from_millis(100));
    let url = format!("quorum:redis://{},{},{}", link.address(), ahead.url(), good.url());
    // Of which a tenth is shorter than the way there and back.
    let report = examine_for(Duration::from_secs(1), &url).await;
    found(&report, "answers", Level::Warning, "to answer");
    found(&report, "clocks", Level::Warning, "ahead of");
}
