//! The line store behind sentinels, in a cluster, over a socket, and in another database.

use crate::fake;
use futures_util::FutureExt;
use holdline::store::{Enter, Standing, TicketId};
use holdline::{Client, ErrorKind, Mutex, Name, RwLock, open};
use holdline_testkit::redis::{Server, behind_sentinels, cluster, cluster_with, private};
use holdline_testkit::{free_port, soon, ticket, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// One holds, one waits, and is woken; some names, so that a cluster uses all of its nodes.
async fn serves(one: &Client, two: &Client) {
    let mut late = 0;
    for n in 0..12 {
        let name = format!("name {n}");
        let guard = Mutex::new(one, &name).lock().await.expect("works");
        let lock = Mutex::new(two, &name);
        let waiting = tokio::spawn(async move { lock.lock().await });
        until("it waits", async || {
            one.inspect(&name).await.is_ok_and(|info| info.waiters.len() == 1)
        })
        .await;
        let (start, token) = (Instant::now(), guard.token());
        guard.unlock().await.expect("held");
        let next = waiting.await.expect("no panic").expect("works");
        late += u32::from(start.elapsed() > Duration::from_millis(500));
        assert!(next.token() > token);
        let names = two.list("name").await.expect("works");
        assert_eq!(names.iter().map(holdline::Name::as_str).collect::<Vec<_>>(), [&name]);
        next.unlock().await.expect("held");
    }
    // A busy machine may be late, but not each time.
    assert!(late < 6, "{late} of 12 were not woken");
    let table = RwLock::new(one, "table");
    let (first, second) = (table.read().await.expect("works"), table.read().await.expect("works"));
    assert!(RwLock::new(two, "table").try_write().await.expect("works").is_none());
    drop((first, second));
}

#[tokio::test]
async fn a_database_of_its_own_and_a_socket() {
    let Some(server) = private("database", &[]) else { return };
    let zero = open(server.url()).await.expect("opens");
    let one = open(&format!("{}/1", server.url())).await.expect("opens");
    let guard = Mutex::new(&zero, "x").lock().await.expect("works");
    assert!(Mutex::new(&one, "x").try_lock().await.expect("works").is_some());
    let socket = open(&format!("redis+unix://{}", server.socket().display())).await;
    let socket = socket.expect("opens");
    assert!(Mutex::new(&socket, "x").try_lock().await.expect("works").is_none());
    guard.unlock().await.expect("held");
    serves(&zero, &socket).await;
    let error = open(&format!("{}/99", server.url())).await.expect_err("there are 16");
    assert!(!error.retryable(), "{error:?}");
}

#[tokio::test]
async fn a_cluster() {
    let Some(nodes) = cluster() else { return };
    let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    serves(&one, &two).await;
    // One that was told of a single node finds the others.
    let three = open(&format!("redis+cluster://{}", hosts[0])).await.expect("opens");
    serves(&three, &one).await;
    // A plain URL works only by chance, and says what to do instead.
    let plain = open(nodes[0].url()).await.expect("opens");
    let mut kinds = Vec::new();
    for n in 0..20 {
        if let Err(error) = Mutex::new(&plain, format!("{n}")).try_lock().await {
            assert!(error.to_string().contains("redis+cluster:"), "{error}");
            kinds.push(error.kind());
        }
    }
    assert!(kinds.contains(&ErrorKind::Invalid), "{kinds:?}");
}

/// As Redisson does it there: by sharded channels, each at the node that has the lock.
#[tokio::test]
async fn redissons_layout_in_a_cluster() {
    let Some(nodes) = cluster() else { return };
    let url = format!("redis+cluster://127.0.0.1:{}?scheme=redisson", nodes[0].port());
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    let mut late = 0;
    for n in 0..12 {
        let name = format!("name {n}");
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let guard = Mutex::new(&one, &name).lock().await.expect("works");
        let lock = Mutex::new(&two, &name);
        let waiting = tokio::spawn(async move { lock.lock().await });
        until("it listens", async || {
            let count =
                |node: &Server| node.query::<(String, i64)>(&["PUBSUB", "SHARDNUMSUB", &channel]).1;
            nodes.iter().map(count).sum::<i64>() == 1
        })
        .await;
        let start = Instant::now();
        guard.unlock().await.expect("held");
        let next = waiting.await.expect("no panic").expect("works");
        late += u32::from(start.elapsed() > Duration::from_millis(500));
        let names = one.list("name").await.expect("works");
        assert_eq!(names.iter().map(holdline::Name::as_str).collect::<Vec<_>>(), [&name]);
        next.unlock().await.expect("held");
    }
    // A busy machine may be late, but not each time.
    assert!(late < 6, "{late} of 12 were not woken");
    let used = nodes.iter().map(|node| node.query::<String>(&["INFO", "commandstats"]));
    assert_eq!(used.filter(|stats| stats.contains("cmdstat_spublish")).count(), 3, "everywhere");
    let error = Mutex::new(&one, "a}b").try_lock().await.expect_err("two slots");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// A slot of a cluster, and the nodes between which it moves.
struct Moving<'a> {
    slot: String,
    from: &'a Server,
    to: &'a Server,
}

impl Moving<'_> {
    /// Begins to move the slot: new keys are to be at the other node.
    fn begin(&self) {
        let [from, to] =
            [self.from, self.to].map(|node| node.query::<String>(&["CLUSTER", "MYID"]));
        let _: () = self.to.query(&["CLUSTER", "SETSLOT", &self.slot, "IMPORTING", &from]);
        let _: () = self.from.query(&["CLUSTER", "SETSLOT", &self.slot, "MIGRATING", &to]);
    }

    fn move_keys(&self) {
        let keys = self.keys();
        assert!(!keys.is_empty());
        for key in &keys {
            self.move_key(key);
        }
    }

    /// The keys that have not moved yet, at most ten.
    fn keys(&self) -> Vec<String> {
        self.from.query(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "10"])
    }

    fn move_key(&self, key: &str) {
        let port = self.to.port().to_string();
        let _: () = self.from.query(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }

    fn end(&self) {
        let id: String = self.to.query(&["CLUSTER", "MYID"]);
        for node in [self.to, self.from] {
            let _: () = node.query(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id]);
        }
    }
}

