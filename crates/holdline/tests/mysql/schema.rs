//! The tables and procedures, which are never installed without a request.

use crate::server::{Database, blocked, databases, first};
use futures_util::future::join_all;
use holdline::store::{Enter, Seq, Standing, Ticket};
use holdline::{ErrorKind, Mutex, Name, open, schema};
use holdline_testkit::{ticket, until};
use mysql_async::prelude::Queryable;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_not_installed_silently() {
    for database in databases("silent").await {
        let url = database.url("").replace("install=yes", "install=no");
        let error = open(&url).await.expect_err("there are no tables");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("holdline schema mysql --install"), "{error}");
        let mut conn = database.conn().await;
        let tables: Vec<String> = conn.query("SHOW TABLES").await.expect("works");
        assert!(tables.is_empty(), "{tables:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_be_installed_by_many_at_once_and_again() {
    for database in databases("at_once").await {
        let url = database.url("");
        let many = join_all((0..8).map(|_| schema::install(&url))).await;
        for installed in many {
            installed.expect("each succeeds");
        }
        let client = open(&url).await.expect("opens");
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        let mariadb = url.replace("mysql:", "mariadb:");
        schema::install(&mariadb).await.expect("again, by the other name");
        guard.unlock().await.expect("it was not disturbed");
    }
}

/// The rights in the guide are enough, to install and to use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_rights_are_enough() {
    for database in databases("rights").await {
        let mut conn = database.conn().await;
        let user = async |name: &str, rights: &str| {
            let user = format!("'{name}'@'%'");
            conn_run(&database, &format!("DROP USER IF EXISTS {user}")).await;
            conn_run(&database, &format!("CREATE USER {user} IDENTIFIED BY 'p@ss:word'")).await;
            let schema = database.name();
            conn_run(&database, &format!("GRANT {rights} ON {schema}.* TO {user}")).await;
            database.url("").replace("//holdline@", &format!("//{name}:p%40ss%3aword@"))
        };
        let owner = user("holdline_owner", "CREATE, CREATE ROUTINE, INSERT").await;
        schema::install(&owner).await.expect("it may install");
        let rights = "SELECT, INSERT, UPDATE, DELETE, EXECUTE";
        let plain = user("holdline_plain", rights).await.replace("install=yes", "install=no");
        let client = open(&plain).await.expect("it may use it");
        Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
        let error = schema::install(&plain).await.expect_err("it may not install");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("denies a permission"), "{error}");
        conn_run(&database, "CREATE DATABASE IF NOT EXISTS holdline_other").await;
        let other = plain.replace(&format!("/{}?", database.name()), "/holdline_other?");
        let error = open(&other).await.expect_err("it has no right there");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("denies a permission in the database"), "{error}");
        conn_run(&database, "DROP DATABASE holdline_other").await;
        let wrong = plain.replace("p%40ss", "other");
        let error = open(&wrong).await.expect_err("a wrong password");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!format!("{error:?}").contains("other:word"), "{error:?}");
        conn.query_drop("DROP USER holdline_owner, holdline_plain").await.expect("works");
    }
}

async fn conn_run(database: &Database, sql: &str) {
    database.conn().await.query_drop(sql).await.expect("works");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_version_is_refused() {
    for database in databases("version").await {
        schema::install(&database.url("")).await.expect("installs");
        conn_run(&database, "UPDATE holdline_schema SET version = 7").await;
        let error = open(&database.url("")).await.expect_err("another version");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("version 7"), "{error}");
        let error = schema::install(&database.url("")).await.expect_err("it is newer");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("update this program"), "{error}");
        conn_run(&database, "UPDATE holdline_schema SET version = 0").await;
        let error = open(&database.url("").replace("install=yes", "install=no")).await;
        let error = error.expect_err("another version").to_string();
        assert!(error.contains("holdline schema mysql --install"), "{error}");
        let said = schema::install(&database.url("")).await.expect("it is older");
        assert!(said.contains("has version 1 of the tables"), "{said}");
        open(&database.url("")).await.expect("opens");
    }
}

