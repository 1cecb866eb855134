//! The schemes `row` and `named`: locks that a connection holds.

use crate::server::{Database, count, databases, first, private, ticket};
use futures_util::FutureExt;
use holdline::store::{Enter, Standing, TicketId};
use holdline::{ErrorKind, Mutex, Name, RwLock, open};
use holdline_testkit::{Link, Way, soon, until};
use mysql_async::prelude::Queryable;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The founding documents' row lock: SELECT ... FOR UPDATE on an existing row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_lock_is_a_row_that_a_transaction_has_locked() {
    for database in databases("row").await {
        let client = open(&database.url("&scheme=row")).await.expect("opens");
        let mut conn = database.conn().await;
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        let sql = "SELECT name FROM holdline_row WHERE name = 'x' FOR UPDATE NOWAIT";
        let locked = conn.query_drop(sql).await.expect_err("it is locked");
        let locked = locked.to_string();
        assert!(locked.contains("1205") || locked.contains("3572"), "{locked}");
        guard.unlock().await.expect("held");
        assert_eq!(first::<String>(&mut conn, sql).await, "x");
        // Vice versa, another client that locks the row keeps the library out.
        conn.query_drop("START TRANSACTION").await.expect("works");
        conn.query_drop(sql).await.expect("it is free");
        assert!(Mutex::new(&client, "x").try_lock().await.expect("works").is_none());
        conn.query_drop("ROLLBACK").await.expect("works");
        let guard = Mutex::new(&client, "x").try_lock().await.expect("works");
        guard.expect("it is free").unlock().await.expect("held");
    }
}

/// The founding documents' named lock: GET_LOCK, whose names all databases of a server share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_lock_is_the_servers_own() {
    for database in databases("named").await {
        let client = open(&database.url("&scheme=named")).await.expect("opens");
        let mut conn = database.conn().await;
        // Long names are distinct, and so are names that differ by case or by a space.
        let names =
            ["x".repeat(512), "x".repeat(511), "case".into(), "CASE".into(), "case ".into()];
        let mut guards = Vec::new();
        for name in &names {
            let guard = Mutex::new(&client, name).try_lock().await.expect("works");
            guards.push(guard.expect("another name"));
        }
        let used = format!(
            "SELECT IS_USED_LOCK(CONCAT('holdline:', LEFT(SHA2(CONCAT('{}', ' 63617365'), 256), \
             55))) IS NOT NULL",
            database.name()
        );
        assert!(first::<bool>(&mut conn, &used).await, "\"case\" is held");
        for guard in guards {
            guard.unlock().await.expect("held");
        }
        assert!(!first::<bool>(&mut conn, &used).await, "\"case\" is free");
    }
}

/// Attempts whose futures are kept without being polled, as in a `select!` whose other branch goes
/// on, do not use up the number of attempts at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_that_are_not_polled_keep_nobody_waiting() {
    for database in databases("unpolled_attempts").await {
        for scheme in ["row", "named"] {
            let client = open(&database.url(&format!("&scheme={scheme}"))).await.expect("opens");
            let (store, note) = (client.store(), Arc::from("note"));
            let mine = ticket(Duration::from_secs(600));
            let attempt = async |n: u32| {
                let (line, mine) = (Name::new(n.to_string()).expect("good"), ticket(mine.lease));
                store.enter(&line, &mine, &note, Enter::Try).await
            };
            let mut kept = Vec::new();
            for n in 1..=24 {
                let mut one = Box::pin(attempt(n));
                if one.as_mut().now_or_never().is_none() {
                    kept.push(one); // otherwise it was answered at once, by the store's own thread
                }
            }
            assert!(kept.len() > 8, "{scheme}: {} are under way", kept.len());
            let standing = soon("an answer", attempt(0)).await.expect("works");
            assert!(matches!(standing, Standing::Admitted(_)), "{scheme}: {standing:?}");
        }
    }
}

