//! Private etcd members, to which a test may do anything.

use super::{Settings, member};
use crate::probe::http_get;
use crate::{Deployment, Folder, Private, Probe, certs, free_port, wait_for};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

/// An etcd cluster, which is removed on drop. [`Private`] has the operations on its members.
#[derive(Debug)]
pub struct Servers(pub Private);

/// A cluster of `count` members; `None` without etcd, which is noted by [`crate::missing()`].
pub fn start(count: usize) -> Option<Servers> {
    start_in(memory(), count, &quick())
}

/// A cluster whose members can be cut off from each other.
#[cfg(feature = "links")]
pub fn start_apart(count: usize) -> Option<Servers> {
    let mut network = None;
    let cluster = Private::launch("etcd", || {
        let ports = free_ports(count);
        let (links, fronts) = super::network::between(&peers(&ports));
        network = Some(links);
        super::members(&ports, &fronts, &quick())
    });
    Some(Servers(cluster?.with_network(network?)))
}

/// One member that speaks only TLS, with the authority in [`Servers::authority`].
pub fn start_tls() -> Option<Servers> {
    with_certificates(&[])
}

/// The same, but only for clients with a certificate of that authority.
pub fn start_mutual() -> Option<Servers> {
    with_certificates(&["--client-cert-auth", "--trusted-ca-file", "{dir}/../ca.pem"])
}

/// One member that forgets logins after 2 s of silence.
pub fn start_forgetful() -> Option<Servers> {
    start_in(memory(), 1, &quick().args(&["--auth-token-ttl", "1"]))
}

/// One member with its data on a disk, so that writes take time.
pub fn start_on_disk() -> Option<Servers> {
    let folder = Folder::on_disk("etcd").unwrap_or_else(|e| panic!("{e}"));
    start_in(folder, 1, &quick())
}

/// One member with room for few keys: 200 KB of them.
pub fn start_small() -> Option<Servers> {
    start_in(memory(), 1, &quick().args(&["--quota-backend-bytes", "200000"]))
}

fn memory() -> Folder {
    Folder::new("etcd").unwrap_or_else(|e| panic!("{e}"))
}

/// Settings for elections within a second.
fn quick() -> Settings {
    Settings::default().args(&["--heartbeat-interval", "50", "--election-timeout", "500"])
}

fn free_ports(count: usize) -> Vec<[u16; 2]> {
    (0..count).map(|_| [free_port(), free_port()]).collect()
}

fn peers(ports: &[[u16; 2]]) -> Vec<u16> {
    ports.iter().map(|[_, peer]| *peer).collect()
}

fn start_in(folder: Folder, count: usize, settings: &Settings) -> Option<Servers> {
    let describe = || {
        let ports = free_ports(count);
        super::members(&ports, &peers(&ports), settings)
    };
    Private::launch_in(folder, describe).map(Servers)
}

fn with_certificates(more: &[&str]) -> Option<Servers> {
    let folder = memory();
    if !certs::certificates(folder.path()) {
        return None;
    }
    let describe = || {
        let (ports, metrics) = ([free_port(), free_port()], free_port());
        // The health check is served without encryption.
        let settings = Settings { scheme: "https", ..quick() }
            .args(&["--cert-file", "{dir}/../cert.pem", "--key-file", "{dir}/../key.pem"])
            .args(&["--listen-metrics-urls", &format!("http://127.0.0.1:{metrics}")])
            .args(more);
        let node = member(0, ports, &[ports[1]], &settings).up(metrics, Probe::Etcd);
        Deployment::new(super::url(&[ports[0]]), vec![node.also_listens([metrics])])
    };
    Private::launch_in(folder, describe).map(Servers)
}

impl Servers {
    /// A client of the library.
    ///
    /// # Panics
    ///
    /// If the library was built without etcd.
    #[cfg(feature = "library")]
    pub async fn client(&self) -> holdline::Client {
        holdline::open(&self.url()).await.expect("a good URL")
    }

    /// The file of the authority to trust, if there is TLS.
    pub fn authority(&self) -> String {
        self.file("ca.pem")
    }

