//! Refusals by servers: deadlocks, locked rows, limits, no room, no connections, no writes.

#[path = "../shared/silent_lists.rs"]
mod silent_lists;

use crate::server::{Database, blocked, count, databases, first, private, ticket};
use holdline::store::{Enter, Ticket};
use holdline::{Client, Error, ErrorKind, Mutex, Name, open};
use holdline_testkit::{soon, until};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Checks that the error contains these words and can be retried.
fn passing(error: &Error, words: &str) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

/// A call that the server undoes because of a deadlock is repeated, without an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_resolved() {
    for database in databases("deadlock").await {
        let client = open(&database.url("&timeout=30s")).await.expect("opens");
        let (store, line) = (client.store(), Name::new("x").expect("good"));
        let (note, lease) = (Arc::from("note"), Duration::from_secs(600));
        let (one, two) = (ticket(lease), ticket(lease));
        for mine in [&one, &two] {
            store.enter(&line, mine, &note, Enter::Queue).await.expect("works");
        }
        // Another client that has written so much that the server aborts the other transaction.
        let mut conn = database.conn().await;
        conn.query_drop("CREATE TABLE much (n INT PRIMARY KEY) ENGINE = InnoDB").await.expect("ok");
        conn.query_drop("START TRANSACTION").await.expect("works");
        let rows: Vec<String> = (0..2000).map(|n| format!("({n})")).collect();
        let rows = format!("INSERT INTO much VALUES {}", rows.join(", "));
        conn.query_drop(rows).await.expect("works");
        let place = "SELECT COUNT(*) FROM holdline_place WHERE line = 'x' FOR UPDATE";
        assert_eq!(first::<u64>(&mut conn, place).await, 1);
        let leave = {
            let (store, line) = (Arc::clone(store), line.clone());
            tokio::spawn(async move { store.leave(&line, one.id).await })
        };
        // It has locked the line's row, and waits for the place's.
        let mut observer = database.conn().await;
        until("it waits", async || blocked(&mut observer).await).await;
        let row = "UPDATE holdline_line SET last = last + 1 WHERE name = 'x'";
        conn.query_drop(row).await.expect("the other is undone");
        conn.query_drop("ROLLBACK").await.expect("works");
        assert!(soon("it leaves", leave).await.expect("no panic").expect("no error"), "it was in");
        let view = store.snapshot(&line).await.expect("works");
        assert_eq!(view.holders().map(|place| place.id).collect::<Vec<_>>(), [two.id]);
    }
}

/// A departure that admits more places than one answer has room for admits them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_departure_admits_more_than_its_answer_names() {
    for database in databases("many_admitted").await {
        let client = open(&database.url("&timeout=30s")).await.expect("opens");
        let (store, line) = (client.store(), Name::new("x").expect("good"));
        let (note, lease) = (Arc::from("note"), Duration::from_secs(600));
        let many = 210; // of which 200 are in the answer
        let ticket = |weight| Ticket { weight, capacity: many, ..ticket(lease) };
        let all = ticket(many);
        store.enter(&line, &all, &note, Enter::Queue).await.expect("works");
        for _ in 0..many {
            store.enter(&line, &ticket(1), &note, Enter::Queue).await.expect("works");
        }
        assert!(store.leave(&line, all.id).await.expect("works"));
        let view = store.snapshot(&line).await.expect("works");
        assert_eq!(view.holders().count(), many as usize);
    }
}

/// A call interrupted by a KILL QUERY is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_call_is_made_again() {
    for database in databases("interrupted").await {
        let client = open(&database.url("&timeout=30s")).await.expect("opens");
        let lock = Mutex::new(&client, "x").lease(Duration::from_secs(600));
        lock.lock().await.expect("works").unlock().await.expect("held");
        let (mut conn, mut observer) = (database.conn().await, database.conn().await);
        conn.query_drop("START TRANSACTION").await.expect("works");
        let row = "SELECT name FROM holdline_line WHERE name = 'x' FOR UPDATE";
        conn.query_drop(row).await.expect("works");
        let locking = tokio::spawn(async move { lock.lock().await });
        let waits = "SELECT IFNULL(MAX(id), 0) FROM information_schema.processlist \
                     WHERE db = DATABASE() AND command IN ('Query', 'Execute') \
                     AND id <> CONNECTION_ID()";
        // It asks again each second, so a KILL may hit an idle connection.
        let mut killed = 0;
        until("it waits again, on another connection", async || {
            let id: u64 = first(&mut observer, waits).await;
            if id > 0 && (killed == 0 || killed == id) {
                killed = id;
                let _ = observer.query_drop(format!("KILL QUERY {id}")).await;
            }
            id > 0 && id != killed
        })
        .await;
        conn.query_drop("ROLLBACK").await.expect("works");
        let guard = soon("the lock", locking).await.expect("no panic").expect("no error");
        guard.unlock().await.expect("held");
    }
}

