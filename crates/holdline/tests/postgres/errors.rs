//! Refusals of a server that lacks something, and their handling.

#[path = "../shared/silent_lists.rs"]
mod silent_lists;

use crate::raw::{Raw, ticket};
use crate::server::{Server, one, private};
use holdline::store::{Enter, Standing};
use holdline::{Client, ErrorKind, Mutex, open};
use holdline_testkit::{soon, until};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_connection_left_is_named() {
    let Some(server) = private("no_connection", &["fsync=off"]) else { return };
    open(&server.url()).await.expect("opens");
    let sql = server.sql().await;
    let role = "CREATE ROLE app LOGIN CONNECTION LIMIT 1";
    sql.batch_execute(role).await.expect("works");
    let grants = "GRANT USAGE ON SCHEMA holdline TO app; \
                  GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdline TO app";
    sql.batch_execute(grants).await.expect("works");
    let url = server.url().replace("postgres@", "app@");
    let first = open(&url).await.expect("opens");
    // Its second connection, for notices, is refused; a waiter gets the lock by polling.
    let guard = Mutex::new(&first, "x").lock().await.expect("works");
    let next = Mutex::new(&Client::new(first.store().clone()), "x");
    let waiting = tokio::spawn(async move { next.lock().await });
    let watcher = Raw::open(&server.url()).await;
    until("the next waits", async || watcher.seen().await.places.len() == 2).await;
    guard.unlock().await.expect("it was held");
    let next = soon("the next", waiting).await.expect("no panic").expect("works");
    next.unlock().await.expect("it was held");
    let error = open(&url).await.expect_err("there is no second");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    drop(first);
    until("there is one again", async || open(&url).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_is_not_given_is_asked_for() {
    let Some(server) = private("password", &["fsync=off"]) else { return };
    let sql = server.sql().await;
    sql.batch_execute("CREATE ROLE app LOGIN PASSWORD 'right'").await.expect("works");
    let rules = server.folder().join("pg_hba.conf");
    let others = std::fs::read_to_string(&rules).expect("it is there");
    let ours = format!("host all app 127.0.0.1/32 scram-sha-256\n{others}");
    std::fs::write(&rules, ours).expect("there is room");
    sql.batch_execute("SELECT pg_reload_conf()").await.expect("works");
    let refused = async |login: &str| {
        let error = open(&server.url().replace("postgres@", login)).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        error.to_string()
    };
    until("the rules are read", async || refused("app:wrong@").await.contains("check both")).await;
    let error = refused("app@").await;
    assert!(error.contains("asks for a password; write it"), "{error}");
}

/// A small file system, unmounted when this is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of 2 MB in memory, if this machine allows it.
    fn mount(server: &Server) -> Option<Self> {
        let path = server.folder().join("small");
        std::fs::create_dir(&path).expect("there is room");
        let disk = SmallDisk(path);
        // Owned by the server's user, because the server sets its mode.
        let owner = std::fs::metadata(server.folder()).expect("it is there").uid();
        let options = format!("size=2m,mode=0700,uid={owner}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&disk.0);
        mount.output().is_ok_and(|output| output.status.success()).then_some(disk)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The server has open files there until it ends.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// A trigger that fails as on a full disk, for machines that cannot mount one.
const AS_IF_FULL: &str = "
    CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100';
    END $$;
    CREATE TRIGGER no_room BEFORE INSERT ON holdline.line EXECUTE FUNCTION no_room()";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_an_error_and_loses_nothing() {
    let Some(server) = private("full", &["fsync=off"]) else { return };
    let (raw, sql) = (Raw::open(&server.url()).await, server.sql().await);
    let mine = ticket(1, 1);
    let seq = raw.hold(&mine).await;
    let disk = SmallDisk::mount(&server);
    let room = if let Some(disk) = &disk {
        let path = disk.0.display();
        sql.batch_execute(&format!("CREATE TABLESPACE small LOCATION '{path}'"))
            .await
            .expect("works");
        let setup = "ALTER TABLE holdline.line SET TABLESPACE small; \
                     CREATE TABLE filler (text text) TABLESPACE small";
        sql.batch_execute(setup).await.expect("works");
        let fill = "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 50)";
        until("it is full", async || sql.batch_execute(fill).await.is_err()).await;
        "DROP TABLE filler"
    } else {
        sql.batch_execute(AS_IF_FULL).await.expect("works");
        "DROP TRIGGER no_room ON holdline.line"
    };
    let mut error = None;
    for n in 0..1000 {
        let other = Raw::named(&server.url(), &format!("{n}")).await;
        match other.enter(&ticket(1, 1), Enter::Queue).await {
            Ok(standing) => assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}"),
            Err(why) if why.to_string().contains("did not answer in time") => {} // a busy machine
            Err(why) => {
                error = Some(why);
                break;
            }
        }
    }
    let error = error.expect("new locks need room");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no room on its disk"), "{error}");
    sql.batch_execute(room).await.expect("works");
    let other = Raw::named(&server.url(), "after").await;
    other.hold(&ticket(1, 1)).await;
    assert_eq!(raw.keep(&mine, seq).await.expect("works"), Standing::Admitted(seq));
    assert!(raw.leave(&mine).await);
}

/// In a deadlock, the server aborts the store's transaction, which is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_repeated() {
    let settings = ["fsync=off", "deadlock_timeout=300ms"];
    let Some(server) = private("deadlock", &settings) else { return };
    let raw = Raw::open(&(server.url() + "&timeout=30s")).await;
    let mut sql = server.sql().await;
    // So that the deadlock is not detected here first.
    sql.batch_execute("SET deadlock_timeout = '60s'").await.expect("works");
    for _ in 0..20 {
        let (mine, next) = (ticket(1, 1), ticket(1, 1));
        raw.hold(&mine).await;
        let seq = raw.queue(&next).await;
        let blocker = sql.transaction().await.expect("begins");
        blocker.execute("SELECT 1 FROM holdline.place FOR UPDATE", &[]).await.expect("locks");
        // It has locked the line, and waits for the place to be admitted.
        let leaving = {
            let raw = raw.clone();
            tokio::spawn(async move { raw.store.leave(&raw.line, mine.id).await })
        };
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let watcher = server.sql().await;
        until("it waits", async || one::<i64>(&watcher, waits, &[]).await == 1).await;
        blocker.execute("SELECT 1 FROM holdline.line FOR UPDATE", &[]).await.expect("locks");
        blocker.commit().await.expect("ends");
        let left = soon("the departure", leaving).await.expect("no panic");
        let found = server.logged("deadlock detected") > 0;
        // On a slow machine it may have reached its lock timeout first.
        assert!(left.is_ok() || left.as_ref().is_err_and(holdline::Error::retryable), "{left:?}");
        if left.is_err() {
            assert!(raw.leave(&mine).await);
        }
        assert_eq!(raw.keep(&next, seq).await.expect("works"), Standing::Admitted(seq));
        assert!(raw.leave(&next).await);
        if found && left.is_ok() {
            return;
        }
    }
    panic!("there was no deadlock");
}

/// When the server's queue of notices is full, calls send none, since they would fail: an unlock
/// works, and the waiter, which asks by itself, gets the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_of_notices_holds_up_no_unlock() {
    let Some(server) = private("no_notices", &["fsync=off"]) else { return };
    let full = "CREATE SCHEMA shadow; \
        CREATE FUNCTION shadow.pg_notification_queue_usage() RETURNS float8 LANGUAGE sql \
            AS 'SELECT 0.999::float8'; \
        CREATE FUNCTION shadow.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN \
            RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; \
            END $$; \
        ALTER ROLE postgres SET search_path = shadow, pg_catalog, public";
    server.sql().await.batch_execute(full).await.expect("works");
    let (holder, other) = (open(&server.url()).await, open(&server.url()).await);
    let (holder, other) = (holder.expect("opens"), other.expect("opens"));
    let guard = Mutex::new(&holder, "x").lock().await.expect("works");
    let next = Mutex::new(&other, "x");
    let waiting = tokio::spawn(async move { next.lock().await });
    until("it waits", async || holder.inspect("x").await.expect("works").waiters.len() == 1).await;
    guard.unlock().await.expect("held");
    let next = soon("the waiter has it", waiting).await.expect("no panic").expect("works");
    let id = holder.inspect("x").await.expect("works").holders[0].id;
    let removed = holder.force_unlock("x", id, "by hand").await.expect("works");
    assert!(removed.is_some(), "a removal sends no notice either");
    until("its holder learns of it", async || !next.is_valid()).await;
}

