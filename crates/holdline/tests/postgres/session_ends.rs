//! Session locks that end before their holders release them.

use crate::raw::{Raw, ticket};
use crate::server::{Server, one, private, url_at};
use holdline::store::{Enter, Standing};
use holdline::{ErrorKind, Mutex, Name, open};
use holdline_testkit::{Link, Way, soon, until};

async fn store(server: &Server, scheme: &str) -> Raw {
    Raw::open(&format!("{}&scheme={scheme}", server.url())).await
}

/// Makes a server function run this body before its own, to fail or take time, in sessions made
/// from now on.
async fn shadow(server: &Server, name: &str, args: &str, result: &str, body: &str) {
    let sql = format!(
        "CREATE SCHEMA IF NOT EXISTS shadow; CREATE TABLE IF NOT EXISTS shadow.now (x int); \
         CREATE FUNCTION shadow.{name}({args}) RETURNS {result} LANGUAGE plpgsql AS $$ BEGIN \
         IF EXISTS (SELECT FROM shadow.now) THEN {body}; END IF; \
         RETURN pg_catalog.{name}({}); END $$; \
         ALTER ROLE postgres SET search_path = shadow, pg_catalog, public",
        (1..=args.split(',').count()).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ")
    );
    server.sql().await.batch_execute(&sql).await.expect("works");
}

const NOW: &str = "INSERT INTO shadow.now VALUES (1)";

/// A statement that fails ends the transaction, and the row is free although its session goes on:
/// the holder has lost the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_fails_in_the_server_ends_a_locked_row() {
    let Some(server) = private("row_renewal", &["fsync=off"]) else { return };
    drop(store(&server, "row").await);
    let cancelled = "RAISE EXCEPTION USING ERRCODE = '57014'";
    shadow(&server, "set_config", "text, text, boolean", "text", cancelled).await;
    let (raw, mine) = (store(&server, "row").await, ticket(1, 1));
    let seq = raw.hold(&mine).await;
    assert_eq!(raw.keep(&mine, seq).await.expect("works"), Standing::Admitted(seq));
    let sql = server.sql().await;
    sql.batch_execute(NOW).await.expect("works");
    let standing = raw.keep(&mine, seq).await;
    sql.batch_execute("DELETE FROM shadow.now").await.expect("works");
    let free = "SELECT 1 FROM holdline.lock_row WHERE name = 'x' FOR UPDATE NOWAIT";
    // The server sends an error before it ends the transaction that failed.
    until("it is free", async || sql.query(free, &[]).await.is_ok_and(|rows| rows.len() == 1))
        .await;
    assert!(matches!(standing, Ok(Standing::Lost)), "{standing:?}");
}

/// The token of a removal by force is below that of the next holder, which may get the row at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_holders_token_is_below_the_nexts() {
    let Some(server) = private("row_evict", &["fsync=off"]) else { return };
    drop(store(&server, "row").await);
    let (holder, mine) = (store(&server, "row").await, ticket(1, 1));
    let next = store(&server, "row").await;
    let seq = holder.hold(&mine).await;
    // The removing session takes half a second to get a token.
    shadow(&server, "nextval", "regclass", "bigint", "PERFORM pg_sleep(0.5)").await;
    let remover = store(&server, "row").await;
    server.sql().await.batch_execute(NOW).await.expect("works");
    let removing = tokio::spawn(async move {
        remover.store.evict(&remover.line, mine.id, "why").await.expect("works").expect("it held")
    });
    let other = ticket(1, 1);
    let mut got = None;
    until("it is free", async || {
        let standing = next.enter(&other, Enter::Try).await.expect("works");
        if let Standing::Admitted(seq) = standing {
            got = Some(seq);
        }
        got.is_some()
    })
    .await;
    let token = removing.await.expect("no panic");
    assert!(seq < token, "{token:?} after {seq:?}");
    assert!(got > Some(token), "{got:?} is the next after {token:?}");
    let sql = server.sql().await;
    let ended = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    assert_eq!(one::<i64>(&sql, ended, &[]).await, 1, "the next holds");
    assert!(next.leave(&other).await);
}

/// A removal by force whose reply is lost may have ended the session. A second attempt does not
/// find it, and its token could be above that of the next holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_whose_reply_is_lost_is_in_doubt() {
    const REMOVES: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' \
        AND query LIKE '%pg_terminate_backend%' AND pid <> pg_backend_pid()";
    const HOLDERS: &str =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'holdline %'";
    let Some(server) = private("row_evict_lost", &["fsync=off"]) else { return };
    let (holder, mine) = (store(&server, "row").await, ticket(1, 1));
    holder.hold(&mine).await;
    let (sql, blocker) = (server.sql().await, server.sql().await);
    // The first attempt waits for lock 1, the second one for lock 2.
    let waits = "PERFORM pg_advisory_lock_shared((SELECT count(*) FROM shadow.now))";
    shadow(&server, "nextval", "regclass", "bigint", waits).await;
    let locks = "SELECT pg_advisory_lock(1), pg_advisory_lock(2)";
    blocker.batch_execute(locks).await.expect("works");
    let link = Link::to(server.address()).expect("a port is free");
    let url = url_at(&link.address().to_string()) + "&scheme=row&listen=off&timeout=20s";
    let remover = Raw::open(&url).await;
    remover.seen().await; // connects
    sql.batch_execute(NOW).await.expect("works");
    let removing =
        tokio::spawn(async move { remover.store.evict(&remover.line, mine.id, "why").await });
    until("it removes", async || one::<i64>(&sql, REMOVES, &[]).await == 1).await;
    link.lose_next_reply();
    sql.batch_execute(NOW).await.expect("works");
    blocker.batch_execute("SELECT pg_advisory_unlock(1)").await.expect("works");
    until("the session is gone", async || one::<i64>(&sql, HOLDERS, &[]).await == 0).await;
    blocker.batch_execute("SELECT pg_advisory_unlock(2)").await.expect("works");
    let removed = soon("the answer", removing).await.expect("no panic");
    assert!(removed.as_ref().is_err_and(|it| it.kind() == ErrorKind::Unknown), "{removed:?}");
}

