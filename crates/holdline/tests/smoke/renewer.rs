//! The thread that renews locks: it cannot be started, and later it can (G4, G14); it panics (G4,
//! G6). Each case has a process of its own, because that thread is one of a process.

use holdline::testing::break_renewals;
use holdline::{Client, ErrorKind, Loss, Mutex};
use holdline_conformance::{At, Chaos, Fault, Op, Subject};
use holdline_testkit::{in_own_process, on_event, panicking_subscriber};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_secs(1);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// No file descriptor is left until the result is dropped.
struct Exhausted(Rlimit);

fn exhaust() -> Exhausted {
    let before = getrlimit(Resource::Nofile);
    // The lowest number that is free: a new file gets it, and is closed again.
    let file = std::fs::File::open("/dev/null").expect("there is one left");
    let free = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&file)).expect("it is small");
    setrlimit(Resource::Nofile, Rlimit { current: Some(free), ..before }).expect("lower is fine");
    Exhausted(before)
}

impl Drop for Exhausted {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).expect("it was so before");
    }
}

async fn memory() -> Client {
    holdline::open("memory:").await.expect("memory opens")
}

#[test]
fn without_descriptors_a_lock_is_refused_and_later_it_is_renewed() {
    if !in_own_process("renewer::without_descriptors_a_lock_is_refused_and_later_it_is_renewed") {
        return;
    }
    runtime().block_on(async {
        let client = memory().await;
        let lock = Mutex::new(&client, "x").lease(LEASE);
        {
            let _exhausted = exhaust();
            for _ in 0..3 {
                let error = lock.lock().await.expect_err("nothing could renew it");
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
                assert!(error.to_string().contains("file descriptors"), "{error}");
            }
            assert!(lock.try_lock().await.is_err());
        }
        let guard = lock.lock().await.expect("there are descriptors again");
        let lost = tokio::time::timeout(LEASE * 3, guard.lost()).await;
        assert!(lost.is_err(), "it was not renewed");
        assert!(guard.is_valid());
        drop(guard);
        client.settle().await;
        assert_eq!(client.inspect("x").await.expect("memory works").holders, []);
    });
}

#[test]
fn without_descriptors_a_blocking_store_does_not_open_and_later_it_does() {
    if !in_own_process(
        "renewer::without_descriptors_a_blocking_store_does_not_open_and_later_it_does",
    ) {
        return;
    }
    {
        let _exhausted = exhaust();
        let error = holdline::blocking::open("memory:").expect_err("nothing could drive it");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
        assert!(error.to_string().contains("file descriptors"), "{error}");
    }
    let client = holdline::blocking::open("memory:").expect("there are descriptors again");
    client.mutex("x").lock().expect("memory works").unlock().expect("it was held");
}

/// Stores with sessions have a thread of their own.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
#[test]
fn without_descriptors_a_store_with_sessions_does_not_open_and_later_it_does() {
    if !in_own_process(
        "renewer::without_descriptors_a_store_with_sessions_does_not_open_and_later_it_does",
    ) {
        return;
    }
    let urls = [
        #[cfg(feature = "etcd")]
        "etcd://127.0.0.1:1",
        #[cfg(feature = "zookeeper")]
        "zookeeper://127.0.0.1:1",
    ];
    runtime().block_on(async {
        for url in urls {
            {
                let _exhausted = exhaust();
                let error = holdline::open(url).await.expect_err("nothing could serve it");
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
                assert!(error.to_string().contains("file descriptors"), "{error}");
            }
            if let Err(error) = holdline::open(url).await {
                assert!(!error.to_string().contains("file descriptors"), "{error}");
            }
        }
    });
}

#[test]
fn a_panic_of_the_renewer_is_a_loss_for_all_and_the_next_lock_is_renewed() {
    if !in_own_process(
        "renewer::a_panic_of_the_renewer_is_a_loss_for_all_and_the_next_lock_is_renewed",
    ) {
        return;
    }
    runtime().block_on(async {
        let client = memory().await;
        for _ in 0..3 {
            let long = Duration::from_secs(3600);
            let one = Mutex::new(&client, "one").lease(long).lock().await.expect("memory works");
            let two = Mutex::new(&client, "two").lease(long).lock().await.expect("memory works");
            break_renewals();
            one.lost().await;
            two.lost().await;
            assert!(!one.is_valid() && !two.is_valid());
            assert_eq!(one.loss().await, Some(Loss::Unrenewed));
            let error = two.protect(async {}).await.expect_err("it is lost");
            assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(&Loss::Unrenewed)));
            assert_eq!(one.unlock().await.expect_err("it is lost").kind(), ErrorKind::Lost);
            drop(two); // which gives the place up all the same
            let guard = Mutex::new(&client, "two").lease(LEASE).lock().await.expect("free again");
            let lost = tokio::time::timeout(LEASE * 2, guard.lost()).await;
            assert!(lost.is_err(), "it was not renewed");
            guard.unlock().await.expect("it was held");
        }
    });
}

