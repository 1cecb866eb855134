//! ShedLock on PostgreSQL: one-shot locks in its table, held for a time at most and at least.

use crate::peer::Peer;
use crate::suite::{Form, Row, fresh};
use crate::toolchain::Language;
use holdline::{Client, Mutex, open};
use holdline_testkit::{Private, postgres};
use std::time::{Duration, Instant};

/// A server, and a client of it that has made the table; `options` follow in its URL.
async fn server(options: &str) -> Option<(Private, Client)> {
    let server = postgres::start("shedlock")?;
    let url = format!("{}?scheme=shedlock&install=yes{options}", server.url());
    let client = open(&url).await.expect("opens");
    Some((server, client))
}

async fn peer(server: &Private, lease: Duration) -> Option<Peer> {
    Peer::start(Language::Java, &server.hosts()[0], lease).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shedlock() {
    let Some((server, client)) = server("").await else { return };
    let servers = server.hosts()[0].clone();
    let (ours, language, theirs) = (Form::Mutex, Language::Java, "shedlock");
    Row { client, ours, language, theirs, servers }.exclude().await;
}

/// A job that was quick stays locked for its time at least, for them and for us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shedlock_at_least_for() {
    const LEAST: Duration = Duration::from_secs(2);
    let Some((server, client)) = server("&at_least=2s").await else { return };
    let Some(mut peer) = peer(&server, Duration::from_secs(20)).await else { return };
    let (name, began) = (fresh("at-least"), Instant::now());
    let job = Mutex::new(&client, &name).fixed_lease(Duration::from_secs(20));
    let guard = job.try_lock().await.expect("works").expect("free");
    guard.unlock().await.expect("it was held");
    assert!(!peer.try_lock("shedlock", &name).await, "it is locked for its time");
    assert!(job.try_lock().await.expect("works").is_none(), "for us, too");
    peer.lock("shedlock-2s", &name).await;
    assert!(began.elapsed() >= LEAST, "they had it after {:?}", began.elapsed());
    let began = Instant::now();
    peer.unlock().await;
    assert!(job.try_lock().await.expect("works").is_none(), "it is locked for their time");
    let guard = job.lock().await.expect("works");
    // They counted from before they were answered.
    assert!(began.elapsed() >= LEAST - Duration::from_millis(500), "{:?}", began.elapsed());
    guard.unlock().await.expect("it was held");
}
