//! The schema: printing, installation, checks, and the rights to use it.

use crate::raw::{Raw, ticket};
use crate::server::{Server, one, private, url_at};
use holdline::store::{Seq, Standing, Ticket};
use holdline::{ErrorKind, Mutex, Name, open, schema};
use holdline_testkit::{soon, until};
use std::time::Duration;

fn plain(server: &Server) -> String {
    server.url().replace("?install=yes", "")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_never_installed_silently() {
    let Some(server) = private("silently", &["fsync=off"]) else { return };
    let error = open(&plain(&server)).await.expect_err("there is no schema");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("holdline schema postgres --install"), "{error}");
    let there = "SELECT to_regnamespace('holdline') IS NOT NULL";
    let sql = server.sql().await;
    assert!(!one::<bool>(&sql, there, &[]).await);
    schema::install(&plain(&server)).await.expect("works");
    assert!(one::<bool>(&sql, there, &[]).await);
    open(&plain(&server)).await.expect("now it opens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_be_installed_often_and_at_the_same_time() {
    let Some(server) = private("often", &["fsync=off"]) else { return };
    let installing = (0..8).map(|_| {
        let url = server.url();
        tokio::spawn(async move { open(&url).await.map(drop) })
    });
    for done in installing.collect::<Vec<_>>() {
        done.await.expect("no panic").expect("opens");
    }
    let client = open(&plain(&server)).await.expect("opens");
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    schema::install(&plain(&server)).await.expect("works");
    guard.unlock().await.expect("still held");
}

/// With ShedLock's scheme, what is installed is ShedLock's table, and nothing is swept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_scheme_has_its_own_tables() {
    let Some(server) = private("schemes", &["fsync=off"]) else { return };
    let sql = server.sql().await;
    let url = plain(&server) + "?scheme=shedlock";
    schema::install(&url).await.expect("works");
    schema::install(&url).await.expect("again");
    let made = "SELECT string_agg(relname, ' ') FROM pg_class \
                WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'";
    assert_eq!(one::<Option<String>>(&sql, made, &[]).await.as_deref(), Some("shedlock"));
    let guard = Mutex::new(&open(&url).await.expect("opens"), "x").lock().await.expect("works");
    let error = schema::sweep(&url, Duration::ZERO).await.expect_err("the rows are ShedLock's");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    guard.unlock().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_have_any_name() {
    let Some(server) = private("name", &["fsync=off"]) else { return };
    for encoded in ["locks", "My%20%22Locks%22%20%C3%A9", "holdline2"] {
        let client = open(&format!("{}&schema={encoded}", server.url())).await.expect("opens");
        Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
    }
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname IN ('locks', 'My \"Locks\" é', \
                   'holdline2', 'holdline')";
    assert_eq!(one::<i64>(&server.sql().await, schemas, &[]).await, 3);
    assert_eq!(schema::text("postgres", Some("a'b")).expect_err("no").kind(), ErrorKind::Invalid);
}

/// The grants are those in the guide.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_needs_few_rights() {
    let Some(server) = private("rights", &["fsync=off"]) else { return };
    let sql = server.sql().await;
    schema::install(&plain(&server)).await.expect("works");
    let url = server.url().replace("postgres@", "app@"); // with install=yes
    sql.batch_execute("CREATE ROLE app LOGIN").await.expect("works");
    let error = open(&url).await.expect_err("no rights");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let grants = "GRANT USAGE ON SCHEMA holdline TO app; \
                  GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdline TO app";
    sql.batch_execute(grants).await.expect("works");
    let client = open(&url).await.expect("opens");
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    let id = guard.ticket();
    client.force_unlock("x", id, "a test").await.expect("works").expect("held");
    schema::sweep(&url, Duration::ZERO).await.expect("works");
    // Without the right to create schemas, an existing one can be filled.
    sql.batch_execute("CREATE SCHEMA filled AUTHORIZATION app").await.expect("works");
    open(&format!("{url}&schema=filled")).await.expect("opens");
    let error = open(&format!("{url}&schema=other")).await.expect_err("it may not");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn another_version_is_refused_with_what_to_do() {
    let Some(server) = private("version", &["fsync=off"]) else { return };
    schema::install(&plain(&server)).await.expect("works");
    let sql = server.sql().await;
    let replace = |version| {
        format!(
            "CREATE OR REPLACE FUNCTION holdline.version() RETURNS integer LANGUAGE sql IMMUTABLE \
             AS $$ SELECT {version} $$"
        )
    };
    for (version, advice) in [(0, "holdline schema postgres --install"), (2, "update this program")]
    {
        sql.batch_execute(&replace(version)).await.expect("works");
        let error = open(&server.url()).await.expect_err("another version");
        assert!(error.to_string().contains(advice), "{error}");
        assert!(!error.retryable());
    }
    // An installation leaves a newer version as it is, also by an administrator's client, which
    // goes on after an error.
    let error = schema::install(&plain(&server)).await.expect_err("it is newer");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("update this program"), "{error}");
    let text = schema::text("postgres", None).expect("printed");
    assert!(text.starts_with("BEGIN;\n") && text.ends_with("COMMIT;\n"));
    sql.batch_execute(&text).await.expect_err("it is newer");
    sql.batch_execute("ROLLBACK").await.expect("works");
    let version = sql.query_one("SELECT holdline.version()", &[]).await.expect("works");
    assert_eq!(version.get::<_, i32>(0), 2);
    sql.batch_execute(&replace(0)).await.expect("works");
    let said = schema::install(&plain(&server)).await.expect("it is older");
    assert!(said.contains("has version 1 of the tables"), "{said}");
    open(&plain(&server)).await.expect("opens");
}

