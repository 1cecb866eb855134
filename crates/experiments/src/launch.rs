//! Servers that are started for a run, if their programs are installed, and end with it. The
//! testkit defines how each is run; this module has the settings that measurements change.

use crate::counters;
use crate::error::{Error, Result};
use crate::machine;
use holdline_testkit::{
    Deployment, Folder, Private, Wrap, etcd, free_port, mysql, postgres, redis, talk, zookeeper,
};
use std::time::{Duration, Instant};

/// How long a server may take to serve again after a crash.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A store that can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    kind: Kind,
    nodes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Redis,
    Etcd,
    ZooKeeper,
    Postgres,
    MariaDb,
    MySql,
}

/// All services that can be started.
pub(crate) const SERVICES: [Service; 9] = [
    Service { name: "redis", kind: Kind::Redis, nodes: 1 },
    Service { name: "redis-five", kind: Kind::Redis, nodes: 5 },
    Service { name: "etcd", kind: Kind::Etcd, nodes: 1 },
    Service { name: "etcd-three", kind: Kind::Etcd, nodes: 3 },
    Service { name: "zookeeper", kind: Kind::ZooKeeper, nodes: 1 },
    Service { name: "zookeeper-three", kind: Kind::ZooKeeper, nodes: 3 },
    Service { name: "postgres", kind: Kind::Postgres, nodes: 1 },
    Service { name: "mariadb", kind: Kind::MariaDb, nodes: 1 },
    Service { name: "mysql", kind: Kind::MySql, nodes: 1 },
];

/// The servers of one store, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) url: String,
    pub(crate) version: String,
    own: Private,
}

impl Servers {
    /// The processes, in the order of the URL.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.own.servers.iter().map(holdline_testkit::Server::pid).collect()
    }

    /// Kills one of them, as a crash would.
    pub(crate) fn kill(&mut self, at: usize) {
        self.own.kill(at);
    }

    /// Restarts one with its data, and waits until all serve.
    pub(crate) fn restart(&mut self, at: usize, scheme: &str) -> Result<()> {
        self.own.servers[at].begin().map_err(Error::failed)?;
        let start = Instant::now();
        let hosts = self.own.hosts();
        for (server, address) in self.own.servers.iter_mut().zip(hosts) {
            while !counters::serves(scheme, &address) {
                server.check_that_it_runs().map_err(Error::failed)?;
                if start.elapsed() > READY_WITHIN {
                    let why = format!("the server at {address} does not serve. {}", server.log());
                    return Err(Error::failed(why));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}

impl Service {
    /// The service of this name on the command line.
    pub(crate) fn named(name: &str) -> Option<Self> {
        SERVICES.into_iter().find(|service| service.name == name)
    }

    /// Whether its servers have a leader that can be killed.
    pub(crate) fn has_leader(self) -> bool {
        self.nodes > 1 && matches!(self.kind, Kind::Etcd | Kind::ZooKeeper)
    }

    /// Starts the servers, and returns when they serve. `wrap` makes them end with this process.
    pub(crate) fn start(self, wrap: Wrap) -> Result<Servers> {
        let cannot = |why: String| {
            let name = self.name;
            Error::failed(format!("{name} cannot be started: {why} Or name a server's URL."))
        };
        // On a disk, as users' servers keep their data.
        let folder = Folder::on_disk("bench").map_err(cannot)?;
        let describe = || self.describe().run_by(wrap);
        let own = Private::try_launch_in(folder, describe).map_err(cannot)?;
        let version = self.version(&own);
        Ok(Servers { url: own.url(), version, own })
    }

    fn describe(self) -> Deployment {
        let ports =
            |each: usize| -> Vec<u16> { (0..self.nodes * each).map(|_| free_port()).collect() };
        match self.kind {
            Kind::Redis => {
                let ports = ports(1);
                let node = |(at, port): (usize, &u16)| {
                    redis::node(format!("redis-{at}"), *port).args(["--maxclients", "20000"])
                };
                let url = ports.iter().map(|port| format!("redis://127.0.0.1:{port}"));
                let url = url.collect::<Vec<_>>().join(",");
                let url = if self.nodes == 1 { url } else { format!("quorum:{url}") };
                Deployment::new(url, ports.iter().enumerate().map(node).collect())
            }
            Kind::Etcd => etcd::deployment(&ports(2)),
            // The defaults, except for Java's memory.
            Kind::ZooKeeper => zookeeper::deployment(
                &ports(3),
                &zookeeper::Settings {
                    java: vec!["-Xmx512m".to_owned()],
                    lines: "tickTime=2000\ninitLimit=10\nsyncLimit=5\n".to_owned(),
                },
            ),
            Kind::Postgres => {
                let port = free_port();
                let node = postgres::node("postgres", port).args(["-c", "max_connections=2000"]);
                Deployment::new(installing(postgres::url(port)), vec![node])
            }
            Kind::MariaDb | Kind::MySql => {
                let port = free_port();
                let node = match self.kind {
                    Kind::MySql => mysql::mysql("mysql", port),
                    _ => mysql::mariadb("mariadb", port),
                };
                let node = node.args(["--max-connections=5000"]);
                Deployment::new(installing(mysql::url(port)), vec![node])
            }
        }
    }

    fn version(self, own: &Private) -> String {
        let node = own.servers[0].node();
        let says = match self.kind {
            Kind::ZooKeeper => talk(node.port(), "srvr").ok(),
            _ => node.program().find().ok().and_then(|found| {
                let mut args: Vec<&str> = found.first_args.iter().map(String::as_str).collect();
                args.push("--version");
                machine::output(&found.binary, &args)
            }),
        };
        let says = says.unwrap_or_default();
        let is_version =
            |word: &&str| word.contains('.') && word.contains(|c: char| c.is_numeric());
        let number = says.split_whitespace().find(is_version).unwrap_or("");
        let number = number.trim_start_matches("v=").split(['-', ',']).next().unwrap_or("");
        let name = match self.kind {
            Kind::Redis => "Redis",
            Kind::Etcd => "etcd",
            Kind::ZooKeeper => "ZooKeeper",
            Kind::Postgres => "PostgreSQL",
            Kind::MariaDb => "MariaDB",
            Kind::MySql => "MySQL",
        };
        let how = if self.kind == Kind::Redis { "no persistence" } else { "data on disk" };
        format!("{name} {number}, {how}")
    }
}

/// The URL with the option to install the tables when the store is opened.
fn installing(url: String) -> String {
    url + "?install=yes"
}