/// The slot of this key, and the node that has it.
fn place_of(nodes: &[Server], key: &str) -> (String, usize) {
    let slot: u64 = nodes[0].query(&["CLUSTER", "KEYSLOT", key]);
    let slot = slot.to_string();
    let has_it = |node: &Server| node.query::<i64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot]) > 0;
    let owner = nodes.iter().position(has_it).expect("somebody has the key");
    (slot, owner)
}

/// Nodes that tell no host in a redirection have that of the node that was asked.
#[tokio::test]
async fn a_slot_that_moves_to_a_node_without_a_name() {
    let unnamed = ["--cluster-preferred-endpoint-type", "unknown-endpoint"];
    let Some(nodes) = cluster_with(&unnamed) else { return };
    let url = format!("redis+cluster://127.0.0.1:{}", nodes[0].port());
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    // No renewal comes before the slot has moved.
    let held = Mutex::new(&one, "a").lease(Duration::from_secs(60)).lock().await.expect("works");
    assert!(Mutex::new(&two, "a").try_lock().await.expect("works").is_none());
    let (slot, owner) = place_of(&nodes, "holdline:{a}");
    let moving = Moving { slot, from: &nodes[owner], to: &nodes[(owner + 1) % 3] };
    moving.begin();
    moving.move_keys();
    held.extend(Duration::from_secs(90)).await.expect("its key has moved, but the slot has not");
    assert!(Mutex::new(&two, "a").try_lock().await.expect("works").is_none());
    moving.end();
    held.unlock().await.expect("held all the time");
    assert!(Mutex::new(&two, "a").try_lock().await.expect("works").is_some());
}

