//! Servers that are started for a run, where their programs are installed, and end with it.

use crate::counters;
use crate::error::{Error, Result};
use crate::machine;
use crate::process::{Child, Command};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take to serve: ZooKeeper's takes some seconds on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// What can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    /// What it is called on the command line.
    pub(crate) name: &'static str,
    kind: Kind,
    nodes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Redis,
    Etcd,
    ZooKeeper,
}

/// All that can be started.
pub(crate) const SERVICES: [Service; 6] = [
    Service { name: "redis", kind: Kind::Redis, nodes: 1 },
    Service { name: "redis-five", kind: Kind::Redis, nodes: 5 },
    Service { name: "etcd", kind: Kind::Etcd, nodes: 1 },
    Service { name: "etcd-three", kind: Kind::Etcd, nodes: 3 },
    Service { name: "zookeeper", kind: Kind::ZooKeeper, nodes: 1 },
    Service { name: "zookeeper-three", kind: Kind::ZooKeeper, nodes: 3 },
];

/// The servers of one store, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) url: String,
    pub(crate) version: String,
    pub(crate) nodes: Vec<Node>,
    _folder: TempDir,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) address: String,
    pub(crate) child: Child,
    command: Vec<String>,
    log: PathBuf,
}

impl Node {
    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child.kill();
    }

    /// Starts it once more, with the data that it had.
    pub(crate) fn restart(&mut self, wrap: Command) -> Result<()> {
        self.child = Child::start(wrap, &self.command, &self.log)?;
        Ok(())
    }
}

impl Service {
    /// By its name on the command line.
    pub(crate) fn named(name: &str) -> Option<Self> {
        SERVICES.into_iter().find(|service| service.name == name)
    }

    fn scheme(self) -> &'static str {
        match self.kind {
            Kind::Redis => "redis",
            Kind::Etcd => "etcd",
            Kind::ZooKeeper => "zk",
        }
    }

    /// Whether a leader among its servers can be killed.
    pub(crate) fn has_leader(self) -> bool {
        self.nodes > 1 && self.kind != Kind::Redis
    }

    /// Starts the servers, and returns when they serve.
    pub(crate) fn start(self, wrap: Command) -> Result<Servers> {
        let program = self.program()?;
        let folder = tempfile::Builder::new().prefix("holdline-bench-").tempdir()?;
        let ports = free_ports(self.nodes * 3)?;
        let version = self.version(&program);
        let mut nodes = Vec::new();
        for node in 0..self.nodes {
            let dir = folder.path().join(node.to_string());
            std::fs::create_dir(&dir)?;
            let mut command = vec![program.path.display().to_string()];
            command.extend(self.arguments(&program, node, &ports, &dir)?);
            let log = dir.join("log");
            let child = Child::start(wrap, &command, &log)?;
            let address = format!("127.0.0.1:{}", ports[node * 3]);
            nodes.push(Node { address, child, command, log });
        }
        let addresses: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
        let url = match (self.kind, self.nodes) {
            (Kind::Redis, 2..) => format!("quorum:redis://{}", addresses.join(",redis://")),
            _ => format!("{}://{}", self.scheme(), addresses.join(",")),
        };
        let mut servers = Servers { url, version, nodes, _folder: folder };
        servers.wait(self.scheme())?;
        Ok(servers)
    }

    fn version(self, program: &Program) -> String {
        let words = match self.kind {
            Kind::Redis | Kind::Etcd => machine::output(&program.path, &["--version"]),
            Kind::ZooKeeper => program.jar_version(),
        };
        let words = words.unwrap_or_default();
        let is_version =
            |word: &&str| word.contains('.') && word.contains(|c: char| c.is_numeric());
        let number = words.split_whitespace().find(is_version).unwrap_or("").to_owned();
        let name = match self.kind {
            Kind::Redis => "Redis",
            Kind::Etcd => "etcd",
            Kind::ZooKeeper => "ZooKeeper",
        };
        let how = match self.kind {
            Kind::Redis => ", no persistence",
            Kind::Etcd | Kind::ZooKeeper => ", data on disk",
        };
        format!("{name} {}{how}", number.trim_start_matches("v="))
    }

    fn arguments(
        self,
        program: &Program,
        node: usize,
        ports: &[u16],
        dir: &Path,
    ) -> Result<Vec<String>> {
        let port = ports[node * 3];
        let dir_text = dir.display();
        let line = match self.kind {
            Kind::Redis => {
                let line = format!(
                    "--port {port} --bind 127.0.0.1 --protected-mode no --maxclients 20000 \
                     --appendonly no --dir {dir_text} --save"
                );
                let mut words = split(&line);
                words.push(String::new());
                return Ok(words);
            }
            Kind::Etcd => {
                let peer = |node: usize| format!("http://127.0.0.1:{}", ports[node * 3 + 1]);
                let members: Vec<String> =
                    (0..self.nodes).map(|node| format!("n{node}={}", peer(node))).collect();
                let (us, client) = (peer(node), format!("http://127.0.0.1:{port}"));
                format!(
                    "--name n{node} --data-dir {dir_text}/data --listen-client-urls {client} \
                     --advertise-client-urls {client} --listen-peer-urls {us} \
                     --initial-advertise-peer-urls {us} --initial-cluster {} \
                     --initial-cluster-state new --logger zap",
                    members.join(",")
                )
            }
            Kind::ZooKeeper => {
                std::fs::write(dir.join("zoo.cfg"), self.zoo_cfg(port, ports, dir))?;
                std::fs::write(dir.join("myid"), (node + 1).to_string())?;
                format!(
                    "-Xmx512m -cp {} org.apache.zookeeper.server.quorum.QuorumPeerMain \
                     {dir_text}/zoo.cfg",
                    program.class_path
                )
            }
        };
        Ok(split(&line))
    }

    /// ZooKeeper's defaults, but for ports, the number of connections, and what can be asked.
    fn zoo_cfg(self, port: u16, ports: &[u16], dir: &Path) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPort={port}\n\
             clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=*\n\
             maxClientCnxns=0\n",
            dir.display()
        );
        for node in (0..self.nodes).filter(|_| self.nodes > 1) {
            let (peer, election) = (ports[node * 3 + 1], ports[node * 3 + 2]);
            let _ = writeln!(text, "server.{}=127.0.0.1:{peer}:{election}", node + 1);
        }
        text
    }

    fn program(self) -> Result<Program> {
        let (binary, package) = match self.kind {
            Kind::Redis => ("redis-server", "redis-server"),
            Kind::Etcd => ("etcd", "etcd-server"),
            Kind::ZooKeeper => ("java", "zookeeper"),
        };
        let missing = || {
            Error::failed(format!(
                "{} cannot be started: {binary} of the package {package} is not installed \
                 (`apt-get install {package}` on Debian and Ubuntu); or name a server's URL",
                self.name
            ))
        };
        let path = in_path(binary).ok_or_else(missing)?;
        let class_path = match self.kind {
            Kind::ZooKeeper => class_path().ok_or_else(missing)?,
            Kind::Redis | Kind::Etcd => String::new(),
        };
        Ok(Program { path, class_path })
    }
}

