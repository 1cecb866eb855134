//! The speed of the lease table relative to the bare idiom through the same client: ratios from one
//! run on one server. Not a test of correctness, so it runs only on request:
//! `cargo test --release --features postgres --test postgres speed -- --ignored --nocapture`.

use crate::server::{Server, on_disk, url_at};
use holdline::{Client, Mutex, open};
use holdline_testkit::{Link, until};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres::types::Type;

/// The usual table of locks: a row for each, with owner and expiry.
const BARE: &str = "CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, owner text, \
    token bigint NOT NULL DEFAULT 0, expires timestamptz) WITH (fillfactor = 50)";
const TAKE: &str = "UPDATE bare SET owner = $2, token = token + 1, \
    expires = clock_timestamp() + interval '30 s' WHERE name = $1 \
    AND (owner IS NULL OR expires < clock_timestamp()) RETURNING token";
const GIVE: &str = "UPDATE bare SET owner = NULL WHERE name = $1 AND owner = $2 RETURNING token";

/// Locks and unlocks per second by these tasks for this time.
pub(crate) async fn rate<F: Future<Output = ()> + Send + 'static>(
    tasks: usize,
    time: Duration,
    work: impl Fn(usize) -> F + Send + Sync + 'static,
) -> f64 {
    let (work, start) = (Arc::new(work), Instant::now());
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let work = Arc::clone(&work);
            tokio::spawn(async move {
                let mut done = 0_u64;
                while start.elapsed() < time {
                    work(task).await;
                    done += 1;
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.expect("no panic");
    }
    done as f64 / start.elapsed().as_secs_f64()
}

async fn bare(sql: &tokio_postgres::Client, name: &str) {
    let owner = format!("{:032x}", fastrand::u128(..));
    loop {
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&name, Type::TEXT), (&owner, Type::TEXT)];
        if !sql.query_typed(TAKE, &params).await.expect("works").is_empty() {
            let gone = sql.query_typed(GIVE, &params).await.expect("works");
            assert_eq!(gone.len(), 1);
            return;
        }
    }
}

async fn ours(client: &Client, name: &str) {
    Mutex::new(client, name).lock().await.expect("works").unlock().await.expect("held");
}

/// Rounds of both in turns, with a connection for each task, on a lock for each or on a single one.
async fn compare(server: &Server, tasks: usize, together: bool) {
    let sql = server.sql().await;
    sql.batch_execute(BARE).await.expect("works");
    let name = move |task: usize| if together { "one".to_owned() } else { format!("n{task}") };
    let (mut connections, mut clients) = (Vec::new(), Vec::new());
    for task in 0..tasks {
        let insert = "INSERT INTO bare (name) VALUES ($1) ON CONFLICT DO NOTHING";
        sql.execute(insert, &[&name(task)]).await.expect("works");
        connections.push(Arc::new(server.sql().await));
        clients.push(open(&server.url()).await.expect("opens"));
        ours(&clients[task], &name(task)).await;
    }
    let (mut bares, mut owns) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let time = Duration::from_secs(2);
        let connections = connections.clone();
        bares.push(
            rate(tasks, time, move |task| {
                let (sql, name) = (Arc::clone(&connections[task]), name(task));
                async move { bare(&sql, &name).await }
            })
            .await,
        );
        let clients = clients.clone();
        owns.push(
            rate(tasks, time, move |task| {
                let (client, name) = (clients[task].clone(), name(task));
                async move { ours(&client, &name).await }
            })
            .await,
        );
    }
    bares.sort_by(f64::total_cmp);
    owns.sort_by(f64::total_cmp);
    let (bare, own) = (bares[2], owns[2]);
    println!(
        "{tasks} clients on {}: bare {bare:.0}/s, ours {own:.0}/s, ratio {:.2}",
        if together { "one lock" } else { "a lock each" },
        own / bare
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "measures"]
async fn beside_the_bare_idiom() {
    let Some(server) = on_disk("speed", &[]) else { return };
    for (tasks, together) in [(1, false), (16, false), (16, true)] {
        compare(&server, tasks, together).await;
    }
}

/// The notice is sent when the departure arrives: one round trip, where polling would take three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handover_takes_less_than_three_round_trips() {
    let Some(server) = on_disk("handover_time", &[]) else { return };
    let link = Link::to(server.address()).expect("a link");
    let url = url_at(&link.address().to_string()) + "&timeout=20s";
    let clients = [open(&url).await.expect("opens"), open(&url).await.expect("opens")];
    let lock = |client| Mutex::new(client, "x").lease(Duration::from_secs(60));
    for client in &clients {
        ours(client, "other").await; // so that both listen
    }
    let trip = Duration::from_millis(400);
    link.delay(trip / 2);
    let mut guard = lock(&clients[0]).lock().await.expect("works");
    let mut took = Vec::new();
    for turn in 1..=3 {
        let next = lock(&clients[turn % 2]);
        let waiting = tokio::spawn(async move { (next.lock().await, Instant::now()) });
        until("the next waits", async || {
            let info = clients[0].inspect("x").await.expect("works");
            info.waiters.len() == 1
        })
        .await;
        let start = Instant::now();
        let leaving = tokio::spawn(async move { guard.unlock().await });
        let (next, got) = waiting.await.expect("no panic");
        guard = next.expect("works");
        leaving.await.expect("no panic").expect("held");
        took.push(got - start);
    }
    took.sort();
    assert!(took[1] < trip * 3, "{took:?} with {trip:?} a round trip");
}
