//! ShedLock's table. `tests/peers` tests it with the ShedLock library itself.

use crate::raw::{Raw, ticket};
use crate::server::{Server, one, private, url_at};
use futures_util::FutureExt;
use futures_util::future::join_all;
use holdline::store::{Enter, Seq, Standing, Ticket};
use holdline::{ErrorKind, Mutex, RwLock, open};
use holdline_testkit::{Link, Way, soon, until};
use std::time::Duration;

fn url(server: &Server) -> String {
    server.url() + "&scheme=shedlock"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_is_not_made_silently_and_its_times_are_looked_at() {
    let Some(server) = private("shedlock_table", &["fsync=off"]) else { return };
    let plain = url(&server).replace("install=yes&", "");
    let error = open(&plain).await.expect_err("no table");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("install=yes"), "{error}");
    open(&url(&server)).await.expect("it is made");
    open(&plain).await.expect("it is there");
    let sql = server.sql().await;
    for other in ["timestamp(0) without time zone", "timestamp with time zone"] {
        let alter = format!("ALTER TABLE shedlock ALTER lock_until TYPE {other}");
        sql.batch_execute(&alter).await.expect("works");
        let error = open(&plain).await.expect_err("other times");
        assert!(error.to_string().contains(other), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_can_be_made_by_many_at_once() {
    let Some(server) = private("shedlock_many", &["fsync=off"]) else { return };
    for _ in 0..10 {
        let url = url(&server);
        let opened = join_all((0..8).map(|_| open(&url))).await;
        assert!(opened.iter().all(Result::is_ok), "one of them makes it");
        server.sql().await.batch_execute("DROP TABLE shedlock").await.expect("works");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_those_of_shedlock() {
    let Some(server) = private("shedlock_rows", &["fsync=off", "timezone=Asia/Tokyo"]) else {
        return;
    };
    let client = open(&url(&server)).await.expect("opens");
    let sql = server.sql().await;
    let lock = Mutex::new(&client, "job").label("me");
    let guard = lock.lock().await.expect("works");
    let held = "SELECT lock_until > timezone('utc', now()) AND locked_at <= \
                timezone('utc', clock_timestamp()) AND lock_until < timezone('utc', now()) + \
                interval '1 hour' FROM shedlock WHERE name = 'job'";
    assert!(one::<bool>(&sql, held, &[]).await, "times are UTC");
    let info = client.inspect("job").await.expect("works");
    assert_eq!(info.holders[0].id, guard.ticket());
    assert_eq!(info.holders[0].note.label.as_deref(), Some("me"));
    assert_eq!(client.list("j").await.expect("works").len(), 1);
    guard.unlock().await.expect("it was held");
    assert_eq!(one::<i64>(&sql, "SELECT count(*) FROM shedlock", &[]).await, 1, "the row stays");
    // Another program's.
    let theirs = "UPDATE shedlock SET locked_by = 'host-1', \
                  lock_until = timezone('utc', clock_timestamp()) + interval '1 hour'";
    sql.batch_execute(theirs).await.expect("works");
    assert!(lock.try_lock().await.expect("works").is_none());
    let info = client.inspect("job").await.expect("works");
    let broken = client.force_unlock("job", info.holders[0].id, "a test").await.expect("works");
    assert!(broken.is_some());
    lock.lock().await.expect("works").unlock().await.expect("it was held");
    let error = Mutex::new(&client, "x".repeat(256)).lock().await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = RwLock::new(&client, "job").read().await.expect_err("none");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// By default, `locked_by` is the name of the host. A force unlock that comes late, or whose first
/// attempt was carried out without an answer, must not remove the next hold of that host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_hold_of_another_program_has_an_id_of_its_own() {
    let Some(server) = private("shedlock_host", &["fsync=off"]) else { return };
    let (client, sql) = (open(&url(&server)).await.expect("opens"), server.sql().await);
    let take = "INSERT INTO shedlock VALUES ('job', timezone('utc', clock_timestamp()) + \
                interval '1 hour', timezone('utc', clock_timestamp()), 'host-1') \
                ON CONFLICT (name) DO UPDATE SET locked_at = excluded.locked_at";
    let taken = async || {
        sql.batch_execute(take).await.expect("works");
        client.inspect("job").await.expect("works").holders[0].id
    };
    let (earlier, later) = (taken().await, taken().await);
    assert_ne!(earlier, later);
    for (id, there) in [(earlier, false), (later, true)] {
        let broken = client.force_unlock("job", id, "a test").await.expect("works");
        assert_eq!(broken.is_some(), there);
    }
}

/// A repeated request gets the same answer; a ticket that left is not brought back by a renewal,
/// even while its lock stays locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_may_be_repeated() {
    let Some(server) = private("shedlock_repeated", &["fsync=off"]) else { return };
    let raw = Raw::open(&(url(&server) + "&at_least=1h")).await;
    let (mine, next) = (Ticket { lease: Duration::from_secs(60), ..ticket(1, 1) }, ticket(1, 1));
    assert_eq!(raw.hold(&mine).await, Seq(0));
    assert_eq!(raw.hold(&mine).await, Seq(0));
    assert_eq!(raw.keep(&mine, Seq(0)).await.expect("works"), Standing::Admitted(Seq(0)));
    assert_eq!(raw.keep(&next, Seq(0)).await.expect("works"), Standing::Lost);
    assert!(raw.leave(&mine).await);
    assert!(!raw.leave(&mine).await);
    assert_eq!(raw.keep(&mine, Seq(0)).await.expect("works"), Standing::Lost);
    for ticket in [&mine, &next] {
        let standing = raw.enter(ticket, Enter::Queue).await.expect("works");
        assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    }
}

/// G6: a lock of whose acquisition the caller never learned is free as soon as it is given up,
/// whatever the minimum time is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_given_up_unseen_is_free_at_once() {
    let Some(server) = private("shedlock_unseen", &["fsync=off"]) else { return };
    let link = Link::to(server.address()).expect("a link");
    let far = url_at(&link.address().to_string()) + "&scheme=shedlock&at_least=1h&timeout=20s";
    let (raw, sql) = (Raw::open(&far).await, server.sql().await);
    let (mine, next) = (ticket(1, 1), ticket(1, 1));
    link.stall(Way::Replies);
    let mut entering = Box::pin(raw.enter(&mine, Enter::Queue));
    assert!((&mut entering).now_or_never().is_none(), "it has no answer");
    let taken = "SELECT count(*) FROM shedlock WHERE lock_until > timezone('utc', now())";
    until("it is taken", async || one::<i64>(&sql, taken, &[]).await == 1).await;
    drop(entering);
    link.mend();
    assert!(raw.leave(&mine).await);
    raw.hold(&next).await;
    assert!(raw.leave(&next).await);
    assert_eq!(one::<i64>(&sql, taken, &[]).await, 1, "it was held");
}

/// A failed try whose first request had no answer is in doubt: that request may be late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_try_in_doubt_is_an_error() {
    let Some(server) = private("shedlock_doubt", &["fsync=off"]) else { return };
    let link = Link::to(server.address()).expect("a link");
    let other = Raw::open(&url(&server)).await;
    let raw = Raw::open(&format!("{}&scheme=shedlock", url_at(&link.address().to_string()))).await;
    other.hold(&ticket(1, 1)).await;
    let mine = ticket(1, 1);
    let standing = raw.enter(&mine, Enter::Try).await.expect("an answer");
    assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    link.lose_next_reply();
    let error = raw.enter(&mine, Enter::Try).await.expect_err("it is in doubt");
    assert!(error.retryable(), "{error}");
}

/// A holder whose note changes while it is removed by force is removed, instead of being taken for
/// gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_removed_whatever_its_note() {
    const LOOKED: &str = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' \
        AND query LIKE '%, locked_by FROM %'";
    let Some(server) = private("shedlock_note", &["fsync=off"]) else { return };
    let link = Link::to(server.address()).expect("a link");
    let (holder, sql, mine) = (Raw::open(&url(&server)).await, server.sql().await, ticket(1, 1));
    holder.hold(&mine).await;
    let far = url_at(&link.address().to_string()) + "&scheme=shedlock&timeout=20s";
    let remover = Raw::open(&far).await;
    link.stall(Way::Replies);
    let removing =
        tokio::spawn(async move { remover.store.evict(&remover.line, mine.id, "why").await });
    until("it has looked", async || one::<i64>(&sql, LOOKED, &[]).await == 1).await;
    let Raw { store, line } = &holder;
    let kept = store.enter(line, &mine, &"another note".into(), Enter::Keep(Seq(0))).await;
    assert_eq!(kept.expect("works"), Standing::Admitted(Seq(0)));
    link.mend();
    let removed = soon("the answer", removing).await.expect("no panic").expect("works");
    assert_eq!(removed, Some(Seq(0)));
    assert_eq!(holder.keep(&mine, Seq(0)).await.expect("works"), Standing::Lost);
}

/// Among several clients, there are never two holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_holds_at_a_time() {
    let Some(server) = private("shedlock_alone", &["fsync=off"]) else { return };
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (client, inside) = (open(&url(&server)).await.expect("opens"), inside.clone());
        tasks.spawn(async move {
            let poll = holdline::Backoff::fixed(Duration::from_millis(2)).jitter(50);
            let lock = Mutex::new(&client, "x").poll(poll);
            for _ in 0..20 {
                let guard = lock.lock().await.expect("works");
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                guard.unlock().await.expect("it was held");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
}

/// A row that another client has locked takes no further connection for each try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_takes_no_connections() {
    let Some(server) = private("shedlock_locked", &["fsync=off"]) else { return };
    let client = open(&format!("{}&scheme=shedlock", server.url())).await.expect("opens");
    let lock = Mutex::new(&client, "x");
    lock.lock().await.expect("free").unlock().await.expect("held");
    let mut sql = server.sql().await;
    let blocker = sql.transaction().await.expect("begins");
    blocker.execute("SELECT FROM shedlock FOR UPDATE", &[]).await.expect("locks");
    let waits = tokio::spawn(async move { lock.lock().await });
    let refused = || server.logged("canceling statement due to lock timeout");
    until("it has tried often", async || refused() >= 5).await;
    let watch = server.sql().await;
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdline'";
    assert_eq!(one::<i64>(&watch, ours, &[]).await, 1);
    blocker.rollback().await.expect("ends");
    let guard = soon("the lock", waits).await.expect("no panic").expect("free now");
    guard.unlock().await.expect("held");
}
