//! Names of nodes by dialect, and clients that cannot share a line.

use holdline::{Client, Election, ErrorKind, Mutex, RwLock, Semaphore, open};
use holdline_testkit::zookeeper::{Servers, start};
use holdline_testkit::{soon, until};
use std::time::Duration;
use zookeeper_client::{self as zk, Acls, CreateMode};

async fn speaking(servers: &Servers, options: &str) -> Client {
    open(&format!("{}?{options}", servers.url())).await.expect("a good URL")
}

/// Makes a node as another client would. `#` stands for the server's number.
async fn stand(raw: &zk::Client, path: &str) -> String {
    let mode =
        if path.ends_with('#') { CreateMode::EphemeralSequential } else { CreateMode::Ephemeral };
    let options = mode.with_acls(Acls::anyone_all());
    let path = path.trim_end_matches('#');
    let folder = path.rsplit_once('/').expect("a path").0;
    let container = CreateMode::Container.with_acls(Acls::anyone_all());
    raw.mkdir(folder, &container).await.expect("works");
    let (_, number) = raw.create(path, b"10.0.0.1", &options).await.expect("works");
    if mode == CreateMode::Ephemeral { path.to_owned() } else { format!("{path}{number}") }
}

const UUID: &str = "_c_a7b3a4de-05a8-4b0f-8a05-6a1b2b7b0b57";
const HEX: &str = "a7b3a4de05a84b0f8a056a1b2b7b0b57";

