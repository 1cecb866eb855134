//! A Redis server for a test: the one of `HOLDLINE_TEST_REDIS`, or a private one on a free port,
//! with its data in a temporary folder, that ends with the test.
//!
//! Without either, the test was not run, and does not pass: see `holdline_testkit::missing`.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

#[path = "../support/ports.rs"]
mod ports;

pub use ports::free_port;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server.
pub struct Server {
    url: String,
    port: u16,
    args: Vec<String>,
    sentinel: Option<String>,
    /// It goes by a clock that the test moves.
    shifted: bool,
    own: Option<(Child, tempfile::TempDir)>,
}

/// A server to share with others, or a private one; nothing if there is neither.
pub fn start(test: &str) -> Option<Server> {
    if let Ok(url) = std::env::var("HOLDLINE_TEST_REDIS") {
        return Some(Server {
            url,
            port: 0,
            args: Vec::new(),
            sentinel: None,
            shifted: false,
            own: None,
        });
    }
    private(test, &[])
}

/// A private server, which the test may treat as it likes.
pub fn private(test: &str, args: &[&str]) -> Option<Server> {
    launch(test, args, None)
}

/// A private server whose wall clock the test may move. Needs a C compiler.
pub fn shifted(test: &str) -> Option<Server> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    match build_shift(folder.path()) {
        Ok(()) => launch_in(folder, test, &[], None, true),
        Err(why) => {
            holdline_testkit::missing(&format!("{test} needs a C compiler: {why}"));
            None
        }
    }
}

/// Builds what shifts a server's clock, by nothing at first.
fn build_shift(folder: &Path) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redis_server/wallshift.c");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(folder.join("wallshift.so")).arg(source);
    let status = command.status().map_err(|error| error.to_string())?;
    std::fs::write(folder.join("shift"), 0_i64.to_ne_bytes()).expect("there is room");
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

/// A sentinel that watches the primary on this port by the name `main`.
pub fn sentinel(test: &str, primary: u16, quorum: u32) -> Option<Server> {
    let conf = format!(
        "sentinel monitor main 127.0.0.1 {primary} {quorum}\n\
         sentinel down-after-milliseconds main 500\n\
         sentinel failover-timeout main 3000\n"
    );
    launch(test, &[], Some(conf))
}

/// A primary, its replica, and three sentinels that know of both; and our URL for it.
pub fn behind_sentinels() -> Option<(Server, Server, Vec<Server>, String)> {
    let primary = private("primary", &[])?;
    let of = ["--replicaof", "127.0.0.1", &primary.port().to_string()];
    let replica = private("replica", &of)?;
    let limit = Instant::now() + Duration::from_secs(30);
    let wait = |what: &str, so: &dyn Fn() -> bool| {
        while !so() {
            assert!(Instant::now() < limit, "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait("the replica follows", &|| {
        replica.query::<String>(&["INFO", "replication"]).contains("master_link_status:up")
    });
    let watchers: Option<Vec<_>> =
        (0..3).map(|_| sentinel("sentinel", primary.port(), 2)).collect();
    let watchers = watchers?;
    let hosts: Vec<_> = watchers.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
    let url = format!("redis+sentinel://{}/main", hosts.join(","));
    wait("the sentinels know one another", &|| {
        watchers.iter().all(|one| {
            let others: Vec<Vec<String>> = one.query(&["SENTINEL", "SENTINELS", "main"]);
            let replicas: Vec<Vec<String>> = one.query(&["SENTINEL", "REPLICAS", "main"]);
            others.len() == 2 && replicas.len() == 1
        })
    });
    Some((primary, replica, watchers, url))
}

/// A cluster of three primaries, which serves.
pub fn cluster() -> Option<Vec<Server>> {
    cluster_with(&[])
}

/// The same, whose servers get these arguments too.
pub fn cluster_with(more: &[&str]) -> Option<Vec<Server>> {
    let args = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
    let args = [&args, more].concat();
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(private("cluster", &args)?);
    }
    let addresses = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port()));
    let made = Command::new("redis-cli")
        .args(["--cluster", "create"])
        .args(addresses)
        .args(["--cluster-replicas", "0", "--cluster-yes"])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    assert!(made, "redis-cli makes the cluster");
    let limit = Instant::now() + Duration::from_secs(30);
    let serves =
        |node: &Server| node.query::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
    while !nodes.iter().all(serves) {
        assert!(Instant::now() < limit, "never: the cluster serves");
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(nodes)
}

fn launch(test: &str, args: &[&str], sentinel: Option<String>) -> Option<Server> {
    // Memory, where there is some to be had: the disk's pauses are not what is tested.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    launch_in(folder.expect("a temporary folder"), test, args, sentinel, false)
}

