//! How many times a lock goes to the server and back.

use holdline::{Client, Mutex, RwLock, open};
use holdline_testkit::zookeeper::start;
use holdline_testkit::{Link, soon};
use std::time::{Duration, Instant};

/// There and back.
const TRIP: Duration = Duration::from_millis(50);

/// The fastest of some, in round trips: a machine that is busy makes it longer, and nothing makes
/// it shorter.
async fn trips(client: &Client, name: &str, reads: bool) -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..12 {
        let began = Instant::now();
        let guard = if reads {
            RwLock::new(client, name).read().await
        } else {
            Mutex::new(client, name).lock().await
        };
        guard.expect("it is there").unlock().await.expect("held");
        best = best.min(began.elapsed());
    }
    best.as_secs_f64() / TRIP.as_secs_f64()
}

/// Create and list go out together, and nothing holds back the list until the create is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_and_unlock_are_two_round_trips() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(servers.hosts()[0].as_str()).expect("a port is free");
    let client = open(&format!("zookeeper://{}", link.address())).await.expect("a good URL");
    for name in ["x", "rw"] {
        let guard = soon("the lock", Mutex::new(&client, name).lock()).await.expect("there");
        guard.unlock().await.expect("held");
    }
    link.delay(TRIP / 2);
    for (name, reads) in [("x", false), ("rw", true)] {
        let trips = trips(&client, name, reads).await;
        assert!((2.0..2.9).contains(&trips), "{trips} round trips for a lock and unlock");
    }
    // A try that fails is one: sync and list go out together.
    link.mend();
    let other = servers.client().await;
    let held = soon("the lock", Mutex::new(&other, "x").lock()).await.expect("it is there");
    link.delay(TRIP / 2);
    let mut best = Duration::MAX;
    for _ in 0..12 {
        let began = Instant::now();
        assert!(Mutex::new(&client, "x").try_lock().await.expect("it is there").is_none());
        best = best.min(began.elapsed());
    }
    let trips = best.as_secs_f64() / TRIP.as_secs_f64();
    assert!((1.0..1.9).contains(&trips), "{trips} round trips for a failed try");
    held.unlock().await.expect("held");
}
