//! Servers that speak MySQL's protocol and are neither MySQL nor MariaDB.

use crate::server::{Database, private};
use holdline::{ErrorKind, open, schema};

/// `MariaDB` says what it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_is_refused_by_its_name() {
    for (version, name) in [
        ("8.0.11-TiDB-v8.5.0", "TiDB"),
        ("5.7.25-OceanBase-v4.2.1.2", "OceanBase"),
        ("8.0.31-Dolt", "Dolt"),
    ] {
        let Some(server) = private("mysql-foreign", &[&format!("--version={version}")]) else {
            return;
        };
        let database = Database::fresh(&server.url(), "foreign").await;
        for options in ["", "&scheme=row", "&scheme=named", "&scheme=shedlock"] {
            let url = database.url(options);
            let installed = schema::install(&url).await.expect_err("nothing is installed");
            for error in [installed, open(&url).await.expect_err("it is another server")] {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}: {error}");
                assert!(error.to_string().contains(&format!("is {name},")), "{url}: {error}");
            }
        }
    }
}
