//! Requests that are late, lost and repeated at random.

use holdline_testkit::etcd::start;
use holdline_testkit::unreliable::{Plan, run};
use std::time::Duration;

/// Two ways to one server, so that a request can be late while the next overtakes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_order_of_requests_breaks_a_promise() {
    let Some(servers) = start(1) else { return };
    let host = servers.hosts()[0].clone();
    let (hosts, lease) = (vec![host.clone(), host], Duration::from_secs(2));
    run(Plan { scheme: "etcd", hosts, options: "", lease }).await;
}
