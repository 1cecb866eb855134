//! One lock on Redis, and a link to the server that is cut, stalled one way, slow, or loses the
//! reply after the server has acted; and a fail-over to a replica that had not heard of the lock.

use holdline::{Client, ErrorKind, Fence, Mutex, open};
use holdline_testkit::redis::{Server, cluster, private, sentinels};
use holdline_testkit::{Link, Way, until};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const LEASE: Duration = Duration::from_secs(3);

/// A client through a link, and one that is beside it.
async fn linked(server: &Server) -> (Link, Client, Client) {
    let link = Link::to(("127.0.0.1", server.port())).expect("there is a port");
    let through = open(&format!("redis://{}", link.address())).await.expect("opens");
    (link, through, open(server.url()).await.expect("opens"))
}

fn lock(client: &Client) -> Mutex {
    Mutex::new(client, "x").lease(LEASE)
}

/// Nobody stands in the line.
async fn is_clean(client: &Client) {
    let info = client.inspect("x").await.expect("works");
    assert_eq!((info.holders, info.waiters), (vec![], vec![]));
}

/// G4: whatever becomes of the link, the holder knows before a rival is let in; and what arrives
/// late takes nothing from the rival.
async fn the_holder_knows_first(test: &str, trouble: impl Fn(&Link)) {
    let Some(server) = private(test, &[]) else { return };
    let (link, through, beside) = linked(&server).await;
    let held = lock(&through).lock().await.expect("works");
    trouble(&link);
    let rival = lock(&beside).lock().await.expect("after the lease");
    assert!(!held.is_valid(), "two hold");
    assert!(rival.token() > held.token());
    link.mend();
    drop(held);
    through.settle().await;
    assert!(rival.is_valid(), "what was kept back has come too late to matter");
    assert_eq!(beside.inspect("x").await.expect("works").holders.len(), 1);
    rival.unlock().await.expect("held");
    let again = lock(&through).lock().await.expect("the link is mended");
    again.unlock().await.expect("held");
    is_clean(&beside).await;
}

#[tokio::test]
async fn a_link_that_is_cut() {
    the_holder_knows_first("cut", Link::cut).await;
}

#[tokio::test]
async fn a_link_without_replies() {
    the_holder_knows_first("no_replies", |link| link.stall(Way::Replies)).await;
}

#[tokio::test]
async fn a_link_that_is_mute() {
    the_holder_knows_first("mute", |link| link.stall(Way::Requests)).await;
}

#[tokio::test]
async fn a_link_that_is_cut_for_less_than_a_lease() {
    let Some(server) = private("short_cut", &[]) else { return };
    let (link, through, beside) = linked(&server).await;
    let held = Mutex::new(&through, "x").lease(Duration::from_secs(4)).lock().await;
    let held = held.expect("works");
    let waits = lock(&beside);
    let waiting = tokio::spawn(async move { waits.lock().await });
    for _ in 0..3 {
        link.cut();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        link.mend();
        tokio::time::sleep(Duration::from_millis(1200)).await; // more than a beat
        assert!(held.is_valid(), "renewed by the next try");
    }
    assert!(!waiting.is_finished());
    held.unlock().await.expect("held all the time");
    waiting.await.expect("no panic").expect("admitted").unlock().await.expect("held");
}

/// An address that passes connections on to the server, each only after a pause.
async fn slow_to_connect(server: &Server, pause: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
    let (address, port) = (listener.local_addr().expect("it is bound"), server.port());
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                let mut far = TcpStream::connect(("127.0.0.1", port)).await?;
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    address
}

/// A renewal has a quarter of the lease. A connection that takes longer is not begun anew by each.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_takes_longer_than_a_renewal_may() {
    let Some(server) = private("slow_connect", &[]) else { return };
    for options in ["", "?scheme=string&prefix=s:"] {
        let address = slow_to_connect(&server, LEASE / 3).await;
        let client = open(&format!("redis://{address}{options}")).await.expect("opens");
        let held = lock(&client).lock().await.expect("works");
        tokio::time::sleep(LEASE * 2).await;
        assert!(held.is_valid(), "{options}: no renewal got a connection");
        held.unlock().await.expect("held");
    }
}

