//! The rights in the guide are enough for each scheme: to lock, wait, look and break.

use crate::server::databases;
use holdline::schema;
use mysql_async::prelude::Queryable;
use std::time::Duration;

#[path = "../shared/use_locks.rs"]
mod use_locks;
use use_locks::use_locks;

const GUIDE: &str = include_str!("../../../../docs/guides/mysql.md");

/// The rights in the guide's table.
fn rights(row: &str) -> &'static str {
    let row = GUIDE.lines().find(|line| line.starts_with(&format!("| {row} |")));
    row.and_then(|row| row.split('`').nth(1)).expect("the guide has them")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guides_rights_are_enough_for_each_scheme() {
    for database in databases("rights_of_schemes").await {
        let mut conn = database.conn().await;
        let (owner, user) = ("'holdline_installs'@'%'", "'holdline_uses'@'%'");
        conn.query_drop(format!("DROP USER IF EXISTS {owner}, {user}")).await.expect("works");
        conn.query_drop(format!("CREATE USER {owner}, {user}")).await.expect("works");
        let grant = format!("GRANT {} ON {}.* TO {owner}", rights("installs"), database.name());
        conn.query_drop(grant).await.expect("works");
        let installs = database.url("").replace("//holdline@", "//holdline_installs@");
        schema::install(&installs).await.expect("it may install");
        let installs_shedlock = format!("{installs}&scheme=shedlock");
        schema::install(&installs_shedlock).await.expect("it may install");
        assert!(GUIDE.contains("A user needs `SELECT`, `INSERT` and `UPDATE`."));
        let table = format!("{}.shedlock", database.name());
        let grant = format!("GRANT SELECT, INSERT, UPDATE ON {table} TO {user}");
        conn.query_drop(grant).await.expect("works");
        let url = installs.replace("installs@", "uses@").replace("install=yes", "install=no");
        use_locks(&format!("{url}&scheme=shedlock")).await;
        let grant = format!("GRANT {} ON {}.* TO {user}", rights("uses it"), database.name());
        conn.query_drop(grant).await.expect("works");
        for scheme in ["table", "row", "named"] {
            use_locks(&format!("{url}&scheme={scheme}")).await;
        }
        schema::sweep(&url, Duration::ZERO).await.expect("it may sweep");
        conn.query_drop(format!("DROP USER {owner}, {user}")).await.expect("works");
    }
}
