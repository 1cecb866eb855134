//! Recipes of other clients on a lock's path, there before it or coming later.

use holdline::{Client, ErrorKind, Mutex};
use holdline_testkit::zookeeper::{Servers, start};
use holdline_testkit::{Warnings, soon, until};
use std::sync::OnceLock;
use zookeeper_client as zk;

/// What the whole program has warned of.
fn warnings() -> &'static Warnings {
    static ALL: OnceLock<Warnings> = OnceLock::new();
    ALL.get_or_init(|| {
        let all = Warnings::default();
        tracing::subscriber::set_global_default(all.subscriber()).expect("there is no other");
        all
    })
}

fn warned_of(words: &str) -> bool {
    warnings().all().iter().any(|text| text.contains(words))
}

const HEX: &str = "a7b3a4de05a84b0f8a056a1b2b7b0b57";
const UUID: &str = "_c_a7b3a4de-05a8-4b0f-8a05-6a1b2b7b0b57";

/// What each of them makes, below a lock's node, and what it is called.
fn recipes() -> [(&'static str, String, &'static str); 5] {
    [
        ("a", format!("/leases/{UUID}-lease-#"), "a semaphore of Curator"),
        ("b", format!("/locks/{UUID}-lock-#"), "a semaphore of Curator"),
        ("c", format!("/{HEX}"), "a semaphore of kazoo"),
        ("d", "/n-#".to_owned(), "an election after ZooKeeper's own recipe"),
        ("e", "/n_#".to_owned(), "an election after ZooKeeper's own recipe"),
    ]
}

/// Makes a node as others do. `#` stands for the server's number.
async fn stand(raw: &zk::Client, line: &str, child: &str) {
    let container = zk::CreateMode::Container.with_acls(zk::Acls::anyone_all());
    let path = format!("/{line}{child}");
    raw.mkdir(path.rsplit_once('/').expect("a path").0, &container).await.expect("works");
    if child == format!("/{HEX}") {
        raw.set_data(&format!("/{line}"), b"3", None).await.expect("works");
    }
    let mode = match child.strip_suffix('#') {
        Some(_) => zk::CreateMode::EphemeralSequential,
        None => zk::CreateMode::Ephemeral,
    };
    let options = mode.with_acls(zk::Acls::anyone_all());
    raw.create(path.trim_end_matches('#'), b"10.0.0.1", &options).await.expect("works");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recipes_that_would_not_see_us_are_refused_by_name() {
    let Some(servers) = start(1) else { return };
    let (raw, client) = (servers.raw().await, servers.client().await);
    for (line, child, name) in recipes() {
        stand(&raw, line, &child).await;
        let lock = Mutex::new(&client, line);
        let before = raw.list_children(&format!("/{line}")).await.expect("works").len();
        for error in [
            lock.try_lock().await.map(drop).expect_err(&child),
            soon("an error", lock.lock()).await.map(drop).expect_err(&child),
        ] {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{child}: {error}");
            assert!(error.to_string().contains(name), "{child}: {error}");
        }
        let after = raw.list_children(&format!("/{line}")).await.expect("works").len();
        assert_eq!(before, after, "we went away again");
    }
}

async fn works(client: &Client, name: &str) {
    let guard = soon("the lock", Mutex::new(client, name).lock()).await.expect(name);
    guard.unlock().await.expect("held");
}

/// Locks of ours may have such names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_names_are_not_taken_for_recipes() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let hex = format!("x/{HEX}");
    for name in ["x/locks", "x/leases", &hex, "x/n-0000000001"] {
        let lock = Mutex::new(&client, name);
        let guard = soon("a lock", lock.lock()).await.expect("works");
        works(&client, "x").await;
        guard.unlock().await.expect("held");
    }
    works(&client, "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_waiters_are_reported_to_the_holder() {
    let _ = warnings();
    let Some(servers) = start(1) else { return };
    let (raw, client) = (servers.raw().await, servers.client().await);
    let mut held = Vec::new();
    for (line, child, _) in recipes() {
        let name = format!("later {line}");
        held.push(soon("the lock", Mutex::new(&client, &name).lock()).await.expect("works"));
        stand(&raw, &name, &child).await;
    }
    let guard = soon("the lock", Mutex::new(&client, "later k").lock()).await.expect("works");
    stand(&raw, "later k", &format!("/{HEX}__lock__#")).await;
    for (line, _, recipe) in recipes() {
        until("a warning", async || warned_of(&format!("name=later {line} ")) && warned_of(recipe))
            .await;
    }
    until("a warning", async || warned_of("name=later k ")).await;
    assert!(guard.is_valid() && held.iter().all(holdline::Guard::is_valid));
    curators_path_is_ours(&servers, &client).await;
}

/// A percent sign is written as it is, unless it would be taken for the beginning of an escape.
async fn curators_path_is_ours(servers: &Servers, client: &Client) {
    let raw = servers.raw().await;
    stand(&raw, "job%", &format!("/{UUID}-lock-#")).await;
    let taken = Mutex::new(client, "job%").try_lock().await.expect("works");
    assert!(taken.is_none(), "Curator stands there");
}
