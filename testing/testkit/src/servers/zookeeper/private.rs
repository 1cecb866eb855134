//! ZooKeeper servers of a test's own, which it may treat as it likes.

use super::{CONFIGURATION, Settings};
#[cfg(feature = "links")]
use crate::link::Link;
use crate::probe::talk;
use crate::{Deployment, Private, free_port, wait_for};
use std::ops::{Deref, DerefMut};
use std::path::Path;

/// One server, or an ensemble. What can be done to its members is what [`Private`] says. It is gone
/// when this is dropped.
#[derive(Debug)]
pub struct Servers {
    /// The members.
    pub members: Private,
    /// From the first member to the others.
    #[cfg(feature = "links")]
    pub links: Vec<Link>,
}

/// So many servers; `None` without ZooKeeper, which is noted by [`crate::missing()`].
pub fn start(count: usize) -> Option<Servers> {
    start_with(count, "", "")
}

/// The same with more Java properties, and lines of configuration.
pub fn start_with(count: usize, java: &str, lines: &str) -> Option<Servers> {
    launch_each(count, &|_| settings(java, lines))
}

/// The same with lines of configuration for each.
pub fn start_each(count: usize, lines: &dyn Fn(usize) -> String) -> Option<Servers> {
    launch_each(count, &|at| settings("", &lines(at)))
}

fn launch_each(count: usize, settings: &dyn Fn(usize) -> Settings) -> Option<Servers> {
    let describe = || {
        let ports = free_ports(count);
        members(&ports, &|_| ports.clone(), settings)
    };
    Private::launch("zookeeper", describe).map(Servers::from)
}

/// Members that can be cut off from each other, and notice it after two ticks. One that takes
/// itself for the leader, and finds that nobody follows, asks again after six.
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

/// Three members, of which the first, which never leads, follows the leader by links that can be
/// stalled. It notices that only after 20 ticks.
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

/// `seen` says how each member reaches all of them.
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

    /// A session of a client that is not ours.
    ///
    /// # Panics
    ///
    /// If the servers are not there.
    #[cfg(feature = "zookeeper")]
    pub async fn raw(&self) -> zookeeper_client::Client {
        raw(&self.hosts().join(",")).await
    }

    /// What a member says to one of the words of four letters; nothing if it does not answer.
    pub fn ask(&self, at: usize, word: &str) -> String {
        talk(self.servers[at].port(), word).unwrap_or_default()
    }

    /// What the first member says to such a word, asked until it answers.
    fn told(&self, word: &str) -> String {
        let text = || talk(self.servers[0].port(), word).ok().filter(|text| !text.is_empty());
        wait_for("an answer", text)
    }

    /// How many requests the first member has got from clients, pings among them.
    pub fn requests(&self) -> u64 {
        // Connections by which we ask ourselves are gone by the next time.
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

    /// Whether a member takes part, and so answers clients.
    pub fn serves(&self, at: usize) -> bool {
        self.ask(at, "srvr").contains("Mode: ")
    }

    /// Kills all members, does something with the folder that each keeps its data in, and starts
    /// them again.
    ///
    /// # Panics
    ///
    /// If one does not start.
    pub fn between_lives(&mut self, work: impl Fn(&Path)) {
        self.servers.iter_mut().for_each(crate::Server::kill);
        self.servers.iter().for_each(|server| work(&server.dir().join("version-2")));
        self.restart_all();
    }

    /// Lets a member that was killed serve by itself, without the others, until `work` is done with
    /// it. What is written meanwhile the others never hear of.
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

/// A session of a client that is not ours, with these hosts.
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