/// Only unused locks are swept: the tokens of a removed one keep rising, even if the server's clock
/// is set back.
#[tokio::test]
async fn sweeping_forgets_unused_locks_only() {
    let Some(server) = private("sweeping", &["fsync=off"]) else { return };
    let client = open(&server.url()).await.expect("opens");
    let held = Mutex::new(&client, "held").lock().await.expect("works");
    let unused = Mutex::new(&client, "unused").lock().await.expect("works");
    let token = unused.token();
    unused.unlock().await.expect("held");
    assert_eq!(schema::sweep(&plain(&server), Duration::from_secs(3600)).await.expect("works"), 0);
    assert_eq!(schema::sweep(&plain(&server), Duration::ZERO).await.expect("works"), 1);
    let again = Mutex::new(&client, "unused").lock().await.expect("works");
    let again_token = again.token();
    assert!(again_token > token);
    again.unlock().await.expect("held");
    assert_eq!(schema::sweep(&plain(&server), Duration::ZERO).await.expect("works"), 1);
    let set_back = "CREATE OR REPLACE FUNCTION holdline.clock() RETURNS bigint LANGUAGE sql AS \
        'SELECT (extract(epoch FROM clock_timestamp() - interval ''1 day'') * 1000000)::bigint'";
    server.sql().await.batch_execute(set_back).await.expect("works");
    let later = Mutex::new(&client, "unused").lock().await.expect("works");
    assert!(later.token() > again_token);
    assert!(held.is_valid());
    held.unlock().await.expect("still held");
    assert_eq!(schema::sweep("memory:", Duration::ZERO).await.expect_err("no").kind(), {
        ErrorKind::Invalid
    });
}

/// A sweep leaves a line alone that bars a ticket, whose late request would take a place; and one
/// that has a holder although a waiter's place has expired.
#[tokio::test]
async fn a_sweep_leaves_holders_and_bars_alone() {
    let Some(server) = private("sweep_not", &["fsync=off"]) else { return };
    let raw = Raw::open(&server.url()).await;
    let (mine, late) = (ticket(1, 1), format!("{:032x}", ticket(1, 1).id.0));
    let seq = raw.hold(&mine).await;
    raw.queue(&Ticket { wait_lease: Duration::from_millis(1), ..ticket(1, 1) }).await;
    let sql = server.sql().await;
    let bars = "SELECT holdline.leave('y', $1::text::uuid, 600000000)";
    assert!(!one::<bool>(&sql, bars, &[&late]).await, "it was not there");
    let due = "SELECT due < holdline.clock() FROM holdline.line WHERE name = 'x'";
    until("the place has expired", async || one::<bool>(&sql, due, &[]).await).await;
    assert_eq!(schema::sweep(&plain(&server), Duration::ZERO).await.expect("works"), 0);
    assert_eq!(raw.keep(&mine, seq).await.expect("works"), Standing::Admitted(seq));
    let enter = "SELECT holdline.enter('y', $1::text::uuid, 1, 1, 60000000, 60000000, 1, 0, -2, \
                 '', '')";
    assert_eq!(one::<Vec<i64>>(&sql, enter, &[&late]).await, [2], "lost");
}

