//! Calls that are sent together share a commit, and nothing else.

#[path = "../shared/at_once.rs"]
mod at_once;

use crate::server::{Database, count, first, private};
use at_once::{lock, names, refused_calls_fail_alone, some_refused};
use holdline::{Client, Guard, open};
use holdline_testkit::{Private, released, soon, until};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tokio::task::JoinSet;

/// Locks these names at the same time, each in a task of its own.
async fn all(client: &Client, names: &[String]) -> Vec<Guard> {
    let locks: JoinSet<_> = names.iter().map(|name| lock(client.clone(), name.clone())).collect();
    let locks = soon("they are locked", locks.join_all()).await;
    locks.into_iter().map(|guard| guard.expect("it is free")).collect()
}

/// Releases them at the same time.
async fn release(guards: Vec<Guard>) {
    let releases: JoinSet<_> = guards.into_iter().map(released).collect();
    releases.join_all().await;
}

/// A server whose lines with these names are known, a client of it, and a plain connection.
async fn server(name: &str, names: &[String]) -> Option<(Private, Client, Conn)> {
    let server = private(name, &[])?;
    let database = Database::fresh(&server.url(), "batches").await;
    let client = open(&database.url("")).await.expect("opens");
    release(all(&client, names).await).await;
    Some((server, client, database.conn().await))
}

/// There are as many transactions as messages, and far fewer than calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_share_a_commit() {
    let names = names("n", 100);
    let Some((_server, client, mut conn)) = server("mysql-share-commits", &names).await else {
        return;
    };
    // Calls that are sent alone are prepared, batches end with a COMMIT.
    let counts = async |conn: &mut Conn| {
        let mut counts = Vec::new();
        for name in ["Com_stmt_execute", "Com_commit", "Com_update", "Com_call_procedure"] {
            counts.push(count(conn, name).await);
        }
        counts
    };
    // On a busy machine a call is repeated that is not answered in time, but not each time.
    let mut seen = Vec::new();
    while seen.len() < 5 {
        let before = counts(&mut conn).await;
        release(all(&client, &names).await).await;
        let after = counts(&mut conn).await;
        let took: Vec<u64> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        let [alone, batches, updates, procedures] = took[..] else { panic!("{took:?}") };
        // Each call once.
        if (updates, procedures) == (200, 0) && batches > 0 && alone + batches < 100 {
            return;
        }
        client.settle().await;
        seen.push(took);
    }
    panic!("calls alone, batches, updates and procedures: {seen:?}");
}

/// A row that another client has locked neither fails nor holds up another call of its batch: the
/// server refuses the batch at once, and waits for the row only when its call is sent alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_locked_fails_no_other_call() {
    let names = names("n", 60);
    let Some((_server, client, mut conn)) = server("mysql-blocked-batch", &names).await else {
        return;
    };
    let locks = "SELECT COUNT(*) FROM holdline_line WHERE name = 'n30' FOR UPDATE";
    for tries in 1.. {
        conn.query_drop("START TRANSACTION").await.expect("works");
        assert_eq!(first::<u64>(&mut conn, locks).await, 1);
        let refused = count(&mut conn, "Com_rollback").await;
        let waits = count(&mut conn, "Innodb_row_lock_waits").await;
        let mut asked: JoinSet<_> =
            names.iter().map(|name| lock(client.clone(), name.clone())).collect();
        let mut guards = Vec::new();
        while guards.len() < names.len() - 1 {
            let guard = soon("a lock of another row", asked.join_next()).await;
            guards.push(guard.expect("one is left").expect("no panic").expect("it is free"));
        }
        let refused = count(&mut conn, "Com_rollback").await - refused;
        let waits = count(&mut conn, "Innodb_row_lock_waits").await - waits;
        conn.query_drop("ROLLBACK").await.expect("works");
        let last = soon("the blocked one", asked.join_next()).await.expect("it is left");
        guards.push(last.expect("no panic").expect("it is free now"));
        release(guards).await;
        assert!(refused > 0, "the blocked call was in no batch");
        if waits < refused {
            break;
        }
        // On a busy machine the call that is alone waits again and again.
        assert!(tries < 5, "{refused} batches were refused, after {waits} waits for the row");
    }
}

/// A call that the server refuses, which undoes its whole batch, fails alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_call_fails_no_other_call() {
    let names = some_refused();
    let Some((_server, client, mut conn)) = server("mysql-refused-batch", &names).await else {
        return;
    };
    let refuses = "CREATE TRIGGER refuse BEFORE UPDATE ON holdline_line FOR EACH ROW \
        IF NEW.name LIKE 'refused%' THEN SIGNAL SQLSTATE '45000' \
        SET MESSAGE_TEXT = 'as the test wants'; END IF";
    conn.query_drop(refuses).await.expect("works");
    refused_calls_fail_alone(&client, names).await;
}

/// A connection that ends takes no call of its batch with it: each is repeated on another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_calls_of_a_connection_that_ends_are_repeated() {
    let names = names("n", 60);
    let Some((_server, client, mut conn)) = server("mysql-ended-batch", &names).await else {
        return;
    };
    // A trigger stops each batch, long enough to end its connection.
    let pauses = "CREATE TRIGGER pause BEFORE UPDATE ON holdline_line FOR EACH ROW \
        SET @slept = IF(GET_LOCK('holdline-test', 10), RELEASE_LOCK('holdline-test'), 0)";
    conn.query_drop(pauses).await.expect("works");
    assert_eq!(first::<u8>(&mut conn, "SELECT GET_LOCK('holdline-test', 0)").await, 1);
    let locks = {
        let (client, names) = (client.clone(), names.clone());
        tokio::spawn(async move { all(&client, &names).await })
    };
    let stuck = "SELECT IFNULL(MIN(id), 0) FROM information_schema.processlist \
        WHERE db = DATABASE() AND state = 'User lock'";
    until("a call is stopped", async || first::<u64>(&mut conn, stuck).await > 0).await;
    let id = first::<u64>(&mut conn, stuck).await;
    conn.query_drop(format!("KILL CONNECTION {id}")).await.expect("it may");
    let again = format!("SELECT COUNT(*) FROM information_schema.processlist WHERE id = {id}");
    until("it has ended", async || first::<u64>(&mut conn, &again).await == 0).await;
    conn.query_drop("DO RELEASE_LOCK('holdline-test')").await.expect("works");
    release(locks.await.expect("no panic")).await;
}