/// A line of many places has several keys, which move one after another. Where some are missing,
/// it is not taken for one that has lost them.
#[tokio::test]
async fn a_line_of_many_places_that_moves_key_by_key() {
    let Some(nodes) = cluster() else { return };
    let url = format!("redis+cluster://127.0.0.1:{}", nodes[0].port());
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    for (name, order) in [("a", ["", ":q", ":e", ":p"]), ("b", [":p", ":e", "", ":q"])] {
        // No renewal comes before the slot has moved.
        let table = RwLock::new(&one, name).lease(Duration::from_secs(60));
        let mut readers = Vec::new();
        for _ in 0..12 {
            readers.push(table.read().await.expect("works"));
        }
        let (slot, owner) = place_of(&nodes, &format!("holdline:{{{name}}}"));
        let moving = Moving { slot, from: &nodes[owner], to: &nodes[(owner + 1) % 3] };
        // Each call is refused, or knows of all readers.
        let all_are_seen = async || {
            let left = moving.keys();
            let tried = RwLock::new(&two, name).try_write().await;
            let listed = two.list("").await.map(|names| names.len());
            let seen = two.inspect(name).await.map(|info| info.holders.len());
            let renewed = readers[0].extend(Duration::from_secs(90)).await;
            assert!(tried.map_or_else(|error| error.retryable(), |it| it.is_none()), "{left:?}");
            assert!(listed.map_or_else(|error| error.retryable(), |it| it == 1), "{left:?}");
            assert!(seen.map_or_else(|error| error.retryable(), |it| it == 12), "{left:?}");
            assert!(renewed.map_or_else(|error| error.retryable(), |()| true), "{left:?}");
        };
        moving.begin();
        for suffix in order {
            all_are_seen().await;
            moving.move_key(&format!("holdline:{{{name}}}{suffix}"));
        }
        assert!(moving.keys().is_empty());
        all_are_seen().await;
        moving.end();
        for reader in readers {
            reader.unlock().await.expect("held all the time");
        }
        let writer = RwLock::new(&two, name).try_write().await.expect("works").expect("free");
        writer.unlock().await.expect("held");
    }
}

#[tokio::test]
async fn a_slot_that_moves_and_a_node_that_dies() {
    let Some(mut nodes) = cluster() else { return };
    let url = format!("redis+cluster://127.0.0.1:{}", nodes[0].port());
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    let lease = Duration::from_secs(2);
    let held = Mutex::new(&one, "a").lease(lease).lock().await.expect("works");
    let (slot, owner) = place_of(&nodes, "holdline:{a}");
    let other = (owner + 1) % 3;
    let moving = Moving { slot, from: &nodes[owner], to: &nodes[other] };
    moving.begin();
    // Halfway, what is there is renewed.
    held.extend(Duration::from_secs(3)).await.expect("renewed");
    moving.move_keys();
    // Its key has moved, but the slot has not.
    held.extend(Duration::from_secs(4)).await.expect("renewed");
    moving.end();
    assert!(Mutex::new(&two, "a").try_lock().await.expect("works").is_none());
    held.unlock().await.expect("held all the time");
    // A node dies: what it kept cannot be had, which is said in time.
    nodes[other].kill();
    let start = Instant::now();
    let error = Mutex::new(&two, "a").lock_within(Duration::from_secs(1)).await.expect_err("dead");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    nodes[other].restart();
    until("it works again", async || {
        matches!(Mutex::new(&two, "a").lock_within(Duration::from_secs(1)).await, Ok(Some(_)))
    })
    .await;
}

/// A server that can be a node of a cluster.
fn lone_node() -> Option<Server> {
    let bus = free_port().to_string();
    private("lone_node", &["--cluster-enabled", "yes", "--cluster-port", &bus])
}

/// Makes a node one of a cluster.
async fn join(nodes: &[Server], new: &Server) {
    let port = nodes[0].port().to_string();
    let bus: String = nodes[0].query::<Vec<String>>(&["CONFIG", "GET", "port"])[1].clone();
    let bus = (bus.parse::<u16>().expect("a number") + 10_000).to_string();
    let _: () = new.query(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
    until("all know each other", async || {
        nodes.iter().chain([new]).all(|node| {
            let info: String = node.query(&["CLUSTER", "INFO"]);
            info.contains("cluster_known_nodes:4") && info.contains("cluster_state:ok")
        })
    })
    .await;
}

/// The replica of a node that stands still, or is gone, takes over: its locks are found there. The
/// URL names the node and one more.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_takes_over() {
    for gone in [true, false] {
        let (Some(mut nodes), Some(replica)) = (cluster(), lone_node()) else { return };
        join(&nodes, &replica).await;
        let id: String = nodes[0].query(&["CLUSTER", "MYID"]);
        let _: () = replica.query(&["CLUSTER", "REPLICATE", &id]);
        let hosts = [&nodes[0], &nodes[1]].map(|node| format!("127.0.0.1:{}", node.port()));
        let client = open(&format!("redis+cluster://{}", hosts.join(","))).await.expect("opens");
        let mut held = Vec::new();
        for n in 0..12 {
            let lock = Mutex::new(&client, format!("name {n}")).lease(Duration::from_secs(60));
            held.push(lock.lock().await.expect("works"));
        }
        let keys = || replica.query::<usize>(&["DBSIZE"]);
        until("the replica has what the node has", async || {
            keys() > 0 && keys() == nodes[0].query::<usize>(&["DBSIZE"])
        })
        .await;
        if gone {
            nodes[0].kill();
        } else {
            nodes[0].pause();
        }
        for guard in held {
            until("it is found", async || guard.extend(Duration::from_secs(60)).await.is_ok())
                .await;
            guard.unlock().await.expect("held through the failover");
        }
        if !gone {
            nodes[0].resume();
        }
    }
}