/// Another client that keeps the rows of some locks locked delays only their waiters, and not the
/// renewals of other locks, even on a shared connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_do_not_wait_for_locked_rows() {
    for database in databases("renewals").await {
        let client = open(&database.url("")).await.expect("opens");
        let locks: Vec<_> = (0..4).map(|n| Mutex::new(&client, format!("x{n}"))).collect();
        for lock in &locks {
            lock.lock().await.expect("works").unlock().await.expect("held");
        }
        let held = Mutex::new(&client, "held").lease(Duration::from_secs(6)).lock().await;
        let held = held.expect("works");
        let mut stranger = database.conn().await;
        stranger.query_drop("START TRANSACTION").await.expect("works");
        let rows = "SELECT COUNT(*) FROM holdline_line WHERE name LIKE 'x_' FOR UPDATE";
        assert_eq!(first::<u64>(&mut stranger, rows).await, 4);
        let wanted: Vec<_> =
            locks.into_iter().map(|lock| tokio::spawn(async move { lock.lock().await })).collect();
        let lost = tokio::time::timeout(Duration::from_secs(8), held.lost()).await;
        assert!(lost.is_err(), "it was renewed too late");
        stranger.query_drop("ROLLBACK").await.expect("works");
        held.unlock().await.expect("held");
        for lock in wanted {
            let guard = soon("the lock", lock).await.expect("no panic").expect("no error");
            guard.unlock().await.expect("held");
        }
    }
}

/// A call that was given up does not wait in the server for a table that another client has locked:
/// each would keep a connection there, for a year by default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_given_up_do_not_wait_for_tables() {
    for database in databases("locked_table").await {
        drop(open(&database.url("")).await.expect("installs"));
        let client = open(&database.url("&timeout=1s")).await.expect("opens");
        let (mut table, mut conn) = (database.conn().await, database.conn().await);
        table.query_drop("LOCK TABLES holdline_line WRITE").await.expect("works");
        for _ in 0..3 {
            let error = client.inspect("x").await.expect_err("it is locked");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        let waiting = "SELECT COUNT(*) FROM information_schema.processlist \
                       WHERE db = DATABASE() AND state LIKE 'Waiting for table%'";
        until("none waits", async || first::<u64>(&mut conn, waiting).await == 0).await;
        table.query_drop("UNLOCK TABLES").await.expect("works");
        until("it is free", async || client.inspect("x").await.is_ok()).await;
    }
}

