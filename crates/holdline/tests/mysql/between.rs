//! Proxies that mix connections, and TLS.

use crate::server::{Database, count, first, private};
use holdline::{ErrorKind, Mutex, open};
#[cfg(feature = "mysql-tls")]
use holdline_testkit::certs::certificates;
use holdline_testkit::{soon, until};
use mysql_async::prelude::Queryable;
#[cfg(feature = "mysql-tls")]
use std::os::unix::fs::PermissionsExt;
#[cfg(feature = "mysql-tls")]
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

/// A proxy that greets with a connection number of its own, like proxies that share connections.
async fn proxy(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("it has one").port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", server)).await?;
                // A length of three bytes, a count, the protocol, the version, and the number.
                let mut greeting = vec![0; 4];
                server.read_exact(&mut greeting).await?;
                let rest = u32::from_le_bytes([greeting[0], greeting[1], greeting[2], 0]);
                greeting.resize(4 + rest as usize, 0);
                server.read_exact(&mut greeting[4..]).await?;
                let version = greeting[5..].iter().position(|byte| *byte == 0).expect("it ends");
                greeting[5 + version + 1] ^= 0x55;
                client.write_all(&greeting).await?;
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_shares_connections_is_refused() {
    let Some(server) = private("mysql-proxy", &[]) else { return };
    let database = Database::fresh(&server.url(), "proxy").await;
    drop(open(&database.url("")).await.expect("installs"));
    let port = server.servers[0].port();
    let url = database.url("").replace(&port.to_string(), &proxy(port).await.to_string());
    for scheme in ["row", "named"] {
        let error = open(&format!("{url}&scheme={scheme}")).await.expect_err("it cannot be used");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("a proxy that shares connections"), "{error}");
    }
    let client = open(&url).await.expect("the table does not mind");
    let lock = Mutex::new(&client, "x");
    lock.lock().await.expect("works").unlock().await.expect("held");
    // It gets no notices there: the ended statement could be another client's.
    let mut conn = database.conn().await;
    let direct = open(&database.url("")).await.expect("opens");
    let guard = Mutex::new(&direct, "x").lock().await.expect("works");
    let (kills, before) =
        (count(&mut conn, "Com_kill").await, count(&mut conn, "Connections").await);
    let task = tokio::spawn(async move { lock.lock().await.expect("works") });
    until("it tries to listen", async || count(&mut conn, "Connections").await > before).await;
    guard.unlock().await.expect("held");
    task.await.expect("no panic").unlock().await.expect("held");
    assert_eq!(count(&mut conn, "Com_kill").await, kills);
}

/// A proxy that lets a connection end which has a session's lock, before another one asks for it.
async fn losing(server: u16, database: Arc<Database>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("it has one").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", server)).await.expect("it listens");
            let (mut requests, mut back) = client.into_split();
            let (mut replies, mut forth) = server.into_split();
            tokio::spawn(async move { copy(&mut replies, &mut back).await });
            let database = Arc::clone(&database);
            tokio::spawn(async move {
                let mut bytes = vec![0; 65536];
                while let Ok(size @ 1..) = requests.read(&mut bytes).await {
                    let text = String::from_utf8_lossy(&bytes[..size]);
                    if let Some((_, rest)) = text.split_once("GET_LOCK('holdline-session:") {
                        let session = rest.split('\'').next().expect("a number").to_owned();
                        let database = Arc::clone(&database);
                        let end =
                            move || Handle::current().block_on(end_holder(&database, session));
                        spawn_blocking(end).await.expect("no panic");
                    }
                    forth.write_all(&bytes[..size]).await?;
                }
                Ok::<_, std::io::Error>(())
            });
        }
    });
    port
}

