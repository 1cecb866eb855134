//! Connections that break while somebody looks at locks or breaks them: what was lost on the way is
//! asked for again, and what cannot be known is not guessed.

use holdline::{Client, ErrorKind, Mutex, open};
use holdline_testkit::redis::{Server, cluster, private};
use holdline_testkit::{Link, until};

const OPTIONS: [&str; 2] = ["", "?scheme=string&prefix=lock:"];

/// A client over a link that can lose replies, and one without.
async fn clients(server: &Server, options: &str) -> (Link, Client, Client) {
    let link = Link::to(("127.0.0.1", server.port())).expect("a port is free");
    let over = open(&format!("redis://{}{options}", link.address())).await.expect("opens");
    let direct = open(&format!("{}{options}", server.url())).await.expect("opens");
    (link, over, direct)
}

#[tokio::test]
async fn an_idle_connection_that_was_closed_costs_observers_nothing() {
    let Some(server) = private("closed_idle", &[]) else { return };
    for options in OPTIONS {
        let (link, over, direct) = clients(&server, options).await;
        let guard = Mutex::new(&direct, "x").lock().await.expect("works");
        for _ in 0..2 {
            assert_eq!(over.inspect("x").await.expect("asked again").holders.len(), 1);
            link.reset();
            assert_eq!(over.list("").await.expect("asked again").len(), 1);
            link.reset();
        }
        guard.unlock().await.expect("held");
    }
}

#[tokio::test]
async fn whether_a_lock_was_broken_is_not_guessed() {
    let Some(server) = private("half_broken", &[]) else { return };
    for options in OPTIONS {
        let (link, over, direct) = clients(&server, options).await;
        let guard = Mutex::new(&direct, "x").lock().await.expect("works");
        let id = guard.ticket();
        over.inspect("x").await.expect("connected");
        // The server knows the script: the next reply is the answer, and no question for its text.
        let nobody = holdline::store::TicketId(7);
        assert!(over.force_unlock("x", nobody, "test").await.expect("works").is_none());
        if options.is_empty() {
            link.lose_next_reply();
            let error = over.force_unlock("x", id, "test").await.expect_err("nobody knows");
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        } else {
            // It reads the string first; that reply may be lost without harm.
            link.lose_next_reply();
            assert!(over.force_unlock("x", id, "test").await.expect("asked again").is_some());
        }
        assert_eq!(link.replies_to_lose(), 0);
        assert!(direct.inspect("x").await.expect("works").holders.is_empty(), "it was broken");
        assert!(over.force_unlock("x", id, "test").await.expect("works").is_none());
        drop(guard);
    }
}

/// Loses the reply to the next request. What the one before it has published may still be on its
/// way over the connection: an answer that comes behind it is waited for first.
async fn lose_next_reply(link: &Link, client: &Client) {
    client.inspect("x").await.expect("connected");
    link.lose_next_reply();
}

/// The lock's own request was answered at the second try, so it is given up with care; and that
/// answer is lost, too.
#[tokio::test]
async fn whether_a_lock_was_released_is_not_guessed() {
    let Some(server) = private("half_released", &[]) else { return };
    for options in OPTIONS {
        let (link, over, direct) = clients(&server, options).await;
        let lock = Mutex::new(&over, "x");
        lock.lock().await.expect("works").unlock().await.expect("held"); // it knows the scripts
        lose_next_reply(&link, &over).await;
        let guard = lock.lock().await.expect("asked again");
        assert_eq!(link.replies_to_lose(), 0);
        lose_next_reply(&link, &over).await;
        let error = guard.unlock().await.expect_err("nobody knows");
        assert_eq!((error.kind(), link.replies_to_lose()), (ErrorKind::Unknown, 0), "{error}");
        over.settle().await;
        assert!(direct.inspect("x").await.expect("works").holders.is_empty(), "it was released");
    }
}

/// A cluster whose clients reach each node over a link.
async fn linked_cluster() -> Option<(Vec<Server>, Vec<Link>, String)> {
    let nodes = cluster()?;
    let link = |node: &Server| Link::to(("127.0.0.1", node.port())).expect("a port is free");
    let links: Vec<Link> = nodes.iter().map(link).collect();
    let hosts: Vec<String> = links.iter().map(|link| link.address().to_string()).collect();
    for (node, link) in nodes.iter().zip(&links) {
        let port = link.address().port().to_string();
        let _: () = node.query(&["CONFIG", "SET", "cluster-announce-port", &port]);
    }
    until("all nodes know the links", async || {
        let known: Vec<String> =
            nodes.iter().map(|node| node.query(&["CLUSTER", "NODES"])).collect();
        known.iter().all(|nodes| hosts.iter().all(|host| nodes.contains(host)))
    })
    .await;
    Some((nodes, links, hosts.join(",")))
}

#[tokio::test]
async fn whether_a_lock_in_a_cluster_was_released_is_not_guessed() {
    let Some((nodes, links, hosts)) = linked_cluster().await else { return };
    for (scheme, key) in [("line", "holdline:{x}"), ("redisson", "x")] {
        let client = open(&format!("redis+cluster://{hosts}?scheme={scheme}")).await;
        let client = client.expect("opens");
        let lock = Mutex::new(&client, "x");
        lock.lock().await.expect("works").unlock().await.expect("held"); // it knows the scripts
        let guard = lock.lock().await.expect("works");
        let slot: u64 = nodes[0].query(&["CLUSTER", "KEYSLOT", key]);
        let slot = slot.to_string();
        let has_it = |node: &Server| -> bool {
            node.query::<u64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot]) > 0
        };
        let link = &links[nodes.iter().position(has_it).expect("somebody has the key")];
        lose_next_reply(link, &client).await;
        let error = guard.unlock().await.expect_err("nobody knows");
        assert_eq!((error.kind(), link.replies_to_lose()), (ErrorKind::Unknown, 0), "{error}");
        client.settle().await;
        assert!(client.inspect("x").await.expect("works").holders.is_empty(), "it was released");
    }
}