/// Records that another client has locked, for which calls wait one after the other, hold up no
/// renewal of another lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_locked_hold_up_no_renewal() {
    for database in databases("blocked_records").await {
        for (scheme, mark) in [("row", "01"), ("named", "02")] {
            let url = database.url(&format!("&scheme={scheme}&timeout=20s"));
            let (client, lease) = (open(&url).await.expect("opens"), Duration::from_secs(4));
            let names: Vec<_> = (0..8).map(|n| format!("blocked{n}")).collect();
            for name in &names {
                let guard = Mutex::new(&client, name).lock().await.expect("works");
                guard.unlock().await.expect("held");
            }
            let guard = Mutex::new(&client, "held").lease(lease).lock().await.expect("works");
            let mut conn = database.conn().await;
            conn.query_drop("START TRANSACTION").await.expect("works");
            let keys = names.iter().map(|name| format!("CONCAT(x'{mark}', '{name}')"));
            // It locks no other rows.
            let locks = format!(
                "SELECT COUNT(weight) FROM holdline_line FORCE INDEX (PRIMARY) WHERE name IN ({}) \
                 FOR UPDATE",
                keys.collect::<Vec<_>>().join(", ")
            );
            assert_eq!(first::<usize>(&mut conn, &locks).await, names.len());
            let blocked = names.iter().map(|name| {
                let (client, line) = (client.clone(), Name::new(name).expect("good"));
                async move {
                    let (mine, note) = (ticket(Duration::from_secs(600)), Arc::from("note"));
                    let store = client.store();
                    while store.enter(&line, &mine, &note, Enter::Try).await.is_err() {}
                }
            });
            let blocked: JoinSet<_> = blocked.collect();
            tokio::time::sleep(lease * 3 / 2).await;
            assert!(guard.is_valid(), "{scheme}: it was not renewed");
            conn.query_drop("ROLLBACK").await.expect("works");
            soon("the blocked ones", blocked.join_all()).await;
            guard.unlock().await.expect("held");
        }
    }
}

/// A row lock and a named lock of the same name are two locks, whose holders do not take each
/// other's record for their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_and_named_are_two_locks() {
    for database in databases("both").await {
        let (row, named) = (database.url("&scheme=row"), database.url("&scheme=named"));
        let clients = [open(&row).await.expect("opens"), open(&named).await.expect("opens")];
        let mut guards = Vec::new();
        for client in &clients {
            let guard = Mutex::new(client, "x").try_lock().await.expect("works");
            guards.push(guard.expect("the other is another lock"));
        }
        for (client, guard) in clients.iter().zip(&guards) {
            let holders = client.inspect("x").await.expect("works").holders;
            assert_eq!(holders.first().map(|holder| holder.id), Some(guard.ticket()));
            assert_eq!(client.list("x").await.expect("works").len(), 1);
        }
        for guard in guards {
            guard.extend(Duration::from_secs(30)).await.expect("held");
            guard.unlock().await.expect("held");
        }
        for client in &clients {
            assert!(client.list("x").await.expect("works").is_empty());
        }
    }
}

/// There are no requests between renewals: the end of a connection is seen on its socket. And the
/// server ends no connection that holds a lock, whatever its defaults.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lock_is_quiet_and_is_left_alone() {
    let Some(server) = private("mysql-quiet", &[]) else { return };
    let database = Database::fresh(&server.url(), "quiet").await;
    let mut conn = database.conn().await;
    conn.query_drop(
        "SET GLOBAL wait_timeout = 1, idle_transaction_timeout = 1, \
         idle_write_transaction_timeout = 1, idle_readonly_transaction_timeout = 1, \
         max_statement_time = 1",
    )
    .await
    .expect("it may");
    for scheme in ["row", "named"] {
        let client = open(&database.url(&format!("&scheme={scheme}"))).await.expect("opens");
        let lock = Mutex::new(&client, scheme).lease(Duration::from_secs(600));
        let guard = lock.lock().await.expect("works");
        let before = count(&mut conn, "Questions").await;
        tokio::time::sleep(Duration::from_secs(3)).await; // longer than the server's limits
        assert_eq!(count(&mut conn, "Questions").await, before + 1, "{scheme}: this one");
        let other = open(&database.url(&format!("&scheme={scheme}"))).await.expect("opens");
        assert!(Mutex::new(&other, scheme).try_lock().await.expect("works").is_none());
        guard.unlock().await.expect("it is still held");
    }
}