/// Ends the connection that has the lock of this session, if there is one.
async fn end_holder(database: &Database, session: String) {
    let mut conn = database.conn().await;
    let holder = format!("SELECT IS_USED_LOCK('holdline-session:{session}')");
    let Some(id) = first::<Option<u64>>(&mut conn, &holder).await else { return };
    conn.query_drop(format!("KILL {id}")).await.expect("it is there");
    until("it has ended", async || first::<Option<u64>>(&mut conn, &holder).await.is_none()).await;
}

/// Whether named locks exclude one another is found out by two connections. If the first is lost,
/// the second rightly gets the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_lost_while_opening_does_not_mean_that_locks_exclude_nobody() {
    let Some(server) = private("mysql-losing", &[]) else { return };
    let database = Arc::new(Database::fresh(&server.url(), "losing").await);
    drop(open(&database.url("")).await.expect("installs"));
    let port = server.servers[0].port();
    let front = losing(port, Arc::clone(&database)).await;
    let url = database.url("&scheme=named").replace(&port.to_string(), &front.to_string());
    let error = open(&url).await.expect_err("its connection is lost each time");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// A server that answers on one connection only: an opening that has failed leaves none behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_opening_leaves_no_connection() {
    let Some(server) = private("mysql-silent", &[]) else { return };
    let database = Database::fresh(&server.url(), "silent").await;
    drop(open(&database.url("")).await.expect("installs"));
    let port = server.servers[0].port();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let front = listener.local_addr().expect("it has one").port();
    let url = database.url("&scheme=named&timeout=2s");
    let url = url.replace(&port.to_string(), &front.to_string()).replace("install=yes&", "");
    let opening = tokio::spawn(async move { open(&url).await });
    let first = soon("a connection", listener.accept()).await;
    let (mut first, _) = first.expect("it connects");
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.expect("it runs");
    tokio::spawn(async move { copy_bidirectional(&mut first, &mut server).await });
    let second = soon("another connection", listener.accept()).await;
    let (mut second, _) = second.expect("it connects again");
    let opened = soon("an end", opening).await.expect("no panic");
    assert_eq!(opened.expect_err("silent").kind(), ErrorKind::Unavailable);
    let mut sent = Vec::new();
    soon("the end of the connection", second.read_to_end(&mut sent)).await.expect("it is closed");
    assert!(sent.is_empty(), "the server speaks first");
}

/// A server that requires TLS works with its own authority, with every scheme, and with no other.
#[cfg(feature = "mysql-tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_wants_the_right_authority() {
    let folder = tempfile::tempdir().expect("there is room");
    let other = tempfile::tempdir().expect("there is room");
    if !certificates(folder.path()) || !certificates(other.path()) {
        return;
    }
    // The server runs as another user.
    let open_to_all = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    open_to_all(folder.path(), 0o755);
    open_to_all(&folder.path().join("key.pem"), 0o644);
    let file = |name: &str| folder.path().join(name).display().to_string();
    let options = [
        format!("--ssl-cert={}", file("cert.pem")),
        format!("--ssl-key={}", file("key.pem")),
        format!("--ssl-ca={}", file("ca.pem")),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let Some(server) = private("mysql-tls", &options) else { return };
    let database = Database::fresh(&server.url(), "tls").await;
    drop(open(&database.url("")).await.expect("installs"));
    let mut conn = database.conn().await;
    conn.query_drop("SET GLOBAL require_secure_transport = ON").await.expect("it may");
    let error = open(&database.url("")).await.expect_err("it wants TLS");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("tls=true"), "{error}");
    for scheme in ["table", "row", "named"] {
        let good = format!("&scheme={scheme}&tls=true&ca_file={}", file("ca.pem"));
        let client = open(&database.url(&good)).await.expect("opens");
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        guard.unlock().await.expect("held");
        let ca = other.path().join("ca.pem").display().to_string();
        let wrong = format!("&scheme={scheme}&tls=true&ca_file={ca}");
        let error = open(&database.url(&wrong)).await.expect_err("another authority");
        let text = error.to_string();
        assert!(text.contains("ca_file") && text.contains("certificate"), "{text}");
    }
}
