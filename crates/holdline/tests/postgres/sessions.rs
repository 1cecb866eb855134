//! Session and transaction locks, which the server frees when the connection ends.

use crate::raw::{Raw, ticket};
use crate::server::{Server, one, private, url_at};
use futures_util::FutureExt;
use holdline::store::{Enter, Standing, Ticket};
use holdline::{ErrorKind, Mutex, RwLock, open, schema};
use holdline_testkit::{Link, Way, soon, until};
use std::future::poll_fn;
use std::time::Duration;
use tokio_postgres::{AsyncMessage, Client, NoTls};

const SCHEMES: [&str; 2] = ["advisory", "row"];

fn url(server: &Server, scheme: &str) -> String {
    format!("{}&scheme={scheme}", server.url())
}

/// Ends the sessions that hold locks.
const END_HOLDERS: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
    WHERE application_name LIKE 'holdline%' AND (state = 'idle in transaction' \
    OR pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory'))";

async fn tries(sql: &Client, key: &str) -> bool {
    let free = one(sql, &format!("SELECT pg_try_advisory_lock({key})"), &[]).await;
    if free {
        assert!(one::<bool>(sql, &format!("SELECT pg_advisory_unlock({key})"), &[]).await);
    }
    free
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_locked_for_other_programs_too() {
    let Some(server) = private("session_keys", &["fsync=off"]) else { return };
    let sql = server.sql().await;
    for (keys, name, key) in [
        ("number", "-7", "-7"),
        ("number", "-9223372036854775808", "'-9223372036854775808'::bigint"),
        ("pair", "3,-4", "3, -4"),
        ("with_advisory_lock", "my_lock", "1202238042, 0"),
        ("symfony", "my_lock", "1202238042"),
        ("madelson", "MyLock", "-1679399172, 2061500415"),
    ] {
        let client = open(&(url(&server, "advisory") + "&keys=" + keys)).await.expect("opens");
        let lock = Mutex::new(&client, name);
        let guard = lock.lock().await.expect("works");
        assert!(!tries(&sql, key).await, "{keys}: another program has it too");
        guard.unlock().await.expect("it was held");
        assert!(tries(&sql, key).await, "{keys}: it was not freed");
        assert!(one::<bool>(&sql, &format!("SELECT pg_try_advisory_lock({key})"), &[]).await);
        assert!(lock.try_lock().await.expect("works").is_none(), "{keys}: two have it");
        let info = client.inspect(name).await.expect("works");
        assert_eq!(info.holders.len(), 1, "{keys}: the other program is not shown");
        assert!(one::<bool>(&sql, &format!("SELECT pg_advisory_unlock({key})"), &[]).await);
        lock.lock().await.expect("works").unlock().await.expect("it was held");
    }
    let numbers = open(&(url(&server, "advisory") + "&keys=number")).await.expect("opens");
    let error = Mutex::new(&numbers, "x").lock().await.expect_err("no number");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// The server lets a session lock again what it has; the library keeps two tickets apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_session_does_not_enter_twice() {
    let Some(server) = private("session_twice", &["fsync=off"]) else { return };
    for scheme in SCHEMES {
        let raw = Raw::open(&url(&server, scheme)).await;
        let (one, two) = (ticket(1, 1), ticket(1, 1));
        let seq = raw.hold(&one).await;
        let standing = raw.enter(&two, Enter::Try).await.expect("works");
        assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{scheme}: {standing:?}");
        assert_eq!(raw.keep(&one, seq).await.expect("works"), Standing::Admitted(seq));
        assert!(raw.leave(&one).await);
        raw.hold(&two).await;
        assert!(raw.leave(&two).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_share_an_advisory_lock() {
    let Some(server) = private("session_readers", &["fsync=off"]) else { return };
    let clients = [
        open(&url(&server, "advisory")).await.expect("opens"),
        open(&url(&server, "advisory")).await.expect("opens"),
    ];
    let [one, two] = clients.each_ref().map(|client| RwLock::new(client, "x"));
    let readers = [one.read().await, two.read().await, one.read().await];
    let readers = readers.map(|reader| reader.expect("works"));
    assert!(two.try_write().await.expect("works").is_none());
    assert!(one.try_write().await.expect("works").is_none());
    for reader in readers {
        reader.unlock().await.expect("it was held");
    }
    let writer = soon("the writer", two.write()).await.expect("works");
    assert!(one.try_read().await.expect("works").is_none());
    assert!(two.try_read().await.expect("works").is_none());
    writer.unlock().await.expect("it was held");
    // It cannot be downgraded, and is still held.
    let lease = Duration::from_secs(1);
    let lock = RwLock::new(&clients[0], "x").lease(lease);
    let writer = soon("the writer", lock.write()).await.expect("works");
    let (writer, error) = writer.downgrade().await.expect_err("it is not supported");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let began = std::time::Instant::now();
    until("it is renewed", async || began.elapsed() > lease && writer.remaining() > lease / 2)
        .await;
    assert!(two.try_read().await.expect("works").is_none());
    writer.unlock().await.expect("it was held");
    let rows = open(&url(&server, "row")).await.expect("opens");
    let error = RwLock::new(&rows, "x").read().await.expect_err("rows are not shared");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// The socket reports it, not a renewal: the next one is 15 s away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_session_is_a_loss_at_once() {
    let Some(server) = private("session_killed", &["fsync=off"]) else { return };
    let sql = server.sql().await;
    for scheme in SCHEMES {
        let client = open(&url(&server, scheme)).await.expect("opens");
        let lock = Mutex::new(&client, "x").lease(Duration::from_secs(60));
        let guard = lock.lock().await.expect("works");
        assert!(one::<i64>(&sql, END_HOLDERS, &[]).await >= 1);
        let told = tokio::time::timeout(Duration::from_secs(10), guard.lost()).await;
        assert!(told.is_ok(), "{scheme}: it was not told before its next renewal");
        assert_eq!(guard.unlock().await.expect_err("lost").kind(), ErrorKind::Lost);
        let next = soon("another connection", lock.lock()).await.expect("works");
        next.unlock().await.expect("it was held");
    }
}

/// A holder is silent, as if it were stopped: the server frees the lock after the lease, and not
/// before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_holder_keeps_it_for_its_lease() {
    let Some(server) = private("session_silent", &["fsync=off"]) else { return };
    for scheme in SCHEMES {
        let link = Link::to(server.address()).expect("a link");
        let at_link =
            format!("postgres://postgres@{}/postgres?install=yes&scheme={scheme}", link.address());
        let (far, near) = (Raw::open(&at_link).await, Raw::open(&url(&server, scheme)).await);
        let lease = Duration::from_secs(3);
        let (mine, rival) = (Ticket { lease, ..ticket(1, 1) }, ticket(1, 1));
        let began = std::time::Instant::now();
        let seq = far.hold(&mine).await;
        link.stall(Way::Both);
        until("the server frees it", async || {
            let standing = near.enter(&rival, Enter::Try).await.expect("works");
            matches!(standing, Standing::Admitted(_))
        })
        .await;
        assert!(began.elapsed() >= lease, "{scheme}: it was freed early");
        link.mend();
        until("it is told", async || {
            far.keep(&mine, seq).await.is_ok_and(|standing| standing == Standing::Lost)
        })
        .await;
        assert!(near.leave(&rival).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_call_holds_nothing() {
    let Some(server) = private("session_dropped", &["fsync=off"]) else { return };
    let sql = server.sql().await;
    for scheme in SCHEMES {
        let (raw, rival) =
            (Raw::open(&url(&server, scheme)).await, Raw::open(&url(&server, scheme)).await);
        for round in 0..20 {
            let mine = ticket(1, 1);
            let call = raw.enter(&mine, Enter::Queue);
            let _ = tokio::time::timeout(Duration::from_micros(round * 100), call).await;
            raw.leave(&mine).await;
            let other = ticket(1, 1);
            let standing = rival.enter(&other, Enter::Try).await.expect("works");
            assert!(matches!(standing, Standing::Admitted(_)), "{scheme} {round}: {standing:?}");
            assert!(rival.leave(&other).await);
        }
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        assert_eq!(one::<i64>(&sql, locks, &[]).await, 0);
    }
}

/// An inspection that waits for a call about the lock, and is then not polled, as in a `select!`
/// whose other branch goes on, keeps no renewal waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inspection_that_is_not_polled_holds_up_no_renewal() {
    let Some(server) = private("session_inspection", &["fsync=off"]) else { return };
    for scheme in SCHEMES {
        let link = Link::to(server.address()).expect("a link");
        let at_link = format!("{}&scheme={scheme}", url_at(&link.address().to_string()));
        let (raw, mine) = (Raw::open(&at_link).await, ticket(1, 1));
        let seq = raw.hold(&mine).await;
        link.stall(Way::Both);
        let mut renewal = Box::pin(raw.keep(&mine, seq));
        assert!((&mut renewal).now_or_never().is_none(), "{scheme}: it has an answer");
        let mut inspection = Box::pin(raw.seen());
        assert!((&mut inspection).now_or_never().is_none(), "{scheme}: it is not in the way");
        link.mend();
        let standing = soon("the renewal", renewal).await.expect("works");
        assert_eq!(standing, Standing::Admitted(seq), "{scheme}");
        let standing = soon("the next renewal", raw.keep(&mine, seq)).await.expect("works");
        assert_eq!(standing, Standing::Admitted(seq), "{scheme}");
        assert_eq!(inspection.await.places[0].id, mine.id);
        assert!(raw.leave(&mine).await);
    }
}

/// A client that only tries is not reported as the holder, whose session would be ended by force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_is_not_a_holder() {
    let Some(server) = private("session_attempt", &["fsync=off"]) else { return };
    let raw = Raw::open(&url(&server, "row")).await;
    let (other, first, mine) = (Raw::open(&url(&server, "row")).await, ticket(1, 1), ticket(1, 1));
    raw.hold(&first).await; // makes the row
    assert!(raw.leave(&first).await);
    let (mut blocker, sql) = (server.sql().await, server.sql().await);
    let blocks = blocker.transaction().await.expect("begins");
    let table = "LOCK TABLE holdline.lock_row IN ACCESS EXCLUSIVE MODE";
    blocks.batch_execute(table).await.expect("nobody uses it");
    let trying = {
        let (raw, mine) = (raw.clone(), mine);
        tokio::spawn(async move { raw.enter(&mine, Enter::Try).await })
    };
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    until("it tries", async || one::<i64>(&sql, blocked, &[]).await == 1).await;
    assert!(other.seen().await.places.is_empty(), "{:?}", other.seen().await);
    blocks.rollback().await.expect("ends");
    let standing = trying.await.expect("no panic").expect("works");
    assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
    assert_eq!(other.seen().await.places[0].id, mine.id);
    assert!(raw.leave(&mine).await);
    assert!(other.seen().await.places.is_empty());
}

/// A failed try is one statement, and leaves no transaction open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_try_of_a_row_is_one_message() {
    let Some(server) = private("session_try", &["fsync=off", "log_statement=all"]) else { return };
    let (raw, other) =
        (Raw::open(&url(&server, "row")).await, Raw::open(&url(&server, "row")).await);
    let mine = ticket(1, 1);
    raw.hold(&mine).await;
    let said = || server.logged("LOG:  statement:");
    other.enter(&ticket(1, 1), Enter::Try).await.expect("works");
    let before = said();
    for _ in 0..10 {
        let standing = other.enter(&ticket(1, 1), Enter::Try).await.expect("works");
        assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    }
    assert_eq!(said() - before, 10);
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    assert_eq!(one::<i64>(&server.sql().await, open, &[]).await, 1, "but for the holder's");
    assert!(raw.leave(&mine).await);
}

/// A lock and its release are one message each. To open a store takes four, of which two share a
/// round trip: the mark of another session, the check of the server, the mark, and settings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_a_session_is_two_messages() {
    let Some(server) = private("session_cost", &["fsync=off", "log_statement=all"]) else { return };
    // The statements of a simple query are logged together.
    let said = || server.logged("LOG:  statement:") + server.logged("LOG:  execute");
    for (scheme, opening) in [("row", 2), ("advisory", 7)] {
        drop(open(&url(&server, scheme)).await.expect("installs"));
        let before = said();
        let client = open(&url(&server, scheme)).await.expect("opens");
        assert_eq!(said() - before, opening, "{scheme}");
        let lock = Mutex::new(&client, "x");
        lock.lock().await.expect("works").unlock().await.expect("it was held");
        let before = said();
        for _ in 0..10 {
            lock.lock().await.expect("works").unlock().await.expect("it was held");
        }
        assert_eq!(said() - before, 20, "{scheme}");
    }
    let opened = 4; // the check that its locks exclude, in two openings
    let executed = server.logged("LOG:  statement: EXECUTE holdline_");
    assert_eq!(executed, 22 + opened, "they are prepared");
}

/// Otherwise every listening process in the database would be woken for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_tells_nobody_if_nobody_waits() {
    let Some(server) = private("session_notices", &["fsync=off"]) else { return };
    let sql = server.sql().await;
    for scheme in SCHEMES {
        let (listener, mut notices) =
            tokio_postgres::connect(&server.plain_url(), NoTls).await.expect("it runs");
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| notices.poll_message(context)).await {
                if let AsyncMessage::Notification(notice) = message {
                    let _ = told.send(notice.payload().to_owned());
                }
            }
        });
        listener.batch_execute("LISTEN holdline_free").await.expect("works");
        let (one_client, two) =
            (open(&url(&server, scheme)).await, open(&url(&server, scheme)).await);
        let (lock, rival) =
            (Mutex::new(&one_client.expect("opens"), "x"), Mutex::new(&two.expect("opens"), "x"));
        lock.lock().await.expect("works").unlock().await.expect("it was held");
        listener.batch_execute("NOTIFY holdline_free, 'end'").await.expect("works");
        assert_eq!(heard.recv().await.as_deref(), Some("end"), "{scheme}: nobody waits");
        let guard = lock.lock().await.expect("works");
        let waiting = tokio::spawn(async move { rival.lock().await });
        until("it waits", async || one::<i64>(&sql, LISTENERS, &[]).await == 1).await;
        guard.unlock().await.expect("it was held");
        let notice = soon("the notice", heard.recv()).await.expect("it listens");
        assert!(notice.starts_with('a'), "{scheme}: {notice}");
        let guard = waiting.await.expect("no panic").expect("works");
        guard.unlock().await.expect("it was held");
        until("nobody listens any more", async || one::<i64>(&sql, LISTENERS, &[]).await == 0)
            .await;
    }
}

