//! Servers of etcd for a test, which it may treat as it likes: on free ports, with their data in a
//! temporary folder, gone with the test. Without an `etcd` in the path the test says that it was
//! not run; under CI that is a failure.
#![allow(dead_code, unused_imports, reason = "each test uses a part of it")]

pub(crate) mod peers;
#[path = "../support/ports.rs"]
mod ports;

pub(crate) use crate::eventually::{soon, until};
use holdline::{Client, open};
use peers::Peers;
use ports::free_port;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// One member.
struct Member {
    client: u16,
    peer: u16,
    process: Child,
}

/// How a member is reached by clients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Plain,
    Tls,
    /// TLS, and nobody without a certificate.
    Mutual,
    /// Plain, and who has logged in is soon forgotten.
    Forgetful,
}

impl Reach {
    fn is_tls(self) -> bool {
        matches!(self, Reach::Tls | Reach::Mutual)
    }
}

/// A cluster of one or three. It is gone when this is dropped.
pub(crate) struct Servers {
    members: Vec<Member>,
    folder: tempfile::TempDir,
    reach: Reach,
    /// What is between them, if that can be broken.
    peers: Option<Peers>,
}

/// A cluster of so many members, or nothing (with a word about it) if there is no etcd here.
pub(crate) fn start(count: usize) -> Option<Servers> {
    start_as(count, Reach::Plain, false)
}

/// A cluster whose members can be cut off from each other.
pub(crate) fn start_apart(count: usize) -> Option<Servers> {
    start_as(count, Reach::Plain, true)
}

/// One member that speaks only TLS, with the certificate in [`Servers::certificate`].
pub(crate) fn start_tls() -> Option<Servers> {
    start_as(1, Reach::Tls, false)
}

/// The same, for those who show that very certificate.
pub(crate) fn start_mutual() -> Option<Servers> {
    start_as(1, Reach::Mutual, false)
}

/// One member that forgets who has logged in after 2 s in which nothing was heard of them.
pub(crate) fn start_forgetful() -> Option<Servers> {
    start_as(1, Reach::Forgetful, false)
}

/// One member whose data is on a disk, so that it takes its time to write.
pub(crate) fn start_on_disk() -> Option<Servers> {
    start_with(1, Reach::Plain, false, Data::OnDisk)
}

fn start_as(count: usize, reach: Reach, apart: bool) -> Option<Servers> {
    start_with(count, reach, apart, Data::InMemory)
}

/// Where servers keep what they write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    InMemory,
    OnDisk,
}