fn launch_in(
    folder: tempfile::TempDir,
    test: &str,
    args: &[&str],
    sentinel: Option<String>,
    shifted: bool,
) -> Option<Server> {
    let mut server = Server {
        url: String::new(),
        port: 0,
        args: args.iter().map(ToString::to_string).collect(),
        sentinel,
        shifted,
        own: None,
    };
    // Somebody else may take the port between our look and the server's start: try another.
    for _ in 0..20 {
        server.port = free_port();
        server.url = format!("redis://127.0.0.1:{}", server.port);
        match server.spawn(folder.path()) {
            Some(mut child) => {
                if server.answers(folder.path(), &mut child) {
                    server.own = Some((child, folder));
                    return Some(server);
                }
                let _ = child.kill();
                let _ = child.wait();
            }
            None => break,
        }
    }
    holdline_testkit::missing(&format!("{test} needs redis-server in the path"));
    None
}

impl Server {
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn client(&self) -> redis::Client {
        redis::Client::open(self.url()).expect("a good URL")
    }

    /// A plain connection beside the store's.
    pub fn conn(&self) -> redis::Connection {
        self.client().get_connection().expect("it runs")
    }

    pub fn query<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.conn()).expect("the server takes it")
    }

    fn spawn(&self, folder: &Path) -> Option<Child> {
        if let Some(sentinel) = &self.sentinel {
            // It rewrites its file, so each start gets a fresh one.
            std::fs::write(folder.join("sentinel.conf"), sentinel).expect("there is room");
        }
        let mut command = Command::new("redis-server");
        if self.shifted {
            command.env("LD_PRELOAD", folder.join("wallshift.so"));
            command.env("WALLSHIFT", folder.join("shift"));
        }
        if self.sentinel.is_some() {
            command.arg(folder.join("sentinel.conf")).arg("--sentinel");
        }
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--protected-mode", "no", "--unixsocket"])
            .arg(folder.join("socket"))
            .arg("--dir")
            .arg(folder)
            .args(if self.sentinel.is_some() { &[][..] } else { &["--save", ""][..] })
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .ok()
    }

    /// Waits until it has its data: not until it lets anybody in, for it may want a password.
    fn answers(&self, folder: &Path, child: &mut Child) -> bool {
        let until = Instant::now() + Duration::from_secs(10);
        let mut bound = false;
        while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
            // It makes the socket after it got the port: so it is no other server that answers.
            if !bound && !folder.join("socket").exists() {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            bound = true;
            let stream = std::net::TcpStream::connect(("127.0.0.1", self.port));
            if let Ok(mut stream) = stream {
                use std::io::{Read, Write};
                let mut answer = [0; 4];
                let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
                let asked = stream.write_all(b"PING\r\n").is_ok();
                if asked && stream.read(&mut answer).is_ok() && answer != *b"-LOA" {
                    return true;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// The socket that it listens on too.
    pub fn socket(&self) -> std::path::PathBuf {
        self.own.as_ref().expect("a private server").1.path().join("socket")
    }

    pub fn pid(&self) -> u32 {
        self.own.as_ref().expect("a private server").0.id()
    }

    /// Puts its wall clock so many seconds ahead of the machine's, or behind.
    pub fn shift(&self, seconds: i64) {
        use std::io::Write;
        let folder = self.own.as_ref().expect("a private server").1.path();
        // Written in place: the server has mapped it.
        let file = std::fs::OpenOptions::new().write(true).open(folder.join("shift"));
        let micros = (seconds * 1_000_000).to_ne_bytes();
        file.and_then(|mut file| file.write_all(&micros)).expect("there is room");
        let shown: Vec<String> = self.query(&["TIME"]);
        let shown: i64 = shown[0].parse().expect("seconds");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.expect("after 1970").as_secs().cast_signed();
        assert!((shown - now - seconds).abs() <= 2, "the clock was moved: {shown} at {now}");
    }

    fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args([name, &pid]).status().expect("kill runs");
        assert!(status.success());
    }

    pub fn pause(&self) {
        self.signal("-STOP");
    }

    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        let (child, _) = self.own.as_mut().expect("a private server");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }

    /// Removes what it has written, while it does not run.
    pub fn forget(&self) {
        let folder = self.own.as_ref().expect("a private server").1.path();
        let _ = std::fs::remove_dir_all(folder.join("appendonlydir"));
        let _ = std::fs::remove_file(folder.join("dump.rdb"));
    }

    /// Starts it again, on what it has written.
    pub fn restart(&mut self) {
        let folder = self.own.as_ref().expect("a private server").1.path().to_owned();
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let _ = std::fs::remove_file(folder.join("socket"));
            let mut child = self.spawn(&folder).expect("it starts");
            let answers = self.answers(&folder, &mut child);
            let ended = matches!(child.try_wait(), Ok(Some(_)));
            self.own.as_mut().expect("a private server").0 = child;
            if answers {
                return;
            }
            // Somebody's connection may have taken the port meanwhile, for a moment.
            assert!(ended && Instant::now() < until, "it starts again");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.own {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
