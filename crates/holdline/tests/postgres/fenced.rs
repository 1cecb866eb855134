//! Fenced writes: the statement in the PostgreSQL guide.

use crate::server::private;
use holdline::{Client, Mutex, open};

const WRITE: &str = "WITH fence AS (
        INSERT INTO fence AS f VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET token = $2 WHERE f.token <= $2 RETURNING 1
    )
    UPDATE accounts SET balance = $3 WHERE id = $4 AND EXISTS (SELECT FROM fence)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_write_is_refused() {
    let Some(server) = private("fenced", &["fsync=off"]) else { return };
    let sql = server.sql().await;
    sql.batch_execute(
        "CREATE TABLE fence (name text PRIMARY KEY, token bigint NOT NULL);
         CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
         INSERT INTO accounts VALUES (17, 0)",
    )
    .await
    .expect("works");
    for scheme in ["table", "row"] {
        let here = open(&format!("{}&scheme={scheme}", server.url())).await.expect("opens");
        let there = Client::new(here.store().clone());
        let write = async |token: u64, balance: i64| {
            let token = token.cast_signed();
            sql.execute(WRITE, &[&scheme, &token, &balance, &17_i64]).await.expect("works")
        };
        let slow = Mutex::new(&here, "account").lock().await.expect("works");
        assert_eq!(write(slow.token(), 1).await, 1);
        let removed = there.force_unlock("account", slow.ticket(), "a test").await.expect("works");
        assert!(removed.is_some());
        let next = Mutex::new(&there, "account").lock().await.expect("works");
        assert_eq!(write(next.token(), 100).await, 1);
        assert_eq!(write(slow.token(), 2).await, 0, "{scheme}: the stale holder has written");
        assert_eq!(write(next.token(), 101).await, 1, "{scheme}: the same holder writes again");
        next.unlock().await.expect("it was held");
    }
}