/// A failed try asks only for the lock, not for its record. The statements of one message are
/// counted one by one: the lock comes with `wait_timeout`, and a failed row lock with a rollback.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_try_asks_for_the_lock_alone() {
    let Some(server) = private("mysql-try", &[]) else { return };
    let database = Database::fresh(&server.url(), "try").await;
    let mut conn = database.conn().await;
    for (scheme, statements) in [("row", 3), ("named", 2)] {
        let url = database.url(&format!("&scheme={scheme}"));
        let (one, other) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
        let lock = Mutex::new(&one, scheme).fixed_lease(Duration::from_secs(600));
        let guard = lock.lock().await.expect("works");
        let rival = Mutex::new(&other, scheme);
        assert!(rival.try_lock().await.expect("works").is_none()); // connects
        let before = count(&mut conn, "Questions").await;
        for _ in 0..10 {
            assert!(rival.try_lock().await.expect("works").is_none());
        }
        let asked = count(&mut conn, "Questions").await - before;
        assert_eq!(asked, 10 * statements + 1, "{scheme}, with this one");
        guard.unlock().await.expect("held");
    }
}

/// A connection that the server ends takes its lock with it: the holder is told long before its
/// lease is over, and the next holder has a higher token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_connection_is_a_loss() {
    for database in databases("ended_session").await {
        for scheme in ["row", "named"] {
            let url = database.url(&format!("&scheme={scheme}"));
            let (one, other) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
            let lock = Mutex::new(&one, "x").lease(Duration::from_secs(600));
            let guard = lock.lock().await.expect("works");
            let mut conn = database.conn().await;
            let sql = "SELECT listener FROM holdline_line WHERE places > 0";
            let session: u64 = first(&mut conn, sql).await;
            let end = format!("KILL CONNECTION IS_USED_LOCK('holdline-session:{session}')");
            conn.query_drop(end).await.expect("it may");
            soon("the loss", guard.lost()).await;
            let next = soon("the next", Mutex::new(&other, "x").lock()).await.expect("works");
            assert!(next.token() > guard.token());
            next.unlock().await.expect("held");
        }
    }
}

/// The record that a crashed holder leaves behind is not taken for a holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_gone_is_not_listed() {
    for database in databases("gone").await {
        for scheme in ["row", "named"] {
            let client = open(&database.url(&format!("&scheme={scheme}"))).await.expect("opens");
            let (line, note) = (Name::new("x").expect("good"), Arc::from("note"));
            let mine = ticket(Duration::from_secs(600));
            let standing = client.store().enter(&line, &mine, &note, Enter::Try).await;
            assert!(matches!(standing, Ok(Standing::Admitted(_))), "{standing:?}");
            assert_eq!(client.inspect("x").await.expect("works").holders[0].id, mine.id);
            assert_eq!(client.list("").await.expect("works"), [line]);
            let end = "SELECT CONCAT('KILL CONNECTION ', IS_USED_LOCK(CONCAT('holdline-session:', \
                       listener))) FROM holdline_line WHERE places > 0";
            let mut conn = database.conn().await;
            let end: String = first(&mut conn, end).await;
            conn.query_drop(end).await.expect("it may");
            until("it has ended", async || {
                client.inspect("x").await.expect("works").holders.is_empty()
            })
            .await;
            assert!(client.list("").await.expect("works").is_empty());
            conn.query_drop("DELETE FROM holdline_line").await.expect("works");
        }
    }
}

/// A record left behind ends no other client's connection, whatever number the server has given
/// that connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_ends_only_the_session_on_record() {
    for database in databases("strangers").await {
        let client = open(&database.url("&scheme=row")).await.expect("opens");
        let lock = Mutex::new(&client, "x");
        lock.lock().await.expect("works").unlock().await.expect("held");
        let (mut conn, mut stranger) = (database.conn().await, database.conn().await);
        let session: u64 = first(&mut stranger, "SELECT CONNECTION_ID()").await;
        let left_behind = format!(
            "UPDATE holdline_line SET listener = {session}, expires = 1 << 62, due = 1 << 62, \
             places = 1, held = 1, id = UNHEX(LPAD('1', 32, '0'))"
        );
        let (line, id) = (Name::new("x").expect("good"), TicketId(1));
        conn.query_drop(&left_behind).await.expect("works");
        let evicted = client.store().evict(&line, id, "why").await.expect("works");
        assert!(evicted.is_some(), "it was on record");
        stranger.ping().await.expect("it was left alone");
        // The session on record is ended.
        conn.query_drop(&left_behind).await.expect("works");
        let named = format!("SELECT GET_LOCK('holdline-session:{session}', 0)");
        assert_eq!(first::<u8>(&mut stranger, &named).await, 1);
        client.store().evict(&line, id, "why").await.expect("works");
        stranger.ping().await.expect_err("it was ended");
    }
}