/// The names under a node.
async fn children(raw: &zk::Client, path: &str) -> Vec<String> {
    raw.list_children(path).await.expect("works")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_named_as_the_dialect_wants() {
    let Some(servers) = start(1) else { return };
    let raw = servers.raw().await;
    let curator = servers.client().await;
    let kazoo = speaking(&servers, "dialect=kazoo").await;
    let is = |name: &str, mark: &str| {
        let number = name.rsplit_once(mark).map(|(_, number)| number.to_owned());
        assert_eq!(number.as_deref(), Some("0000000000"), "{name} has no {mark}");
    };
    for (client, at, marks) in [
        (&curator, "c", ["-lock-", "-__WRIT__", "-__READ__", "-2of3-lock-", "-latch-"]),
        (&kazoo, "k", ["__lock__", "__lock__", "__rlock__", "-2of3__lock__", "__lock__"]),
    ] {
        let name = |what: &str| format!("{at}/{what}");
        let mutex = Mutex::new(client, name("mutex")).lock().await.expect("works");
        let write = RwLock::new(client, name("write")).write().await.expect("works");
        let read = RwLock::new(client, name("read")).read().await.expect("works");
        let permits = Semaphore::new(client, name("permits"), 3).acquire(2).await.expect("works");
        let leader = Election::new(client, name("leader")).campaign("me").await.expect("works");
        for (what, mark) in ["mutex", "write", "read", "permits", "leader"].iter().zip(marks) {
            let names = children(&raw, &format!("/{at}/{what}")).await;
            assert_eq!(names.len(), 1);
            is(&names[0], mark);
        }
        // As Curator's: the reader takes over the writer's number.
        let reader = write.downgrade().await.map_err(|(_, error)| error).expect("held");
        let names = children(&raw, &format!("/{at}/write")).await;
        is(&names[0], if at == "c" { "-__READ__" } else { "__rlock__" });
        assert!(reader.is_valid());
        drop((mutex, read, permits, leader));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_other_clients_are_waited_for() {
    let Some(servers) = start(1) else { return };
    let raw = servers.raw().await;
    let client = servers.client().await;
    for (at, name) in [
        format!("{UUID}-lock-#"),           // Curator
        format!("_c_{HEX}-lock-#"),         // Go
        format!("{HEX}-lock-#"),            // kazoo, told to please Curator
        "x-72057600000000000-#".to_owned(), // the recipe that comes with ZooKeeper
        format!("{UUID}-latch-#"),          // Curator's LeaderLatch
    ]
    .iter()
    .enumerate()
    {
        let line = format!("line {at}");
        let theirs = stand(&raw, &format!("/{line}/{name}")).await;
        let lock = Mutex::new(&client, &line);
        assert!(lock.try_lock().await.expect("works").is_none(), "{name} was overlooked");
        let waiter = tokio::spawn(async move { lock.lock().await });
        until("in the line", async || {
            client.inspect(&line).await.is_ok_and(|info| info.waiters.len() == 1)
        })
        .await;
        let info = client.inspect(&line).await.expect("works");
        assert_eq!(info.holders[0].note.label.as_deref(), Some("10.0.0.1"), "their data are shown");
        raw.delete(&theirs, None).await.expect("works");
        drop(soon("its turn", waiter).await.expect("no panic").expect("works"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_would_not_see_us_are_an_error_unless_we_are_told_otherwise() {
    let Some(servers) = start(1) else { return };
    let raw = servers.raw().await;
    let curator = servers.client().await;
    let kazoo = speaking(&servers, "dialect=kazoo").await;
    let calm = speaking(&servers, "mixed=wait").await;
    for (at, client, name) in [
        ("a", &curator, format!("{HEX}__lock__#")),
        ("b", &curator, "lock-#".to_owned()),
        ("c", &kazoo, format!("{UUID}-lock-#")),
        ("d", &kazoo, format!("{UUID}-__READ__#")),
    ] {
        let theirs = stand(&raw, &format!("/{at}/{name}")).await;
        let lock = Mutex::new(client, at);
        for error in [
            lock.try_lock().await.map(drop).expect_err("mixed"),
            soon("an error", lock.lock()).await.map(drop).expect_err("mixed"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.to_string().contains("mixed dialects"), "{error}");
        }
        assert_eq!(children(&raw, &format!("/{at}")).await.len(), 1, "we went away again");
        if at < "c" {
            let patient = Mutex::new(&calm, at);
            assert!(patient.try_lock().await.expect("works").is_none());
            let waiter = tokio::spawn(async move { patient.lock().await });
            raw.delete(&theirs, None).await.expect("works");
            drop(soon("its turn", waiter).await.expect("no panic").expect("works"));
        }
    }
}

/// In other clients a stray child blocks its lock for ever, or counts as a contender.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stray_children_are_in_nobodys_way() {
    let Some(servers) = start(1) else { return };
    let raw = servers.raw().await;
    let client = servers.client().await;
    for stray in ["!config", "sub", "job-0000000000", "lock-", "zzz"] {
        stand(&raw, &format!("/x/{stray}")).await;
    }
    let deeper = Mutex::new(&client, "x/deeper").lock().await.expect("works");
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    guard.unlock().await.expect("held");
    let names = client.list("").await.expect("works");
    assert_eq!(names.iter().map(holdline::Name::as_str).collect::<Vec<_>>(), ["x/deeper"]);
    deeper.unlock().await.expect("held");
}

/// The server's numbers do not grow beyond 2^31: then everybody gets the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_whose_numbers_are_used_up_is_refused() {
    let Some(servers) = start(1) else { return };
    let raw = servers.raw().await;
    let client = servers.client().await;
    for (at, number) in ["2147483647", "2147000000", "-2147483648", "-000000001"].iter().enumerate()
    {
        let line = format!("line {at}");
        let theirs = stand(&raw, &format!("/{line}/{UUID}-lock-{number}")).await;
        let error = Mutex::new(&client, &line).try_lock().await.map(drop).expect_err("used up");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("used up"), "{error}");
        raw.delete(&theirs, None).await.expect("works");
    }
}

/// Curator's way to ask a holder to let go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_to_let_go_is_shown_and_forces_nothing() {
    let Some(servers) = start(1) else { return };
    let raw = servers.raw().await;
    let client = servers.client().await;
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    let child = children(&raw, "/x").await.pop().expect("ours");
    raw.set_data(&format!("/x/{child}"), b"__REVOKE__", None).await.expect("works");
    let info = client.inspect("x").await.expect("works");
    let label = info.holders[0].note.label.as_deref().unwrap_or_default();
    assert!(label.contains("__REVOKE__"), "{label}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(guard.is_valid(), "nobody is forced");
    guard.unlock().await.expect("held");
}