/// A holder that releases its row while somebody breaks it, and takes another row with the same
/// session, keeps that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_leaves_a_session_alone_that_has_moved_on() {
    const LOOKS: &str = "SELECT coalesce(string_agg(query, ' ' ORDER BY pid), '') \
        FROM pg_stat_activity WHERE state = 'idle' AND query LIKE '%application_name LIKE%'";
    let Some(server) = private("row_moved_on", &["fsync=off"]) else { return };
    let url = format!("{}&scheme=row&timeout=30s", server.url());
    let holder = open(&(url.clone() + "&connections=1")).await.expect("opens");
    let (line, guard) = (Name::new("x").expect("good"), Mutex::new(&holder, "x").lock().await);
    let guard = guard.expect("works");
    let link = Link::to(server.address()).expect("a port is free");
    let remover = url.replace(
        &format!("{}:{}", server.address().0, server.address().1),
        &link.address().to_string(),
    );
    let remover = open(&remover).await.expect("opens");
    remover.inspect("y").await.expect("works"); // connects
    let sql = server.sql().await;
    let before: String = one(&sql, LOOKS, &[]).await;
    link.stall(Way::Replies);
    let id = guard.ticket();
    let removing = tokio::spawn(async move { remover.store().evict(&line, id, "why").await });
    until("it has found the session", async || {
        let looks = one::<String>(&sql, LOOKS, &[]).await;
        !looks.is_empty() && looks != before
    })
    .await;
    guard.unlock().await.expect("held");
    let guard = Mutex::new(&holder, "y").lock().await.expect("works"); // it has one connection
    link.mend();
    let removed = soon("the answer", removing).await.expect("no panic").expect("works");
    assert_eq!(removed, None, "x was released");
    guard.extend(std::time::Duration::from_secs(60)).await.expect("y is still held");
    guard.unlock().await.expect("held");
}

/// The server sends the notices of one transaction at a time. One whose commit hangs, because no
/// standby answers, keeps no lock and costs none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_does_not_depend_on_its_notice() {
    let Some(server) = private("session_untold", &["fsync=off"]) else { return };
    let sql = server.sql().await;
    let mut worlds = Vec::new();
    for scheme in ["row", "advisory"] {
        let (holder, waiter) = (store(&server, scheme).await, store(&server, scheme).await);
        let other = Raw { line: Name::new("other").expect("good"), ..holder.clone() };
        let (mine, next) = (ticket(1, 1), ticket(1, 1));
        let kept = (other.hold(&next).await, next, other);
        holder.hold(&mine).await;
        let waits = ticket(1, 1);
        waiter.enter(&waits, Enter::Queue).await.expect("it listens");
        let Raw { store, line } = waiter.clone();
        tokio::spawn(async move { store.watch(&line, waits.id).await });
        worlds.push((scheme, holder, mine, kept, waiter));
    }
    let heard = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' \
                 AND granted";
    until("both listen", async || one::<i64>(&sql, heard, &[]).await == 2).await;
    server.commits_hang("NOTIFY other").await;
    for (scheme, holder, mine, (seq, next, other), waiter) in worlds {
        assert!(holder.leave(&mine).await, "{scheme}: it was held");
        let standing = waiter.enter(&mine, Enter::Try).await.expect("works");
        assert!(matches!(standing, Standing::Admitted(_)), "{scheme}: {standing:?}");
        assert_eq!(other.keep(&next, seq).await.expect("works"), Standing::Admitted(seq));
    }
}

/// `VACUUM FULL` or `ALTER TABLE` waits for the holders of all rows, and later attempts wait behind
/// it, even with `NOWAIT`, which is about rows. The server does not notice when such a session has
/// been given up, so it would have ever more of them, until it has no connection left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_do_not_queue_behind_a_program_that_wants_the_whole_table() {
    let Some(server) = private("whole_table", &["fsync=off"]) else { return };
    let client = open(&format!("{}&scheme=row", server.url())).await.expect("opens");
    let held = Mutex::new(&client, "held").lock().await.expect("works");
    let admin = server.sql().await;
    let wants = tokio::spawn({
        let other = server.sql().await;
        async move { other.batch_execute("VACUUM FULL holdline.lock_row").await }
    });
    let queued = async |what: &str| -> i64 {
        let count = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity USING (pid) \
            WHERE NOT granted AND relation = 'holdline.lock_row'::regclass AND query ~ $1";
        one(&admin, count, &[&what]).await
    };
    until("it waits for the holder", async || queued("VACUUM").await == 1).await;
    let free = Mutex::new(&client, "free");
    assert!(!matches!(free.try_lock().await, Ok(Some(_))), "it got past the one that waits");
    until("no attempt waits in the server", async || queued("lock_token").await == 0).await;
    assert!(held.is_valid());
    held.unlock().await.expect("it was held");
    soon("it has the table", wants).await.expect("no panic").expect("works");
    soon("all go on", free.lock()).await.expect("works").unlock().await.expect("it was held");
}
