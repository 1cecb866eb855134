//! How a process that waits is told that it was admitted.

use crate::server::{Database, count, databases, first, private};
use holdline::{Client, Guard, Mutex, open};
use holdline_testkit::until;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tokio::task::JoinHandle;

/// The connection that sleeps until the process is told that waits for lock x.
async fn listener(conn: &mut Conn) -> Option<u64> {
    let sql = "SELECT IS_USED_LOCK(CONCAT('holdline-listener:', listener)) FROM holdline_place \
        WHERE line = 'x'";
    conn.query_first::<Option<u64>, _>(sql).await.expect("works").flatten()
}

/// A task of another process, as it were, that waits for lock x and listens; and its listener.
async fn waiting(client: &Client, database: &Database) -> (JoinHandle<Guard>, u64) {
    let lock = Mutex::new(client, "x");
    let task = tokio::spawn(async move { lock.lock().await.expect("works") });
    let mut found = None;
    until("its process listens", async || {
        let mut conn = database.conn().await;
        found = listener(&mut conn).await;
        let Some(id) = found else { return false };
        let sql = format!(
            "SELECT COUNT(*) FROM information_schema.processlist \
             WHERE id = {id} AND info LIKE 'SELECT SLEEP%'"
        );
        first::<u64>(&mut conn, &sql).await == 1
    })
    .await;
    (task, found.expect("it was found"))
}

/// A release ends one sleep if somebody of another process waits, and else none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_tells_the_process_that_waits() {
    let Some(server) = private("mysql-notice", &[]) else { return };
    let database = Database::fresh(&server.url(), "notice").await;
    let mut conn = database.conn().await;
    let client = open(&database.url("")).await.expect("opens");
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    let other = open(&database.url("")).await.expect("opens");
    let (task, _) = waiting(&other, &database).await;
    let before = count(&mut conn, "Com_kill").await;
    guard.unlock().await.expect("held");
    let guard = task.await.expect("no panic");
    assert_eq!(count(&mut conn, "Com_kill").await - before, 1);
    guard.unlock().await.expect("held");
    assert_eq!(count(&mut conn, "Com_kill").await - before, 1, "nobody waits");
}

/// A listener that was cut off delays a hand-over, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_notices_those_who_wait_look_by_themselves() {
    for database in databases("unheard").await {
        let mut conn = database.conn().await;
        let client = open(&database.url("")).await.expect("opens");
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        let other = open(&database.url("")).await.expect("opens");
        let (task, id) = waiting(&other, &database).await;
        conn.query_drop(format!("KILL CONNECTION {id}")).await.expect("its own user may");
        until("it is gone", async || {
            let sql =
                format!("SELECT COUNT(*) FROM information_schema.processlist WHERE id = {id}");
            first::<u64>(&mut database.conn().await, &sql).await == 0
        })
        .await;
        guard.unlock().await.expect("held");
        task.await.expect("no panic").unlock().await.expect("held");
    }
}