/// A node that has no slots yet is not one that the cluster tells its clients of.
#[tokio::test]
async fn a_slot_that_moves_to_a_new_node() {
    let (Some(nodes), Some(new)) = (cluster(), lone_node()) else { return };
    join(&nodes, &new).await;
    let port = nodes[0].port();
    for (scheme, key) in [("line", "holdline:{a}"), ("redisson", "a")] {
        let url = format!("redis+cluster://127.0.0.1:{port}?scheme={scheme}");
        let client = open(&url).await.expect("opens");
        // No renewal comes before the slot has moved.
        let held = Mutex::new(&client, "a").lease(Duration::from_secs(60)).lock().await;
        let held = held.expect("works");
        let holders = async || client.inspect("a").await.expect("works").holders.len();
        let (slot, owner) = place_of(&nodes, key);
        let moving = Moving { slot, from: &nodes[owner], to: &new };
        if scheme == "redisson" {
            // Redisson's own locks have none.
            let _: i64 = moving.from.query(&["DEL", "{a}:holdline"]);
        }
        moving.begin();
        assert_eq!(holders().await, 1, "{scheme}: halfway");
        moving.move_keys();
        held.extend(Duration::from_secs(90)).await.expect("renewed");
        assert_eq!(holders().await, 1, "{scheme}: its key has moved, but the slot has not");
        assert!(Mutex::new(&client, "a").try_lock().await.expect("works").is_none());
        held.unlock().await.expect("held all the time");
        let _: () = new.query(&["CLUSTER", "SETSLOT", &moving.slot, "STABLE"]);
        let _: () = moving.from.query(&["CLUSTER", "SETSLOT", &moving.slot, "STABLE"]);
    }
}

/// No command is redirected to that node: nobody but the cluster says that it has locks.
#[tokio::test]
async fn locks_at_a_node_that_was_added_are_listed() {
    let (Some(nodes), Some(new)) = (cluster(), lone_node()) else { return };
    let url = format!("redis+cluster://127.0.0.1:{}", nodes[0].port());
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    let held = Mutex::new(&one, "a").lease(Duration::from_secs(60)).lock().await.expect("works");
    let names = async || two.list("").await.expect("works").len();
    assert_eq!(names().await, 1);
    join(&nodes, &new).await;
    let (slot, owner) = place_of(&nodes, "holdline:{a}");
    let moving = Moving { slot, from: &nodes[owner], to: &new };
    moving.begin();
    moving.move_keys();
    moving.end();
    until("all nodes know where the slot is", async || {
        let slots = |node: &Server| node.query::<redis::Value>(&["CLUSTER", "SLOTS"]);
        let port = redis::Value::Int(new.port().into());
        nodes.iter().all(|node| format!("{:?}", slots(node)).contains(&format!("{port:?}")))
    })
    .await;
    assert_eq!(names().await, 1);
    held.unlock().await.expect("held all the time");
}

