//! The lease table through a proxy that pools transactions.

use crate::raw::{Raw, ticket};
use holdline::Name;
use holdline::store::{Enter, Standing};
use holdline_testkit::postgres::{node, pooler, url};
use holdline_testkit::{Deployment, Folder, Private, free_port};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The length of the notes: several calls fill the buffers of the proxy (4 KiB), so that calls
/// begin in one buffer and end in the next.
const NOTE: usize = 1500;

/// A proxy gives the server to another client when it has forwarded an answer, though the client
/// may have sent the first part of its next call: a call of several messages would be torn, and its
/// second half meet another statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_are_never_mixed() {
    let describe = || {
        let [front, server] = [free_port(), free_port()];
        // Few servers, small buffers, and a turn for other clients after each buffer.
        let settings = "default_pool_size = 3\npkt_buf = 1024\nsbuf_loopcnt = 1";
        Deployment::new(url(front), vec![node("postgres", server)])
            .then(vec![pooler(front, server, settings)])
    };
    let folder = Folder::new("never_mixed").expect("a folder");
    let Some(servers) = Private::launch_in(folder, describe) else { return };
    let url = servers.url() + "?install=yes&listen=off&timeout=20s";
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(Raw::open(&url).await);
    }
    let end = Instant::now() + Duration::from_secs(3);
    let mut tasks = Vec::new();
    for (client, raw) in clients.iter().enumerate() {
        for task in 0..16 {
            let line = Name::new(format!("{client} {task}")).expect("good");
            tasks.push(tokio::spawn(works_alone(Raw { line, ..raw.clone() }, end)));
        }
    }
    let mut rounds = 0;
    for task in tasks {
        rounds += task.await.expect("every answer is the call's own");
    }
    assert!(rounds > 0);
}

/// Takes, sees, breaks and leaves the only place in a line, and checks each answer.
async fn works_alone(raw: Raw, end: Instant) -> usize {
    let mut rounds = 0;
    while Instant::now() < end {
        let (one, note) = (ticket(1, 1), Arc::from("n".repeat(fastrand::usize(..NOTE))));
        let entered = raw.store.enter(&raw.line, &one, &note, Enter::Queue).await;
        assert!(matches!(entered, Ok(Standing::Admitted(_))), "{entered:?}");
        match rounds % 3 {
            0 => assert!(raw.leave(&one).await),
            1 => {
                let seen = raw.seen().await;
                assert_eq!(seen.places.len(), 1);
                assert_eq!((seen.places[0].id, &*seen.places[0].note), (one.id, &*note));
                assert!(raw.leave(&one).await);
            }
            _ => {
                let evicted = raw.store.evict(&raw.line, one.id, &note).await;
                assert!(matches!(evicted, Ok(Some(_))), "{evicted:?}");
                let names = raw.store.list(raw.line.as_str()).await.expect("works");
                assert!(names.iter().all(|name| name.as_str().starts_with(raw.line.as_str())));
            }
        }
        rounds += 1;
    }
    rounds
}
