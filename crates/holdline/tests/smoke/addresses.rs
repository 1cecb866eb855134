//! Addresses at which no store is: another kind of server, none, or a name that nobody has. Each
//! error is a sentence that says so.

use holdline::{ErrorKind, Mutex, open};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

/// The stores of this build that connect, as the beginnings and ends of their URLs.
const STORES: &[(&str, &str)] = &[
    #[cfg(feature = "redis")]
    ("redis://", ""),
    #[cfg(feature = "etcd")]
    ("etcd://", ""),
    #[cfg(feature = "zookeeper")]
    ("zookeeper://", ""),
    #[cfg(feature = "postgres")]
    ("postgres://me@", "/d"),
    #[cfg(feature = "mysql")]
    ("mysql://me@", "/d"),
];

/// A server that says this as soon as it is called, or is told a line; its address.
fn server(first: bool, says: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has one").to_string();
    std::thread::spawn(move || {
        for mut caller in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut told, mut said) = ([0; 1024], false);
                loop {
                    let count =
                        if first && !said { 1 } else { caller.read(&mut told).unwrap_or(0) };
                    if count == 0 {
                        return;
                    }
                    let line = first || told[..count].contains(&b'\n');
                    if line && !std::mem::replace(&mut said, true) {
                        let _ = caller.write_all(says);
                    }
                }
            });
        }
    });
    address
}

/// The kind of the error at this URL, and what the program would print. A busy machine has time to
/// find it out.
async fn refusal(url: &str) -> (ErrorKind, String) {
    let error = match open(url).await {
        Ok(client) => {
            let client = client.response_timeout(Duration::from_secs(60));
            Mutex::new(&client, "x").try_lock().await.expect_err(url)
        }
        Err(error) => error,
    };
    (error.kind(), format!("{error:#}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_kind_of_server_is_named() {
    let http = server(false, b"HTTP/1.0 400 Bad Request\r\n\r\n");
    let redis = server(false, b"-ERR unknown command\r\n");
    let mysql = server(true, b"J\0\0\0\n8.0.36\0");
    let pooler = server(false, b"E\0\0\0=SFATAL\0C08P01\0Mclient sent partial");
    let others = [
        (&http, "HTTP server"),
        (&redis, "Redis"),
        (&mysql, "MySQL or MariaDB"),
        (&pooler, "PostgreSQL"),
    ];
    for (store, end) in STORES {
        for (address, words) in others {
            let url = format!("{store}{address}{end}");
            if store.split_once(':').is_some_and(|(own, _)| words.to_lowercase().starts_with(own)) {
                continue;
            }
            let (kind, text) = refusal(&url).await;
            assert_eq!(kind, ErrorKind::Invalid, "{text}");
            assert!(text.contains("cannot be used"), "{text}");
            // Of HTTP etcd says which version it is, since its own is HTTP too.
            let words = if *store == "etcd://" { words.trim_end_matches(" server") } else { words };
            assert!(text.contains(words), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_nobody_has_is_told() {
    for (store, end) in STORES {
        // On a busy machine the look-up of a name may take longer than a request may by default.
        let has_limit = !matches!(*store, "etcd://" | "zookeeper://");
        let limit = if has_limit { "?timeout=60s" } else { "" };
        let (kind, text) = refusal(&format!("{store}nobody.invalid{end}{limit}")).await;
        assert_eq!(kind, ErrorKind::Unavailable, "{text}");
        assert!(text.contains("nobody.invalid") && text.to_lowercase().contains("name"), "{text}");
        assert!(!text.contains("in time"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_listens_the_cause_is_said_once() {
    for (store, end) in STORES {
        let (kind, text) = refusal(&format!("{store}127.0.0.1:1{end}")).await;
        assert_eq!(kind, ErrorKind::Unavailable, "{text}");
        assert_eq!(text.to_lowercase().matches("refused").count(), 1, "{text}");
        assert!(!text.contains("Input/output"), "{text}");
    }
}

/// A secret that was written to a file by `echo` ends with one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_end_in_a_url_is_told() {
    for (store, end) in STORES {
        let (kind, text) = refusal(&format!("{store}127.0.0.1{end}\n")).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        assert!(text.contains("line end"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_of_ipv6_wants_brackets() {
    for (store, end) in STORES {
        let (kind, text) = refusal(&format!("{store}::1:7{end}")).await;
        assert_eq!(kind, ErrorKind::Invalid, "{text}");
        assert!(text.contains("[::1]:PORT"), "{text}");
    }
}
