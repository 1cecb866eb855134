//! Private ZooKeeper servers, to which a test may do anything.

use super::{CONFIGURATION, Settings};
#[cfg(feature = "links")]
use crate::link::Link;
use crate::probe::{connect, talk};
use crate::{Deployment, Outcome, Private, free_port, wait_for};
use std::io::{self, Read, Write};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::time::Duration;

/// A server or an ensemble, which is removed on drop. [`Private`] has the operations on its
/// members.
#[derive(Debug)]
pub struct Servers {
    /// The members.
    pub members: Private,
    /// The links from the first member to the others.
    #[cfg(feature = "links")]
    pub links: Vec<Link>,
}

/// An ensemble of `count` servers; `None` without ZooKeeper, which is noted by
/// [`crate::missing()`].
pub fn start(count: usize) -> Option<Servers> {
    start_with(count, "", "")
}

/// The same, with more Java properties and lines of configuration.
pub fn start_with(count: usize, java: &str, lines: &str) -> Option<Servers> {
    launch_each(count, &|_| settings(java, lines))
}

/// The same, with lines of configuration for each server.
pub fn start_each(count: usize, lines: &dyn Fn(usize) -> String) -> Option<Servers> {
    launch_each(count, &|at| settings("", &lines(at)))
}

fn launch_each(count: usize, settings: &dyn Fn(usize) -> Settings) -> Option<Servers> {
    let describe = || {
        let ports = free_ports(count);
        members(&ports, &|_| ports.clone(), settings)
    };
    let servers = Private::launch("zookeeper", describe).map(Servers::from)?;
    for server in &servers.servers {
        wait_for("a session", || open_and_close(server.port()).ok());
    }
    Some(servers)
}

/// Opens a session with a server, and closes it. On a busy machine the first session takes a Java
/// server longer than clients wait for later ones.
fn open_and_close(port: u16) -> Outcome<()> {
    // The version, the last transaction seen, the time-out, no session yet, and no password.
    let open = [&[0; 12][..], &10_000_i32.to_be_bytes(), &[0; 8], &16_i32.to_be_bytes(), &[0; 16]];
    let close = [1_i32.to_be_bytes(), (-11_i32).to_be_bytes()];
    let framed = |body: Vec<u8>| [&(body.len() as u32).to_be_bytes()[..], &body].concat();
    let mut stream = connect(port)?;
    let mut exchange = || {
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.write_all(&framed(open.concat()))?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut granted = vec![0; u32::from_be_bytes(length).min(1 << 10) as usize];
        stream.read_exact(&mut granted)?;
        stream.write_all(&framed(close.concat()))?;
        stream.read_to_end(&mut granted) // it hangs up
    };
    exchange()
        .map(drop)
        .map_err(|e: io::Error| format!("ZooKeeper on port {port} gave no session: {e}."))
}

/// Members that can be cut off from each other, and notice it after two ticks. A member that
/// considers itself the leader, but has no followers, asks again after six.
#[cfg(feature = "links")]
pub fn start_apart(count: usize) -> Option<Servers> {
    let mut network = None;
    let ensemble = Private::launch("zookeeper", || {
        let ports = free_ports(count);
        let (links, seen) = super::network::between(&ports);
        network = Some(links);
        let settings = |_| settings("", "syncLimit=2\ninitLimit=6");
        members(&ports, &|at| seen[at].clone(), &settings)
    });
    Some(ensemble?.with_network(network?).into())
}

/// Three members. The first never leads; it follows the leader over links that can be stalled, and
/// notices that only after 20 ticks.
#[cfg(feature = "links")]
pub fn start_with_island() -> Option<Servers> {
    let mut links = Vec::new();
    let ensemble = Private::launch("zookeeper", || {
        let ports = free_ports(3);
        links = ports[1..].iter().map(|[_, data, _]| crate::network::link(*data)).collect();
        let seen = |at| {
            let mut seen = ports.clone();
            for (ports, link) in seen[1..].iter_mut().zip(&links).filter(|_| at == 0) {
                ports[1] = link.address().port();
            }
            seen
        };
        members(&ports, &seen, &|_| settings("", "syncLimit=20"))
    });
    Some(Servers { links, ..ensemble?.into() })
}

fn free_ports(count: usize) -> Vec<[u16; 3]> {
    (0..count).map(|_| [free_port(), free_port(), free_port()]).collect()
}