/// A program that was found.
struct Program {
    path: PathBuf,
    /// For Java.
    class_path: String,
}

impl Program {
    /// ZooKeeper's version, from the name of its jar.
    fn jar_version(&self) -> Option<String> {
        let first = Path::new(self.class_path.split(':').next()?);
        let folder = if first.is_dir() { first } else { first.parent()? };
        let folder = folder.to_str()?.trim_end_matches("/*");
        std::fs::read_dir(folder).ok()?.flatten().find_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let version = name.strip_prefix("zookeeper-")?.strip_suffix(".jar")?;
            version.starts_with(|c: char| c.is_numeric()).then(|| version.to_owned())
        })
    }
}

fn class_path() -> Option<String> {
    if let Some(home) = std::env::var_os("ZOOKEEPER_HOME") {
        let lib = PathBuf::from(home).join("lib");
        return lib.is_dir().then(|| format!("{}/*", lib.display()));
    }
    // Debian's jar finds all the others by its manifest, except the log's.
    let folder = Path::new("/usr/share/java");
    let jars = ["zookeeper.jar", "slf4j-simple.jar"].map(|jar| folder.join(jar));
    jars[0].is_file().then(|| format!("{}:{}", jars[0].display(), jars[1].display()))
}

/// The file that a shell would run. Servers are often in sbin, which PATH may lack.
fn in_path(binary: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(binary)).find(|file| file.is_file())
}

fn split(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Ports that nobody listens on now.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    let open = |_| TcpListener::bind("127.0.0.1:0");
    let sockets = (0..count).map(open).collect::<std::io::Result<Vec<_>>>()?;
    let ports = sockets.iter().map(|socket| socket.local_addr().map(|at| at.port()));
    Ok(ports.collect::<std::io::Result<Vec<_>>>()?)
}

impl Servers {
    /// Waits until every server serves.
    pub(crate) fn wait(&mut self, scheme: &str) -> Result<()> {
        let start = Instant::now();
        for node in &mut self.nodes {
            while !counters::serves(scheme, &node.address) {
                if node.child.has_ended() || start.elapsed() > READY_WITHIN {
                    let log = std::fs::read_to_string(&node.log).unwrap_or_default();
                    let last: Vec<&str> = log.lines().rev().take(3).collect();
                    return Err(Error::failed(format!(
                        "the server at {} does not serve; its log ends: {}",
                        node.address,
                        last.into_iter().rev().collect::<Vec<_>>().join(" / ")
                    )));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}
