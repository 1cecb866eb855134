//! Fenced writes in databases that also keep the lock: their final contents. On the servers named
//! in the environment.

use crate::support::Example;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use std::process::Command;

/// The URL of a server in this variable, up to the name of the database.
fn server(variable: &str) -> Option<String> {
    let Ok(url) = std::env::var(variable) else {
        holdline_testkit::missing(&format!("{variable} is not set"));
        return None;
    };
    let server = url.rsplit_once('/').expect("a URL with a database").0;
    Some(server.to_owned())
}

/// Runs an example on this database. Returns the token of the holder that is in time.
fn run(program: &str, url: &str) -> u64 {
    let mut command = Command::new(program);
    command.arg(url);
    let mut example = Example::start(command);
    let wrote = example.says("the next holder wrote 100 under token");
    example.says("the slow holder's write is refused");
    example.says("the balance is 100");
    assert_eq!(example.exit_code(), Some(0));
    wrote.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a token")
}

#[tokio::test]
async fn mysql_and_mariadb_refuse_the_stale_write() {
    for variable in ["HOLDLINE_TEST_MARIADB", "HOLDLINE_TEST_MYSQL"] {
        let Some(server) = server(variable) else { continue };
        let name = format!("holdline_fenced_{}", std::process::id());
        let options = |database: &str| {
            Opts::from_url(&format!("{server}/{database}?prefer_socket=false")).expect("a URL")
        };
        let mut conn = Conn::new(options("holdline")).await.expect("the server runs");
        conn.query_drop(format!("CREATE DATABASE {name}; USE {name}")).await.expect("works");
        let token = run(env!("CARGO_BIN_EXE_fenced_mysql"), &format!("{server}/{name}"));
        let sql =
            "SELECT balance, token FROM accounts, fence WHERE id = 17 AND name = 'account-17'";
        let found: Vec<(i64, u64)> = conn.query(sql).await.expect("works");
        assert_eq!(found, [(100, token)]);
        conn.query_drop(format!("DROP DATABASE {name}")).await.expect("works");
    }
}

#[tokio::test]
async fn postgres_refuses_the_stale_write() {
    let Some(server) = server("HOLDLINE_TEST_POSTGRES") else { return };
    let name = format!("holdline_fenced_{}", std::process::id());
    let url = std::env::var("HOLDLINE_TEST_POSTGRES").expect("it is set");
    let mut conn = PgConnection::connect(&url).await.expect("the server runs");
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    conn.execute(create).await.expect("works");
    let url = format!("{server}/{name}");
    let token = run(env!("CARGO_BIN_EXE_fenced_sqlx"), &url);
    let mut inside = PgConnection::connect(&url).await.expect("the server runs");
    let sql = "SELECT balance, token FROM accounts, fence WHERE id = 17 AND name = 'account-17'";
    let row = inside.fetch_one(sql).await.expect("one row");
    assert_eq!((row.get::<i64, _>(0), row.get::<i64, _>(1).cast_unsigned()), (100, token));
    inside.close().await.expect("works");
    let drop = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
    conn.execute(drop).await.expect("works");
}
