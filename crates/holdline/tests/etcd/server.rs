//! Servers of our own.

use holdline::{Client, open};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// One member.
struct Member {
    client: u16,
    peer: u16,
    process: Child,
}

/// A cluster of one or three. It is gone when this is dropped.
pub(crate) struct Servers {
    members: Vec<Member>,
    folder: tempfile::TempDir,
}

/// A cluster of so many members, or nothing (with a word about it) if there is no etcd here.
pub(crate) fn start(count: usize) -> Option<Servers> {
    let there = Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !there {
        println!("not run: there is no etcd in the path");
        assert!(std::env::var_os("CI").is_none(), "under CI there must be an etcd in the path");
        return None;
    }
    // Memory, where there is some to be had: fsync is not what is tested.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let folder = folder.expect("there is room for a folder");
    let ports: Vec<(u16, u16)> = (0..count).map(|_| (free_port(), free_port())).collect();
    let members = (0..count)
        .map(|at| Member {
            client: ports[at].0,
            peer: ports[at].1,
            process: run(&folder, &ports, at),
        })
        .collect();
    let servers = Servers { members, folder };
    for at in 0..count {
        servers.wait(at);
    }
    Some(servers)
}

fn run(folder: &tempfile::TempDir, ports: &[(u16, u16)], at: usize) -> Child {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let name = |at: usize| format!("m{at}");
    let peers: Vec<String> = ports
        .iter()
        .enumerate()
        .map(|(at, (_, peer))| format!("{}={}", name(at), url(*peer)))
        .collect();
    let (client, peer) = ports[at];
    let log =
        std::fs::File::create(folder.path().join(format!("{}.log", name(at)))).expect("a log");
    Command::new("etcd")
        .args(["--name", &name(at), "--data-dir"])
        .arg(folder.path().join(name(at)))
        .args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)])
        .args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)])
        .args(["--initial-cluster", &peers.join(","), "--initial-cluster-state", "new"])
        .args(["--logger", "zap", "--heartbeat-interval", "50", "--election-timeout", "500"])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("etcd starts")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it has an address").port()
}

impl Servers {
    /// The store's URL, with all members.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect();
        format!("etcd://{}", hosts.join(","))
    }

    pub(crate) async fn client(&self) -> Client {
        open(&self.url()).await.expect("a good URL")
    }

    /// Waits until a member is healthy.
    fn wait(&self, at: usize) {
        let limit = Instant::now() + Duration::from_secs(30);
        while !self.get(at, "/health").contains("\"health\":\"true\"") {
            assert!(Instant::now() < limit, "member {at} does not become healthy");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn get(&self, at: usize, path: &str) -> String {
        let port = self.members[at].client;
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
        let _ = write!(stream, "GET {path} HTTP/1.0\r\n\r\n");
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    }

    /// How many calls of this method the first member has seen.
    pub(crate) fn calls(&self, method: &str) -> u64 {
        let start = format!("grpc_server_started_total{{grpc_method=\"{method}\"");
        let metrics = self.get(0, "/metrics");
        let line = metrics.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
        line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// All calls so far about keys and leases, by method.
    pub(crate) fn all_calls(&self) -> Calls {
        let one = |method| self.calls(method);
        Calls {
            txn: one("Txn"),
            range: one("Range"),
            delete: one("DeleteRange"),
            put: one("Put"),
            grant: one("LeaseGrant"),
        }
    }

    /// `etcdctl` with these arguments, at all members.
    pub(crate) fn ctl(&self) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg("--endpoints");
        command.arg(self.url().trim_start_matches("etcd://"));
        command
    }

    /// What `etcdctl` prints.
    pub(crate) fn say(&self, arguments: &[&str]) -> String {
        let Output { stdout, stderr, status } =
            self.ctl().args(arguments).output().expect("etcdctl runs");
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).expect("text")
    }

    /// All keys.
    pub(crate) fn keys(&self) -> Vec<String> {
        let text = self.say(&["get", "", "--prefix", "--keys-only"]);
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    pub(crate) fn leases(&self) -> Vec<String> {
        self.say(&["lease", "list"]).lines().skip(1).map(str::to_owned).collect()
    }

    /// Which member leads.
    pub(crate) fn leader(&self) -> usize {
        let limit = Instant::now() + Duration::from_secs(20);
        loop {
            let leads =
                |at: &usize| self.get(*at, "/metrics").contains("\netcd_server_is_leader 1");
            if let Some(at) = (0..self.members.len()).find(leads) {
                return at;
            }
            assert!(Instant::now() < limit, "nobody leads");
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, at: usize) {
        self.members[at].process.kill().expect("it runs");
        self.members[at].process.wait().expect("it ends");
    }

    /// Starts a member that was killed, with its data.
    pub(crate) fn restart(&mut self, at: usize) {
        let ports: Vec<_> =
            self.members.iter().map(|member| (member.client, member.peer)).collect();
        self.members[at].process = run(&self.folder, &ports, at);
        self.wait(at);
    }

    /// SIGSTOP or SIGCONT.
    pub(crate) fn signal(&self, at: usize, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.members[at].process.id()).expect("a small number");
        let pid = rustix::process::Pid::from_raw(pid).expect("not 0");
        rustix::process::kill_process(pid, signal).expect("it runs");
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.process.kill();
            let _ = member.process.wait();
        }
    }
}

/// Counts of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) txn: u64,
    pub(crate) range: u64,
    pub(crate) delete: u64,
    pub(crate) put: u64,
    pub(crate) grant: u64,
}

impl Calls {
    /// What came on top of these.
    pub(crate) fn since(self, before: Calls) -> Calls {
        Calls {
            txn: self.txn - before.txn,
            range: self.range - before.range,
            delete: self.delete - before.delete,
            put: self.put - before.put,
            grant: self.grant - before.grant,
        }
    }

    pub(crate) fn sum(self) -> u64 {
        self.txn + self.range + self.delete + self.put + self.grant
    }
}

/// Looks until it is so.
pub(crate) async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(30);
    while !check().await {
        assert!(Instant::now() < limit, "{what}: not within 30 s");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for what must come.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {limit:?}"))
}