fn start_with(count: usize, reach: Reach, apart: bool, data: Data) -> Option<Servers> {
    let there = Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !there {
        holdline_testkit::missing("there is no etcd in the path");
        return None;
    }
    // Memory, where there is some to be had: fsync is not what is tested.
    let memory = Path::new("/dev/shm");
    let in_memory = memory.is_dir() && data == Data::InMemory;
    let folder = if in_memory { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let folder = folder.expect("there is room for a folder");
    if reach.is_tls() {
        certify(folder.path());
    }
    let ports: Vec<(u16, u16)> = (0..count).map(|_| (free_port(), free_port())).collect();
    let listen: Vec<u16> = ports.iter().map(|ports| ports.1).collect();
    let peers = apart.then(|| Peers::to(&listen));
    let fronts = peers.as_ref().map_or(&listen, |peers| &peers.ports).clone();
    let members = (0..count)
        .map(|at| Member {
            client: ports[at].0,
            peer: ports[at].1,
            process: run(&folder, ports[at], &fronts, at, reach),
        })
        .collect();
    let servers = Servers { members, folder, reach, peers };
    for at in 0..count {
        servers.wait(at);
    }
    Some(servers)
}

/// Starts a member with these ports; `fronts` are where the members reach each other.
fn run(
    folder: &tempfile::TempDir,
    (client, peer): (u16, u16),
    fronts: &[u16],
    at: usize,
    reach: Reach,
) -> Child {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let name = |at: usize| format!("m{at}");
    let peers: Vec<String> = fronts
        .iter()
        .enumerate()
        .map(|(at, front)| format!("{}={}", name(at), url(*front)))
        .collect();
    let log =
        std::fs::File::create(folder.path().join(format!("{}.log", name(at)))).expect("a log");
    let mut command = Command::new("etcd");
    let mut address = url(client);
    if reach.is_tls() {
        // Health is asked for where it is not encrypted.
        let metrics = url(free_port());
        std::fs::write(folder.path().join("metrics"), &metrics).expect("there is room");
        command.args(["--listen-metrics-urls", &metrics]);
        command.arg("--cert-file").arg(folder.path().join("cert.pem"));
        command.arg("--key-file").arg(folder.path().join("key.pem"));
        address = address.replace("http:", "https:");
    }
    if reach == Reach::Forgetful {
        command.args(["--auth-token-ttl", "1"]);
    }
    if reach == Reach::Mutual {
        command.arg("--client-cert-auth").arg("--trusted-ca-file");
        command.arg(folder.path().join("cert.pem"));
    }
    command
        .args(["--name", &name(at), "--data-dir"])
        .arg(folder.path().join(name(at)))
        .args(["--listen-client-urls", &address, "--advertise-client-urls", &address])
        .args(["--listen-peer-urls", &url(peer)])
        .args(["--initial-advertise-peer-urls", &url(fronts[at])])
        .args(["--initial-cluster", &peers.join(","), "--initial-cluster-state", "new"])
        .args(["--logger", "zap", "--heartbeat-interval", "50", "--election-timeout", "500"])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("etcd starts")
}

/// A certificate for 127.0.0.1 that vouches for itself.
fn certify(folder: &Path) {
    let file = |name: &str| folder.join(name).display().to_string();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=etcd"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &file("key.pem"), "-out", &file("cert.pem")])
        .output()
        .expect("openssl runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

impl Servers {
    /// The store's URL, with all members.
    pub(crate) fn url(&self) -> String {
        format!("etcd://{}", self.hosts().join(","))
    }

    /// Where each member is reached.
    pub(crate) fn hosts(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect()
    }

    pub(crate) async fn client(&self) -> Client {
        open(&self.url()).await.expect("a good URL")
    }

    /// The certificate to trust.
    #[cfg(feature = "etcd-tls")]
    pub(crate) fn certificate(&self) -> String {
        self.folder.path().join("cert.pem").display().to_string()
    }

    /// The key to it.
    #[cfg(feature = "etcd-tls")]
    pub(crate) fn key(&self) -> String {
        self.folder.path().join("key.pem").display().to_string()
    }

    /// Waits until a member is healthy.
    pub(crate) fn wait(&self, at: usize) {
        let limit = Instant::now() + Duration::from_secs(30);
        while !self.get(at, "/health").contains("\"health\":\"true\"") {
            assert!(Instant::now() < limit, "member {at} does not become healthy");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn get(&self, at: usize, path: &str) -> String {
        let port = match self.reach {
            Reach::Plain | Reach::Forgetful => self.members[at].client,
            Reach::Tls | Reach::Mutual => {
                let url = std::fs::read_to_string(self.folder.path().join("metrics"));
                let url = url.expect("it was written");
                url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
            }
        };
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
        let _ = write!(stream, "GET {path} HTTP/1.0\r\n\r\n");
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    }

    /// The members' version: 3.4.23, say, as three numbers.
    pub(crate) fn version(&self) -> [u32; 3] {
        let text = self.get(0, "/version");
        let version =
            text.split("\"etcdserver\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let mut parts = version.expect("it tells").splitn(3, ['.', '-']);
        let mut number = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        [number(), number(), number()]
    }

    /// How many calls of this method the first member has seen.
    pub(crate) fn calls(&self, method: &str) -> u64 {
        count(&self.get(0, "/metrics"), "started", method)
    }

    /// All calls so far about keys and leases, by method. Without the reads that go with signs of
    /// life, one with each.
    pub(crate) fn all_calls(&self) -> Calls {
        // A sign of life and its read are one only when both have arrived.
        let mut last = None;
        loop {
            let metrics = self.get(0, "/metrics");
            let one = |method| count(&metrics, "started", method);
            let signs = count(&metrics, "msg_received", "LeaseKeepAlive");
            let calls = Calls {
                txn: one("Txn"),
                range: one("Range").wrapping_sub(signs),
                delete: one("DeleteRange"),
                put: one("Put"),
                grant: one("LeaseGrant"),
            };
            if last.replace((calls, signs)) == Some((calls, signs)) {
                return calls;
            }
            std::thread::sleep(Duration::from_millis(20));
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
        self.begin(at);
        self.wait(at);
    }

    /// Starts a member that was killed, without its data.
    pub(crate) fn restart_empty(&mut self, at: usize) {
        let data = self.folder.path().join(format!("m{at}"));
        std::fs::remove_dir_all(data).expect("it was there");
        self.restart(at);
    }

    /// Starts all members, which were killed.
    pub(crate) fn restart_all(&mut self) {
        (0..self.members.len()).for_each(|at| self.begin(at));
        (0..self.members.len()).for_each(|at| self.wait(at));
    }

    /// The same, without waiting until it is well.
    pub(crate) fn begin(&mut self, at: usize) {
        let listen: Vec<u16> = self.members.iter().map(|member| member.peer).collect();
        let fronts = self.peers.as_ref().map_or(listen, |peers| peers.ports.clone());
        let ports = (self.members[at].client, self.members[at].peer);
        self.members[at].process = run(&self.folder, ports, &fronts, at, self.reach);
    }

    /// What is between the members of a cluster that was started apart.
    pub(crate) fn peers(&self) -> &Peers {
        self.peers.as_ref().expect("it was started apart")
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
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            println!("what etcd said is kept in {}", self.folder.path().display());
        }
    }
}

fn count(metrics: &str, what: &str, method: &str) -> u64 {
    let start = format!("grpc_server_{what}_total{{grpc_method=\"{method}\"");
    let line = metrics.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
    line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
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
            range: self.range.wrapping_sub(before.range),
            delete: self.delete - before.delete,
            put: self.put - before.put,
            grant: self.grant - before.grant,
        }
    }

    pub(crate) fn sum(self) -> u64 {
        self.txn + self.range + self.delete + self.put + self.grant
    }
}
