//! The line store behind sentinels, in a cluster, over a socket, and in another database.

use holdline::{Client, ErrorKind, Mutex, RwLock, open};
use holdline_testkit::redis::{Server, behind_sentinels, cluster, cluster_with, private};
use holdline_testkit::until;
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

#[tokio::test]
async fn a_slot_that_moves_and_a_node_that_dies() {
    let Some(mut nodes) = cluster() else { return };
    let url = format!("redis+cluster://127.0.0.1:{}", nodes[0].port());
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    let lease = Duration::from_secs(2);
    let held = Mutex::new(&one, "a").lease(lease).lock().await.expect("works");
    let slot: u64 = nodes[0].query(&["CLUSTER", "KEYSLOT", "holdline:{a}"]);
    let slot = slot.to_string();
    let owner = nodes
        .iter()
        .position(|node| node.query::<i64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot]) == 1);
    let owner = owner.expect("somebody has the key");
    let other = (owner + 1) % 3;
    let ids: Vec<String> = nodes.iter().map(|node| node.query(&["CLUSTER", "MYID"])).collect();
    let _: () = nodes[other].query(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[owner]]);
    let _: () = nodes[owner].query(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[other]]);
    // Halfway, what is there is renewed.
    held.extend(Duration::from_secs(3)).await.expect("renewed");
    let port = nodes[other].port().to_string();
    let keys: Vec<String> = nodes[owner].query(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
    for key in &keys {
        let _: () = nodes[owner].query(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }
    // Its key has moved, but the slot has not.
    held.extend(Duration::from_secs(4)).await.expect("renewed");
    for node in [other, owner] {
        let _: () = nodes[node].query(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[other]]);
    }
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
