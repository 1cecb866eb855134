//! The first lock of a process: what it waits for, and what is made up for later.

use holdline::store::{Enter, Standing};
use holdline::{Mutex, Name, open};
use holdline_testkit::redis::{Server, private};
use holdline_testkit::{Link, Way, ticket, until};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One way through the link: large beside what else takes time here.
const DELAY: Duration = Duration::from_millis(100);

/// Waits until so many clients, each of which has had an answer, are subscribed to their notices,
/// and to the channel that orders replies.
pub(crate) async fn until_listening(server: &Server, clients: usize) {
    until("they listen", async || {
        server.query::<Vec<String>>(&["PUBSUB", "CHANNELS", "*wake:*"]).len() == clients * 2
    })
    .await;
}

/// Opening asks the server once, which also logs in, and so does the lock. The notices are not
/// waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_lock_takes_two_round_trips() {
    let Some(server) = private("first", &[]) else { return };
    // The server has the scripts.
    let warm = open(server.url()).await.expect("opens");
    Mutex::new(&warm, "x").lock().await.expect("works").unlock().await.expect("held");
    let link = Link::to(("127.0.0.1", server.port())).expect("there is a port");
    let url = format!("redis://{}", link.address());
    link.delay(DELAY);
    for scheme in ["line", "redisson"] {
        let mut least = Duration::MAX;
        for at in 0..3 {
            let began = Instant::now();
            let client = open(&format!("{url}?scheme={scheme}")).await.expect("opens");
            let guard = Mutex::new(&client, format!("{scheme} {at}")).lock().await.expect("works");
            least = least.min(began.elapsed());
            guard.unlock().await.expect("held");
        }
        assert!(least >= DELAY * 4, "{scheme}: {least:?} is no time to ask twice");
        assert!(least < DELAY * 6, "{scheme}: {least:?} is three round trips");
    }
}

/// The lock is given back before the one that waits for it listens to notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_before_the_subscription_is_made_up_for() {
    let Some(server) = private("before_subscription", &[]) else { return };
    let link = Link::to(("127.0.0.1", server.port())).expect("there is a port");
    let beside = open(server.url()).await.expect("opens");
    let through = open(&format!("redis://{}", link.address())).await.expect("opens");
    let guard = Mutex::new(&beside, "x").lock().await.expect("works");
    let (store, line) = (Arc::clone(through.store()), Name::new("x").expect("good"));
    let (ticket, note) = (ticket(7, Duration::from_secs(60)), Arc::from("note"));
    let enter = async |how| store.enter(&line, &ticket, &note, how).await.expect("works");
    link.stall(Way::Replies);
    let rival = async {
        until("it waits", async || !beside.inspect("x").await.expect("works").waiters.is_empty())
            .await;
        guard.unlock().await.expect("held");
        link.mend();
    };
    let (standing, ()) = tokio::join!(enter(Enter::Queue), rival);
    let Standing::Waiting { seq: Some(seq), .. } = standing else { panic!("{standing:?}") };
    // Nothing else wakes it.
    let woken = tokio::time::timeout(Duration::from_secs(20), store.watch(&line, ticket.id)).await;
    woken.expect("it is woken").expect("works");
    assert_eq!(enter(Enter::Keep(seq)).await, Standing::Admitted(seq));
}
