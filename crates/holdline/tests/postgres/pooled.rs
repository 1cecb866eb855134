//! Behind PgBouncer, which pools transactions: notices over a direct connection, and calls that it
//! cannot split.

use crate::raw::{Raw, ticket};
use crate::server::one;
use holdline::Name;
use holdline::store::{Enter, Standing, Ticket};
use holdline_testkit::{Private, free_port, postgres, soon, until};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// A private pooler, and the port of its server.
fn pooler() -> Option<(Private, u16)> {
    let mut port = 0;
    let pooled = Private::launch("pooled", || {
        let (front, server) = (free_port(), free_port());
        port = server;
        postgres::pooled([front, server], "")
    })?;
    Some((pooled, port))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notices_come_by_a_direct_connection() {
    let Some((pooled, server)) = pooler() else { return };
    let direct = format!("postgres%3A%2F%2Fpostgres%40127.0.0.1%3A{server}%2Fpostgres");
    let (sql, connection) =
        tokio_postgres::connect(&postgres::url(server), tokio_postgres::NoTls).await.expect("runs");
    tokio::spawn(connection);
    for scheme in ["table", "row"] {
        let url = format!("{}?install=yes&scheme={scheme}&listen={direct}", pooled.url());
        let (one, two) = (Raw::open(&url).await, Raw::open(&url).await);
        let (mine, next) = (ticket(1, 1), ticket(1, 1));
        one.hold(&mine).await;
        let standing = two.enter(&next, Enter::Queue).await.expect("works");
        let Standing::Waiting { seq, .. } = standing else { panic!("{standing:?}") };
        let listens = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' \
                       AND application_name = 'holdline'";
        until("it listens", async || one_of(&sql, listens).await >= 1).await;
        // It is woken when it starts listening, and asks again.
        soon("the wake", two.store.watch(&two.line, next.id)).await.expect("works");
        assert!(matches!(
            two.enter(&next, Enter::Queue).await.expect("works"),
            Standing::Waiting { .. }
        ));
        assert!(one.leave(&mine).await);
        let told = soon("the notice", two.store.watch(&two.line, next.id)).await.expect("works");
        assert_eq!(told, seq, "{scheme}: of its place, where there are places");
        two.hold(&next).await;
        assert!(two.leave(&next).await);
    }
}

/// The pooler accepts LISTEN, and drops the notices: waiters poll as if there were none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_poll_until_a_notice_has_come() {
    let Some((pooled, server)) = pooler() else { return };
    for (url, come) in [(pooled.url(), false), (postgres::url(server), true)] {
        let url = url + "?install=yes";
        let (one, two) = (Raw::open(&url).await, Raw::open(&url).await);
        let polls = async |next: &Ticket| match two.enter(next, Enter::Queue).await {
            Ok(Standing::Waiting { again, .. }) => again <= Duration::from_secs(1),
            other => panic!("{other:?}"),
        };
        for turn in 0.. {
            let (mine, next) = (ticket(1, 1), ticket(1, 1));
            one.hold(&mine).await;
            let polled = polls(&next).await && polls(&next).await;
            assert!(one.leave(&mine).await);
            two.hold(&next).await;
            assert!(two.leave(&next).await);
            assert!(polled || (come && turn > 0), "it polls until a notice has come");
            if !polled || (turn == 9 && !come) {
                break;
            }
            assert!(turn < 1000, "no notice is heard");
        }
    }
}

async fn one_of(sql: &Client, query: &str) -> i64 {
    one(sql, query, &[]).await
}

/// The length of the notes: several calls fill a buffer of the proxy (4 KiB), so that calls begin
/// in one buffer and end in the next.
const NOTE: usize = 1500;

/// A proxy gives the server to another client once it has forwarded an answer, even if the client
/// has sent the first part of its next call: a call of several messages would be split, and its
/// second half would meet another statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_are_never_mixed() {
    let describe = || {
        // Few servers, small buffers, and a turn for other clients after each buffer.
        let settings = "default_pool_size = 3\npkt_buf = 1024\nsbuf_loopcnt = 1";
        postgres::pooled([free_port(), free_port()], settings)
    };
    let Some(servers) = Private::launch("never_mixed", describe) else { return };
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

/// Takes, reads, breaks and leaves the only place in a line, and checks each answer.
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
