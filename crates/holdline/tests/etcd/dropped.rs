//! Clients that are dropped: what they had in the process and in the server goes with them. And
//! calls that are neither dropped nor polled.

use futures_util::future::poll_immediate;
use holdline::store::{Enter, Standing, TicketId};
use holdline::{Guard, Mutex, Name, Result, open};
use holdline_testkit::etcd::start;
#[cfg(target_os = "linux")]
use holdline_testkit::in_own_process;
use holdline_testkit::{Link, Way, soon, ticket, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A waiter's watch is kept for a moment after it has served; a store that is dropped in that
/// moment must not leave it, for it kept the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_client_leaves_no_connection() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(&*servers.hosts()[0]).expect("a link");
    let url = format!("etcd://{}", link.address());
    for round in 0..4 {
        let (one, two) = (open(&url).await.expect("a URL"), open(&url).await.expect("a URL"));
        let held = soon("a lock", Mutex::new(&one, "x").lock()).await.expect("it is there");
        let waiter = tokio::spawn(async move {
            let guard = Mutex::new(&two, "x").lock().await.expect("it is there");
            guard.unlock().await.expect("held");
        });
        until("a waiter", async || {
            one.inspect("x").await.is_ok_and(|info| info.waiters.len() == 1)
        })
        .await;
        held.unlock().await.expect("held");
        soon("the waiter", waiter).await.expect("no panic");
        drop(one);
        until(&format!("no connections, round {round}"), async || link.open() == 0).await;
        assert_eq!(servers.leases(), Vec::<String>::new(), "leases are given back");
    }
}

/// As in a program that makes a runtime for each call.
#[cfg(target_os = "linux")]
#[test]
fn runtimes_that_are_gone_leave_no_files_open() {
    if !in_own_process("dropped::runtimes_that_are_gone_leave_no_files_open") {
        return;
    }
    let Some(servers) = start(1) else { return };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let new = || runtime().expect("the system gives a runtime");
    let client = new().block_on(open(&format!("etcd://{}", servers.hosts()[0]))).expect("a URL");
    let calls = |number| {
        for _ in 0..number {
            new().block_on(client.inspect("x")).expect("it is there");
        }
        std::fs::read_dir("/proc/self/fd").expect("this process has files").count()
    };
    let (few, many) = (calls(3), calls(20));
    assert!(many < few + 10, "{few} files were open, and now {many}");
}

/// A call whose future is kept and not polled while it asks for a lease, as in a `select!` whose
/// other branch goes on, keeps no other from one.
#[tokio::test]
async fn a_call_that_is_not_polled_keeps_nobody_from_a_lease() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(&*servers.hosts()[0]).expect("a link");
    let client = open(&format!("etcd://{}", link.address())).await.expect("a URL");
    let (one, other) = (Mutex::new(&client, "x"), Mutex::new(&client, "y"));
    link.stall(Way::Replies);
    let mut kept = Box::pin(one.lock());
    let polled = tokio::time::timeout(Duration::from_millis(200), &mut kept).await;
    polled.expect_err("it hears nothing");
    link.mend();
    let other = soon("another lock", other.lock()).await.expect("it is there");
    let kept = soon("the kept one", kept).await.expect("it is there");
    other.unlock().await.expect("held");
    kept.unlock().await.expect("held");
}

/// An acquisition that was polled once, with this waker, and has no answer yet.
async fn begun(lock: &Mutex, waker: &Waker) -> impl Future<Output = Result<Guard>> + Unpin {
    loop {
        let mut acquisition = Box::pin(lock.lock());
        match acquisition.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Pending => return acquisition,
            // On a busy machine the answer may be there at once.
            Poll::Ready(guard) => guard.expect("it is there").unlock().await.expect("held"),
        }
    }
}

/// A call whose waker panics, as that of an executor with a bug may, harms no other: the waker is
/// called while the connection, which all calls share, is being read.
#[tokio::test]
async fn a_waker_that_panics_harms_no_other_call() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let (one, other) = (Mutex::new(&client, "x"), Mutex::new(&client, "y"));
    for _ in 0..20 {
        let held = soon("a lock", other.lock()).await.expect("it is there");
        let panics = Arc::new(Panics { since: Instant::now(), has: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&panics));
        let call = begun(&one, &waker).await;
        held.unlock().await.expect("held");
        let other = soon("the other lock", other.lock()).await.expect("it is there");
        let one = soon("its lock", call).await.expect("it is there");
        assert!(one.is_valid() && other.is_valid());
        if panics.has.load(Ordering::SeqCst) {
            return;
        }
        for guard in [one, other] {
            guard.unlock().await.expect("held");
        }
    }
    panic!("its answer never came in time");
}

/// A waker that panics, but not when it may be a timer of the call, a second later, that calls it:
/// that is on the caller's own runtime.
struct Panics {
    since: Instant,
    has: AtomicBool,
}

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        if self.since.elapsed() < Duration::from_millis(900) {
            self.has.store(true, Ordering::SeqCst);
            panic!("as it should");
        }
    }
}

/// Acquisitions that give up before they have a lease request one among them, and the next one uses
/// it.
#[tokio::test]
async fn acquisitions_that_give_up_early_leave_one_lease() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(&*servers.hosts()[0]).expect("a link");
    let client = open(&format!("etcd://{}", link.address())).await.expect("a URL");
    link.delay(Duration::from_millis(150));
    for _ in 0..20 {
        let lock = Mutex::new(&client, "x");
        let brief = tokio::time::timeout(Duration::from_millis(30), lock.lock()).await;
        brief.expect_err("it takes longer");
    }
    let guard = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("there");
    assert_eq!(servers.leases().len(), 1);
    guard.unlock().await.expect("held");
}

