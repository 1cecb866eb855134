//! Bounds (G25): what does not wait for a lock ends within two seconds, whatever the server does or
//! is; and what is no Redis server is called by its name.

use holdline::{Client, Error, ErrorKind, Mutex, open};
use holdline_testkit::redis::{Server, cluster, private};
use holdline_testkit::soon;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// What an answer may take, on a machine that has other things to do as well.
const BOUND: Duration = Duration::from_secs(2);

/// Does this again if it took too long, as on a busy machine it may, but not each time.
async fn bounded<T>(what: &str, work: impl AsyncFn() -> T) -> T {
    let mut late = Vec::new();
    while late.len() < 5 {
        let start = Instant::now();
        let done = work().await;
        if start.elapsed() < BOUND {
            return done;
        }
        late.push(start.elapsed());
    }
    panic!("{what} took {late:?}");
}

fn unavailable<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let error = answer.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

async fn nothing_hangs(client: &Client, name: &str) {
    unavailable(bounded("try_lock", async || Mutex::new(client, name).try_lock().await).await);
    unavailable(bounded("inspect", async || client.inspect(name).await).await);
    unavailable(bounded("list", async || client.list("").await).await);
}

#[tokio::test]
async fn a_server_that_stands_still() {
    for scheme in ["line", "string", "redisson"] {
        let Some(server) = private("bounds_still", &[]) else { return };
        let url = format!("{}?scheme={scheme}", server.url());
        let client = open(&url).await.expect("opens");
        let fresh = open(&url).await.expect("opens");
        assert!(Mutex::new(&client, "x").try_lock().await.expect("works").is_some());
        server.pause();
        unavailable(bounded("open", async || open(&url).await).await);
        // Another name: whether that one has been given up yet is not known here either.
        nothing_hangs(&client, "y").await;
        nothing_hangs(&fresh, "y").await;
        server.resume();
    }
}

