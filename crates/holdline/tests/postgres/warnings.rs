//! The warnings when a store is opened.

use crate::server::{one, private, with_environment};
use crate::standby::standby_of;
use holdline::open;
use holdline_testkit::{WallClock, Warnings, until};

/// The warnings when a store is opened here.
async fn warnings(url: &str) -> String {
    let warnings = Warnings::default();
    let guard = tracing::subscriber::set_default(warnings.clone());
    open(url).await.expect("opens");
    drop(guard);
    warnings.all().join("\n")
}

#[tokio::test]
async fn an_old_transaction_is_named() {
    let Some(clock) = WallClock::new() else { return };
    let environment = clock.environment("server", 0);
    let Some(server) = with_environment("old", &["fsync=off"], &environment) else { return };
    assert_eq!(warnings(&server.url()).await, "");
    let mut sql = server.sql().await;
    let old = sql.transaction().await.expect("begins");
    old.batch_execute("SELECT txid_current()").await.expect("works");
    assert_eq!(warnings(&server.url()).await, "");
    clock.environment("server", 120);
    let pid: i32 = old.query_one("SELECT pg_backend_pid()", &[]).await.expect("works").get(0);
    let warned = warnings(&server.url()).await;
    assert!(warned.contains(&format!("transaction of process {pid}")), "{warned}");
    old.batch_execute("PREPARE TRANSACTION 'forgotten'").await.expect("works");
    drop(old);
    clock.environment("server", 240);
    let warned = warnings(&server.url()).await;
    assert!(warned.contains("prepared transaction forgotten"), "{warned}");
    server.sql().await.batch_execute("ROLLBACK PREPARED 'forgotten'").await.expect("works");
    assert_eq!(warnings(&server.url()).await, "");
}

#[tokio::test]
async fn a_slot_that_nobody_reads_is_named() {
    let Some(server) = private("slot", &["fsync=off"]) else { return };
    let Some(standby) = standby_of(&server) else { return };
    let sql = server.sql().await;
    let pins = "SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL";
    until("it tells what it needs", async || one::<i64>(&sql, pins, &[]).await == 1).await;
    assert_eq!(warnings(&server.url()).await, "");
    drop(standby);
    let active = "SELECT count(*) FROM pg_replication_slots WHERE active";
    until("it is gone", async || one::<i64>(&sql, active, &[]).await == 0).await;
    let warned = warnings(&server.url()).await;
    assert!(warned.contains("replication slot standby"), "{warned}");
}