/// A holder that releases its lock while somebody breaks it, and takes another lock with the same
/// session, keeps that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_leaves_a_session_alone_that_has_moved_on() {
    let Some(server) = private("mysql-moved-on", &[]) else { return };
    let database = Database::fresh(&server.url(), "moved_on").await;
    let link = Link::to(&*server.hosts()[0]).expect("a port is free");
    for scheme in ["row", "named"] {
        let url = database.url(&format!("&scheme={scheme}&timeout=60s"));
        let holder = open(&url).await.expect("opens");
        let lock = |name| Mutex::new(&holder, name).lease(Duration::from_secs(600));
        let guard = lock("x").lock().await.expect("works");
        let (line, id) = (Name::new("x").expect("good"), guard.ticket());
        let remover = url.replace(&server.hosts()[0], &link.address().to_string());
        let remover = open(&remover).await.expect("opens");
        remover.store().evict(&line, TicketId(1), "why").await.expect("works"); // connects
        let mut conn = database.conn().await;
        let before = count(&mut conn, "Com_select").await;
        link.stall(Way::Replies);
        let removing = tokio::spawn(async move { remover.store().evict(&line, id, "why").await });
        until("it has found the session", async || count(&mut conn, "Com_select").await > before)
            .await;
        let session = "SELECT listener FROM holdline_line WHERE places > 0";
        let first_session: u64 = first(&mut conn, session).await;
        guard.unlock().await.expect("held");
        let guard = lock("y").lock().await.expect("works");
        assert_eq!(first::<u64>(&mut conn, session).await, first_session, "it is used again");
        link.mend();
        let removed = soon("the answer", removing).await.expect("no panic").expect("works");
        assert_eq!(removed, None, "{scheme}: x was released");
        guard.extend(Duration::from_secs(900)).await.expect("y is still held");
        guard.unlock().await.expect("held");
    }
}

/// A user that may not end the holder's connection is told which right it lacks. The holder learns
/// that its record is gone when it renews.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_needs_the_right_to_end_the_session() {
    for database in databases("another_user").await {
        for sql in [
            "DROP USER IF EXISTS another@'%'".to_owned(),
            "CREATE USER another@'%'".to_owned(),
            format!("GRANT ALL ON {}.* TO another@'%'", database.name()),
        ] {
            database.conn().await.query_drop(sql).await.expect("it may");
        }
        for scheme in ["row", "named"] {
            let url = database.url(&format!("&scheme={scheme}"));
            let holder = open(&url).await.expect("opens");
            let another = url.replace("//holdline@", "//another@");
            let another = open(&another).await.expect("opens");
            let lock = Mutex::new(&holder, "x").lease(Duration::from_secs(600));
            let guard = lock.lock().await.expect("works");
            let broken = another.force_unlock("x", guard.ticket(), "a test").await;
            let error = broken.expect_err("it may not");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            let error = guard.extend(Duration::from_secs(900)).await.expect_err("it is not held");
            assert!(error.is_lost(), "{error}");
        }
    }
}

/// A lock without a record, which others can neither see nor break, is freed by the server when its
/// lease is over, as if its holder had frozen at that moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_recorded_ends_with_its_lease() {
    for database in databases("no_record").await {
        for scheme in ["row", "named"] {
            let url = database.url(&format!("&scheme={scheme}&timeout=60s"));
            let (client, mut conn) = (open(&url).await.expect("opens"), database.conn().await);
            let mut table = database.conn().await;
            table.query_drop("LOCK TABLES holdline_line WRITE").await.expect("works");
            let lock = Mutex::new(&client, "x").lease(Duration::from_secs(2));
            let locking = tokio::spawn(async move { lock.lock().await });
            let ours = format!(
                "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() \
                 AND command = 'Sleep' AND id <> {}",
                table.id()
            );
            let recording = "SELECT COUNT(*) FROM information_schema.processlist \
                             WHERE db = DATABASE() AND state LIKE 'Waiting for table%'";
            until("it has the lock", async || {
                first::<u64>(&mut conn, recording).await > 0
                    && first::<u64>(&mut conn, &ours).await > 0
            })
            .await;
            let began = Instant::now();
            until("the server ends it", async || first::<u64>(&mut conn, &ours).await == 0).await;
            // The client itself would close it after waiting a minute for the record.
            assert!(began.elapsed() < Duration::from_secs(30), "{scheme}: {:?}", began.elapsed());
            table.query_drop("UNLOCK TABLES").await.expect("works");
            let guard = soon("the lock", locking).await.expect("no panic").expect("works");
            guard.unlock().await.expect("held");
        }
    }
}

