//! ZooKeeper: modes, sessions, and servers that tell little.

use super::{at_worst, examine, examine_for, found, worst};
use holdline::doctor::Level;
use holdline_testkit::{until, zookeeper};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_wrong_with_three_servers_until_one_is_away() {
    let Some(mut ensemble) = zookeeper::start(3) else { return };
    let url = format!("{}?session=60", ensemble.url());
    let report = examine(&url).await;
    at_worst(&report, Level::Advice); // there are no users
    found(&report, "ensemble", Level::Ok, "3 of the 3");
    found(&report, "session", Level::Ok, "60s");
    found(&report, "lock", Level::Ok, "holdline-doctor");
    let one = format!("zookeeper://{}", ensemble.hosts()[0]);
    found(&examine(&one).await, "ensemble", Level::Advice, "name");
    ensemble.kill(0);
    let report = examine(&url).await;
    found(&report, "reachable", Level::Warning, "could not be asked");
    found(&report, "ensemble", Level::Warning, "2 of the 3");
    ensemble.kill(1);
    // The leader goes on for some ticks.
    until("the last one does not serve", async || {
        let report = examine(&url).await;
        found(&report, "ensemble", Level::Problem, "of the 3");
        found(&report, "session", Level::Problem, "none is given");
        worst(&report, "mode").level == Level::Warning
    })
    .await;
}

/// A server that gives short sessions, and answers no word.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_alone_with_short_sessions_that_tells_nothing() {
    let lines = "maxSessionTimeout=8000\n4lw.commands.whitelist=srvr";
    let Some(alone) = zookeeper::start_with(1, "", lines) else { return };
    let report = examine(&alone.url()).await;
    found(&report, "mode", Level::Warning, "standalone");
    found(&report, "session", Level::Warning, "15s was asked for, and 8s");
    let report = examine_for(Duration::from_secs(20), &alone.url()).await;
    found(&report, "lease", Level::Problem, "cannot be had");
}