/// A sweep removes unused locks, and tokens keep rising.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_removes_unused_locks_only() {
    for database in databases("sweep").await {
        let url = database.url("");
        let client = open(&url).await.expect("opens");
        let mut last = None;
        for n in 0..5 {
            let guard = Mutex::new(&client, format!("old{n}")).lock().await.expect("works");
            last = last.max(Some(guard.token()));
            guard.unlock().await.expect("held");
        }
        let guard = Mutex::new(&client, "held").lock().await.expect("works");
        assert_eq!(schema::sweep(&url, Duration::from_secs(3600)).await.expect("works"), 0);
        assert_eq!(schema::sweep(&url, Duration::ZERO).await.expect("works"), 5);
        let again = Mutex::new(&client, "old0").lock().await.expect("works");
        assert!(Some(again.token()) > last);
        again.unlock().await.expect("held");
        guard.unlock().await.expect("it was not removed");
    }
}

/// The same for locks that connections hold. The row that one has locked stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_removes_the_records_of_connections() {
    for database in databases("sweep_records").await {
        let url = database.url("");
        let mut conn = database.conn().await;
        let rows = "SELECT COUNT(NULLIF(name, '')), (SELECT COUNT(*) FROM holdline_row) \
                    FROM holdline_line";
        for (scheme, count) in [("row", 1), ("named", 0)] {
            let client = open(&database.url(&format!("&scheme={scheme}"))).await.expect("opens");
            let lock = async |name| Mutex::new(&client, name).lock().await.expect("it is free");
            let held = lock("held").await;
            let old = lock("old").await;
            let last = old.token();
            old.unlock().await.expect("held");
            assert_eq!(schema::sweep(&url, Duration::ZERO).await.expect("works"), 1, "{scheme}");
            assert_eq!(first::<(u64, u64)>(&mut conn, rows).await, (1, count), "{scheme}");
            let again = lock("old").await;
            assert!(again.token() > last, "{scheme}");
            again.unlock().await.expect("held");
            held.unlock().await.expect("it was not removed");
            assert_eq!(schema::sweep(&url, Duration::ZERO).await.expect("works"), 2, "{scheme}");
            assert_eq!(first::<(u64, u64)>(&mut conn, rows).await, (0, 0), "{scheme}");
        }
    }
}

/// A sweep keeps the highest token that it removed, for the case that the server's clock is set
/// back. A row that is a day ahead stands for a clock that is a day behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_a_sweep_whatever_the_clock_says() {
    for database in databases("sweep_clock").await {
        let url = database.url("");
        let mut conn = database.conn().await;
        for scheme in ["table", "row", "named"] {
            let client = open(&database.url(&format!("&scheme={scheme}"))).await.expect("opens");
            let lock = async || Mutex::new(&client, "old").lock().await.expect("it is free");
            let old = lock().await;
            let token = old.token();
            old.unlock().await.expect("held");
            assert_eq!(schema::sweep(&url, Duration::ZERO).await.expect("works"), 1, "{scheme}");
            let ahead = "UPDATE holdline_line SET last = last + 86400000000 WHERE name = ''";
            conn.query_drop(ahead).await.expect("works");
            let kept =
                first::<u64>(&mut conn, "SELECT last FROM holdline_line WHERE name = ''").await;
            assert_eq!(kept, token + 86_400_000_000, "{scheme}");
            let again = lock().await;
            assert!(again.token() > kept, "{scheme}");
            again.unlock().await.expect("held");
            conn.query_drop("DELETE FROM holdline_line").await.expect("works");
        }
    }
}

/// Without its row, a line's later places belong to none: they do not come back with a new row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_of_a_deleted_line_are_gone() {
    for database in databases("deleted_line").await {
        let client = open(&database.url("")).await.expect("opens");
        let (store, name) = (client.store(), Name::new("x").expect("a good name"));
        let (note, long): (Arc<str>, _) = ("".into(), Duration::from_secs(60));
        let (tickets, new) = ([1, 2, 3].map(|n| ticket(n, long)), [4, 5].map(|n| ticket(n, long)));
        let mut places = Vec::new();
        for ticket in &tickets {
            match store.enter(&name, ticket, &note, Enter::Queue).await.expect("works") {
                Standing::Admitted(seq) => places.push(seq),
                Standing::Waiting { seq, .. } => places.push(seq.expect("it is in the line")),
                Standing::Lost => panic!("it has just come"),
            }
        }
        let mut conn = database.conn().await;
        conn.query_drop("DELETE FROM holdline_line").await.expect("works");
        let standing = store.enter(&name, &new[0], &note, Enter::Queue).await.expect("works");
        assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
        for (ticket, seq) in tickets.iter().zip(places) {
            let kept = store.enter(&name, ticket, &note, Enter::Keep(seq)).await.expect("works");
            assert_eq!(kept, Standing::Lost);
        }
        let standing = store.enter(&name, &new[1], &note, Enter::Queue).await.expect("works");
        assert!(matches!(standing, Standing::Waiting { .. }), "{standing:?}");
        let places = store.snapshot(&name).await.expect("works").places;
        assert_eq!(places.iter().map(|place| place.id).collect::<Vec<_>>(), new.map(|it| it.id));
    }
}