/// A waiter asks again when it is notified of a release, and after its pause, but not because an
/// attempt of its own has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_not_woken_by_its_own_attempts() {
    let Some(server) = private("session_waits", &["fsync=off", "log_statement=all"]) else {
        return;
    };
    let sql = server.sql().await;
    for (scheme, attempt) in [("advisory", "try_advisory_lock("), ("row", "NOWAIT")] {
        let (one_client, two) =
            (open(&url(&server, scheme)).await, open(&url(&server, scheme)).await);
        let (lock, rival) =
            (Mutex::new(&one_client.expect("opens"), "x"), Mutex::new(&two.expect("opens"), "x"));
        let guard = lock.lock().await.expect("works");
        let waiting = tokio::spawn(async move { rival.lock().await });
        until("it waits", async || one::<i64>(&sql, LISTENERS, &[]).await == 1).await;
        let before = server.logged(attempt);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let attempts = server.logged(attempt) - before;
        // One when it starts listening, and two per second.
        assert!((1..=10).contains(&attempts), "{scheme}: {attempts} attempts in two seconds");
        guard.unlock().await.expect("it was held");
        waiting.await.expect("no panic").expect("works").unlock().await.expect("it was held");
        until("nobody listens", async || one::<i64>(&sql, LISTENERS, &[]).await == 0).await;
    }
}