#[test]
fn a_subscriber_that_panics_about_a_panic_does_not_end_the_renewer() {
    if !in_own_process("renewer::a_subscriber_that_panics_about_a_panic_does_not_end_the_renewer") {
        return;
    }
    tracing::subscriber::set_global_default(panicking_subscriber()).expect("it is the first");
    runtime().block_on(async {
        let client = memory().await;
        let lock = Mutex::new(&client, "x");
        let guard = lock.clone().lease(LEASE * 3600).lock().await.expect("memory works");
        break_renewals();
        let told = tokio::time::timeout(LEASE * 30, guard.lost()).await;
        told.expect("the holder is not told");
        drop(guard);
        let guard = lock.lease(LEASE).lock().await.expect("free again");
        let lost = tokio::time::timeout(LEASE * 2, guard.lost()).await;
        assert!(lost.is_err(), "it was not renewed");
        guard.unlock().await.expect("it was held");
    });
}

/// As one that writes to a pipe that nobody reads.
#[test]
fn a_subscriber_that_blocks_the_renewer_keeps_no_loss_from_the_holder() {
    if !in_own_process(
        "renewer::a_subscriber_that_blocks_the_renewer_keeps_no_loss_from_the_holder",
    ) {
        return;
    }
    let (blocks, blocked) = std::sync::mpsc::channel();
    let subscriber = on_event(tracing::Level::WARN, move |_| {
        if std::thread::current().name() == Some("holdline-renewer") {
            let _ = blocks.send(());
            loop {
                std::thread::park();
            }
        }
    });
    tracing::subscriber::set_global_default(subscriber).expect("it is the first");
    runtime().block_on(async {
        let chaos = Chaos::new(memory().await.store().clone());
        let lock = Mutex::new(&chaos.client(), "x").lease(LEASE);
        let guard = lock.lock().await.expect("memory works");
        let notice = guard.loss_notice();
        chaos.always(Op::Enter, Fault::FailBefore);
        let told = async { tokio::join!(guard.lost(), notice.ended()) };
        let told = tokio::time::timeout(LEASE * 30, told).await;
        assert_eq!(told.expect("the holder is not told").1, Some(Loss::Expired));
        assert!(blocked.try_recv().is_ok() && !guard.is_valid());
    });
}

/// The renewer has nothing else to do, and would sleep for a quarter of an hour.
#[test]
fn a_hint_wakes_the_renewer() {
    if !in_own_process("renewer::a_hint_wakes_the_renewer") {
        return;
    }
    runtime().block_on(async {
        let chaos = Chaos::new(memory().await.store().clone());
        let client = chaos.client();
        let lock = Mutex::new(&client, "x").lease(LEASE * 3600);
        let guard = lock.lock().await.expect("memory works");
        for renewals in 1..4 {
            // By then it has done its other work.
            tokio::time::sleep(LEASE / 50).await;
            chaos.hint(guard.ticket());
            let asked = async {
                while chaos.count(Op::Enter) == renewals {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(LEASE * 30, asked).await.expect("the store is asked at once");
        }
        guard.unlock().await.expect("it was held");
    });
}

/// What was being given up, or waited for its turn, is given up by the next run of the renewer; and
/// nobody is told before that it is done.
#[test]
fn a_panic_of_the_renewer_forgets_no_place_to_give_up() {
    if !in_own_process("renewer::a_panic_of_the_renewer_forgets_no_place_to_give_up") {
        return;
    }
    runtime().block_on(async {
        let chaos = Chaos::new(memory().await.store().clone());
        let client = chaos.client();
        let mut guards = Vec::new();
        for number in 0..100 {
            let lock = Mutex::new(&client, format!("x{number}")).lease(LEASE * 3600);
            guards.push(lock.lock().await.expect("memory works"));
        }
        chaos.always(Op::Leave, Fault::HangBefore);
        drop(guards);
        while chaos.count(Op::Leave) == 0 {
            tokio::task::yield_now().await;
        }
        break_renewals();
        let settled = tokio::time::timeout(LEASE / 2, client.settle()).await;
        assert!(settled.is_err(), "it is said to be settled, and nothing is");
        assert_eq!(client.list("").await.expect("memory works").len(), 100);
        chaos.heal();
        client.settle().await;
        assert_eq!(client.list("").await.expect("memory works"), []);
    });
}

/// A place that cannot be given up counts until its lease is over.
#[test]
fn what_cannot_be_given_up_counts_until_its_lease_is_over() {
    runtime().block_on(async {
        let client = At::new("memory:").client().await.expect("memory opens");
        let chaos = Chaos::new(client.store().clone());
        let client = chaos.client();
        let guard = Mutex::new(&client, "x").fixed_lease(LEASE).lock().await.expect("works");
        chaos.always(Op::Leave, Fault::FailBefore);
        let dropped = Instant::now();
        drop(guard);
        client.settle().await;
        // The store's clock may be slower by 1%, and 2 ms.
        assert!(dropped.elapsed() >= LEASE + LEASE / 100 + Duration::from_millis(2));
        assert_eq!(client.inspect("x").await.expect("memory works").holders, []);
        assert!(chaos.count(Op::Leave) > 1, "it was tried again");
    });
}