/// While a slot moves, keys that do not exist cannot be used there, so a call may fail after it has
/// removed places that had lapsed. The line counts them no longer.
#[tokio::test]
async fn a_call_that_fails_half_way_while_a_slot_moves_keeps_nobody_waiting() {
    let Some(nodes) = cluster() else { return };
    let url = format!("redis+cluster://127.0.0.1:{}", nodes[0].port());
    let client = open(&url).await.expect("opens");
    let (store, line, note) =
        (client.store(), Name::new("a").expect("a good name"), Arc::from("note"));
    let ticket = |id| ticket(id, Duration::from_secs(if id == 1 { 3 } else { 60 }));
    let mut seqs = Vec::new();
    // More than are kept in one string.
    for id in 1..12 {
        match store.enter(&line, &ticket(id), &note, Enter::Queue).await.expect("works") {
            Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. } => seqs.push(seq),
            other => panic!("{other:?}"),
        }
    }
    // Nobody knows whether this one is in, so it is barred when it leaves, in a key of its own.
    let last = ticket(99);
    let entering = store.enter(&line, &last, &note, Enter::Queue).now_or_never();
    assert!(entering.is_none(), "there is no reply yet");
    let (slot, owner) = place_of(&nodes, "holdline:{a}");
    let moving = Moving { slot, from: &nodes[owner], to: &nodes[(owner + 1) % 3] };
    moving.begin();
    until("the holder's lease is over", async || {
        let places = store.snapshot(&line).await.expect("works").places;
        places.iter().all(|place| place.id != TicketId(1))
    })
    .await;
    store.leave(&line, TicketId(99)).await.expect_err("a key that is not there");
    for node in [moving.from, moving.to] {
        let _: () = node.query(&["CLUSTER", "SETSLOT", &moving.slot, "STABLE"]);
    }
    let second = store.enter(&line, &ticket(2), &note, Enter::Keep(seqs[1])).await;
    assert_eq!(second.expect("works"), Standing::Admitted(seqs[1]));
    let third = store.enter(&line, &ticket(3), &note, Enter::Keep(seqs[2])).await;
    assert!(matches!(third.expect("works"), Standing::Waiting { .. }));
}

/// A redirection is followed also if the node that is asked for the slots has not heard of it.
#[tokio::test]
async fn a_node_that_knows_an_earlier_owner() {
    for host in ["127.0.0.1", ""] {
        is_followed(host).await;
    }
}

