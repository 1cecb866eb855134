//! ShedLock's table. `tests/peers` tests it with the ShedLock library itself.

use crate::server::{Database, databases, first, private, ticket};
use futures_util::FutureExt;
use holdline::store::{Enter, Seq, Standing};
use holdline::{Backoff, ErrorKind, Mutex, Name, RwLock, open, schema};
use holdline_testkit::{Link, Way, until};
use mysql_async::prelude::Queryable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const SCHEME: &str = "&scheme=shedlock";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_is_not_made_silently_and_its_times_are_looked_at() {
    for database in databases("shedlock_table").await {
        let plain = database.url(SCHEME).replace("install=yes", "install=no");
        let error = open(&plain).await.expect_err("no table");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("install=yes"), "{error}");
        schema::install(&plain).await.expect("it is made");
        let error = schema::sweep(&plain, Duration::ZERO).await.expect_err("its rows stay");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        open(&database.url(SCHEME)).await.expect("it is there");
        open(&plain).await.expect("it is there");
        let mut conn = database.conn().await;
        for (kind, good) in [
            ("TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)", true), // both servers are in UTC
            ("DATETIME(3) NOT NULL", true),
            ("DATETIME NOT NULL", false),
            ("VARCHAR(30) NOT NULL", false),
        ] {
            let sql = format!("ALTER TABLE shedlock MODIFY lock_until {kind}");
            conn.query_drop(sql).await.expect("works");
            let opened = open(&plain).await;
            assert_eq!(opened.is_ok(), good, "{kind}: {:?}", opened.err());
        }
    }
}

/// Sessions in different time zones do not agree on the times in such columns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timestamps_are_refused_where_the_server_is_not_in_utc() {
    let options = ["--default-time-zone=+09:00"];
    let Some(server) = private("shedlock_zone", &options) else { return };
    let database = Database::fresh(&server.url(), "zone").await;
    open(&database.url(SCHEME)).await.expect("it has other times");
    let sql = "ALTER TABLE shedlock MODIFY lock_until TIMESTAMP(3)";
    database.conn().await.query_drop(sql).await.expect("works");
    let error = open(&database.url(SCHEME)).await.expect_err("the zone");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("+09:00"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_those_of_shedlock() {
    for database in databases("shedlock_rows").await {
        let client = open(&database.url(SCHEME)).await.expect("opens");
        let mut conn = database.conn().await;
        let lock = Mutex::new(&client, "job").label("me");
        let guard = lock.lock().await.expect("works");
        let held = "SELECT lock_until > UTC_TIMESTAMP(6) AND locked_at <= UTC_TIMESTAMP(6) AND \
                    lock_until < UTC_TIMESTAMP(6) + INTERVAL 1 HOUR FROM shedlock \
                    WHERE name = 'job'";
        assert!(first::<bool>(&mut conn, held).await, "times are UTC");
        let info = client.inspect("job").await.expect("works");
        assert_eq!(info.holders[0].id, guard.ticket());
        assert_eq!(info.holders[0].note.label.as_deref(), Some("me"));
        assert_eq!(client.list("j").await.expect("works").len(), 1);
        guard.unlock().await.expect("it was held");
        let rows = first::<u64>(&mut conn, "SELECT COUNT(*) FROM shedlock").await;
        assert_eq!(rows, 1, "the row stays");
        // Another program's.
        let theirs = "UPDATE shedlock SET locked_by = 'host-1', \
                      lock_until = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR";
        conn.query_drop(theirs).await.expect("works");
        assert!(lock.try_lock().await.expect("works").is_none());
        let info = client.inspect("job").await.expect("works");
        let broken = client.force_unlock("job", info.holders[0].id, "a test").await;
        assert!(broken.expect("works").is_some());
        lock.lock().await.expect("works").unlock().await.expect("it was held");
        let error = Mutex::new(&client, "x".repeat(256)).lock().await.expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let error = RwLock::new(&client, "job").read().await.expect_err("none");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

/// By default, `locked_by` is the name of the host. A force unlock that comes late, or whose first
/// attempt was carried out without an answer, must not remove the next hold of that host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_hold_of_another_program_has_an_id_of_its_own() {
    for database in databases("shedlock_host").await {
        let client = open(&database.url(SCHEME)).await.expect("opens");
        let mut conn = database.conn().await;
        let mut ids = Vec::new();
        for kind in ["DATETIME(3)", "TIMESTAMP(3)"] {
            let alter = format!("ALTER TABLE shedlock MODIFY locked_at {kind} NOT NULL");
            conn.query_drop(alter).await.expect("works");
            for second in 1..=2 {
                let take = format!(
                    "REPLACE INTO shedlock VALUES ('job', UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, \
                     '2026-01-01 00:00:00.00{second}', 'host-1')"
                );
                conn.query_drop(take).await.expect("works");
                ids.push(client.inspect("job").await.expect("works").holders[0].id);
            }
            let [.., earlier, later] = ids[..] else { panic!("{ids:?}") };
            assert_ne!(earlier, later);
            for (id, there) in [(earlier, false), (later, true)] {
                let broken = client.force_unlock("job", id, "a test").await.expect("works");
                assert_eq!(broken.is_some(), there, "{kind}");
            }
        }
    }
}

/// Such a server refuses what the scheme writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_logs_statements_is_refused() {
    let options = ["--log-bin=log", "--server-id=1", "--binlog-format=STATEMENT"];
    let Some(server) = private("shedlock_statements", &options) else { return };
    let database = Database::fresh(&server.url(), "statements").await;
    let client = open(&database.url(SCHEME)).await.expect("opens");
    let error = Mutex::new(&client, "job").lock().await.expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("binlog_format"), "{error}");
}

