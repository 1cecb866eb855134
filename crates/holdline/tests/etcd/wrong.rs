//! Servers that are no etcd, and TLS where there is none: named for what they are, soon.

use holdline::{Error, ErrorKind, Mutex, open};
use holdline_testkit::soon;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A server that answers every connection so, and how it is called.
async fn server(first: bool, says: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it has one").to_string();
    tokio::spawn(async move {
        while let Ok((mut caller, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 1024];
                if first || caller.read(&mut request).await.is_ok() {
                    let _ = caller.write_all(says).await;
                    // Until the caller hangs up.
                    while caller.read(&mut request).await.is_ok_and(|count| count > 0) {}
                }
            });
        }
    });
    address
}

/// What is said to all who ask, each of them for the first time.
async fn refused(url: &str) -> Vec<Error> {
    let client = async || open(url).await.expect("a good URL");
    let began = Instant::now();
    let seen = soon("inspect", client().await.inspect("x")).await.expect_err("no etcd");
    let list = soon("list", client().await.list("")).await.expect_err("no etcd");
    assert!(began.elapsed() < 2 * Duration::from_secs(3), "{:?}", began.elapsed());
    let lock = Mutex::new(&client().await, "x");
    let lock = soon("lock", lock.lock()).await.expect_err("no etcd");
    vec![seen, list, lock]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_no_etcd_is_named() {
    for (first, says, word) in [
        (false, &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..], "HTTP/1"),
        (false, b"-ERR unknown command 'PRI'\r\n", "a Redis or Valkey server"),
        (true, b"J\0\0\0\n8.0.36\0", "a MySQL or MariaDB server"),
        (true, b"SSH-2.0-OpenSSH_9.2\r\n", "another protocol"),
        (false, &[0x15, 3, 1, 0, 2, 2, 70], "speaks TLS"),
    ] {
        for error in refused(&format!("etcd://{}", server(first, says).await)).await {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error:#}");
            assert!(format!("{error:#}").contains(word), "{error:#}");
        }
    }
}

#[cfg(feature = "etcd-tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_and_none_are_told_apart() {
    let Some(plain) = holdline_testkit::etcd::start(1) else { return };
    let Some(secret) = holdline_testkit::etcd::start_tls() else { return };
    let wrong =
        format!("{}?ca_file={}", plain.url().replace("etcd://", "etcds://"), secret.authority());
    for error in refused(&wrong).await {
        // It may wait for more instead of hanging up.
        let kind = error.kind();
        assert!(matches!(kind, ErrorKind::Invalid | ErrorKind::Unavailable), "{error:#}");
        assert!(format!("{error:#}").contains("write etcd:"), "{error:#}");
    }
    // It hangs up without a word, as one does that is just going down.
    for error in refused(&secret.url().replace("etcds://", "etcd://")).await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
        assert!(format!("{error:#}").contains("TLS"), "{error:#}");
    }
}
