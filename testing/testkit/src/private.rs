//! Private servers of one test, which may do anything to them.

#[cfg(feature = "links")]
use crate::network::Network;
use crate::node::Node;
use crate::server::{Lifetime, Server, check_ports};
use crate::topology::Deployment;
use crate::{Folder, Outcome, missing, wait_for};
use rustix::process::Signal;

/// How often other ports are tried.
const TRIES: usize = 5;

/// Private servers of one test. Dropping this stops them, and removes their data unless the test
/// fails.
#[derive(Debug)]
pub struct Private {
    pub(crate) url: String,
    leads: Option<fn(u16) -> bool>,
    /// The network between the servers, if it can be broken.
    #[cfg(feature = "links")]
    network: Option<Network>,
    /// The servers, in the order of starting.
    pub servers: Vec<Server>,
    /// The folder of their data. After the servers, because they must have ended when it is
    /// removed.
    pub folder: Folder,
}

impl Private {
    /// Starts a deployment, with data in memory if there is room; `None` if a program is missing,
    /// which is noted by [`missing()`]. If another program has taken one of its ports, `describe`
    /// is called again, for other ports.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn launch(name: &str, describe: impl FnMut() -> Deployment) -> Option<Self> {
        Self::launch_in(Folder::new(name).unwrap_or_else(|e| panic!("{e}")), describe)
    }

    /// The same on these ports only.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(name: &str, deployment: Deployment) -> Option<Self> {
        Self::launch(name, move || deployment.clone())
    }

    /// The same with its data in this folder.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_in(folder: Folder, deployment: Deployment) -> Option<Self> {
        Self::launch_in(folder, move || deployment.clone())
    }

    /// Launches with the data in this folder.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn launch_in(folder: Folder, mut describe: impl FnMut() -> Deployment) -> Option<Self> {
        let mut first = Some(describe());
        let mut programs = first.iter().flat_map(Deployment::nodes).flat_map(Node::programs);
        if let Some(what) = programs.find_map(|program| program.find().err()) {
            missing(what.trim_end_matches('.'));
            return None;
        }
        drop(programs);
        let describe = || first.take().unwrap_or_else(&mut describe);
        Some(Self::try_launch_in(folder, describe).unwrap_or_else(|e| panic!("{e}")))
    }

    /// The same, for programs that are not tests.
    ///
    /// # Errors
    ///
    /// A sentence: a program is missing, or it does not start.
    pub fn try_launch_in(
        folder: Folder,
        mut describe: impl FnMut() -> Deployment,
    ) -> Outcome<Self> {
        let mut tries = 0;
        loop {
            let deployment = describe();
            let (url, leads) = (deployment.url.clone(), deployment.leads);
            let nodes: Vec<Node> = deployment.nodes().cloned().collect();
            match deployment.start(folder.path(), Lifetime::OfItsOwner, &mut |_| Ok(())) {
                Ok(servers) => {
                    return Ok(Self {
                        url,
                        leads,
                        #[cfg(feature = "links")]
                        network: None,
                        servers,
                        folder,
                    });
                }
                // None of ours listens by now: another program does.
                Err(_) if tries < TRIES && nodes.iter().any(|node| check_ports(node).is_err()) => {
                    tries += 1;
                    for node in nodes {
                        let _ = std::fs::remove_dir_all(folder.path().join(node.name()));
                    }
                }
                Err(why) => return Err(why),
            }
        }
    }

    /// The same with a network between the servers, which their descriptions already use.
    #[cfg(feature = "links")]
    pub(crate) fn with_network(self, network: Network) -> Self {
        Self { network: Some(network), ..self }
    }

    /// The network between the servers.
    ///
    /// # Panics
    ///
    /// If they were started without one.
    #[cfg(feature = "links")]
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("they were started apart")
    }

    /// The leading member, once there is one; the first, if these servers elect none.
    ///
    /// # Panics
    ///
    /// If there is none for a minute.
    pub fn leader(&self) -> usize {
        let Some(leads) = self.leads else { return 0 };
        let leads = |server: &Server| leads(server.node().up.0);
        wait_for("a member leads", || self.servers.iter().position(leads))
    }

    /// The same servers, under another URL.
    pub fn at(self, url: String) -> Self {
        Self { url, ..self }
    }

    /// The store's URL.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// The address of each server for clients.
    pub fn hosts(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect()
    }

    /// Kills a server, as a crash does.
    pub fn kill(&mut self, at: usize) {
        self.servers[at].kill();
    }

    /// Restarts a killed server with its data, without waiting.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn begin(&mut self, at: usize) {
        self.servers[at].begin().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Waits until a server is up.
    ///
    /// # Panics
    ///
    /// If it has ended, or is never up.
    pub fn wait(&mut self, at: usize) {
        self.servers[at].wait().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Restarts a killed server with its data, and waits until it is up.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self, at: usize) {
        self.begin(at);
        self.wait(at);
    }

    /// Restarts all servers, which were killed, and waits until they are up.
    ///
    /// # Panics
    ///
    /// If one does not start.
    pub fn restart_all(&mut self) {
        (0..self.servers.len()).for_each(|at| self.begin(at));
        (0..self.servers.len()).for_each(|at| self.wait(at));
    }

    /// Sends a signal to a server: STOP and CONT, for example.
    pub fn signal(&self, at: usize, signal: Signal) {
        self.servers[at].signal(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Probe, Program, free_port};
    use std::net::TcpListener;

    /// Other programs do not know the files by which tests keep ports apart.
    #[test]
    fn other_ports_are_tried_when_one_is_taken() {
        const SLEEP: Program = Program::new("sleep", "coreutils", "");
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ports = vec![free_port(), taken.local_addr().unwrap().port()];
        let describe = || {
            let port = ports.pop().expect("only one port is taken");
            let node = Node::new("sleep", &SLEEP, port, Probe::Custom(|_| Ok(()))).args(["60"]);
            Deployment::new("url", vec![node])
        };
        let private = Private::launch("ports", describe).unwrap();
        let port = private.servers[0].port();
        assert!(private.servers[0].process().is_some() && ports.is_empty());
        assert_ne!(port, taken.local_addr().unwrap().port());
    }
}