/// These locks cannot be shared, so readers are refused and not treated as writers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_are_refused() {
    for database in databases("readers").await {
        for scheme in ["row", "named"] {
            let client = open(&database.url(&format!("&scheme={scheme}"))).await.expect("opens");
            let error = RwLock::new(&client, "x").read().await.expect_err("they are not shared");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
    }
}

/// A holder is recorded only if its session still exists: after a pause before the record, another
/// may be the holder on record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_session_is_not_recorded() {
    for database in databases("late_record").await {
        for scheme in ["row", "named"] {
            let url = database.url(&format!("&scheme={scheme}&timeout=30s"));
            let client = open(&url).await.expect("opens");
            let (mut table, mut conn) = (database.conn().await, database.conn().await);
            table.query_drop("LOCK TABLES holdline_line WRITE").await.expect("works");
            let lock = Mutex::new(&client, "x").lease(Duration::from_secs(600));
            let locking = tokio::spawn(async move { lock.lock().await });
            // It has the lock, and is about to record that.
            until("it waits for the table", async || {
                let sql = "SELECT COUNT(*) FROM information_schema.processlist \
                           WHERE db = DATABASE() AND state LIKE 'Waiting for table%'";
                first::<u64>(&mut conn, sql).await == 1
            })
            .await;
            // The connection that has it is idle.
            let idle = format!(
                "SELECT id FROM information_schema.processlist WHERE db = DATABASE() \
                 AND command = 'Sleep' AND id <> {}",
                table.id()
            );
            let holders: Vec<u64> = conn.query(&idle).await.expect("works");
            assert!(!holders.is_empty(), "{scheme}: it is there");
            for id in holders {
                let _ = conn.query_drop(format!("KILL CONNECTION {id}")).await; // or it has gone
                let there = format!(
                    "SELECT COUNT(*) FROM information_schema.processlist \
                                     WHERE id = {id}"
                );
                // Once killed, it is no longer idle, but exists until it has ended.
                until("it has ended", async || first::<u64>(&mut conn, &there).await == 0).await;
            }
            table.query_drop("UNLOCK TABLES").await.expect("works");
            let guard = soon("the lock", locking).await.expect("no panic").expect("works");
            let sql = "SELECT IS_USED_LOCK(CONCAT('holdline-session:', listener)) IS NOT NULL \
                       FROM holdline_line WHERE places > 0";
            assert!(first::<bool>(&mut conn, sql).await, "{scheme}: a session that is there");
            guard.unlock().await.expect("held");
        }
    }
}

/// A missing answer says nothing about a lock, least of all that it was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlock_without_an_answer_is_no_loss() {
    let Some(server) = private("mysql-unlock", &[]) else { return };
    let database = Database::fresh(&server.url(), "unlock").await;
    for scheme in ["row", "named"] {
        let url = database.url(&format!("&scheme={scheme}"));
        let client = open(&url).await.expect("opens");
        let guard = Mutex::new(&client, scheme).lock().await.expect("works");
        server.servers[0].pause();
        let unlocked = guard.unlock().await;
        server.servers[0].resume();
        let error = unlocked.expect_err("there was no answer");
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        soon("it is given up", client.settle()).await;
        let again = soon("the next", Mutex::new(&client, scheme).lock()).await.expect("free");
        again.unlock().await.expect("held");
    }
}

/// Rows locked during an InnoDB page split do not prevent inserts beside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_locked_leave_the_gaps_between_them_free() {
    // About thirty of these fill a page.
    let name = |number: usize| format!("{number:0>500}");
    for database in databases("gaps").await {
        let url = database.url("&scheme=row");
        let (one, other) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
        let mut guards = Vec::new();
        for number in (0..100).step_by(2) {
            guards.push(soon("a lock", Mutex::new(&one, name(number)).lock()).await.expect("free"));
        }
        for number in (1..100).step_by(2) {
            let between = Mutex::new(&other, name(number)).try_lock().await.expect("works");
            between.unwrap_or_else(|| panic!("{number} is free")).unlock().await.expect("held");
        }
        for guard in guards {
            guard.unlock().await.expect("held");
        }
    }
}