/// A server that accepts connections, and answers each with the same bytes, or with none.
fn listener(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let port = listener.local_addr().expect("it has one").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut asked = [0; 1024];
                while stream.read(&mut asked).is_ok_and(|size| size > 0) {
                    if !answer.is_empty() && stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn a_listener_that_never_answers() {
    let port = listener(b"");
    for scheme in ["line", "string", "redisson"] {
        let url = format!("redis://127.0.0.1:{port}?scheme={scheme}");
        unavailable(bounded("open", async || open(&url).await).await);
    }
    unavailable(
        bounded("open", async || open(&format!("redis+cluster://127.0.0.1:{port}")).await).await,
    );
    unavailable(
        bounded("open", async || open(&format!("redis+sentinel://127.0.0.1:{port}/main")).await)
            .await,
    );
    #[cfg(feature = "redis-tls")]
    unavailable(bounded("open", async || open(&format!("rediss://127.0.0.1:{port}")).await).await);
}

/// With more time than it takes: a busy machine is no reason not to find out.
async fn is_named(url: &str, words: &str) {
    let error = open(&format!("{url}?timeout=20s")).await.expect_err("it is something else");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
}

#[tokio::test]
async fn other_servers_are_named() {
    let http = listener(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    let ssh = listener(b"SSH-2.0-OpenSSH_9.2\r\n");
    for scheme in ["redis", "redis+cluster"] {
        is_named(&format!("{scheme}://127.0.0.1:{http}"), "is an HTTP server").await;
        is_named(&format!("{scheme}://127.0.0.1:{ssh}"), "answers \"SSH-2.0-OpenSSH_9.2\"").await;
    }
    is_named(&format!("redis+sentinel://127.0.0.1:{http}/main"), "is an HTTP server").await;
    #[cfg(feature = "redis-tls")]
    is_named(&format!("rediss://127.0.0.1:{http}"), "is an HTTP server").await;
}

#[cfg(feature = "redis-tls")]
#[tokio::test]
async fn tls_to_a_server_without() {
    let Some(server) = private("bounds_tls", &[]) else { return };
    let url = format!("rediss://127.0.0.1:{}", server.port());
    is_named(&url, "does not speak TLS").await;
}

/// A cluster of which a node stands still is open to all, and its other nodes serve.
#[tokio::test]
async fn a_node_of_a_cluster_that_stands_still() {
    let Some(nodes) = cluster() else { return };
    for node in &nodes {
        let _: () = node.query(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    let old = open(&url).await.expect("opens");
    for n in 0..12 {
        let lock = Mutex::new(&old, format!("before {n}"));
        assert!(lock.try_lock().await.expect("works").is_some());
    }
    let held = Mutex::new(&old, "name 0").lease(Duration::from_secs(10)).lock().await;
    let held = held.expect("works");
    let slot: u64 = nodes[0].query(&["CLUSTER", "KEYSLOT", "holdline:{name 0}"]);
    let slot = slot.to_string();
    let owner = nodes
        .iter()
        .position(|node| node.query::<i64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot]) == 1)
        .expect("somebody has it");
    let still = &nodes[(owner + 1) % 3];
    still.pause();
    let new =
        bounded("open", async || open(&url).await).await.expect("two of three nodes are there");
    for client in [&old, &new] {
        let (mut served, mut failed) = (0, 0);
        for n in 0..24 {
            let lock = Mutex::new(client, format!("after {n}"));
            match bounded("try_lock", async || lock.try_lock().await).await {
                Ok(got) => served += usize::from(got.is_some()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                    failed += 1;
                }
            }
        }
        assert!(served > 0 && failed > 0, "{served} served, {failed} not");
        assert!(bounded("inspect", async || client.inspect("name 0").await).await.is_ok());
    }
    assert!(held.is_valid(), "renewed all the time");
    still.resume();
    held.unlock().await.expect("held");
}

/// Holds locks on all nodes of a cluster, of which the first stands still from then on. Returns
/// whether those on the others are kept, although the client goes on asking the first.
async fn keeps_the_others(nodes: &[Server]) -> bool {
    let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let client = open(&format!("redis+cluster://{}", hosts.join(","))).await.expect("opens");
    let (mut there, mut here) = (Vec::new(), Vec::new());
    for n in 0..24 {
        let name = format!("name {n}");
        let lock = Mutex::new(&client, &name).lease(Duration::from_millis(1500));
        let guard = soon("it is free", lock.lock()).await.expect("works");
        let slot: u64 = nodes[0].query(&["CLUSTER", "KEYSLOT", &format!("holdline:{{{name}}}")]);
        let count: u64 = nodes[0].query(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]);
        let group = if count == 1 { &mut there } else { &mut here };
        group.push((lock, guard));
    }
    assert!(there.len() > 1 && here.len() > 1, "{} and {}", there.len(), here.len());
    nodes[0].pause();
    let asking = there.iter().map(|(lock, _)| {
        let lock = lock.clone();
        tokio::spawn(async move {
            loop {
                let _ = lock.try_lock().await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
    });
    let asking: Vec<_> = asking.collect();
    tokio::time::sleep(Duration::from_secs(12)).await;
    for task in asking {
        task.abort();
    }
    nodes[0].resume();
    here.iter().all(|(_, guard)| guard.is_valid())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stands_still_costs_no_lock_on_another() {
    let Some(nodes) = cluster() else { return };
    for node in &nodes {
        let _: () = node.query(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    // A busy machine may lose them, but not each time.
    for _ in 0..3 {
        if keeps_the_others(&nodes).await {
            return;
        }
    }
    panic!("they were lost each time");
}

#[tokio::test]
async fn a_server_that_is_no_cluster_is_named() {
    let Some(server) = private("no_cluster", &[]) else { return };
    let url = format!("redis+cluster://127.0.0.1:{}", server.port());
    let error = open(&url).await.expect_err("it is no cluster");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    assert!(error.to_string().contains("is no cluster; use a URL with redis"), "{error}");
}
