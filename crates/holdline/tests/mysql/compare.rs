//! Comparisons of both servers' schemes with each other and with Redis. Not a test of correctness,
//! so it runs only on request, like `speed`:
//! `cargo test --release --features mysql,redis --test mysql compare -- --ignored --nocapture`.

use holdline_testkit::{Deployment, Folder, Node, Private, free_port, mysql, redis};

#[path = "../shared/ways.rs"]
mod ways;
use ways::{Way, measure};

/// A server with its data on the disk.
fn on_disk(name: &str, kind: fn(&str, u16) -> Node) -> Option<Private> {
    let describe = || {
        let port = free_port();
        Deployment::new(mysql::url(port), vec![kind("server", port)])
    };
    Private::launch_in(Folder::on_disk(name).expect("a folder"), describe)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "measures"]
async fn the_schemes_beside_each_other() {
    let Some(mariadb) = on_disk("compare_mariadb", mysql::mariadb) else { return };
    let Some(mysql) = on_disk("compare_mysql", mysql::mysql) else { return };
    let Some(redis) = redis::private("compare", &[]) else { return };
    for together in [false, true] {
        let mut ways = vec![Way::new("Redis", redis.url(), redis.pid()).await];
        for (name, server, scheme) in [
            ("MariaDB, table", &mariadb, "table"),
            ("MariaDB, row", &mariadb, "row"),
            ("MariaDB, named", &mariadb, "named"),
            ("MySQL, table", &mysql, "table"),
            ("MySQL, row", &mysql, "row"),
            ("MySQL, named", &mysql, "named"),
        ] {
            let url = format!("{}?install=yes&scheme={scheme}", server.url());
            ways.push(Way::new(name, &url, server.servers[0].pid()).await);
        }
        measure(ways, together).await;
    }
}
