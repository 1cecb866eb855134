//! The warnings about a database, a while after a store is opened.

use crate::server::{Server, one, private, with_environment};
use crate::standby::standby_of;
use holdline::open;
use holdline_testkit::{WallClock, Warnings, until};

const SETTINGS: [&str; 2] = ["fsync=off", "log_statement=all"];

/// The warnings about this server's database.
async fn warnings(server: &Server) -> String {
    let (warnings, before) = (Warnings::default(), server.logged("pg_prepared_xact"));
    let guard = tracing::subscriber::set_default(warnings.subscriber());
    let client = open(&server.url()).await.expect("opens");
    drop(guard);
    until("it looks", async || server.logged("pg_prepared_xact") > before).await;
    drop(client);
    // The connection is open until the warnings are given.
    let sql = server.sql().await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdline'";
    until("its sessions end", async || one::<i64>(&sql, sessions, &[]).await == 0).await;
    warnings.all().join("\n")
}

#[tokio::test]
async fn an_old_transaction_is_named() {
    let Some(clock) = WallClock::new() else { return };
    let environment = clock.environment("server", 0);
    let Some(server) = with_environment("old", &SETTINGS, &environment) else { return };
    assert_eq!(warnings(&server).await, "");
    let mut sql = server.sql().await;
    let old = sql.transaction().await.expect("begins");
    old.batch_execute("SELECT txid_current()").await.expect("works");
    assert_eq!(warnings(&server).await, "");
    clock.environment("server", 120);
    let pid: i32 = old.query_one("SELECT pg_backend_pid()", &[]).await.expect("works").get(0);
    let warned = warnings(&server).await;
    assert!(warned.contains(&format!("transaction of process {pid}")), "{warned}");
    old.batch_execute("PREPARE TRANSACTION 'forgotten'").await.expect("works");
    drop(old);
    clock.environment("server", 240);
    let warned = warnings(&server).await;
    assert!(warned.contains("prepared transaction forgotten"), "{warned}");
    server.sql().await.batch_execute("ROLLBACK PREPARED 'forgotten'").await.expect("works");
    assert_eq!(warnings(&server).await, "");
}

#[tokio::test]
async fn a_slot_that_nobody_reads_is_named() {
    let Some(server) = private("slot", &SETTINGS) else { return };
    let Some(standby) = standby_of(&server) else { return };
    let sql = server.sql().await;
    let pins = "SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL";
    until("it tells what it needs", async || one::<i64>(&sql, pins, &[]).await == 1).await;
    assert_eq!(warnings(&server).await, "");
    drop(standby);
    let active = "SELECT count(*) FROM pg_replication_slots WHERE active";
    until("it is gone", async || one::<i64>(&sql, active, &[]).await == 0).await;
    let warned = warnings(&server).await;
    assert!(warned.contains("replication slot standby"), "{warned}");
}