    /// The file of the certificate.
    pub fn certificate(&self) -> String {
        self.file("cert.pem")
    }

    /// The file of the certificate's key.
    pub fn key(&self) -> String {
        self.file("key.pem")
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn get(&self, at: usize, path: &str) -> String {
        let port = self.servers[at].node().up.0;
        wait_for("an answer", || http_get(port, path).ok())
    }

    /// The members' version: 3.4.23, say, as three numbers.
    ///
    /// # Panics
    ///
    /// If the first member does not report it.
    pub fn version(&self) -> [u32; 3] {
        let text = self.get(0, "/version");
        let version =
            text.split("\"etcdserver\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let mut parts = version.expect("it tells").splitn(3, ['.', '-']);
        let mut number = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        [number(), number(), number()]
    }

    /// The number of calls of this method that the first member has received.
    pub fn calls(&self, method: &str) -> u64 {
        count(&self.get(0, "/metrics"), "started", method)
    }

    /// The number of messages of this method that the first member has received.
    pub fn messages(&self, method: &str) -> u64 {
        count(&self.get(0, "/metrics"), "msg_received", method)
    }

    /// All calls so far for keys and leases, by method, without the one read that goes with each
    /// keep-alive message.
    pub fn all_calls(&self) -> Calls {
        // A keep-alive message and its read cancel out only when both have arrived.
        let mut last = None;
        loop {
            let metrics = self.get(0, "/metrics");
            let one = |method| count(&metrics, "started", method);
            let keep_alives = count(&metrics, "msg_received", "LeaseKeepAlive");
            let calls = Calls {
                txn: one("Txn"),
                range: one("Range").wrapping_sub(keep_alives),
                delete: one("DeleteRange"),
                put: one("Put"),
                grant: one("LeaseGrant"),
            };
            if last.replace((calls, keep_alives)) == Some((calls, keep_alives)) {
                return calls;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `etcdctl`, for all members.
    pub fn ctl(&self) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(self.hosts().join(","));
        // A busy machine may take longer than its 5 s.
        command.args(["--dial-timeout", "60s", "--command-timeout", "60s"]);
        command
    }

    /// The output of `etcdctl`.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn say(&self, arguments: &[&str]) -> String {
        let Output { stdout, stderr, status } =
            self.ctl().args(arguments).output().expect("etcdctl runs");
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).expect("text")
    }

    /// All keys.
    pub fn keys(&self) -> Vec<String> {
        let text = self.say(&["get", "", "--prefix", "--keys-only"]);
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// All leases.
    pub fn leases(&self) -> Vec<String> {
        self.say(&["lease", "list"]).lines().skip(1).map(str::to_owned).collect()
    }

    /// Restarts a killed member without its data.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart_empty(&mut self, at: usize) {
        std::fs::remove_dir_all(self.data(at)).expect("it was there");
        self.restart(at);
    }

    /// The folder of a member's data.
    pub fn data(&self, at: usize) -> PathBuf {
        self.servers[at].dir().join("data")
    }
}

impl Deref for Servers {
    type Target = Private;

    fn deref(&self) -> &Private {
        &self.0
    }
}

impl DerefMut for Servers {
    fn deref_mut(&mut self) -> &mut Private {
        &mut self.0
    }
}

fn count(metrics: &str, what: &str, method: &str) -> u64 {
    let start = format!("grpc_server_{what}_total{{grpc_method=\"{method}\"");
    let line = metrics.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
    line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Counts of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Transactions.
    pub txn: u64,
    /// Reads.
    pub range: u64,
    /// Deletions outside of transactions.
    pub delete: u64,
    /// Writes outside of transactions.
    pub put: u64,
    /// Leases granted.
    pub grant: u64,
}

impl Calls {
    /// The calls since these counts.
    pub fn since(self, before: Calls) -> Calls {
        Calls {
            txn: self.txn - before.txn,
            range: self.range.wrapping_sub(before.range),
            delete: self.delete - before.delete,
            put: self.put - before.put,
            grant: self.grant - before.grant,
        }
    }

    /// The sum of all counts.
    pub fn sum(self) -> u64 {
        self.txn + self.range + self.delete + self.put + self.grant
    }
}