/// G19, even for a row of this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_our_own_is_broken_with_a_higher_token() {
    let Some(server) = private("session_break", &["fsync=off"]) else { return };
    let (raw, mine) = (Raw::open(&url(&server, "row")).await, ticket(1, 1));
    let seq = raw.hold(&mine).await;
    let token = raw.store.evict(&raw.line, mine.id, "why").await.expect("works");
    assert!(token.is_some_and(|token| token > seq), "{token:?} after {seq:?}");
    until("it is lost", async || {
        raw.keep(&mine, seq).await.is_ok_and(|standing| standing == Standing::Lost)
    })
    .await;
}

/// A session that has let the row go keeps its name for a moment. To break it then would fence the
/// next holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_without_a_transaction_is_not_broken() {
    let Some(server) = private("session_name", &["fsync=off"]) else { return };
    let (raw, mine) = (Raw::open(&url(&server, "row")).await, ticket(1, 1));
    raw.hold(&mine).await;
    let (sql, ended) = (server.sql().await, server.sql().await);
    let name = "SELECT application_name FROM pg_stat_activity \
                WHERE application_name LIKE 'holdline %'";
    let name = one::<String>(&sql, name, &[]).await;
    assert!(raw.leave(&mine).await);
    ended.batch_execute(&format!("SET application_name = '{name}'")).await.expect("works");
    let token = raw.store.evict(&raw.line, mine.id, "why").await.expect("works");
    assert_eq!(token, None);
    ended.batch_execute("SELECT").await.expect("it was not ended");
}

