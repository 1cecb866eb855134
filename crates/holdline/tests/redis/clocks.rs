//! Redis servers that forget, and whose clocks jump: what one server and a quorum of them promise
//! then, and what nobody can (docs/faults/redis.md).

use holdline::store::Enter;
use holdline::{Client, Fence, Guard, Mutex, Name, open};
use holdline_testkit::redis::{Server, private, shifted};
use holdline_testkit::{Link, ticket, until};
use std::sync::Arc;
use std::time::Duration;

const HOUR: i64 = 3600;

/// So long that nothing is renewed while a test does something behind the holder's back.
const LONG: Duration = Duration::from_secs(20);

fn quick(client: &Client) -> Mutex {
    Mutex::new(client, "x").lease(Duration::from_secs(2))
}

async fn lost(guard: &Guard, limit: Duration) {
    tokio::time::timeout(limit, guard.lost()).await.expect("the holder is told");
}

/// Both believe to hold, and the resource believes the later one (G3).
fn are_told_apart(first: &Guard, second: &Guard) {
    assert!(first.is_valid() && second.is_valid(), "two hold: this is what cannot be prevented");
    let fence = Fence::default();
    fence.check(first.token()).expect("the first");
    fence.check(second.token()).expect("the newer");
    fence.check(first.token()).expect_err("the older is refused");
}

/// A jump ahead ends leases. The holder is told by its next renewal, which is not before a rival
/// may be let in; the token is what protects.
#[tokio::test]
async fn a_clock_that_jumps_ahead_lets_two_in_until_the_next_renewal() {
    let Some(server) = shifted("jump_ahead") else { return };
    let (one, two) = (open(server.url()).await, open(server.url()).await);
    let (one, two) = (one.expect("opens"), two.expect("opens"));
    let first = Mutex::new(&one, "x").lease(LONG).lock().await.expect("works");
    server.shift(LONG.as_secs().cast_signed() + 1);
    let second = Mutex::new(&two, "x").try_lock().await.expect("works").expect("it has lapsed");
    are_told_apart(&first, &second);
    lost(&first, LONG / 3).await; // by the first renewal of four
    assert!(first.unlock().await.expect_err("lost").is_lost());
    second.unlock().await.expect("held, and not freed by the one before");
}

/// Nobody came in between: the holder loses it all the same, for the server has forgotten it.
#[tokio::test]
async fn a_holder_alone_is_told_of_a_jump_too() {
    let Some(server) = shifted("jump_alone") else { return };
    let client = open(server.url()).await.expect("opens");
    let guard = quick(&client).lock().await.expect("works");
    server.shift(HOUR);
    lost(&guard, Duration::from_secs(20)).await;
    let token = guard.token();
    drop(guard); // the next of this process waits for that
    let next = quick(&client).lock().await.expect("works");
    assert!(next.token() > token);
    next.unlock().await.expect("held");
}

/// G2: tokens rise, wherever the clock goes, as long as the counter is there.
#[tokio::test]
async fn tokens_rise_through_jumps_both_ways() {
    let Some(server) = shifted("jump_back") else { return };
    let client = open(server.url()).await.expect("opens");
    let mut last = 0;
    let mut taken = async |what: &str| {
        let guard = quick(&client).lock().await.expect("works");
        assert!(guard.token() > last, "{what}: {} after {last}", guard.token());
        last = guard.token();
        guard.unlock().await.expect("held");
    };
    for seconds in [0, 300, 0, -HOUR, -2 * HOUR, -2 * HOUR + 500, -3 * HOUR, 0, 8 * HOUR] {
        server.shift(seconds);
        taken(&format!("{seconds} s")).await;
        taken(&format!("again at {seconds} s")).await;
    }
    // Set back under a holder: the lease lasts longer, and newcomers are told to wait.
    let lease = Duration::from_secs(2);
    let guard = Mutex::new(&client, "x").lease(lease).lock().await.expect("works");
    server.shift(7 * HOUR);
    tokio::time::sleep(lease * 2).await;
    assert!(guard.is_valid(), "it is renewed");
    assert!(guard.token() > last);
    guard.unlock().await.expect("held");
}