/// A lock held by another client is only read: the try waits neither for its row nor for the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_try_waits_for_nobody() {
    for database in databases("shedlock_try").await {
        let client = open(&database.url(SCHEME)).await.expect("opens");
        let lock = Mutex::new(&client, "job");
        let guard = lock.lock().await.expect("works");
        let mut conn = database.conn().await;
        let locks = "START TRANSACTION; SELECT * FROM shedlock WHERE name = 'job' FOR UPDATE";
        conn.query_drop(locks).await.expect("works");
        assert!(lock.try_lock().await.expect("is not held up").is_none());
        conn.query_drop("ROLLBACK").await.expect("works");
        guard.unlock().await.expect("it was held");
    }
}

/// A repeated request gets the same answer; a ticket that left is not brought back by a renewal,
/// even while its lock stays locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_may_be_repeated() {
    for database in databases("shedlock_repeated").await {
        let url = database.url("&scheme=shedlock&at_least=1h");
        let client = open(&url).await.expect("opens");
        let store = client.store();
        let line = Name::new("x").expect("a name");
        let note: Arc<str> = "".into();
        let [mine, next] = [ticket(Duration::from_secs(60)), ticket(Duration::from_secs(60))];
        let held = Standing::Admitted(Seq(0));
        for how in [Enter::Try, Enter::Queue, Enter::Keep(Seq(0)), Enter::Keep(Seq(0))] {
            assert_eq!(store.enter(&line, &mine, &note, how).await.expect("works"), held);
        }
        let keep = Enter::Keep(Seq(0));
        let not_theirs = store.enter(&line, &next, &note, keep).await.expect("works");
        assert_eq!(not_theirs, Standing::Lost);
        assert!(store.leave(&line, mine.id).await.expect("works"));
        assert!(!store.leave(&line, mine.id).await.expect("works"));
        assert_eq!(store.enter(&line, &mine, &note, keep).await.expect("works"), Standing::Lost);
        for ticket in [&mine, &next] {
            let standing = store.enter(&line, ticket, &note, Enter::Queue).await.expect("works");
            assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
        }
    }
}

/// G6: a lock of whose acquisition the caller never learned is free as soon as it is given up,
/// whatever the minimum time is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_given_up_unseen_is_free_at_once() {
    let Some(server) = private("shedlock-unseen", &[]) else { return };
    let database = Database::fresh(&server.url(), "unseen").await;
    let host = server.hosts().remove(0);
    let link = Link::to(&*host).expect("a link");
    let url = database.url("&scheme=shedlock&at_least=1h&timeout=20s");
    let client = open(&url.replace(&host, &link.address().to_string())).await.expect("opens");
    let (store, line) = (client.store(), Name::new("x").expect("a name"));
    let [mine, next] = [(); 2].map(|()| ticket(Duration::from_secs(600)));
    let note: Arc<str> = "".into();
    link.stall(Way::Replies);
    let mut entering = Box::pin(store.enter(&line, &mine, &note, Enter::Queue));
    assert!((&mut entering).now_or_never().is_none(), "it has no answer");
    let mut conn = database.conn().await;
    let taken = "SELECT COUNT(*) FROM shedlock WHERE lock_until > SYSDATE(6)";
    until("it is taken", async || first::<u64>(&mut conn, taken).await == 1).await;
    drop(entering);
    link.mend();
    assert!(store.leave(&line, mine.id).await.expect("works"));
    let standing = store.enter(&line, &next, &note, Enter::Queue).await.expect("works");
    assert_eq!(standing, Standing::Admitted(Seq(0)));
    assert!(store.leave(&line, next.id).await.expect("works"));
    assert_eq!(first::<u64>(&mut conn, taken).await, 1, "it was held");
}

/// Among several clients, there are never two holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_holds_at_a_time() {
    for database in databases("shedlock_alone").await {
        let inside = Arc::new(AtomicU32::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let url = database.url(SCHEME);
            let (client, inside) = (open(&url).await.expect("opens"), Arc::clone(&inside));
            tasks.spawn(async move {
                let poll = Backoff::fixed(Duration::from_millis(2)).jitter(50);
                let lock = Mutex::new(&client, "x").poll(poll);
                for _ in 0..20 {
                    let guard = lock.lock().await.expect("works");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().await.expect("it was held");
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
    }
}
