//! Databases for one test each, on the servers of the environment; and a plain client to look in.

use crate::eventually::until;
use crate::ports::free_port;
use holdline::store::{Ticket, TicketId};
use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Conn, Opts};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A database of its own on a server.
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

/// A MariaDB of one test's own, which is killed when this is dropped.
pub(crate) struct Server {
    folder: tempfile::TempDir,
    port: u16,
    options: Vec<String>,
    process: Option<Child>,
}

impl Server {
    /// Starts one with these options, or notes that there is none to start.
    pub(crate) async fn start(options: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", "--user=root", "--skip-test-db"]);
        install.arg("--auth-root-authentication-method=normal");
        install.arg(format!("--tmpdir={}", folder.path().display()));
        install.arg(format!("--datadir={}", folder.path().join("data").display()));
        let Ok(output) = install.stdin(Stdio::null()).output() else {
            holdline_testkit::missing("there is no mariadb-install-db");
            return None;
        };
        assert!(output.status.success(), "{output:?}");
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Server { folder, port: free_port(), options, process: None };
        server.run().await;
        Some(server)
    }

    /// Starts it again, on the same data, and waits until it answers.
    pub(crate) async fn run(&mut self) {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let log = std::fs::File::create(path("log")).expect("a log");
        let process = Command::new("mariadbd")
            .args(["--no-defaults", "--user=root", "--bind-address=127.0.0.1"])
            .args(["--innodb-buffer-pool-size=16M", "--skip-name-resolve"])
            .arg(format!("--datadir={}", path("data")))
            .arg(format!("--socket={}", path("socket")))
            .arg(format!("--pid-file={}", path("pid")))
            .arg(format!("--port={}", self.port))
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.process = Some(process.expect("mariadbd is beside mariadb-install-db"));
        let url = format!("mysql://root@127.0.0.1:{}/mysql", self.port);
        until("the server answers", async || Conn::new(opts(&url)).await.is_ok()).await;
    }

    /// An empty database in it.
    pub(crate) async fn database(&self, name: &str) -> Database {
        Database::fresh(&format!("mysql://root@127.0.0.1:{}/mysql", self.port), name).await
    }

    /// Kills it, as a crash of its machine would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it is a child");
            process.wait().expect("it ends");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A ticket of a mutex.
pub(crate) fn ticket(lease: Duration) -> Ticket {
    Ticket {
        id: TicketId(fastrand::u128(..)),
        weight: 1,
        capacity: 1,
        lease,
        wait_lease: lease,
        token_count: 1,
        min_token: 0,
    }
}

/// Whether a transaction waits for a row that another has locked.
pub(crate) async fn blocked(conn: &mut Conn) -> bool {
    let sql = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    first::<u64>(conn, sql).await > 0
}