/// G2: tokens rise also for names of which the server has forgotten all, if its clock is set back
/// by an hour: it knows by the key for the clock how far that had got.
#[tokio::test]
async fn tokens_of_forgotten_names_rise_when_the_clock_is_set_back() {
    let Some(server) = shifted("forgotten_names") else { return };
    let client = open(server.url()).await.expect("opens");
    let token = async |name: &str| {
        let guard = Mutex::new(&client, name).lock().await.expect("works");
        let token = guard.token();
        guard.unlock().await.expect("held");
        token
    };
    let first = token("x").await;
    for (name, seconds) in [("y", 0), ("y", 2 * HOUR)] {
        server.shift(seconds);
        token(name).await;
    }
    until("it is forgotten", async || server.query::<i64>(&["EXISTS", "holdline:{x}"]) == 0).await;
    server.shift(-HOUR);
    let second = token("x").await;
    assert!(second > first, "{second} after {first}");
    // It is ahead of the clock, and is kept until the clock has passed it.
    let third = token("x").await;
    assert!(third > second, "{third} after {second}");
    server.shift(HOUR);
    let fourth = token("x").await;
    assert!(fourth > third, "{fourth} after {third}");
}

/// So they do if the line had not been empty for long, so that its tokens were given while others
/// waited or held, and if its last one was given by an eviction.
#[tokio::test]
async fn tokens_of_forgotten_names_that_were_in_use_for_long_rise() {
    let Some(server) = shifted("forgotten_busy") else { return };
    let url = format!("{}?idle=50ms", server.url());
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    let hours = Duration::from_secs(3 * HOUR.unsigned_abs());
    for ends_by_force in [false, true] {
        let held = Mutex::new(&one, "x").lease(hours).lock().await.expect("works");
        server.shift(HOUR);
        let last = if ends_by_force {
            let token = one.force_unlock("x", held.ticket(), "a test").await.expect("works");
            token.expect("it was there")
        } else {
            let next = Mutex::new(&two, "x").lease(hours);
            let next = tokio::spawn(async move { next.lock().await });
            let waits = async || two.inspect("x").await.expect("works").waiters.len() == 1;
            until("it waits", waits).await;
            held.unlock().await.expect("held");
            let next = next.await.expect("no panic").expect("works");
            let token = next.token();
            next.unlock().await.expect("held");
            token
        };
        let gone = async || server.query::<i64>(&["EXISTS", "holdline:{x}"]) == 0;
        until("it is forgotten", gone).await;
        server.shift(0);
        let guard = Mutex::new(&two, "x").lock().await.expect("works");
        assert!(guard.token() > last, "{} after {last}", guard.token());
        guard.unlock().await.expect("held");
        let _: i64 = server.query(&["DEL", "holdline:{x}", "holdline:clock"]);
    }
}

/// So they do if the first who comes then gives up, and leaves nothing but the record that his
/// request, should it still arrive, is too late.
#[tokio::test]
async fn tokens_of_forgotten_names_rise_after_one_that_was_given_up() {
    let Some(server) = shifted("forgotten_barred") else { return };
    let link = Link::to(("127.0.0.1", server.port())).expect("there is a port");
    let over = open(&format!("redis://{}", link.address())).await.expect("opens");
    let client = open(server.url()).await.expect("opens");
    let token = async |name: &str| {
        let guard = Mutex::new(&client, name).lock().await.expect("works");
        let token = guard.token();
        guard.unlock().await.expect("held");
        token
    };
    let exists = || server.query::<i64>(&["EXISTS", "holdline:{x}"]) == 1;
    let first = token("x").await;
    server.shift(2 * HOUR);
    token("y").await;
    until("it is forgotten", async || !exists()).await;
    server.shift(-HOUR);
    let (name, ticket) = (Name::new("x").expect("fine"), ticket(7, LONG));
    link.cut();
    over.store().enter(&name, &ticket, &Arc::from(""), Enter::Try).await.expect_err("it is cut");
    link.mend();
    until("it is given up", async || over.store().leave(&name, ticket.id).await.is_ok()).await;
    assert!(exists(), "it is barred");
    let second = token("x").await;
    assert!(second > first, "{second} after {first}");
}

