//! A hundred holders that are cut off.

use holdline_testkit::partition::{Plan, hundred};
use holdline_testkit::zookeeper::start;
use std::time::Duration;

/// Near the longest lease that a session of 5 s vouches for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_knows_before_the_next_is_in() {
    let Some(servers) = start(3) else { return };
    let lease = Duration::from_millis(1500);
    let (scheme, options) = ("zookeeper", "?session=5s");
    hundred(Plan { scheme, hosts: servers.hosts(), options, lease }).await;
}