/// A sweep leaves a line alone that has a holder although a waiter's place has expired; and one
/// that bars a ticket, whose late request would take a place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_leaves_holders_and_bars_alone() {
    for database in databases("sweep_not").await {
        let url = database.url("");
        let client = open(&url).await.expect("opens");
        let (store, name) = (client.store(), Name::new("x").expect("a good name"));
        let (note, long): (Arc<str>, _) = ("".into(), Duration::from_secs(600));
        let mine = ticket(1, long);
        let standing = store.enter(&name, &mine, &note, Enter::Queue).await.expect("works");
        let Standing::Admitted(seq) = standing else { panic!("{standing:?}") };
        let dies = Ticket { wait_lease: Duration::from_millis(1), ..ticket(2, long) };
        store.enter(&name, &dies, &note, Enter::Queue).await.expect("works");
        let mut conn = database.conn().await;
        let bars = "CALL holdline_1_leave('y', REPEAT('i', 16), 600000000, NULL, 0, 0)";
        conn.query_drop(bars).await.expect("works");
        let due = "SELECT due < UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 FROM holdline_line \
                   WHERE name = 'x'";
        until("the place has expired", async || first::<bool>(&mut conn, due).await).await;
        assert_eq!(schema::sweep(&url, Duration::ZERO).await.expect("works"), 0);
        let kept = store.enter(&name, &mine, &note, Enter::Keep(seq)).await.expect("works");
        assert_eq!(kept, Standing::Admitted(seq));
        let late = "CALL holdline_1_enter('y', REPEAT('i', 16), 1, 1, 1000000, 1000000, 1, 0, -2, \
                    '', 0)";
        let answer: (u8, Option<u64>, i64, Vec<u8>) = first(&mut conn, late).await;
        assert_eq!(answer.0, 2, "it is lost, and takes no place");
    }
}

/// The highest token of all swept lines is kept, in whatever order they are swept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_keeps_the_highest_token() {
    for database in databases("sweep_highest").await {
        let url = database.url("");
        let client = open(&url).await.expect("opens");
        let used = async |name: &str| {
            let guard = Mutex::new(&client, name).lock().await.expect("works");
            let token = guard.token();
            guard.unlock().await.expect("held");
            token
        };
        let mut conn = database.conn().await;
        let kept = "SELECT last FROM holdline_line WHERE name = ''";
        // They are swept in the order of names.
        let tokens = [used("two").await, used("one").await];
        assert_eq!(schema::sweep(&url, Duration::ZERO).await.expect("works"), 2);
        assert_eq!(first::<u64>(&mut conn, kept).await, tokens[1]);
        used("one").await;
        let ahead = "UPDATE holdline_line SET last = last + 86400000000 WHERE name = ''";
        conn.query_drop(ahead).await.expect("works");
        assert_eq!(schema::sweep(&url, Duration::ZERO).await.expect("works"), 1);
        assert_eq!(first::<u64>(&mut conn, kept).await, tokens[1] + 86_400_000_000);
    }
}