const LISTENERS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                         AND mode = 'ShareLock'";

/// A crash may take back sequence numbers that were not on the disk yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_rows_rise_over_a_crash() {
    let Some(mut server) = private("session_crash", &[]) else { return };
    let raw = Raw::open(&url(&server, "row")).await;
    let mut last = 0;
    for _ in 0..2 {
        for _ in 0..40 {
            let mine = ticket(1, 1);
            let token = raw.hold(&mine).await.0;
            assert!(token > last, "{token} came after {last}");
            last = token;
            assert!(raw.leave(&mine).await);
        }
        let held = ticket(1, 1);
        last = raw.hold(&held).await.0;
        server.kill();
        server.start();
        until("it is told", async || {
            raw.keep(&held, holdline::store::Seq(last)).await.is_ok_and(|it| it == Standing::Lost)
        })
        .await;
    }
}

/// A schema that was deleted and installed again, or restored from a dump, has another sequence. A
/// connection that was made before moves it forward, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_rows_rise_over_a_new_schema() {
    let Some(server) = private("session_schema", &["fsync=off"]) else { return };
    let raw = Raw::open(&url(&server, "row")).await;
    let (mine, next) = (ticket(1, 1), ticket(1, 1));
    let token = raw.hold(&mine).await;
    assert!(raw.leave(&mine).await);
    let deleted = server.sql().await.batch_execute("DROP SCHEMA holdline CASCADE").await;
    deleted.expect("it may");
    schema::install(&server.plain_url()).await.expect("works");
    let another = raw.hold(&next).await;
    assert!(another > token, "{another:?} came after {token:?}");
}

