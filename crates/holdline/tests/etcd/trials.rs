//! A hundred holders that are cut off.

use holdline_testkit::etcd::start;
use holdline_testkit::partition::{Plan, hundred};
use std::time::Duration;

/// etcd keeps it for 2 s, its least: half a second longer, which is the least as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_knows_before_the_next_is_in() {
    let Some(servers) = start(3) else { return };
    let lease = Duration::from_millis(1500);
    let (scheme, options) = ("etcd", "");
    hundred(Plan { scheme, hosts: servers.hosts(), options, lease }).await;
}
