//! Go's `concurrency` package on etcd: mutexes, their tokens, and elections seen from both sides;
//! and etcd's own lock service, by its client in Java.

use crate::suite::{Form, Row, fresh};
use crate::toolchain::Language;
use crate::{hosts, server};
use holdline::{Election, open};
use std::time::Duration;

async fn row(language: Language, theirs: &'static str) -> Option<Row> {
    let url = server("HOLDLINE_TEST_ETCD")?;
    let client = open(&url).await.expect("opens");
    let servers = hosts(&url);
    Some(Row { client, ours: Form::Mutex, language, theirs, servers })
}

/// The suite compares tokens where both sides have them: here, create revisions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_mutex() {
    let Some(row) = row(Language::Go, "mutex").await else { return };
    row.exclude().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetcd() {
    let Some(row) = row(Language::Java, "jetcd").await else { return };
    row.exclude().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_election() {
    let Some(row) = row(Language::Go, "election").await else { return };
    let Some(mut peer) = row.peer().await else { return };
    let name = fresh("election");
    let election = Election::new(&row.client, &name);
    let mut observer = election.observe().every(Duration::from_millis(20));
    let (leader, observe) = (format!("leader election {name}"), format!("observe election {name}"));
    assert_eq!(peer.ask(&leader).await, "nobody");

    let ours = election.campaign("rust:1").await.expect("it is there");
    assert_eq!(peer.ask(&leader).await, "leader rust:1");
    assert_eq!(peer.ask(&format!("{observe} rust:1")).await, "leader rust:1");
    let token = ours.token();
    peer.say(&format!("lock election {name} go:1")).await;
    assert_eq!(peer.answer_within(Duration::from_millis(300)).await, None, "it is a candidate");
    ours.proclaim("rust:2").await.expect("it leads");
    assert_eq!(observer.next().await.expect("works").expect("we lead").value, "rust:2");
    ours.resign().await.expect("it led");

    let theirs = crate::peer::token(&peer.answer().await).expect("Go has tokens");
    assert!(theirs > token);
    let seen = election.leader().await.expect("works").expect("Go leads");
    assert_eq!((seen.value.as_str(), seen.token), ("go:1", theirs));
    assert_eq!(observer.next().await.expect("works").expect("Go leads").value, "go:1");

    let candidate = election.clone();
    let candidate = tokio::spawn(async move { candidate.campaign("rust:3").await });
    let line = async || row.client.inspect(&name).await.expect("works").waiters.len();
    while line().await == 0 {
        assert!(!candidate.is_finished(), "Go leads");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    peer.unlock().await;
    let ours = candidate.await.expect("no panic").expect("it is there");
    assert!(ours.token() > theirs);
    assert_eq!(peer.ask(&format!("{observe} rust:3")).await, "leader rust:3");
    ours.resign().await.expect("it led");
    assert_eq!(peer.ask(&leader).await, "nobody");
}
