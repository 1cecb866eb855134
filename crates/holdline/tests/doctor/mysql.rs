//! MySQL and MariaDB: what their variables say.

use super::{at_worst, examine, found, look};
use holdline::doctor::Level;
use holdline_testkit::{Deployment, Node, Private, free_port, mysql};

async fn settings_that_cost_locks_are_told(node: fn(&str, u16) -> Node) {
    let describe = || {
        let port = free_port();
        Deployment::new(mysql::url(port), vec![node("mysql", port)])
    };
    let Some(server) = Private::launch("mysql", describe) else { return };
    let url = server.url();
    let report = look(&format!("{url}?install=yes")).await;
    found(&report, "open", Level::Problem, "lacks holdline's tables"); // and none are made
    holdline::schema::install(&url).await.expect("it installs");
    let report = examine(&url).await;
    at_worst(&report, Level::Advice);
    found(&report, "durability", Level::Ok, "1");
    found(&report, "lock", Level::Ok, "holdline-doctor");
    let pool = mysql_async::Pool::new(url.as_str());
    let mut conn = pool.get_conn().await.expect("it runs");
    let mut say = async |sql: &str| {
        mysql_async::prelude::Queryable::query_drop(&mut conn, sql).await.expect("we may");
    };
    say("SET GLOBAL innodb_flush_log_at_trx_commit = 2").await;
    found(&examine(&url).await, "durability", Level::Warning, "2");
    say("SET GLOBAL read_only = ON").await;
    found(&examine(&url).await, "role", Level::Problem, "read_only");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_mariadb_that_cost_locks_are_told() {
    settings_that_cost_locks_are_told(mysql::mariadb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_mysql_that_cost_locks_are_told() {
    settings_that_cost_locks_are_told(mysql::mysql).await;
}
