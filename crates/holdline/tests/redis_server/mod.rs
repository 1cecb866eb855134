//! A Redis server for a test: the one of `HOLDLINE_TEST_REDIS`, or a private one on a free port,
//! with its data in a temporary folder, that ends with the test.
//!
//! Without either, the test says that it was not run; under CI that is a failure.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// A running server.
pub struct Server {
    url: String,
    port: u16,
    args: Vec<String>,
    sentinel: Option<String>,
    own: Option<(Child, tempfile::TempDir)>,
}

/// A server to share with others, or a private one; nothing if there is neither.
pub fn start(test: &str) -> Option<Server> {
    if let Ok(url) = std::env::var("HOLDLINE_TEST_REDIS") {
        return Some(Server { url, port: 0, args: Vec::new(), sentinel: None, own: None });
    }
    private(test, &[])
}

/// A private server, which the test may treat as it likes.
pub fn private(test: &str, args: &[&str]) -> Option<Server> {
    launch(test, args, None)
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

fn launch(test: &str, args: &[&str], sentinel: Option<String>) -> Option<Server> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut server = Server {
        url: String::new(),
        port: 0,
        args: args.iter().map(ToString::to_string).collect(),
        sentinel,
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
    assert!(std::env::var_os("CI").is_none(), "{test} needs redis-server or HOLDLINE_TEST_REDIS");
    eprintln!("{test}: not run: neither redis-server nor HOLDLINE_TEST_REDIS is there");
    None
}

/// Ports from 32100 on, and a cluster's second port too.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = 32100 + (std::process::id() % 900) as u16 * 10;
    loop {
        let port = 32100 + (start - 32100 + NEXT.fetch_add(1, Ordering::Relaxed)) % 9000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
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

    fn spawn(&self, folder: &std::path::Path) -> Option<Child> {
        if let Some(sentinel) = &self.sentinel {
            // It rewrites its file, so each start gets a fresh one.
            std::fs::write(folder.join("sentinel.conf"), sentinel).expect("there is room");
        }
        let mut command = Command::new("redis-server");
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

    /// Waits until it takes connections: not until it lets anybody in, for it may want a password.
    fn answers(&self, folder: &std::path::Path, child: &mut Child) -> bool {
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
                if stream.write_all(b"PING\r\n").is_ok() && stream.read(&mut answer).is_ok() {
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

    /// Starts it again, on what it has written.
    pub fn restart(&mut self) {
        let folder = self.own.as_ref().expect("a private server").1.path().to_owned();
        let _ = std::fs::remove_file(folder.join("socket"));
        let mut child = self.spawn(&folder).expect("it starts");
        let answers = self.answers(&folder, &mut child);
        self.own.as_mut().expect("a private server").0 = child;
        assert!(answers, "it starts again");
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