/// That redirections are followed that name this host.
async fn is_followed(host: &'static str) {
    let Some(owner) = lone_node() else { return };
    let _: () = owner.query(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until("it serves", async || {
        owner.query::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    })
    .await;
    let (port, own) = (owner.port(), Arc::new(AtomicU16::new(0)));
    let (shared, moved) = (Arc::clone(&own), Arc::new(AtomicU16::new(0)));
    let redirected = Arc::clone(&moved);
    let stale = fake::server(move |words| match words {
        // All slots but one are its own.
        ["CLUSTER", ..] => {
            let range = |first, last, port| {
                format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
            };
            let own = shared.load(Ordering::SeqCst);
            format!("*2\r\n{}{}", range(0, 16382, own), range(16383, 16383, port))
        }
        ["INFO", ..] => "$0\r\n\r\n".to_owned(),
        ["PING"] => "+PONG\r\n".to_owned(),
        ["EVALSHA" | "EVAL", ..] => {
            redirected.fetch_add(1, Ordering::SeqCst);
            format!("-MOVED 1 {host}:{port}\r\n")
        }
        _ => "-ERR unknown command\r\n".to_owned(),
    });
    own.store(stale, Ordering::SeqCst);
    // Each client asks one of the two for the slots.
    for _ in 0..10 {
        let client = open(&format!("redis+cluster://127.0.0.1:{stale}")).await.expect("opens");
        let lock = Mutex::new(&client, "x");
        let guard = soon("it is found", lock.lock()).await.expect("works");
        guard.unlock().await.expect("held");
    }
    let moved = moved.load(Ordering::SeqCst);
    assert!(moved <= 20, "{moved} redirections of 10 locks and 10 releases");
}

/// A sentinel that has missed a failover, and the others name another primary: the first of the
/// list is not believed for ever.
#[tokio::test]
async fn a_sentinel_that_names_the_wrong_primary() {
    let Some(server) = private("stale_sentinel", &[]) else { return };
    let naming = |port: u16| {
        fake::server(move |words| match words {
            ["SENTINEL", ..] => {
                let port = port.to_string();
                format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
            }
            _ => "-ERR unknown command\r\n".to_owned(),
        })
    };
    let (stale, right) = (naming(free_port()), naming(server.port()));
    let url = format!("redis+sentinel://127.0.0.1:{stale},127.0.0.1:{right}/main");
    let mut client = None;
    until("the other is asked", async || {
        client = open(&url).await.ok();
        client.is_some()
    })
    .await;
    let lock = Mutex::new(&client.expect("open"), "x");
    lock.lock().await.expect("works").unlock().await.expect("held");
}

/// A primary that becomes a replica keeps its connections. The one for notices goes to the new
/// primary with the one for commands: what is no replica any more hears nothing from there.
#[tokio::test]
async fn notices_follow_the_primary() {
    let (Some(old), Some(new)) = (private("primary", &[]), private("next_primary", &[])) else {
        return;
    };
    let named = Arc::new(AtomicU16::new(old.port()));
    let shared = Arc::clone(&named);
    let sentinel = fake::server(move |words| match words {
        ["SENTINEL", ..] => {
            let port = shared.load(Ordering::SeqCst).to_string();
            format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
        }
        _ => "-ERR unknown command\r\n".to_owned(),
    });
    let client = open(&format!("redis+sentinel://127.0.0.1:{sentinel}/main")).await.expect("opens");
    let lock = Mutex::new(&client, "x");
    lock.lock().await.expect("works").unlock().await.expect("held");
    let hears = |server: &Server| {
        let channels: Vec<String> = server.query(&["PUBSUB", "CHANNELS", "holdline:wake:*"]);
        channels.iter().any(|channel| !channel.ends_with(":order"))
    };
    until("it listens", async || hears(&old)).await;
    named.store(new.port(), Ordering::SeqCst);
    let _: () = old.query(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    lock.lock().await.expect("works at the new one").unlock().await.expect("held");
    until("it listens to the new one", async || hears(&new) && !hears(&old)).await;
}

#[tokio::test]
async fn sentinels_and_a_failover() {
    let Some((mut primary, replica, watchers, url)) = behind_sentinels() else { return };
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    serves(&one, &two).await;
    let lease = Duration::from_secs(20);
    let guard = Mutex::new(&one, "x").lease(lease).lock().await.expect("works");
    until("the replica has it", async || replica.query::<i64>(&["EXISTS", "holdline:{x}"]) == 1)
        .await;
    let lock = Mutex::new(&two, "x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it waits", async || one.inspect("x").await.is_ok_and(|info| info.waiters.len() == 1))
        .await;
    primary.kill();
    until("the replica is the primary", async || {
        one.inspect("x").await.is_ok_and(|info| info.holders.len() == 1)
    })
    .await;
    // What had been replicated is kept; waiters have ridden it out.
    assert!(guard.is_valid());
    let token = guard.token();
    guard.unlock().await.expect("held through the failover");
    let next = waiting.await.expect("no panic").expect("it rides out the fail-over");
    assert!(next.token() > token);
    next.unlock().await.expect("held");
    assert!(Mutex::new(&two, "x").lock().await.expect("works again").token() > token);
    assert!(one.inspect("acked").await.expect("works").holders.is_empty(), "given back");
    let error = open(&format!("redis+sentinel://127.0.0.1:{}/other", watchers[0].port()))
        .await
        .expect_err("unknown");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

/// The nodes of such a cluster do not say at which host they are: it is the one that was asked.
#[tokio::test]
async fn a_cluster_that_tells_no_hosts() {
    let preferred = ["--cluster-preferred-endpoint-type", "unknown-endpoint"];
    let Some(nodes) = cluster_with(&preferred) else { return };
    // More than one reply to a scan has room for, at one of them.
    let mut fill = redis::cmd("MSET");
    (0..3000).for_each(|n| _ = fill.arg(format!("{{name 0}}{n}")).arg(""));
    assert!(nodes.iter().any(|node| fill.query::<()>(&mut node.conn()).is_ok()));
    let url = format!("redis+cluster://127.0.0.1:{}", nodes[0].port());
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    serves(&one, &two).await;
}

/// Other programs may have keys that are no text, in a database that locks without a prefix share.
#[tokio::test]
async fn keys_that_are_no_text_are_no_locks() {
    let Some(server) = private("no_text", &[]) else { return };
    let mut set = redis::cmd("SET");
    let _: () = set.arg(b"\xffholdline:{y}").arg("x").query(&mut server.conn()).expect("taken");
    for scheme in ["line", "string", "redisson"] {
        let client = open(&format!("{}?scheme={scheme}", server.url())).await.expect("opens");
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        client.list("").await.unwrap_or_else(|error| panic!("{scheme}: {error:#}"));
        guard.unlock().await.expect("held");
    }
}
