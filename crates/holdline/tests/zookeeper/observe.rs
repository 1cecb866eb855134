//! Observers, which listen instead of polling.

#[path = "../shared/observe.rs"]
mod shared;

use holdline_testkit::zookeeper::start;

#[tokio::test]
async fn an_observer_asks_nothing_while_nothing_changes() {
    let Some(servers) = start(1) else { return };
    shared::an_observer_asks_nothing_while_nothing_changes(&servers.client().await).await;
}

#[tokio::test]
async fn what_happened_while_an_observer_was_cut_off_is_seen() {
    let Some(servers) = start(1) else { return };
    let (client, hosts) = (servers.client().await, servers.hosts());
    shared::what_happened_while_an_observer_was_cut_off_is_seen(&client, "zookeeper", &hosts[0])
        .await;
}
