//! Requests that are late, lost and repeated at random.

use holdline_testkit::unreliable::{Plan, run};
use holdline_testkit::zookeeper::start;
use std::time::Duration;

/// A session moves from one server to another, and back, while requests of its earlier connections
/// are still on their way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_order_of_requests_breaks_a_promise() {
    let Some(servers) = start(3) else { return };
    let (hosts, lease) = (servers.hosts(), Duration::from_millis(1500));
    run(Plan { scheme: "zookeeper", hosts, options: "?session=5s", lease }).await;
}
