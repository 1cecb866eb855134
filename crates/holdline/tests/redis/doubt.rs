//! Connections that break while somebody looks at locks or breaks them: what was lost on the way is
//! asked for again, and what cannot be known is not guessed.

use holdline::{Client, ErrorKind, Mutex, open};
use holdline_testkit::Link;
use holdline_testkit::redis::{Server, private};

const OPTIONS: [&str; 2] = ["", "?scheme=string&prefix=lock:"];

/// A client over a link that can lose replies, and one without.
async fn clients(server: &Server, options: &str) -> (Link, Client, Client) {
    let link = Link::to(("127.0.0.1", server.port())).expect("a port is free");
    let over = open(&format!("redis://{}{options}", link.address())).await.expect("opens");
    let direct = open(&format!("{}{options}", server.url())).await.expect("opens");
    (link, over, direct)
}

#[tokio::test]
async fn an_idle_connection_that_was_closed_costs_those_who_look_nothing() {
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
