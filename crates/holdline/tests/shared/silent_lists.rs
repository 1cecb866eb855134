//! Lists that a server does not answer in time: a part of the binaries of stores that close the
//! connection of such a call.

use holdline::{ErrorKind, open};
use holdline_testkit::{Link, Way, soon, until};
use std::time::Duration;
use tokio::task::JoinSet;

/// Asks a silent server for many lists, again and again. Meanwhile the store has no more than
/// `most` connections to it, and afterwards `left`.
pub(crate) async fn cost_no_connections(url: &str, server: &str, most: usize, left: usize) {
    let link = Link::to(server).expect("a port is free");
    let url = url.replace(server, &link.address().to_string());
    let client = loop {
        match open(&url).await {
            Ok(client) => break client,
            Err(error) => assert!(error.retryable(), "{error}"), // a busy machine
        }
    };
    until("a list", async || client.list("").await.is_ok()).await;
    link.stall(Way::Replies);
    for round in 0..3 {
        let lists = (0..40).map(|n| {
            let client = client.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(n * 10)).await; // each ends by itself
                client.list("").await
            }
        });
        let mut lists: JoinSet<_> = lists.collect();
        while let Some(list) = soon("an error", lists.join_next()).await {
            let error = list.expect("no panic").expect_err("the server is silent");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            let open = link.open();
            assert!(open <= most, "{open} connections in round {round}");
        }
    }
    until("they are closed", async || link.open() <= left).await;
    link.mend();
    until("a list", async || client.list("").await.is_ok()).await;
}
