//! Places with several leases: those that move from one to another, and those whose lease is not
//! known, since requests are lost or meet others.

use holdline::store::{Enter, Seq, Standing, Store, Ticket, TicketId};
use holdline::{Client, Mutex, Name};
use holdline_testkit::etcd::{Servers, start};
use holdline_testkit::flaky_links::{Cut, FlakyLinks};
use holdline_testkit::{soon, until};
use std::sync::Arc;
use std::time::Duration;

const SHORT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(600);

/// A client's place, which is renewed by hand.
struct Place {
    store: Arc<dyn Store>,
    line: Name,
    id: TicketId,
    wait_lease: Duration,
}

impl Place {
    fn new(client: &Client, line: &str, id: u128) -> Self {
        let (store, line) = (Arc::clone(client.store()), Name::new(line).expect("good"));
        Place { store, line, id: TicketId(id), wait_lease: SHORT }
    }

    async fn ask(&self, lease: Duration, note: &str, how: Enter) -> Standing {
        let Place { id, wait_lease, .. } = *self;
        let (weight, capacity, token_count, min_token) = (1, 1, 1, 0);
        let ticket = Ticket { id, weight, capacity, lease, wait_lease, token_count, min_token };
        let note: Arc<str> = Arc::from(note);
        let asked = self.store.enter(&self.line, &ticket, &note, how);
        soon("an answer", asked).await.expect("it is there")
    }

    /// Takes the place, which is free.
    async fn take(&self, lease: Duration) -> Seq {
        match self.ask(lease, "", Enter::Try).await {
            Standing::Admitted(seq) => seq,
            other => panic!("{other:?}"),
        }
    }

    /// Renews the place, and returns whether it is held.
    async fn renew(&self, seq: Seq, lease: Duration, note: &str) -> bool {
        self.ask(lease, note, Enter::Keep(seq)).await == Standing::Admitted(seq)
    }

    async fn leave(&self) {
        soon("an answer", self.store.leave(&self.line, self.id)).await.expect("it is there");
    }
}

/// The lease of the only key in a line.
fn lease(servers: &Servers, line: &str) -> i64 {
    let text = servers.say(&["get", &format!("{line}/"), "--prefix", "-w", "json"]);
    let digits = text.split("\"lease\":").nth(1).expect("a key with a lease");
    digits.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("one")
}

fn revoke(servers: &Servers, lease: i64) {
    servers.say(&["lease", "revoke", &format!("{lease:x}")]);
}

/// An extension was carried out, but its caller was gone, or heard no answer. The lock lasts as
/// long as the lease that its key is on by now, which is kept as if it were the known one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_without_an_answer_costs_no_lock() {
    let Some(servers) = start(1) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    let client = flaky.client().await;
    let long = Place::new(&client, "long", 1);
    long.take(LONG).await;
    let place = Place::new(&client, "x", 2);
    let seq = place.take(SHORT).await;
    let before = lease(&servers, "x");
    flaky.cut(Cut::Replies);
    let extended = place.renew(seq, LONG, "");
    assert!(tokio::time::timeout(Duration::from_millis(100), extended).await.is_err());
    until("the move", async || lease(&servers, "x") != before).await;
    flaky.mend();
    long.leave().await;
    assert!(place.renew(seq, SHORT, "").await);
    revoke(&servers, before);
    // It finds out that the lease is gone, and takes a new one.
    Place::new(&client, "new", 3).take(SHORT).await;
    assert!(place.renew(seq, SHORT, "").await, "its key is there");
    revoke(&servers, lease(&servers, "x"));
    until("the loss", async || !place.renew(seq, SHORT, "").await).await;
}

/// A change that is under way when a place moves to a longer lease does not move it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_beside_an_extension_does_not_shorten_the_lease() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    Place::new(&client, "long", 1).take(LONG).await;
    let long = lease(&servers, "long");
    for number in 0..10 {
        let line = format!("x{number}");
        let place = Place::new(&client, &line, 2 + number);
        let seq = place.take(SHORT).await;
        let (extended, changed) =
            tokio::join!(place.renew(seq, LONG, ""), place.renew(seq, SHORT, "other"));
        assert!(extended && changed);
        assert_eq!(lease(&servers, &line), long, "it was promised a lease of {LONG:?}");
    }
}

/// After an election each place moves to a new lease: one that is as long as the place was
/// promised, whatever the request that moves it asks for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_election_shortens_no_lease() {
    let Some(mut servers) = start(3) else { return };
    let client = servers.client().await;
    let place = Place::new(&client, "x", 1);
    let seq = place.take(SHORT).await;
    assert!(place.renew(seq, LONG, "").await);
    let before = lease(&servers, "x");
    let leader = servers.leader();
    servers.kill(leader);
    servers.restart(leader);
    until("the move", async || {
        assert!(place.renew(seq, SHORT, "").await);
        lease(&servers, "x") != before
    })
    .await;
    let id = format!("{:x}", lease(&servers, "x"));
    let told = servers.say(&["lease", "timetolive", &id]);
    let granted =
        told.split_once("TTL(").and_then(|(_, rest)| rest.split_once('s')?.0.parse().ok());
    // What is left of the promise, and a reserve.
    assert!(granted.is_some_and(|granted: u64| granted > LONG.as_secs()), "{told}");
}

/// A key was written on the lease to wait on, and nobody knows; then the lock's own lease is lost.
/// The key does not stay in front of others, and is not taken for that of the next ticket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_nobody_knows_does_not_outlive_its_ticket() {
    let Some(servers) = start(1) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    let (client, other) = (flaky.client().await, servers.client().await);
    // Both leases have a place, so that neither is revoked for want of one.
    let wait = Duration::from_secs(10);
    let kept = Mutex::new(&client, "kept").lease(wait).lock().await.expect("there");
    Place::new(&client, "long", 1).take(LONG).await;
    let held = Mutex::new(&other, "x").lock().await.expect("it is there");
    let keys = || servers.keys().iter().filter(|key| key.starts_with("x/")).count();
    let place = Place { wait_lease: wait, ..Place::new(&client, "x", 2) };
    flaky.cut(Cut::Replies);
    let entered = place.ask(LONG, "", Enter::Queue);
    assert!(tokio::time::timeout(Duration::from_millis(100), entered).await.is_err());
    until("the key", async || keys() == 2).await;
    flaky.mend();
    revoke(&servers, lease(&servers, "long"));
    // It finds out that the lease is gone, and takes a new one.
    Place::new(&client, "new", 3).take(LONG).await;
    let standing = place.ask(LONG, "", Enter::Queue).await;
    place.leave().await;
    until("no key of it", async || keys() == 1).await;
    assert!(kept.is_valid(), "{standing:?}");
    held.unlock().await.expect("held");
}