/// Where there are notices, a removal by force is told by one: the next renewal is minutes away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_is_told_by_a_notice() {
    let Some(server) = private("removal", &["fsync=off"]) else { return };
    let (client, other) = (open(&server.url()).await, open(&server.url()).await);
    let (client, other) = (client.expect("opens"), other.expect("opens"));
    let first = Mutex::new(&other, "x").lock().await.expect("works");
    let next = Mutex::new(&client, "x").lease(Duration::from_secs(600));
    let waiting = tokio::spawn(async move { next.lock().await });
    until("it waits", async || other.inspect("x").await.expect("works").waiters.len() == 1).await;
    first.unlock().await.expect("held");
    let guard = soon("the waiter has it", waiting).await.expect("no panic").expect("works");
    let removed = other.force_unlock("x", guard.ticket(), "by hand").await.expect("works");
    assert!(removed.is_some());
    soon("its holder is told", guard.lost()).await;
}

/// Time limits of the server and of the role do not end a transaction that holds a lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_limits_of_the_server_do_not_end_a_lock() {
    let limits = [
        "fsync=off",
        "idle_in_transaction_session_timeout=1s",
        "idle_session_timeout=1s",
        "statement_timeout=5s",
        "lock_timeout=5s",
    ];
    let Some(server) = private("limits", &limits) else { return };
    for scheme in ["row", "advisory"] {
        let url = format!("{}&scheme={scheme}&listen=off", server.url());
        let client = open(&url).await.expect("opens");
        let lock = Mutex::new(&client, "x").lease(Duration::from_secs(60));
        let guard = lock.lock().await.expect("works");
        let lost = tokio::time::timeout(Duration::from_secs(3), guard.lost()).await;
        assert!(lost.is_err(), "{scheme}: it was ended");
        guard.unlock().await.expect("it was held");
    }
}

/// A name with a character that the database's encoding lacks is an error; other names work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_the_database_cannot_keep_is_named() {
    let Some(server) = private("encoding", &["fsync=off"]) else { return };
    let create = "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0";
    server.sql().await.batch_execute(create).await.expect("works");
    let client = open(&server.url().replace("/postgres?", "/latin?")).await.expect("opens");
    Mutex::new(&client, "café").lock().await.expect("works").unlock().await.expect("held");
    let error = Mutex::new(&client, "🔒").lock().await.expect_err("it is not in LATIN1");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("encoding"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_a_silent_server_cost_no_connections() {
    let Some(server) = private("silent_lists", &["fsync=off"]) else { return };
    let (host, port) = server.address();
    for scheme in ["table", "shedlock"] {
        let url = format!("{}&timeout=300ms&scheme={scheme}", server.url());
        // The last one is closed when the next call finds that it was silent for 1.5 s.
        silent_lists::cost_no_connections(&url, &format!("{host}:{port}"), 2, 1).await;
    }
}
