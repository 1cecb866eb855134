//! ShedLock on PostgreSQL: one-shot locks in its table, held for a time at most and at least.

use crate::peer::Peer;
use crate::suite::{Form, Row, fresh};
use crate::toolchain::Language;
use holdline::{Client, Mutex, open};
use holdline_testkit::{Private, postgres};
use std::time::Duration;

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
    const HOUR: Duration = Duration::from_secs(3600);
    let Some((server, client)) = server("&at_least=1h").await else { return };
    let Some(mut peer) = peer(&server, 2 * HOUR).await else { return };
    let job = |name: &str| Mutex::new(&client, name).fixed_lease(2 * HOUR);
    let stays_locked = async |name: &str| {
        assert!(job(name).try_lock().await.expect("works").is_none(), "it is locked for us");
        let left = client.inspect(name).await.expect("works").holders[0].expires_in;
        assert!(left <= HOUR && left > HOUR / 2, "for {left:?}");
    };
    let [ours, theirs] = ["ours", "theirs"].map(fresh);
    let guard = job(&ours).try_lock().await.expect("works").expect("free");
    guard.unlock().await.expect("it was held");
    assert!(!peer.try_lock("shedlock-1h", &ours).await, "it is locked for them");
    stays_locked(&ours).await;
    peer.lock("shedlock-1h", &theirs).await;
    peer.unlock().await;
    assert!(!peer.try_lock("shedlock-1h", &theirs).await, "it is locked for them");
    stays_locked(&theirs).await;
}
