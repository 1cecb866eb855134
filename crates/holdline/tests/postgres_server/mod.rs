//! A private PostgreSQL server for a test, with its data in memory, that ends with the test.
//!
//! Without an installed server, the test was not run, and does not pass: see
//! `holdline_testkit::missing`.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

#[path = "../support/ports.rs"]
mod ports;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{Client, NoTls};

/// A running server.
pub struct Server {
    port: u16,
    settings: Vec<String>,
    child: Child,
    folder: tempfile::TempDir,
}

/// The folder of the newest installed server's programs.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.filter_map(Result::ok);
    let folders = versions.map(|entry| entry.path().join("bin"));
    folders.filter(|folder| folder.join("postgres").exists()).max()
}

/// A user and group for the server, which refuses to run as root.
fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("it can be read");
    let of = |name: &str| {
        let line = users.lines().find(|line| line.starts_with(&format!("{name}:")))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    of("postgres").or_else(|| of("nobody"))
}

fn command(program: &str) -> Command {
    let mut command = Command::new(programs().expect("it was found").join(program));
    if let Some((user, group)) = other_user() {
        command.uid(user).gid(group);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// A private server with these settings, such as `fsync=off`.
pub fn private(test: &str, settings: &[&str]) -> Option<Server> {
    if programs().is_none() {
        holdline_testkit::missing(&format!("{test} needs PostgreSQL (apt install postgresql)"));
        return None;
    }
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    on(folder.expect("a temporary folder"), settings)
}

/// The same, with its data on the disk.
pub fn on_disk(settings: &[&str]) -> Option<Server> {
    programs()?;
    on(tempfile::tempdir().expect("a temporary folder"), settings)
}

fn on(folder: tempfile::TempDir, settings: &[&str]) -> Option<Server> {
    if let Some((user, group)) = other_user() {
        std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).expect("it is root");
    }
    let mut init = command("initdb");
    init.arg("-D").arg(folder.path().join("data"));
    let made =
        init.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
    assert!(made.status().expect("initdb runs").success(), "initdb fails");
    let port = ports::free_port();
    let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
    let child = launch(folder.path(), port, &settings);
    let server = Server { port, settings, child, folder };
    server.wait_until_up();
    Some(server)
}

fn launch(folder: &Path, port: u16, settings: &[String]) -> Child {
    let log = fs::File::options().create(true).append(true).open(folder.join("log"));
    let mut postgres = command("postgres");
    postgres.arg("-D").arg(folder.join("data")).arg("-p").arg(port.to_string());
    for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "autovacuum=off"] {
        postgres.arg("-c").arg(setting);
    }
    for setting in settings {
        postgres.arg("-c").arg(setting);
    }
    postgres.stderr(log.expect("a log")).spawn().expect("postgres runs")
}

impl Server {
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> (&'static str, u16) {
        ("127.0.0.1", self.port)
    }

    /// The URL of a store there, which installs its schema.
    pub fn url(&self) -> String {
        url_at(&format!("127.0.0.1:{}", self.port))
    }

    fn wait_until_up(&self) {
        let limit = Instant::now() + Duration::from_secs(40);
        let mut ready = command("pg_isready");
        ready.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        while !ready.status().is_ok_and(|status| status.success()) {
            assert!(Instant::now() < limit, "it does not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The number of lines in its log that have this text.
    pub fn logged(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    /// A connection of the test's own.
    pub async fn sql(&self) -> Client {
        let config = format!("host=127.0.0.1 port={} user=postgres", self.port);
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("it runs");
        tokio::spawn(connection);
        client
    }

    fn signal(&self, signal: rustix::process::Signal) {
        for pid in self.processes() {
            let pid = rustix::process::Pid::from_raw(pid).expect("no zero");
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Its processes, itself first.
    fn processes(&self) -> Vec<i32> {
        let own = self.child.id().cast_signed();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        std::iter::once(own).chain(children).collect()
    }

    /// Stops it as a crash of the machine's power would, but for what the disk has.
    pub fn kill(&mut self) {
        self.signal(rustix::process::Signal::KILL);
        self.child.wait().expect("it ends");
    }

    /// Stops it in an orderly way, with its connections.
    pub fn stop(&mut self) {
        let own = rustix::process::Pid::from_raw(self.child.id().cast_signed()).expect("no zero");
        let _ = rustix::process::kill_process(own, rustix::process::Signal::INT);
        self.child.wait().expect("it ends");
    }

    /// Starts it again after [`kill`](Self::kill) or [`stop`](Self::stop).
    pub fn start(&mut self) {
        self.child = launch(self.folder.path(), self.port, &self.settings);
        self.wait_until_up();
    }

    /// Stops all of its processes from running.
    pub fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Lets them run again.
    pub fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.thaw();
        self.kill_quietly();
    }
}

impl Server {
    fn kill_quietly(&mut self) {
        self.signal(rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The URL of a store at this host and port, which installs its schema.
pub fn url_at(host: &str) -> String {
    format!("postgres://postgres@{host}/postgres?install=yes")
}

/// The only value of a query.
pub async fn one<T: FromSqlOwned>(sql: &Client, query: &str, params: &[&(dyn ToSql + Sync)]) -> T {
    let row = sql.query_one(query, params).await;
    row.unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}

/// Whether a server can be had at all, asked for once.
pub fn installed() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| programs().is_some())
}