/// The highest token of all swept lines is kept, in whatever order they are swept.
#[tokio::test]
async fn a_sweep_keeps_the_highest_token() {
    let Some(server) = private("sweep_highest", &["fsync=off"]) else { return };
    let client = open(&server.url()).await.expect("opens");
    let sql = server.sql().await;
    let used = async |name: &str| {
        let guard = Mutex::new(&client, name).lock().await.expect("works");
        let token = guard.token();
        guard.unlock().await.expect("held");
        token.cast_signed()
    };
    let kept =
        async || one::<i64>(&sql, "SELECT last FROM holdline.line WHERE name = ''", &[]).await;
    let tokens = [used("one").await, used("two").await, used("one").await];
    assert_eq!(schema::sweep(&plain(&server), Duration::ZERO).await.expect("works"), 2);
    assert_eq!(kept().await, tokens[2]);
    used("one").await;
    let ahead = "UPDATE holdline.line SET last = last + 86400000000 WHERE name = ''";
    sql.batch_execute(ahead).await.expect("works");
    assert_eq!(schema::sweep(&plain(&server), Duration::ZERO).await.expect("works"), 1);
    assert_eq!(kept().await, tokens[2] + 86_400_000_000);
}

/// A sweep passes by lines that others have locked, empty ones and those with an expired place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_waits_for_no_line() {
    let Some(server) = private("sweep_waits", &["fsync=off"]) else { return };
    for name in ["empty", "expired", "unused"] {
        let raw = Raw::named(&server.url(), name).await;
        let mine = ticket(1, 1);
        raw.hold(&mine).await;
        if name != "expired" {
            raw.leave(&mine).await;
        }
    }
    let mut sql = server.sql().await;
    let expire = "UPDATE holdline.line SET expires = 1, due = 1 WHERE name = 'expired'";
    sql.batch_execute(expire).await.expect("works");
    let user = sql.transaction().await.expect("begins");
    let lock = "SELECT FROM holdline.line WHERE name IN ('empty', 'expired') FOR NO KEY UPDATE";
    user.execute(lock, &[]).await.expect("locks");
    let url = plain(&server);
    let swept = soon("the sweep", schema::sweep(&url, Duration::ZERO)).await;
    assert_eq!(swept.expect("works"), 1, "the line that nobody uses");
    user.commit().await.expect("ends");
    assert_eq!(schema::sweep(&url, Duration::ZERO).await.expect("works"), 2);
}

/// Bars and notes of removals by force do not pile up where nothing is swept: what has expired in a
/// line is removed with the next one, and only that.
#[tokio::test]
async fn what_has_expired_is_removed_with_the_next() {
    let Some(server) = private("piles", &["fsync=off"]) else { return };
    let sql = server.sql().await;
    let raw = Raw::open(&server.url()).await;
    let left = async |line: &str| {
        let id = format!("{:032x}", ticket(1, 1).id.0);
        let leave = "SELECT holdline.leave($1, $2::text::uuid, 600000000)";
        one::<bool>(&sql, leave, &[&line, &id]).await;
    };
    let removed = async |line: &str| {
        let raw = Raw { line: Name::new(line).expect("good"), ..raw.clone() };
        let ticket = ticket(1, 1);
        raw.hold(&ticket).await;
        raw.store.evict(&raw.line, ticket.id, "why").await.expect("works").expect("it held");
    };
    for line in ["x", "x", "y"] {
        left(line).await;
        removed(line).await;
    }
    let count = async |table: &str| {
        let count = format!("SELECT count(*) FROM holdline.{table}");
        one::<i64>(&sql, &count, &[]).await
    };
    assert_eq!((count("barred").await, count("eviction").await), (3, 3), "none has expired");
    let expire = "UPDATE holdline.barred SET until = 1; UPDATE holdline.eviction SET at = 1";
    sql.batch_execute(expire).await.expect("works");
    for _ in 0..9 {
        left("x").await;
        removed("x").await;
    }
    assert_eq!(count("barred").await, 9 + 1, "that of the other line is still there");
    assert_eq!(count("eviction").await, 8 + 1, "the last eight are kept, and the other line's");
}