/// A connection that may not move a new sequence forward can be used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequence_that_is_denied_harms_no_later_lock() {
    const MOST: &str = "GRANT USAGE ON SCHEMA holdline TO app; \
        GRANT SELECT, INSERT, UPDATE ON holdline.lock_row TO app; \
        GRANT USAGE ON SEQUENCE holdline.lock_token TO app";
    const REST: &str = "GRANT UPDATE ON SEQUENCE holdline.lock_token TO app";
    let Some(server) = private("session_sequence", &["fsync=off"]) else { return };
    let (sql, url) = (server.sql().await, server.plain_url());
    sql.batch_execute("CREATE ROLE app LOGIN").await.expect("it may");
    schema::install(&url).await.expect("works");
    sql.batch_execute(&format!("{MOST}; {REST}")).await.expect("it may");
    let url_of_app = url.replace("postgres@", "app@") + "?scheme=row&listen=off";
    let (raw, mine) = (Raw::open(&url_of_app).await, ticket(1, 1));
    let token = raw.hold(&mine).await;
    assert!(raw.leave(&mine).await);
    sql.batch_execute("DROP SCHEMA holdline CASCADE").await.expect("it may");
    schema::install(&url).await.expect("works");
    sql.batch_execute(MOST).await.expect("it may");
    for _ in 0..2 {
        let error = raw.enter(&ticket(1, 1), Enter::Queue).await.expect_err("it is denied");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    sql.batch_execute(REST).await.expect("it may");
    let another = raw.hold(&ticket(1, 1)).await;
    assert!(another > token, "{another:?} came after {token:?}");
}

