//! A private server, to which a test may do anything.

use holdline_testkit::postgres::{node, url};
use holdline_testkit::{Deployment, Folder, Node, Private, free_port, until};
use std::fs;
use std::path::Path;
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{Client, NoTls};

/// A running server.
pub(crate) struct Server(Private);

/// A private server with these settings, such as `fsync=off`, and its data in memory.
pub(crate) fn private(test: &str, settings: &[&str]) -> Option<Server> {
    start(Folder::new(test).expect("a folder"), settings, &[])
}

/// The same, with these variables in its environment.
pub(crate) fn with_environment(
    test: &str,
    settings: &[&str],
    environment: &[(String, String)],
) -> Option<Server> {
    start(Folder::new(test).expect("a folder"), settings, environment)
}

/// The same, with its data on the disk.
pub(crate) fn on_disk(test: &str, settings: &[&str]) -> Option<Server> {
    start(Folder::on_disk(test).expect("a folder"), settings, &[])
}

fn start(folder: Folder, settings: &[&str], environment: &[(String, String)]) -> Option<Server> {
    let describe = || {
        let port = free_port();
        let settings = ["autovacuum=off"].iter().chain(settings);
        let args = settings.flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]);
        let node = node("postgres", port).args(args);
        let with = |node: Node, (name, value): &(String, String)| node.variable(name, value);
        Deployment::new(url(port), vec![environment.iter().fold(node, with)])
    };
    Private::launch_in(folder, describe).map(Server)
}

impl Server {
    /// The process that starts all others.
    pub(crate) fn pid(&self) -> u32 {
        self.0.servers[0].pid()
    }

    /// The folder of everything it writes.
    pub(crate) fn folder(&self) -> &Path {
        self.0.servers[0].dir()
    }

    pub(crate) fn address(&self) -> (&'static str, u16) {
        ("127.0.0.1", self.0.servers[0].port())
    }

    /// The URL of a store there that installs its schema.
    pub(crate) fn url(&self) -> String {
        self.0.url() + "?install=yes"
    }

    /// Its URL for other clients.
    pub(crate) fn plain_url(&self) -> String {
        self.0.url()
    }

    /// The number of lines in its log with this text.
    pub(crate) fn logged(&self, text: &str) -> usize {
        let log = fs::read_to_string(self.0.servers[0].dir().join("log")).expect("a log");
        log.lines().filter(|line| line.contains(text)).count()
    }

    /// A connection of the test's own.
    pub(crate) async fn sql(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.0.url(), NoTls).await.expect("it runs");
        tokio::spawn(connection);
        client
    }

    /// Waits until a store's listening connection exists.
    pub(crate) async fn listened_to(&self) {
        let sql = self.sql().await;
        let listens = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdline' \
                       AND state = 'idle' AND (query LIKE 'LISTEN%' OR query = '')";
        until("it listens", async || one::<i64>(&sql, listens, &[]).await == 1).await;
    }

    /// Makes commits wait for a standby of this name, or for none if it is empty.
    pub(crate) async fn synchronous_with(&self, standby: &str) {
        let sql = self.sql().await;
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{standby}'");
        sql.batch_execute(&set).await.expect("it may");
        sql.batch_execute("SELECT pg_reload_conf()").await.expect("it may");
    }

    /// Takes its standby away. Returns once a commit hangs, of a transaction that does this, too. A
    /// commit waits for a standby only if its transaction has written something.
    pub(crate) async fn commits_hang(&self, also: &str) {
        let (sql, writes) = (self.sql().await, self.sql().await);
        sql.batch_execute("CREATE TABLE written (it int)").await.expect("it may");
        self.synchronous_with("nobody").await;
        let write = format!("INSERT INTO written VALUES (1); {also}");
        // The first ones may come before the server knows the setting.
        tokio::spawn(async move { while writes.batch_execute(&write).await.is_ok() {} });
        let hangs = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        until("a commit hangs", async || one::<i64>(&sql, hangs, &[]).await >= 1).await;
    }

    /// Kills all its processes, as in a power failure; but what was written to the disk is kept.
    pub(crate) fn kill(&mut self) {
        self.0.kill(0);
    }

    /// Restarts it after [`kill`](Self::kill).
    pub(crate) fn start(&mut self) {
        self.0.restart(0);
    }

    /// Suspends all its processes.
    pub(crate) fn freeze(&self) {
        self.0.servers[0].pause();
    }

    /// Resumes all its processes.
    pub(crate) fn thaw(&self) {
        self.0.servers[0].resume();
    }
}

/// The URL of a store at this host and port that installs its schema.
pub(crate) fn url_at(host: &str) -> String {
    format!("postgres://postgres@{host}/postgres?install=yes")
}

/// The only value of a query.
pub(crate) async fn one<T: FromSqlOwned>(
    sql: &Client,
    query: &str,
    params: &[&(dyn ToSql + Sync)],
) -> T {
    let row = sql.query_one(query, params).await;
    row.unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}
