//! The cost to the server of acquisitions that are given up: the sooner, the less.

use crate::server::{Database, blocked, count, databases, first, private, ticket};
use futures_util::future::join_all;
use holdline::store::Enter;
use holdline::{Mutex, Name, open};
use holdline_testkit::{soon, until};
use mysql_async::prelude::Queryable;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const MANY: usize = 64;
const GIVE_UP: Duration = Duration::from_millis(1);

/// A request given up while it waits for a connection is never sent, and a sent one is answered: no
/// ticket has to be barred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_given_up_leave_nothing_to_write() {
    for database in databases("given_up").await {
        let client = open(&database.url("&timeout=30s")).await.expect("opens");
        Mutex::new(&client, "0").lock().await.expect("works").unlock().await.expect("held");
        let mut stranger = database.conn().await;
        stranger.query_drop("START TRANSACTION").await.expect("works");
        let row = "SELECT COUNT(*) FROM holdline_line WHERE name = '0' FOR UPDATE";
        assert_eq!(first::<u64>(&mut stranger, row).await, 1);
        let lines: Vec<_> = (0..MANY).map(|n| Name::new(n.to_string()).expect("good")).collect();
        let tickets: Vec<_> = lines.iter().map(|_| ticket(Duration::from_secs(60))).collect();
        let (store, note) = (client.store(), Arc::from("note"));
        // The first is sent and waits for its row; the others wait for its connection.
        let mut conn = database.conn().await;
        let sent = store.enter(&lines[0], &tickets[0], &note, Enter::Queue);
        let waits = until("it waits for the row", async || blocked(&mut conn).await);
        tokio::select! { _ = sent => panic!("the row is locked"), () = waits => {} }
        let rest = lines.iter().zip(&tickets).skip(1);
        let enter = |(line, mine)| timeout(GIVE_UP, store.enter(line, mine, &note, Enter::Queue));
        assert!(join_all(rest.map(enter)).await.iter().all(Result::is_err));
        let background = store.background_handle();
        let leaves = lines.iter().zip(&tickets).map(|(line, mine)| background.leave(line, mine.id));
        let (left, ended) = tokio::join!(join_all(leaves), stranger.query_drop("ROLLBACK"));
        ended.expect("works");
        assert!(left.into_iter().skip(1).all(|left| !left.expect("works")), "none was there");
        let sql = "SELECT (SELECT COUNT(*) FROM holdline_barred) + (SELECT COUNT(*) FROM \
                   holdline_line WHERE places > 0), (SELECT COUNT(*) FROM holdline_line)";
        assert_eq!(first::<(u64, u64)>(&mut conn, sql).await, (0, 1));
    }
}

/// In a storm, connection locks reuse the connections that are kept, and nothing is recorded of
/// attempts given up in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storms_use_few_connections() {
    let Some(server) = private("mysql-storm", &[]) else { return };
    for scheme in ["row", "named"] {
        let database = Database::fresh(&server.url(), &format!("storm_{scheme}")).await;
        let client = open(&database.url(&format!("&scheme={scheme}"))).await.expect("opens");
        let mut conn = database.conn().await;
        Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
        let before = count(&mut conn, "Connections").await;
        for _ in 0..10 {
            let locks: Vec<_> = (0..MANY).map(|n| Mutex::new(&client, n.to_string())).collect();
            join_all(locks.iter().map(|lock| timeout(GIVE_UP, lock.lock()))).await;
        }
        soon("all is given up", client.settle()).await;
        let made = count(&mut conn, "Connections").await - before;
        // The connections that ask, that are kept, and that got their lock in time: far fewer than
        // one for each name, as there would be if all attempts given up were made.
        assert!(made <= MANY as u64 / 2, "{scheme}: {made} connections were made");
        let rows: u64 = first(&mut conn, "SELECT COUNT(*) FROM holdline_line").await;
        println!("{scheme}: {made} connections, {rows} names");
    }
}