/// Creates a user with few rights, and returns the URL to log in as that user.
async fn plain(database: &Database, conn: &mut Conn) -> String {
    drop(open(&database.url("")).await.expect("installs"));
    conn.query_drop(format!(
        "CREATE USER plain@'%'; \
         GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON {}.* TO plain@'%'",
        database.name()
    ))
    .await
    .expect("it may");
    database.url("").replace("//holdline@", "//plain@").replace("install=yes", "install=no")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_is_refused() {
    let Some(server) = private("mysql-readonly", &[]) else { return };
    let database = Database::fresh(&server.url(), "readonly").await;
    let mut conn = database.conn().await;
    let url = plain(&database, &mut conn).await;
    let client = open(&url).await.expect("opens");
    let lock = Mutex::new(&client, "x");
    lock.lock().await.expect("works").unlock().await.expect("held");
    conn.query_drop("SET GLOBAL read_only = ON").await.expect("it may");
    for scheme in ["table", "row", "named"] {
        let error = open(&format!("{url}&scheme={scheme}")).await.expect_err("it cannot be used");
        passing(&error, "use the address of the primary");
    }
    let error = lock.try_lock().await.expect_err("nor on a connection that there was");
    passing(&error, "use the address of the primary");
    conn.query_drop("SET GLOBAL read_only = OFF").await.expect("it may");
    lock.lock().await.expect("works again").unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_connections_says_so() {
    let Some(server) = private("mysql-full", &["--max-connections=10"]) else { return };
    let database = Database::fresh(&server.url(), "full").await;
    let mut conn = database.conn().await;
    let url = plain(&database, &mut conn).await;
    let client = open(&url).await.expect("opens");
    let lock = Mutex::new(&client, "x");
    let guard = lock.lock().await.expect("works");
    // The last connection is reserved for administrators.
    let mut others = Vec::new();
    while let Ok(another) = Conn::new(mysql_async::Opts::clone(conn.opts())).await {
        others.push(another);
    }
    for scheme in ["table", "row"] {
        let error = open(&format!("{url}&scheme={scheme}")).await.expect_err("there is none left");
        passing(&error, "max_connections");
    }
    guard.unlock().await.expect("those that have one go on");
    ask_in_vain(&client, &mut conn, &mut others).await;
    drop(others);
    until("there are some again", async || open(&url).await.is_ok()).await;
}

/// However many calls wait for a connection, a server that has none left is asked for one only now
/// and then.
async fn ask_in_vain(client: &Client, conn: &mut Conn, others: &mut Vec<Conn>) {
    let idle = "SELECT id FROM information_schema.processlist WHERE user = 'plain'";
    for id in conn.query::<u64, _>(idle).await.expect("works") {
        conn.query_drop(format!("KILL CONNECTION {id}")).await.expect("it may");
    }
    until("its connection is used by others", async || {
        others.extend(Conn::new(mysql_async::Opts::clone(conn.opts())).await.ok());
        conn.query::<u64, _>(idle).await.expect("works").is_empty()
            && Conn::new(mysql_async::Opts::clone(conn.opts())).await.is_err()
    })
    .await;
    let refused = count(conn, "Connection_errors_max_connections").await;
    let began = Instant::now();
    let mut asked: JoinSet<_> = (0..64)
        .map(|n| {
            let lock = Mutex::new(client, format!("n{n}"));
            async move { lock.try_lock().await }
        })
        .collect();
    while let Some(answer) = asked.join_next().await {
        passing(&answer.expect("no panic").expect_err("there is none left"), "");
    }
    let refused = count(conn, "Connection_errors_max_connections").await - refused;
    // The pauses grow from 10 ms to 250 ms.
    let most = 10 + began.elapsed().as_millis() / 100;
    assert!(refused > 0 && u128::from(refused) < most, "{refused} in {:?}", began.elapsed());
}

/// A server with a full tablespace refuses, and goes on when there is room again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_room_says_so() {
    // Large enough that a drop frees more than InnoDB reserves for itself (6 MiB).
    let options = ["--innodb-data-file-path=ibdata1:12M;ibdata2:20M", "--innodb-file-per-table=0"];
    let Some(server) = private("mysql-room", &options) else { return };
    let database = Database::fresh(&server.url(), "room").await;
    let mut conn = database.conn().await;
    let client = open(&database.url("")).await.expect("opens");
    let held = Mutex::new(&client, "held").lock().await.expect("works");
    conn.query_drop("CREATE TABLE junk (n INT AUTO_INCREMENT PRIMARY KEY, b VARBINARY(4000))")
        .await
        .expect("works");
    conn.query_drop("START TRANSACTION").await.expect("works");
    // (With values on pages of their own, the server itself may crash.)
    for size in [4000, 1000, 100] {
        let sql = format!("INSERT INTO junk (b) VALUES (REPEAT('x', {size}))");
        while conn.query_drop(&sql).await.is_ok() {}
    }
    let mut refused = None;
    for n in 0..1000 {
        match Mutex::new(&client, format!("{n:0>200}")).try_lock().await {
            // A release needs a little room too; a failed one is retried in the background.
            Ok(guard) => drop(guard.expect("it is free").unlock().await),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    passing(&refused.expect("a thousand rows do not fit"), "has no room left");
    conn.query_drop("ROLLBACK").await.expect("to undo needs no room");
    until("it can be dropped", async || conn.query_drop("DROP TABLE junk").await.is_ok()).await;
    // Dropped pages are free after a purge, which commits would trigger, but there are none now.
    conn.query_drop("SET GLOBAL innodb_max_purge_lag_wait = 0").await.expect("it waits for that");
    let lock = Mutex::new(&client, "another");
    until("there is room again", async || match lock.try_lock().await {
        Ok(guard) => guard.expect("it is free").unlock().await.is_ok(),
        Err(_) => false,
    })
    .await;
    held.unlock().await.expect("it was kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_a_silent_server_cost_no_connections() {
    let Some(server) = private("mysql-silent-lists", &[]) else { return };
    let database = Database::fresh(&server.url(), "silent_lists").await;
    for scheme in ["table", "row", "named", "shedlock"] {
        let url = database.url(&format!("&timeout=300ms&scheme={scheme}"));
        silent_lists::cost_no_connections(&url, &server.hosts()[0], 2, 0).await;
    }
}