/// Three servers that know nothing of each other, and a quorum of them.
struct Three {
    servers: Vec<Server>,
    url: String,
}

impl Three {
    fn of(one: impl Fn() -> Option<Server>) -> Option<Self> {
        let servers: Vec<Server> = (0..3).map(|_| one()).collect::<Option<_>>()?;
        let urls: Vec<_> = servers.iter().map(Server::url).collect();
        let url = format!("quorum:{}", urls.join(","));
        Some(Three { servers, url })
    }

    async fn lock(&self) -> (Client, Mutex) {
        let client = open(&self.url).await.expect("opens");
        let lock = Mutex::new(&client, "x").lease(LONG);
        (client, lock)
    }

    fn forgets(&mut self, server: usize) {
        self.servers[server].kill();
        self.servers[server].restart(); // nothing was written
        assert!(!self.knows(server));
    }

    fn knows(&self, server: usize) -> bool {
        // The key stays for the counter's sake; the line has its place in another.
        self.servers[server].query::<i64>(&["EXISTS", "holdline:{x}:p"]) == 1
            || self.servers[server].query::<i64>(&["STRLEN", "holdline:{x}"]) > 0
    }
}

#[tokio::test]
async fn one_node_that_forgets_is_repaired() {
    let Some(mut three) = Three::of(|| private("forgets_one", &[])) else { return };
    let client = open(&three.url).await.expect("opens");
    let guard = Mutex::new(&client, "x").lease(Duration::from_secs(3)).lock().await;
    let guard = guard.expect("works");
    until("all have it", async || (0..3).all(|server| three.knows(server))).await;
    three.forgets(1);
    until("it has it again", async || three.knows(1)).await;
    assert!(guard.is_valid());
    let (_, rival) = three.lock().await;
    assert!(rival.try_lock().await.expect("works").is_none());
    guard.unlock().await.expect("held all the time");
}

#[tokio::test]
async fn a_majority_that_forgets_lets_two_in() {
    let Some(mut three) = Three::of(|| private("forgets_two", &[])) else { return };
    let (_one, lock) = three.lock().await;
    let first = lock.lock().await.expect("works");
    three.forgets(0);
    three.forgets(2);
    let (_two, rival) = three.lock().await;
    let second = rival.lock().await.expect("a majority is free");
    are_told_apart(&first, &second);
    lost(&first, LONG / 2).await;
    assert!(second.is_valid());
    second.unlock().await.expect("held");
}

/// One node is enough, if the lock was on no more nodes than it must be on.
#[tokio::test]
async fn one_node_that_forgets_lets_two_in_if_another_was_away() {
    let Some(mut three) = Three::of(|| private("forgets_bare", &[])) else { return };
    let (_one, lock) = three.lock().await;
    three.servers[2].kill();
    let first = lock.lock().await.expect("two of three are enough");
    three.servers[2].restart();
    three.forgets(0);
    let (_two, rival) = three.lock().await;
    let second = rival.lock().await.expect("a majority is free");
    are_told_apart(&first, &second);
    lost(&first, LONG / 2).await;
    second.unlock().await.expect("held");
}

#[tokio::test]
async fn one_clock_that_jumps_is_repaired_and_a_majority_of_them_lets_two_in() {
    let Some(three) = Three::of(|| shifted("quorum_jump")) else { return };
    let (one, lock) = three.lock().await;
    let first = lock.lock().await.expect("works");
    three.servers[0].shift(60);
    let (_two, rival) = three.lock().await;
    assert!(rival.try_lock().await.expect("works").is_none(), "two of three know better");
    let held = one.inspect("x").await.expect("works").holders;
    assert_eq!(held.len(), 1);
    three.servers[1].shift(-60);
    assert!(rival.try_lock().await.expect("works").is_none(), "set back, it only lasts longer");
    three.servers[1].shift(60);
    let second = rival.lock().await.expect("a majority is free");
    are_told_apart(&first, &second);
    lost(&first, LONG / 2).await;
    second.unlock().await.expect("held");
}
