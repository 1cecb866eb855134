//! Curator and kazoo on ZooKeeper, each in its dialect: locks, readers and writers, leaders.

use crate::peer::Peer;
use crate::suite::{Form, Row, fresh};
use crate::toolchain::Language;
use crate::{hosts, server};
use holdline::{Election, Mutex, open};
use std::time::Duration;

async fn row(language: Language, ours: Form, theirs: &'static str) -> Option<Row> {
    let url = server("HOLDLINE_TEST_ZOOKEEPER")?;
    let dialect = if language == Language::Python { "kazoo" } else { "curator" };
    let client = open(&format!("{url}?dialect={dialect}")).await.expect("opens");
    Some(Row { client, ours, language, theirs, servers: hosts(&url) })
}

async fn exclude(language: Language, ours: Form, theirs: &'static str) {
    if let Some(row) = row(language, ours, theirs).await {
        row.exclude().await;
    }
}

/// Readers of both sides are inside together, and a writer waits for all of them.
async fn share(language: Language, reads: &'static str, writes: &'static str) {
    let Some(row) = row(language, Form::Read, reads).await else { return };
    let Some(mut reader) = row.peer().await else { return };
    let Some(mut writer) = row.peer().await else { return };
    let name = fresh("share");
    let ours = row.ours(&name).lock().await;
    reader.lock(reads, &name).await;
    row.ours(&name).try_lock().await.expect("readers share").unlock().await;
    assert!(!writer.try_lock(writes, &name).await, "two read");
    writer.say(&format!("lock {writes} {name}")).await;
    let waits = async |writer: &mut Peer| {
        assert_eq!(writer.answer_within(Duration::from_millis(300)).await, None, "it waits");
    };
    waits(&mut writer).await;
    ours.unlock().await;
    waits(&mut writer).await;
    reader.unlock().await;
    assert_eq!(writer.answer().await, "held -");
    assert!(row.ours(&name).try_lock().await.is_none(), "one writes");
    writer.unlock().await;
    row.ours(&name).lock().await.unlock().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curator() {
    exclude(Language::Java, Form::Mutex, "curator").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curator_writes_and_we_read() {
    exclude(Language::Java, Form::Read, "curator-write").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curator_reads_and_we_write() {
    exclude(Language::Java, Form::Write, "curator-read").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curator_writes_and_we_write() {
    exclude(Language::Java, Form::Write, "curator-write").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curator_shares() {
    share(Language::Java, "curator-read", "curator-write").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_zookeeper() {
    exclude(Language::Go, Form::Mutex, "go-zookeeper").await;
}

/// It numbers its nodes as Curator does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rusts_zookeeper_client() {
    exclude(Language::Rust, Form::Mutex, "zookeeper-client").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo() {
    exclude(Language::Python, Form::Mutex, "kazoo").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_writes_and_we_read() {
    exclude(Language::Python, Form::Read, "kazoo-write").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_reads_and_we_write() {
    exclude(Language::Python, Form::Write, "kazoo-read").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_writes_and_we_write() {
    exclude(Language::Python, Form::Write, "kazoo-write").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_shares() {
    share(Language::Python, "kazoo-read", "kazoo-write").await;
}

/// kazoo would not see a node of Curator's kind: we do not take such a lock, but say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dialects_do_not_mix() {
    let Some(row) = row(Language::Python, Form::Mutex, "kazoo").await else { return };
    let Some(mut peer) = row.peer().await else { return };
    let name = fresh("mixed");
    let url = server("HOLDLINE_TEST_ZOOKEEPER").expect("it was there");
    let curator = open(&url).await.expect("opens");
    peer.lock("kazoo", &name).await;
    let mutex = Mutex::new(&curator, &name);
    assert!(!matches!(mutex.try_lock().await, Ok(Some(_))), "kazoo holds it");
    let error = mutex.lock().await.expect_err("kazoo would not wait for us");
    assert!(error.to_string().contains("mixed dialects"), "{error}");
    peer.unlock().await;
    mutex.lock().await.expect("kazoo has gone").unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curators_latch() {
    let Some(row) = row(Language::Java, Form::Mutex, "latch").await else { return };
    let Some(mut peer) = row.peer().await else { return };
    let Some(mut observer) = row.peer().await else { return };
    let name = fresh("latch");
    let election = Election::new(&row.client, &name);
    let ours = election.campaign("rust").await.expect("it is there");
    let leader = format!("leader latch {name}");
    let seen = observer.ask(&leader).await;
    assert!(seen.starts_with("leader ") && seen.contains("rust"), "{seen}");
    peer.say(&format!("lock latch {name}")).await;
    assert_eq!(peer.answer_within(Duration::from_millis(300)).await, None, "it is a candidate");
    ours.resign().await.expect("it led");
    assert_eq!(peer.answer().await, "held -");
    assert_eq!(observer.ask(&leader).await, "leader java");
    let seen = election.leader().await.expect("works").expect("Curator leads");
    assert_eq!(seen.participant.note.label.as_deref(), Some("java"));

    let candidate = election.clone();
    let candidate = tokio::spawn(async move { candidate.campaign("rust").await });
    let line = async || row.client.inspect(&name).await.expect("works").waiters.len();
    while line().await == 0 {
        assert!(!candidate.is_finished(), "Curator leads");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    peer.unlock().await;
    let ours = candidate.await.expect("no panic").expect("it is there");
    assert!(ours.token() > seen.token);
    ours.resign().await.expect("it led");
    assert_eq!(observer.ask(&leader).await, "nobody");
}
