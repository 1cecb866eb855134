//! Databases for one test each, on the environment's servers, and a plain client to inspect them.

use holdline::store::Ticket;
use holdline_testkit::{Deployment, Private, free_port, mysql};
use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Conn, Opts};
use std::time::Duration;

/// A test's own database on a server.
pub(crate) struct Database {
    server: String,
    name: String,
}

/// The databases of this name on all servers of the environment.
pub(crate) async fn databases(name: &str) -> Vec<Database> {
    let mut all = Vec::new();
    for variable in ["HOLDLINE_TEST_MARIADB", "HOLDLINE_TEST_MYSQL"] {
        let Ok(url) = std::env::var(variable) else {
            holdline_testkit::missing(&format!("{variable} is not set"));
            continue;
        };
        all.push(Database::fresh(&url, name).await);
    }
    all
}

impl Database {
    /// An empty database on the server of this URL.
    pub(crate) async fn fresh(url: &str, name: &str) -> Self {
        let (server, _) = url.rsplit_once('/').expect("a URL with a database");
        let name = format!("holdline_{name}");
        let mut conn = Conn::new(opts(url)).await.expect("the server runs");
        let sql = format!(
            "SET SESSION TRANSACTION READ WRITE; DROP DATABASE IF EXISTS {name}; \
             CREATE DATABASE {name}"
        );
        conn.query_drop(sql).await.expect("a database");
        Database { server: server.to_owned(), name }
    }

    /// A store's URL, which installs the tables.
    pub(crate) fn url(&self, options: &str) -> String {
        format!("{}/{}?install=yes{options}", self.server, self.name)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A plain connection.
    pub(crate) async fn conn(&self) -> Conn {
        let url = format!("{}/{}", self.server, self.name);
        let mut conn = Conn::new(opts(&url)).await.expect("the server runs");
        conn.query_drop("SET SESSION time_zone = '+00:00'").await.expect("it may");
        conn
    }
}

fn opts(url: &str) -> Opts {
    Opts::from_url(&format!("{url}?prefer_socket=false")).expect("a good URL")
}

/// The first row of an answer.
pub(crate) async fn first<T: FromRow + Send + 'static>(conn: &mut Conn, sql: &str) -> T {
    conn.query_first(sql).await.expect("works").expect("a row")
}

/// A private MariaDB with these options; `None`, with a note, if it is not installed.
pub(crate) fn private(name: &str, options: &[&str]) -> Option<Private> {
    let port = free_port();
    let node = mysql::mariadb("mariadb", port).args(options.iter().copied());
    Private::start(name, Deployment::new(mysql::url(port), vec![node]))
}

/// A ticket of a mutex.
pub(crate) fn ticket(lease: Duration) -> Ticket {
    holdline_testkit::ticket(fastrand::u128(..), lease)
}

/// Whether a statement in this database waits for a row that another transaction has locked: one is
/// under way here, and one somewhere in the server waits. (`innodb_trx` is a copy that is refreshed
/// only after 0.1 s without reads.)
pub(crate) async fn blocked(conn: &mut Conn) -> bool {
    let sql = "SELECT COUNT(*) FROM information_schema.processlist
               WHERE db = DATABASE() AND command <> 'Sleep' AND id <> CONNECTION_ID()";
    first::<u64>(conn, sql).await > 0 && count(conn, "Innodb_row_lock_current_waits").await > 0
}

/// A counter of the server.
pub(crate) async fn count(conn: &mut Conn, name: &str) -> u64 {
    let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
    let (_, count): (String, String) = first(conn, &sql).await;
    count.parse().expect("a number")
}
