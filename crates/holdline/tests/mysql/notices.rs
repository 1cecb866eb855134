//! Notices of admission to processes that wait for a lock of the lease table.

use crate::server::{Database, count, databases, first};
use holdline::{Client, Guard, Mutex, open};
use holdline_testkit::{mysql, until};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use std::future::pending;
use std::time::{Duration, Instant};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The connection with this named lock, `listener` or `process`, of the process that waits for x.
async fn owner(conn: &mut Conn, what: &str) -> Option<u64> {
    let sql = format!(
        "SELECT IS_USED_LOCK(CONCAT('holdline-{what}:', listener)) FROM holdline_place \
         WHERE line = 'x'"
    );
    conn.query_first::<Option<u64>, _>(sql).await.expect("works").flatten()
}

/// Whether this connection exists and runs a statement like this.
async fn runs(conn: &mut Conn, id: u64, like: &str) -> bool {
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.processlist \
         WHERE id = {id} AND IFNULL(info, '') LIKE '{like}'"
    );
    first::<u64>(conn, &sql).await == 1
}

/// Waits until the process that waits for lock x can be notified, and returns its listener.
async fn listening(database: &Database) -> u64 {
    let mut found = None;
    until("its process listens", async || {
        let mut conn = database.conn().await;
        found = owner(&mut conn, "listener").await;
        let Some(id) = found else { return false };
        runs(&mut conn, id, "SELECT GET_LOCK(''holdline-process:%").await
    })
    .await;
    found.expect("it was found")
}

/// A task that waits for lock x, as if in another process.
fn waiting(client: &Client) -> JoinHandle<Guard> {
    let lock = Mutex::new(client, "x").lease(Duration::from_secs(600));
    tokio::spawn(async move { lock.lock().await.expect("works") })
}

async fn end(database: &Database, id: u64) {
    let mut conn = database.conn().await;
    conn.query_drop(format!("KILL CONNECTION {id}")).await.expect("its own user may");
    until("it is gone", async || !runs(&mut database.conn().await, id, "%").await).await;
}

/// A release notifies the next process, and no other. A notified process looks ever less often, so
/// after some looks the next is so far off that only the notice can have ended its wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_told_need_not_look() {
    const LOOKS: &str = "SELECT COUNT(*) FROM mysql.general_log \
        WHERE argument LIKE 'SELECT name, front, %'";
    /// The number of looks, their minimum duration, with doubling pauses from 20 ms on, and the
    /// minimum pause after them. A quarter less is possible.
    const SIX: (u64, Duration, Duration) =
        (6, Duration::from_millis(1260 * 3 / 4), Duration::from_millis(800 * 3 / 4));
    for kind in [mysql::mariadb, mysql::mysql] {
        let Some(server) = mysql::start("mysql-notices", kind) else { continue };
        let database = Database::fresh(&server.url(), "notices").await;
        let mut conn = database.conn().await;
        let logged = "SET GLOBAL log_output = 'TABLE', GLOBAL general_log = 'ON'";
        conn.query_drop(logged).await.expect("it may");
        let client = open(&database.url("")).await.expect("opens");
        let other = open(&database.url("")).await.expect("opens");
        let told = async |conn: &mut Conn| {
            let guard = Mutex::new(&client, "x").lock().await.expect("works");
            let (kills, looks) = (count(conn, "Com_kill").await, first::<u64>(conn, LOOKS).await);
            let began = Instant::now();
            let task = waiting(&other);
            listening(&database).await;
            until("it looks", async || {
                first::<u64>(&mut database.conn().await, LOOKS).await >= looks + SIX.0
            })
            .await;
            let (looked, released) = (began.elapsed(), Instant::now());
            guard.unlock().await.expect("held");
            let guard = task.await.expect("no panic");
            let granted = released.elapsed();
            guard.unlock().await.expect("held");
            assert_eq!(count(conn, "Com_kill").await - kills, 1, "one waited, and then none");
            looked > SIX.1 && granted < SIX.2 / 2
        };
        // At first it has not been notified before. A busy machine may be late.
        let mut tries = 0;
        while !told(&mut conn).await {
            tries += 1;
            assert!(tries < 10, "it is not told");
        }
    }
}

/// A listener that is cut off only delays a handover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_notices_waiters_look_by_themselves() {
    for database in databases("unheard").await {
        let client = open(&database.url("")).await.expect("opens");
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        let other = open(&database.url("")).await.expect("opens");
        let task = waiting(&other);
        end(&database, listening(&database).await).await;
        guard.unlock().await.expect("held");
        task.await.expect("no panic").unlock().await.expect("held");
    }
}

/// A proxy to a server on this port, and how to lose its present connections: for the clients they
/// end, and the server is told nothing, as when a network path is gone.
async fn lossy(server: u16) -> (u16, watch::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("it has one").port();
    let (lose, lost) = watch::channel(());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut lost = lost.clone();
            lost.mark_unchanged();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", server)).await?;
                tokio::select! {
                    ended = copy_bidirectional(&mut client, &mut server) => return ended,
                    _ = lost.changed() => drop(client),
                }
                pending().await
            });
        }
    });
    (port, lose)
}

/// The server does not notice for long that a listener's connection is gone, and keeps its named
/// lock. The next listener gets it soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_is_lost_has_a_successor() {
    for database in databases("lost_listener").await {
        let client = open(&database.url("")).await.expect("opens");
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        let url = database.url("");
        let (server, _) = url.split_once("/holdline_").expect("a database");
        let (_, server) = server.rsplit_once(':').expect("a port");
        let (port, lose) = lossy(server.parse().expect("a number")).await;
        let url = url.replace(server, &port.to_string());
        let task = waiting(&open(&url).await.expect("opens"));
        let before = listening(&database).await;
        lose.send(()).expect("it runs");
        until("another listens", async || listening(&database).await != before).await;
        guard.unlock().await.expect("held");
        task.await.expect("no panic").unlock().await.expect("held");
    }
}

/// The named lock that a listener waits for ends with a connection for calls: another takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_outlives_the_connection_that_it_waits_for() {
    for database in databases("outlives").await {
        let mut conn = database.conn().await;
        let client = open(&database.url("")).await.expect("opens");
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        let other = open(&database.url("")).await.expect("opens");
        let task = waiting(&other);
        listening(&database).await;
        let calls = owner(&mut conn, "process").await.expect("it is waited for");
        end(&database, calls).await;
        until("another is waited for", async || owner(&mut conn, "process").await.is_some()).await;
        listening(&database).await;
        guard.unlock().await.expect("held");
        task.await.expect("no panic").unlock().await.expect("held");
    }
}

/// A user may not end another's statements: then a release sends no notice, but does not fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_different_users_look_by_themselves() {
    for database in databases("strangers").await {
        let mut conn = database.conn().await;
        let name = database.name();
        for sql in [
            "DROP USER IF EXISTS stranger@'%'".to_owned(),
            "CREATE USER stranger@'%'".to_owned(),
            format!("GRANT ALL ON {name}.* TO stranger@'%'"),
        ] {
            conn.query_drop(sql).await.expect("it may");
        }
        let other = open(&database.url("")).await.expect("opens");
        let url = database.url("").replace("//holdline@", "//stranger@");
        let client = open(&url).await.expect("opens");
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        let task = waiting(&other);
        let listener = listening(&database).await;
        guard.unlock().await.expect("held");
        task.await.expect("no panic").unlock().await.expect("held");
        assert_eq!(owner(&mut conn, "listener").await, None, "nobody waits for x");
        assert!(runs(&mut conn, listener, "%").await, "it was not ended");
    }
}