/// Two clients of a transaction pool would share one session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_pool_is_refused() {
    let Ok(pooled) = std::env::var("HOLDLINE_TEST_POSTGRES_POOLED") else {
        holdline_testkit::missing("a_transaction_pool_is_refused needs postgres-pooled");
        return;
    };
    for _ in 0..3 {
        let error = open(&(pooled.clone() + "?scheme=advisory")).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("pools transactions"), "{error}");
    }
    // An open transaction keeps its session in the pool.
    let rows = open(&(pooled + "?scheme=row&install=yes&listen=off")).await.expect("opens");
    let guard = Mutex::new(&rows, "pooled").lock().await.expect("works");
    assert!(guard.token() > 0);
    guard.unlock().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_connections_has_a_bound() {
    let Some(server) = private("session_bound", &["fsync=off"]) else { return };
    let client = open(&(url(&server, "row") + "&connections=2")).await.expect("opens");
    let one = Mutex::new(&client, "1").lock().await.expect("works");
    let two = Mutex::new(&client, "2").lock().await.expect("works");
    let error = Mutex::new(&client, "3").try_lock().await.expect_err("no third");
    assert!(error.to_string().contains("connections="), "{error}");
    one.unlock().await.expect("it was held");
    let three = Mutex::new(&client, "3").try_lock().await.expect("works").expect("free");
    three.unlock().await.expect("it was held");
    two.unlock().await.expect("it was held");
}

/// The founding documents' second scheme for databases: an existing row is locked with `SELECT ...
/// FOR UPDATE`, by this library and by hand; a crash frees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_made_before_is_locked_for_update() {
    const TAKE: &str = "SELECT * FROM holdline.lock_row WHERE name = 'lock_xxxx' FOR UPDATE";
    let Some(server) = private("session_row", &["fsync=off"]) else { return };
    let client = open(&url(&server, "row")).await.expect("opens");
    let mut sql = server.sql().await;
    let insert = "INSERT INTO holdline.lock_row VALUES ('lock_xxxx')";
    sql.batch_execute(insert).await.expect("works");
    let lock = Mutex::new(&client, "lock_xxxx");
    let by_hand = sql.transaction().await.expect("works");
    assert_eq!(by_hand.query(TAKE, &[]).await.expect("works").len(), 1);
    assert!(lock.try_lock().await.expect("works").is_none(), "two have it");
    by_hand.commit().await.expect("works");
    let guard = lock.lock().await.expect("works");
    let no_wait = format!("{TAKE} NOWAIT");
    assert!(sql.query(&no_wait, &[]).await.is_err(), "two have it");
    // The statement by hand waits until the lock is released.
    let waiting = tokio::spawn(async move { sql.query(TAKE, &[]).await.map(|rows| rows.len()) });
    guard.unlock().await.expect("it was held");
    assert_eq!(soon("the row", waiting).await.expect("no panic").expect("works"), 1);
}

/// New connections move the sequence of tokens one after another, which takes a commit each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_connection_for_rows_waits_for_its_turn_as_long_as_an_answer_may_take() {
    let Some(server) = private("row_turn", &[]) else { return };
    drop(open(&(server.url() + "&scheme=row")).await.expect("opens"));
    let sql = server.sql().await;
    sql.batch_execute("SELECT pg_advisory_lock(4822917106)").await.expect("works");
    let freed = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        sql.batch_execute("SELECT pg_advisory_unlock(4822917106)").await.expect("works");
    });
    open(&(server.url() + "&scheme=row&timeout=20s")).await.expect("it is its turn in the end");
    freed.await.expect("no panic");
}