/// A member that is cut off notices it after four ticks, unless the lines say otherwise.
fn settings(java: &str, lines: &str) -> Settings {
    let mut settings = Settings::default();
    settings.java.extend(java.split_whitespace().map(str::to_owned));
    settings.lines = format!("{}syncLimit=4\n{lines}\n", settings.lines);
    settings
}

/// `seen` has the ports at which each member reaches all of them.
fn members(
    ports: &[[u16; 3]],
    seen: &dyn Fn(usize) -> Vec<[u16; 3]>,
    settings: &dyn Fn(usize) -> Settings,
) -> Deployment {
    let node = |at: usize| super::member(at, ports[at], &seen(at), &settings(at));
    super::of(ports, (0..ports.len()).map(node).collect())
}

impl From<Private> for Servers {
    fn from(members: Private) -> Self {
        Servers {
            members,
            #[cfg(feature = "links")]
            links: Vec::new(),
        }
    }
}

impl Servers {
    /// A client of the library.
    ///
    /// # Panics
    ///
    /// If the library was built without ZooKeeper.
    #[cfg(feature = "library")]
    pub async fn client(&self) -> holdline::Client {
        holdline::open(&self.url()).await.expect("a good URL")
    }

    /// A session of another client library.
    ///
    /// # Panics
    ///
    /// If the servers are not there.
    #[cfg(feature = "zookeeper")]
    pub async fn raw(&self) -> zookeeper_client::Client {
        raw(&self.hosts().join(",")).await
    }

    /// A member's answer to a four-letter word; empty if there is none.
    pub fn ask(&self, at: usize, word: &str) -> String {
        talk(self.servers[at].port(), word).unwrap_or_default()
    }

    /// The first member's answer to a four-letter word, asked until it answers.
    fn told(&self, word: &str) -> String {
        let text = || talk(self.servers[0].port(), word).ok().filter(|text| !text.is_empty());
        wait_for("an answer", text)
    }

    /// The number of requests that the first member has received from clients, with pings.
    pub fn requests(&self) -> u64 {
        // The connections of these questions themselves are gone by the next time.
        let all = self.told("cons");
        let counts = all.lines().filter(|line| line.contains("sid=0x"));
        let counts = counts.filter_map(|line| line.split("recved=").nth(1)?.split(',').next());
        counts.filter_map(|count| count.parse::<u64>().ok()).sum()
    }

    /// The number of sessions.
    pub fn sessions(&self) -> usize {
        let text = self.told("dump");
        text.lines().filter(|line| line.starts_with("0x")).count()
    }

    /// Whether a member is part of the ensemble, and so answers clients.
    pub fn serves(&self, at: usize) -> bool {
        self.ask(at, "srvr").contains("Mode: ")
    }

    /// Kills all members, runs `work` on the data folder of each, and starts them again.
    ///
    /// # Panics
    ///
    /// If one does not start.
    pub fn between_lives(&mut self, work: impl Fn(&Path)) {
        self.servers.iter_mut().for_each(crate::Server::kill);
        self.servers.iter().for_each(|server| work(&server.dir().join("version-2")));
        self.restart_all();
    }

    /// Runs a killed member alone, without the others, until `work` is done with it. The others
    /// never learn what is written meanwhile.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub async fn alone<T>(&mut self, at: usize, work: impl AsyncFnOnce(&str) -> T) -> T {
        let whole = self.servers[at].node().text(CONFIGURATION).to_owned();
        let alone = whole.lines().filter(|line| !line.starts_with("server."));
        let alone = alone.collect::<Vec<_>>().join("\n");
        self.servers[at].node_mut().set_text(CONFIGURATION, alone);
        self.restart(at);
        let done = work(&self.hosts()[at]).await;
        self.kill(at);
        self.servers[at].node_mut().set_text(CONFIGURATION, whole);
        done
    }
}

impl Deref for Servers {
    type Target = Private;

    fn deref(&self) -> &Private {
        &self.members
    }
}

impl DerefMut for Servers {
    fn deref_mut(&mut self) -> &mut Private {
        &mut self.members
    }
}

/// A session of another client library, with these hosts.
///
/// # Panics
///
/// If the servers are not there.
#[cfg(feature = "zookeeper")]
pub async fn raw(hosts: &str) -> zookeeper_client::Client {
    let connector = zookeeper_client::Client::connector();
    let connector = connector.with_session_timeout(std::time::Duration::from_secs(30));
    connector.connect(hosts).await.expect("it is there")
}
