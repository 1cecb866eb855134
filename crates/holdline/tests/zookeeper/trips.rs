//! How many times a lock goes to the server and back.

use crate::linked;
use holdline::{Mutex, RwLock};
use holdline_testkit::zookeeper::start;
use holdline_testkit::{persist, soon};
use std::time::{Duration, Instant};

/// There and back.
const TRIP: Duration = Duration::from_millis(200);
const TRIES: usize = 20;

/// Does something until it takes as few round trips as it should: a busy machine makes it longer,
/// and nothing makes it shorter.
async fn takes(trips: u32, mut work: impl AsyncFnMut()) {
    let mut best = f64::MAX;
    for _ in 0..TRIES {
        let began = Instant::now();
        work().await;
        let took = began.elapsed().as_secs_f64() / TRIP.as_secs_f64();
        assert!(took >= f64::from(trips), "{took} round trips: less than {trips}");
        best = best.min(took);
        if best < f64::from(trips) + 0.9 {
            return;
        }
    }
    panic!("{best} round trips at best: more than {trips}");
}

/// Create and list go out together, and nothing holds back the list until the create is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_and_unlock_are_two_round_trips() {
    let Some(servers) = start(1) else { return };
    let (client, link) = linked(&servers, "").await;
    for name in ["x", "rw"] {
        let guard = soon("the lock", Mutex::new(&client, name).lock()).await.expect("there");
        guard.unlock().await.expect("held");
    }
    link.delay(TRIP / 2);
    takes(2, async || {
        let guard = persist(Mutex::new(&client, "x")).await;
        guard.unlock().await.expect("held");
    })
    .await;
    takes(2, async || {
        let guard = RwLock::new(&client, "rw").read().await.expect("it is there");
        guard.unlock().await.expect("held");
    })
    .await;
    // A try that fails is one: sync and list go out together.
    link.mend();
    let other = servers.client().await;
    let held = soon("the lock", Mutex::new(&other, "x").lock()).await.expect("it is there");
    link.delay(TRIP / 2);
    takes(1, async || {
        assert!(Mutex::new(&client, "x").try_lock().await.expect("it is there").is_none());
    })
    .await;
    held.unlock().await.expect("held");
}