/// A sweep takes no lock from a client that has just taken it: neither one that nobody used, nor
/// one whose holder has died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_takes_no_lock_that_is_taken_meanwhile() {
    let Some(server) = private("sweep_meets", &["fsync=off"]) else { return };
    for holder_died in [false, true] {
        let raw = Raw::named(&server.url(), &format!("x{holder_died}")).await;
        let before = Ticket { lease: Duration::from_millis(1), ..ticket(1, 1) };
        raw.hold(&before).await;
        let mut sql = server.sql().await;
        let due = "SELECT due < holdline.clock() FROM holdline.line WHERE name = $1";
        let name = raw.line.as_str();
        if holder_died {
            let expired = async || one::<bool>(&sql, due, &[&name]).await;
            until("the place has expired", expired).await;
        } else {
            raw.leave(&before).await;
        }
        let taking = sql.transaction().await.expect("begins");
        let mine = ticket(1, 1);
        let enter = "SELECT (holdline.enter($1, $2::text::uuid, 1, 1, 60000000, 60000000, 1, 0, \
                     -2, '', ''))[2]";
        let id = format!("{:032x}", mine.id.0);
        let seq: i64 = taking.query_one(enter, &[&name, &id]).await.expect("works").get(0);
        let url = plain(&server);
        let sweeping = tokio::spawn(async move { schema::sweep(&url, Duration::ZERO).await });
        let observer = server.sql().await;
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        until("it has passed by, or waits", async || {
            sweeping.is_finished() || one::<i64>(&observer, blocked, &[]).await == 1
        })
        .await;
        taking.commit().await.expect("ends");
        assert_eq!(sweeping.await.expect("no panic").expect("works"), 0);
        let seq = Seq(seq.unsigned_abs());
        let kept = raw.keep(&mine, seq).await.expect("works");
        assert_eq!(kept, Standing::Admitted(seq), "holder died: {holder_died}");
        raw.leave(&mine).await;
        schema::sweep(&plain(&server), Duration::ZERO).await.expect("works");
    }
}

/// Two clients meet at the first use of a name, and the first one is given a token far ahead of the
/// clock: the one that waited for it is given a higher one, not what a sweep has left to the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_where_two_create_a_line() {
    let Some(server) = private("two_create", &["fsync=off"]) else { return };
    let raw = Raw::open(&server.url()).await;
    let mut sql = server.sql().await;
    let swept = "INSERT INTO holdline.line (name, last) VALUES ('', 7)";
    sql.batch_execute(swept).await.expect("works");
    let first = sql.transaction().await.expect("begins");
    let far: i64 = 1 << 60;
    let enter = "SELECT (holdline.enter('x', $1::text::uuid, 1, 2, 60000000, 60000000, 1, $2, -2, \
                 '', ''))[2]";
    let id = format!("{:032x}", ticket(1, 2).id.0);
    assert_eq!(first.query_one(enter, &[&id, &far]).await.expect("works").get::<_, i64>(0), far);
    let second = {
        let raw = raw.clone();
        tokio::spawn(async move { raw.hold(&ticket(1, 2)).await })
    };
    let observer = server.sql().await;
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    until("it meets the other", async || one::<i64>(&observer, blocked, &[]).await == 1).await;
    first.commit().await.expect("ends");
    let token = second.await.expect("no panic").0;
    assert!(token > far.unsigned_abs(), "{token} after {far}");
}

#[tokio::test]
async fn what_is_not_there_is_said() {
    let Some(server) = private("not_there", &["fsync=off"]) else { return };
    let url = server.url().replace("/postgres?", "/nowhere?");
    let error = open(&url).await.expect_err("no such database");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = open(&url_at("127.0.0.1:1")).await.expect_err("nothing listens");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