/// An address that passes connections on to the server. At a word, those that there are go dead:
/// nothing gets through them any more, and nobody is told. New ones work.
async fn going_dead(server: &Server) -> (SocketAddr, watch::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
    let (address, port) = (listener.local_addr().expect("it is bound"), server.port());
    let (word, dead) = watch::channel(());
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut dead = dead.clone();
            dead.mark_unchanged();
            tokio::spawn(async move {
                let mut far = TcpStream::connect(("127.0.0.1", port)).await?;
                tokio::select! {
                    ended = tokio::io::copy_bidirectional(&mut near, &mut far) => ended,
                    _ = dead.changed() => std::future::pending().await,
                }
            });
        }
    });
    (address, word)
}

/// Also with a short lease: the first renewal that is not answered costs one more, and the third
/// has a new connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_goes_dead_is_replaced_in_time() {
    let Some(server) = private("dead", &[]) else { return };
    let (address, word) = going_dead(&server).await;
    let client = open(&format!("redis://{address}")).await.expect("opens");
    let lease = Duration::from_secs(4);
    let held = Mutex::new(&client, "x").lease(lease).lock().await.expect("works");
    let mut remaining = held.remaining();
    until("it is renewed", async || {
        let before = std::mem::replace(&mut remaining, held.remaining());
        remaining > before
    })
    .await;
    word.send_replace(());
    tokio::time::sleep(lease * 2).await;
    assert!(held.is_valid(), "all renewals went over the dead connection");
}

/// So does a program that only lists locks get a new connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_goes_dead_under_lists_is_replaced() {
    let Some(server) = private("dead_lists", &[]) else { return };
    let (address, word) = going_dead(&server).await;
    let client = open(&format!("redis://{address}")).await.expect("opens");
    let held = Mutex::new(&open(server.url()).await.expect("opens"), "x").lock().await;
    let _held = held.expect("works");
    assert_eq!(client.list("").await.expect("works").len(), 1);
    word.send_replace(());
    until("it is listed again", async || client.list("").await.is_ok_and(|it| it.len() == 1)).await;
}

/// Sharded channels have a connection to each node, over which nothing goes for long: some routers
/// forget such connections without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_for_sharded_notices_that_goes_dead_is_replaced() {
    let Some(nodes) = cluster() else { return };
    let (mut hosts, mut words) = (Vec::new(), Vec::new());
    for node in &nodes {
        let (address, word) = going_dead(node).await;
        let port = address.port().to_string();
        let _: () = node.query(&["CONFIG", "SET", "cluster-announce-port", &port]);
        hosts.push(address.to_string());
        words.push(word);
    }
    until("all nodes know the addresses", async || {
        let known = nodes.iter().map(|node| node.query::<String>(&["CLUSTER", "NODES"]));
        known.into_iter().all(|nodes| hosts.iter().all(|host| nodes.contains(host)))
    })
    .await;
    let url = format!("redis+cluster://{}?scheme=redisson", hosts.join(","));
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    let _held = Mutex::new(&one, "x").lease(LEASE * 20).lock().await.expect("works");
    let waits = Mutex::new(&two, "x");
    let waiting = tokio::spawn(async move { waits.lock().await });
    let listening = || {
        let channel = "redisson_lock__channel:{x}";
        let count =
            |node: &Server| node.query::<(String, i64)>(&["PUBSUB", "SHARDNUMSUB", channel]).1;
        nodes.iter().map(count).sum::<i64>()
    };
    until("it listens", async || listening() == 1).await;
    for word in &words {
        word.send_replace(());
    }
    // The server does not know that the first connection is dead.
    until("it listens anew", async || listening() > 1).await;
    waiting.abort();
}

#[tokio::test]
async fn a_slow_link() {
    let Some(server) = private("slow", &[]) else { return };
    let (link, through, beside) = linked(&server).await;
    link.delay(LEASE / 20); // there and back a tenth of the lease
    let held = lock(&through).lock().await.expect("works");
    let waits = lock(&beside);
    let waiting = tokio::spawn(async move { waits.lock().await });
    tokio::time::sleep(LEASE * 3).await;
    assert!(held.is_valid(), "three leases of renewals");
    let token = held.token();
    held.unlock().await.expect("held");
    let next = waiting.await.expect("no panic").expect("admitted");
    assert!(next.token() > token);
    next.unlock().await.expect("held");
    is_clean(&beside).await;
}

