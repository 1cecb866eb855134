//! Something else listens where ZooKeeper should: that is said, and soon.

use holdline::{ErrorKind, Mutex, open};

use holdline_testkit::zookeeper::start;
use holdline_testkit::{persist, soon};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// A server that answers so to each line, and says nothing before.
fn server(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                if reader.read_until(b'\n', &mut Vec::new()).is_ok_and(|count| count > 0) {
                    let _ = (&stream).write_all(answer.as_bytes());
                }
            });
        }
    });
    address
}

/// Asks there, and expects these words soon: a busy machine may be late, but not each time.
pub(crate) async fn is_named(url: &str, words: &str) {
    for look in [false, true] {
        let mut quickest = Duration::MAX;
        for _ in 0..10 {
            let client = open(url).await.expect("a good URL");
            let began = Instant::now();
            let outcome = if look {
                soon("an answer", client.inspect("x")).await.map(drop)
            } else {
                soon("an answer", Mutex::new(&client, "x").lock()).await.map(drop)
            };
            let error = outcome.expect_err("it is no ZooKeeper");
            if error.retryable() {
                continue; // it had no time to say what it is
            }
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error:#}");
            assert!(error.to_string().contains(words), "{error}");
            quickest = quickest.min(began.elapsed());
            if quickest < SOON {
                break;
            }
        }
        assert!(quickest < SOON, "{quickest:?}");
    }
}

/// The time in which it is found out what listens there: two questions, a second for each.
const SOON: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_servers_are_named() {
    let http = server("HTTP/1.1 400 Bad Request\r\n\r\n");
    is_named(&format!("zookeeper://{http}"), "an HTTP server answers").await;
    let redis = server("-ERR wrong number of arguments for 'get' command\r\n");
    is_named(&format!("zookeeper://{redis}"), "a Redis or Valkey server answers").await;
    let ssh = server("SSH-2.0-OpenSSH_9.2\r\n");
    is_named(&format!("zookeeper://{ssh}"), "something answers that is no ZooKeeper").await;
    #[cfg(feature = "zookeeper-tls")]
    is_named(&format!("zks://{http}"), "an HTTP server answers").await;
}

#[cfg(feature = "zookeeper-tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_without_tls_is_named() {
    let Some(servers) = start(1) else { return };
    let url = servers.url().replace("zookeeper:", "zks:");
    is_named(&url, "speaks no TLS; write zookeeper://").await;
}

/// A client that was let in there before waits until it is the right one again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_known_is_waited_for() {
    let Some(mut servers) = start(1) else { return };
    let client = open(&format!("{}?session=2", servers.url())).await.expect("a good URL");
    let lock = Mutex::new(&client, "x").lease(Duration::from_millis(500));
    // Its unlock might not be confirmed within so short a lease, on a busy machine.
    drop(soon("the lock", persist(lock.clone())).await);
    soon("what is left to do", client.settle()).await;
    servers.kill(0);
    let listener = TcpListener::bind(servers.hosts()[0].as_str()).expect("its port is free");
    let impostor = std::thread::spawn(move || {
        listener.set_nonblocking(true).expect("it can");
        let until = Instant::now() + Duration::from_secs(6);
        while Instant::now() < until {
            match listener.accept() {
                Ok((mut stream, _)) => drop(stream.write_all(b"HTTP/1.1 503 Unavailable\r\n\r\n")),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    });
    let waiter = tokio::spawn(async move { lock.lock().await });
    tokio::task::spawn_blocking(|| impostor.join()).await.expect("no panic").expect("no panic");
    assert!(!waiter.is_finished(), "it gave up");
    servers.restart(0);
    drop(soon("the lock", waiter).await.expect("no panic").expect("it is there again"));
}