/// An acquisition whose future is kept and not polled, so that nobody reads the reply that it has
/// the lock, keeps it for a while, and not for as long as it is kept (T5).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquisition_that_is_not_polled_ends_by_itself() {
    let Some(servers) = start(1) else { return };
    let (client, other) = (servers.client().await, servers.client().await);
    let lock = |client| Mutex::new(client, "x").lease(Duration::from_secs(1));
    let (ours, theirs) = (lock(&client), lock(&other));
    let warm = soon("the lock", ours.lock()).await.expect("it is there");
    warm.unlock().await.expect("held");
    let kept = begun(&ours, Waker::noop()).await;
    until("its key", async || servers.keys().len() == 1).await;
    let next = soon("the lock", theirs.lock()).await.expect("it is there");
    next.unlock().await.expect("held");
    let kept = soon("the kept one", kept).await.expect("it is there");
    kept.unlock().await.expect("held");
    until("no keys", async || servers.keys().is_empty()).await;
}

/// The same for one that was dropped on a runtime that then stands still, as that of a program that
/// calls `block_on` now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquisition_that_is_dropped_on_an_idle_runtime_ends_by_itself() {
    let Some(servers) = start(1) else { return };
    let (client, other) = (servers.client().await, servers.client().await);
    let ours = Mutex::new(&client, "x").lease(Duration::from_secs(1));
    let idle = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("there are file descriptors");
        runtime.block_on(async {
            let warm = soon("the lock", ours.lock()).await.expect("it is there");
            warm.unlock().await.expect("held");
            drop(begun(&ours, Waker::noop()).await);
        });
        runtime
    });
    let idle = idle.join().expect("no panic");
    let next = soon("the lock", Mutex::new(&other, "x").lock()).await.expect("it is there");
    next.unlock().await.expect("held");
    until("no keys", async || servers.keys().is_empty()).await;
    idle.shutdown_background();
}

/// The key of an acquisition that is not polled is watched from then on, since it may yet come,
/// until its lease ends: so new places are on another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_on_which_a_key_may_yet_come_gets_no_new_places() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let lock = |name| Mutex::new(&client, name).lease(Duration::from_secs(1));
    let warm = soon("the lock", lock("x").lock()).await.expect("it is there");
    warm.unlock().await.expect("held");
    let kept_lock = lock("x");
    let kept = begun(&kept_lock, Waker::noop()).await;
    until("its key", async || servers.keys().len() == 1).await;
    let key = servers.keys().remove(0);
    let lease = key.strip_prefix("x/").and_then(|rest| rest.split('-').next()).expect("a slot");
    until("its end", async || servers.keys().is_empty()).await;
    let next = soon("another lock", lock("y").lock()).await.expect("it is there");
    let keys = servers.keys();
    assert!(keys.iter().all(|key| !key.starts_with(&format!("y/{lease}-"))), "{keys:?}");
    next.unlock().await.expect("held");
    drop(kept);
    until("its end", async || servers.leases().iter().all(|id| id != lease)).await;
}

/// A release whose future is kept and not polled keeps the lock until its lease is over, and not
/// longer; nor does it keep the next task of its own process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_not_polled_ends_with_its_lease() {
    let Some(servers) = start(1) else { return };
    let (client, other) = (servers.client().await, servers.client().await);
    let lock = Mutex::new(&client, "x").lease(Duration::from_secs(1));
    let guard = soon("the lock", lock.lock()).await.expect("it is there");
    let token = guard.token();
    let mut kept = Box::pin(guard.unlock());
    assert!(poll_immediate(&mut kept).await.is_none(), "it is under way");
    let next = soon("the next", Mutex::new(&other, "x").lock()).await.expect("it is there");
    assert!(next.token() > token);
    assert!(soon("the kept one", kept).await.is_err(), "its lease is over");
    assert!(next.is_valid() && servers.keys().len() == 1, "it removed another's place");
    next.unlock().await.expect("held");
    let again = soon("the lock", lock.lock()).await.expect("it is there");
    again.unlock().await.expect("held");
}

/// Releases that are kept and not polled, as those of a runtime that stands still, keep no other
/// from its own: there is a limit on how many are under way at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_that_are_not_polled_keep_no_other_from_its_own() {
    const MANY: u128 = 300; // more than the limit
    let Some(servers) = start(1) else { return };
    let link = Link::to(&*servers.hosts()[0]).expect("a link");
    let client = open(&format!("etcd://{}", link.address())).await.expect("a URL");
    let (store, note) = (client.store(), Arc::from(""));
    let lease = Duration::from_secs(600);
    let lines: Vec<_> =
        (0..=MANY).map(|id| (Name::new(format!("x{id}")).expect("good"), TicketId(id))).collect();
    for (line, id) in &lines {
        let ticket = ticket(id.0, lease);
        let entered = soon("an answer", store.enter(line, &ticket, &note, Enter::Queue)).await;
        assert!(matches!(entered, Ok(Standing::Admitted(_))), "{entered:?}");
    }
    let (last, others) = lines.split_last().expect("there are many");
    let mut kept: Vec<_> = others.iter().map(|(line, id)| store.leave(line, *id)).collect();
    link.stall(Way::Replies);
    for leaving in &mut kept {
        // To let a task join it, and to send the request.
        for _ in 0..2 {
            tokio::task::yield_now().await;
            assert!(poll_immediate(&mut *leaving).await.is_none(), "it is under way");
        }
    }
    link.mend();
    let left = soon("the release", store.leave(&last.0, last.1)).await;
    assert!(left.expect("it is there"));
    drop(kept);
}