/// A sweep that meets the renewal of a place that was about to expire reads what that has written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_takes_no_lock_that_is_renewed_meanwhile() {
    for database in databases("sweep_meets").await {
        let url = database.url("");
        let client = open(&url).await.expect("opens");
        let (store, name) = (client.store(), Name::new("x").expect("a good name"));
        let (note, short): (Arc<str>, _) = ("".into(), Duration::from_millis(1));
        let mine = ticket(1, short);
        let standing = store.enter(&name, &mine, &note, Enter::Queue).await.expect("works");
        let Standing::Admitted(seq) = standing else { panic!("{standing:?}") };
        let (mut conn, mut observer) = (database.conn().await, database.conn().await);
        let due = "SELECT due < UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 FROM holdline_line";
        until("the place has expired", async || first::<bool>(&mut conn, due).await).await;
        conn.query_drop("START TRANSACTION").await.expect("works");
        let renew = "UPDATE holdline_line SET expires = expires + 600000000, due = expires";
        conn.query_drop(renew).await.expect("works");
        let sweeping = tokio::spawn(async move { schema::sweep(&url, Duration::ZERO).await });
        until("it waits", async || sweeping.is_finished() || blocked(&mut observer).await).await;
        conn.query_drop("COMMIT").await.expect("works");
        // On a slow machine it may wait for longer than a statement may.
        if let Ok(swept) = sweeping.await.expect("no panic") {
            assert_eq!(swept, 0);
        }
        let kept = store.enter(&name, &mine, &note, Enter::Keep(seq)).await.expect("works");
        assert_eq!(kept, Standing::Admitted(seq));
    }
}

/// What a sweep has left to a name lowers no token of a line that exists.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_exists_keeps_its_tokens() {
    for database in databases("keeps_tokens").await {
        let client = open(&database.url("")).await.expect("opens");
        let (store, name) = (client.store(), Name::new("x").expect("a good name"));
        let (note, long): (Arc<str>, _) = ("".into(), Duration::from_secs(600));
        let far = Seq(1 << 60);
        let ahead = Ticket { min_token: far.0, ..ticket(1, long) };
        let standing = store.enter(&name, &ahead, &note, Enter::Queue).await.expect("works");
        assert_eq!(standing, Standing::Admitted(far));
        let mut conn = database.conn().await;
        let swept = "INSERT INTO holdline_line (name, last) VALUES ('', 7)";
        conn.query_drop(swept).await.expect("works");
        conn.query_drop("CALL holdline_1_create('x')").await.expect("works");
        assert!(store.leave(&name, ahead.id).await.expect("works"));
        let standing = store.enter(&name, &ticket(2, long), &note, Enter::Queue).await;
        let standing = standing.expect("works");
        assert!(matches!(standing, Standing::Admitted(token) if token > far), "{standing:?}");
    }
}

/// Bars and notes of removals by force do not pile up where nothing is swept: what has expired in a
/// line is removed with the next one, and only that. Bars that are over cost no later entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_expired_is_removed_with_the_next() {
    for database in databases("piles").await {
        let client = open(&database.url("")).await.expect("opens");
        let (store, note): (_, Arc<str>) = (client.store(), "".into());
        let mut conn = database.conn().await;
        let left = async |line: &str| {
            let id = fastrand::u128(..);
            let leave =
                format!("CALL holdline_1_leave('{line}', x'{id:032x}', 600000000, NULL, 0, 0)");
            conn_run(&database, &leave).await;
        };
        let removed = async |line: &str| {
            let (line, mine) = (Name::new(line).expect("good"), ticket(1, Duration::from_secs(60)));
            store.enter(&line, &mine, &note, Enter::Queue).await.expect("works");
            store.evict(&line, mine.id, "why").await.expect("works").expect("it held");
        };
        for line in ["x", "x", "y"] {
            left(line).await;
            removed(line).await;
        }
        let counts = "SELECT (SELECT COUNT(*) FROM holdline_barred), COUNT(*), \
                      (SELECT bar > 0 FROM holdline_line WHERE name = 'x') FROM holdline_evicted";
        assert_eq!(first::<(u64, u64, bool)>(&mut conn, counts).await, (3, 3, true));
        let expire = "UPDATE holdline_barred SET until = 1; UPDATE holdline_evicted SET until = 1";
        conn_run(&database, expire).await;
        left("x").await;
        removed("x").await;
        assert_eq!(first::<(u64, u64, bool)>(&mut conn, counts).await, (2, 2, true));
        let expire = "UPDATE holdline_barred SET until = 1; UPDATE holdline_line SET bar = 1";
        conn_run(&database, expire).await;
        for _ in 0..9 {
            removed("x").await;
        }
        assert_eq!(first::<(u64, u64, bool)>(&mut conn, counts).await, (1, 9, false));
    }
}
