//! Servers that lost what they had confirmed.

use holdline::{Mutex, open};
use holdline_testkit::zookeeper::start;
use holdline_testkit::{persist, soon};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than a machine takes to make a connection and one more session, however busy it is; the
/// session is longer.
const LEASE: Duration = Duration::from_secs(40);
/// The time in which the loss is known, from when the servers serve again.
const KNOWN: Duration = LEASE.checked_div(2).expect("not by zero");

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("there is room");
    for file in std::fs::read_dir(from).expect("it is there") {
        let file = file.expect("it is there");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("there is room");
    }
}

/// The servers go back behind what a holder has seen: it must not believe for the rest of its
/// session that it holds what others can have by now.
async fn is_noticed(count: usize, emptied: bool) {
    let Some(mut servers) = start(count) else { return };
    let url = format!("{}?session=60", servers.url());
    let one = open(&url).await.expect("a good URL");
    let lock = Mutex::new(&one, "x").lease(LEASE);
    // The session and the line are older than the copy: both are there again afterwards.
    soon("a lock", persist(lock.clone())).await.unlock().await.expect("held");
    servers.between_lives(|data| copy(data, &data.with_extension("older")));
    let guard = soon("the lock", persist(lock.clone())).await;
    for _ in 0..20 {
        soon("a lock", persist(Mutex::new(&one, "y"))).await.unlock().await.expect("held");
    }
    assert!(guard.is_valid());
    servers.between_lives(|data| {
        std::fs::remove_dir_all(data).expect("it is there");
        if !emptied {
            copy(&data.with_extension("older"), data);
        }
    });
    let serving = Instant::now();
    let two = open(&url).await.expect("a good URL");
    let rival = tokio::spawn(async move {
        let rival = persist(Mutex::new(&two, "x")).await;
        (rival, Instant::now())
    });
    soon("the loss", guard.lost()).await;
    let known = Instant::now();
    let (rival, admitted) = soon("the rival", rival).await.expect("no panic");
    println!(
        "{count} servers, emptied: {emptied}: known after {:?}, {:?} after the next was in",
        known.saturating_duration_since(serving),
        known.saturating_duration_since(admitted),
    );
    assert!(known < serving + KNOWN, "known after {:?}", known - serving);
    assert!(rival.is_valid() && !guard.is_valid());
    rival.unlock().await.expect("held");
    // It can go on.
    drop(guard);
    let again = soon("again", persist(lock)).await;
    again.unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_older_data_is_noticed() {
    is_noticed(1, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_its_data_is_noticed() {
    is_noticed(1, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_with_older_data_is_noticed() {
    is_noticed(3, false).await;
}
