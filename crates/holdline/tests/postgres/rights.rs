//! The rights in the guide are enough for each scheme: to lock, wait, look and break.

use crate::server::private;
use holdline::{ErrorKind, Mutex, open, schema};
use std::time::Duration;

#[path = "../shared/use_locks.rs"]
mod use_locks;
use use_locks::use_locks;

const GUIDE: &str = include_str!("../../../../docs/guides/postgres.md");

/// The guide's statements that follow these words.
fn grants(words: &str) -> &'static str {
    let (_, rest) = GUIDE.split_once(words).expect("the guide says so");
    let (_, block) = rest.split_once("```sql\n").expect("there is a block of SQL");
    block.split("```").next().expect("it has a beginning")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guides_grants_are_enough_for_each_scheme() {
    let Some(server) = private("rights_of_schemes", &["fsync=off"]) else { return };
    let sql = server.sql().await;
    sql.batch_execute("CREATE ROLE app LOGIN").await.expect("works");
    let of_shedlock = "A role needs `SELECT`, `INSERT` and `UPDATE`.";
    assert!(GUIDE.contains(of_shedlock));
    for (scheme, granted) in [
        ("table", grants("Users of locks need these rights")),
        ("row", grants("### row")),
        ("advisory", ""),
        ("shedlock", "GRANT SELECT, INSERT, UPDATE ON shedlock TO app"),
    ] {
        // A database for each scheme, so that none has the rights of another.
        sql.batch_execute(&format!("CREATE DATABASE of_{scheme}")).await.expect("works");
        let url = server.plain_url();
        let admin = format!("{}/of_{scheme}", url.strip_suffix("/postgres").expect("its database"));
        let url = format!("{}?scheme={scheme}", admin.replace("postgres@", "app@"));
        if scheme == "shedlock" {
            open(&format!("{admin}?scheme=shedlock&install=yes")).await.expect("it is made");
        } else if scheme != "advisory" {
            schema::install(&admin).await.expect("works");
        }
        if !granted.is_empty() {
            let refused = async { Mutex::new(&open(&url).await?, "x").lock().await };
            assert_eq!(refused.await.expect_err("no rights").kind(), ErrorKind::Denied, "{scheme}");
        }
        let (there, connection) =
            tokio_postgres::connect(&admin, tokio_postgres::NoTls).await.expect("it runs");
        let connection = tokio::spawn(connection);
        there.batch_execute(granted).await.expect("works");
        use_locks(&url).await;
        if scheme == "table" {
            schema::sweep(&url, Duration::ZERO).await.expect("it may sweep");
        }
        connection.abort();
    }
}