/// G7: the server has acted, and its reply is lost.
#[tokio::test]
async fn a_lost_reply_to_taking_a_lock() {
    let Some(server) = private("lost_enter", &[]) else { return };
    let (link, through, beside) = linked(&server).await;
    lock(&through).lock().await.expect("works").unlock().await.expect("held");
    for _ in 0..5 {
        link.lose_next_reply();
        let held = lock(&through).lock().await.expect("asked again");
        assert_eq!(link.replies_to_lose(), 0, "the reply was lost");
        let info = beside.inspect("x").await.expect("works");
        assert_eq!((info.holders.len(), info.waiters.len()), (1, 0), "it was granted once");
        held.unlock().await.expect("held");
        is_clean(&beside).await;
    }
}

#[tokio::test]
async fn a_lost_reply_to_a_release() {
    let Some(server) = private("lost_leave", &[]) else { return };
    let (link, through, beside) = linked(&server).await;
    for _ in 0..5 {
        // Long enough that no renewal comes in between.
        let held = Mutex::new(&through, "x").lock().await.expect("works");
        let waits = lock(&beside);
        let waiting = tokio::spawn(async move { waits.lock().await });
        until("it waits", async || {
            beside.inspect("x").await.is_ok_and(|info| info.waiters.len() == 1)
        })
        .await;
        link.lose_next_reply();
        // Asked again, or the caller hears that nobody can know, and the renewer asks again.
        if let Err(error) = held.unlock().await {
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        }
        assert_eq!(link.replies_to_lose(), 0, "the reply was lost");
        let next = waiting.await.expect("no panic").expect("admitted");
        assert!(next.is_valid(), "the second release did not touch the next holder's lock (G8)");
        next.unlock().await.expect("held");
        is_clean(&beside).await;
    }
}

#[tokio::test]
async fn a_lost_reply_to_a_renewal() {
    let Some(server) = private("lost_keep", &[]) else { return };
    let (link, through, beside) = linked(&server).await;
    let held = lock(&through).lock().await.expect("works");
    let token = held.token();
    for _ in 0..4 {
        link.lose_next_reply();
        until("a renewal lost its reply", async || link.replies_to_lose() == 0).await;
        assert!(held.is_valid(), "the next one arrives in time");
        assert!(lock(&beside).try_lock().await.expect("works").is_none());
        // A beat: one reply is lost at a time, as one of three may be.
        tokio::time::sleep(LEASE / 3).await;
    }
    assert!(held.is_valid());
    assert_eq!(held.token(), token);
    held.unlock().await.expect("held all the time");
    is_clean(&beside).await;
}

/// What replication that runs behind cannot prevent: the new primary does not know the lock. The
/// holder is told by his next renewal, and the token tells the resource who is newer (G3).
#[tokio::test]
async fn a_fail_over_to_a_replica_that_had_not_heard_of_the_lock() {
    let Some(mut primary) = private("behind", &[]) else { return };
    let link = Link::to(("127.0.0.1", primary.port())).expect("there is a port");
    let of = ["--replicaof", "127.0.0.1", &link.address().port().to_string()];
    let Some(replica) = private("behind_replica", &of) else { return };
    until("the replica follows", async || {
        replica.query::<String>(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
    let Some((_watchers, url)) = sentinels(primary.port()) else { return };
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    link.stall(Way::Both); // the replica hears of nothing any more
    let lease = Duration::from_secs(40); // no renewal before the fail-over
    let first = Mutex::new(&one, "x").lease(lease).lock().await.expect("works");
    assert_eq!(replica.query::<i64>(&["EXISTS", "holdline:{x}"]), 0);
    primary.kill();
    link.cut();
    let rival = Mutex::new(&two, "x").lease(lease);
    let mut second = None;
    until("the rival gets in at the new primary", async || {
        // The sentinels may still name the old one.
        second = rival.try_lock().await.ok().flatten();
        second.is_some()
    })
    .await;
    let second = second.expect("it got in");
    assert!(first.is_valid() && second.is_valid(), "two hold: this is what cannot be prevented");
    let fence = Fence::default();
    fence.check(first.token()).expect("the first");
    fence.check(second.token()).expect("the newer");
    fence.check(first.token()).expect_err("the older is refused");
    tokio::time::timeout(lease / 2, first.lost()).await.expect("the first is told");
    let error = first.unlock().await.expect_err("it is lost");
    assert!(error.is_lost(), "{error:?}");
    second.unlock().await.expect("held, and not freed by the one before");
}
