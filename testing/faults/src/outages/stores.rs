//! The stores of the outage runs, and how each is killed, restarted, stopped and continued.

use crate::redis::KEEPS;
use holdline_checker::Expect;
use holdline_testkit::{self as testkit, Private};
use std::time::Duration;

/// A store made of nodes, some of which may be broken.
pub(crate) trait Subject: Send {
    fn url(&self) -> String;
    fn nodes(&self) -> usize;
    /// The node that matters most.
    fn leader(&self) -> usize {
        0
    }
    /// Sends SIGKILL to all of these.
    fn kill(&mut self, nodes: &[usize]);
    /// Restarts them with their data, and returns when they serve.
    fn start(&mut self, nodes: &[usize]);
    /// Sends SIGSTOP to all of these.
    fn stop(&mut self, nodes: &[usize]);
    /// Sends SIGCONT to all of these, and returns when they serve.
    fn go_on(&mut self, nodes: &[usize]);
}

/// One row of the table of stores.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The store, on servers of its own; `None`, with a note, if they are not installed.
    pub(crate) open: fn() -> Option<Box<dyn Subject>>,
    /// The longest that the store keeps anything of a dead client beyond its lease.
    pub(crate) late: Duration,
}

impl Row {
    /// The store's promises in an outage: everything except an answer.
    pub(crate) fn expect(&self) -> Expect {
        Expect {
            min_share_percent: 0,
            min_acquires: 100,
            liveness_ns: Some(20_000_000_000),
            late_ns: u64::try_from(self.late.as_nanos()).unwrap(),
            settle_ns: u64::try_from(self.late.as_nanos()).unwrap(),
            ..Expect::default()
        }
    }
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Every store of this build.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row { name: "sqlite", open: || Some(sqlite::open()), late: secs(1) },
        Row { name: "redis", open: || servers(redis(1)), late: secs(2) },
        Row { name: "quorum", open: || servers(redis(5)), late: secs(2) },
        Row { name: "etcd", open: || servers(etcd(1)), late: secs(5) },
        Row { name: "etcd-three", open: || servers(etcd(3)), late: secs(5) },
        Row { name: "zookeeper", open: || servers(zookeeper(1)), late: secs(12) },
        Row { name: "zookeeper-three", open: || servers(zookeeper(3)), late: secs(12) },
        Row { name: "postgres", open: || database(postgres(), ""), late: secs(2) },
        Row {
            name: "postgres-row",
            open: || database(postgres(), "&scheme=row&connections=64"),
            late: secs(2),
        },
        Row {
            name: "postgres-advisory",
            open: || database(postgres(), "&scheme=advisory"),
            late: secs(2),
        },
        Row { name: "mariadb", open: || database(mariadb(), ""), late: secs(2) },
        Row { name: "mariadb-row", open: || database(mariadb(), "&scheme=row"), late: secs(2) },
        Row { name: "mariadb-named", open: || database(mariadb(), "&scheme=named"), late: secs(2) },
        Row { name: "mysql", open: || database(mysql(), ""), late: secs(2) },
    ]
}

/// A database server, and the options in the URL of a store that installs its tables there.
fn database(servers: Option<Private>, options: &str) -> Option<Box<dyn Subject>> {
    let servers = servers?;
    let url = format!("{}?install=yes{options}", servers.url());
    Some(Box::new(servers.at(url)))
}

fn postgres() -> Option<Private> {
    testkit::postgres::start("outages")
}

fn mariadb() -> Option<Private> {
    testkit::mysql::start("outages", testkit::mysql::mariadb)
}

fn mysql() -> Option<Private> {
    testkit::mysql::start("outages", testkit::mysql::mysql)
}

fn servers(servers: Option<Private>) -> Option<Box<dyn Subject>> {
    Some(Box::new(servers?))
}

fn redis(count: usize) -> Option<Private> {
    testkit::redis::several(count, &KEEPS)
}

fn etcd(count: usize) -> Option<Private> {
    testkit::etcd::start(count).map(|servers| servers.0)
}

fn zookeeper(count: usize) -> Option<Private> {
    testkit::zookeeper::start(count).map(|servers| servers.members)
}

mod sqlite {
    use super::Subject;
    use holdline_testkit::Folder;
    use rusqlite::Connection;
    use std::time::Duration;

    /// A file. It has no server that could end: its outage is a process frozen during a write,
    /// which blocks all other writers.
    struct File {
        folder: Folder,
        frozen: Option<Connection>,
    }

    pub(super) fn open() -> Box<dyn Subject> {
        let folder = Folder::on_disk("outages").unwrap();
        Box::new(File { folder, frozen: None })
    }

    impl Subject for File {
        fn url(&self) -> String {
            format!("sqlite:{}", self.folder.path().join("locks.db").display())
        }

        fn nodes(&self) -> usize {
            1
        }

        fn kill(&mut self, nodes: &[usize]) {
            self.stop(nodes);
        }

        fn start(&mut self, nodes: &[usize]) {
            self.go_on(nodes);
        }

        fn stop(&mut self, _nodes: &[usize]) {
            let conn = Connection::open(self.folder.path().join("locks.db")).unwrap();
            conn.busy_timeout(Duration::from_secs(60)).unwrap();
            conn.execute_batch("BEGIN IMMEDIATE").unwrap();
            self.frozen = Some(conn);
        }

        fn go_on(&mut self, _nodes: &[usize]) {
            self.frozen = None;
        }
    }
}

impl Subject for Private {
    fn url(&self) -> String {
        Private::url(self)
    }

    fn nodes(&self) -> usize {
        self.servers.len()
    }

    fn leader(&self) -> usize {
        Private::leader(self)
    }

    fn kill(&mut self, nodes: &[usize]) {
        for at in nodes {
            Private::kill(self, *at);
        }
    }

    fn start(&mut self, nodes: &[usize]) {
        for at in nodes {
            self.begin(*at);
        }
        for at in nodes {
            self.wait(*at);
        }
    }

    fn stop(&mut self, nodes: &[usize]) {
        for at in nodes {
            self.servers[*at].pause();
        }
    }

    fn go_on(&mut self, nodes: &[usize]) {
        for at in nodes {
            self.servers[*at].resume();
        }
        for at in nodes {
            self.wait(*at);
        }
    }
}
