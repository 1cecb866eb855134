//! Servers of a test alone, which it may treat as it likes.

#[cfg(feature = "links")]
use crate::network::Network;
use crate::node::Node;
use crate::server::{Life, Server};
use crate::topology::Deployment;
use crate::{Folder, Outcome, missing};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// The longest that an election takes on a busy machine.
const LEADER_WITHIN: Duration = Duration::from_secs(30);

/// Servers of a test alone. Dropping it stops them, and removes their data unless the test fails.
#[derive(Debug)]
pub struct Private {
    pub(crate) url: String,
    leads: Option<fn(u16) -> bool>,
    /// What is between the servers, if that can be broken.
    #[cfg(feature = "links")]
    network: Option<Network>,
    /// The servers, in the order of starting.
    pub servers: Vec<Server>,
    /// Where their data is. After the servers, because they must have ended when it is removed.
    pub folder: Folder,
}

impl Private {
    /// Starts what is described, with data in memory where there is room; `None` if a program is
    /// missing, which is noted by [`missing()`].
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(name: &str, deployment: Deployment) -> Option<Self> {
        Self::start_in(Folder::new(name).unwrap_or_else(|e| panic!("{e}")), deployment)
    }

    /// The same with its data in this folder.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_in(folder: Folder, deployment: Deployment) -> Option<Self> {
        let mut programs = deployment.nodes().flat_map(Node::programs);
        if let Some(what) = programs.find_map(|program| program.find().err()) {
            missing(what.trim_end_matches('.'));
            return None;
        }
        drop(programs);
        Some(Self::try_start_in(folder, deployment).unwrap_or_else(|e| panic!("{e}")))
    }

    /// The same, for programs that are not tests.
    ///
    /// # Errors
    ///
    /// A sentence: a program is missing, or it does not start.
    pub fn try_start_in(folder: Folder, deployment: Deployment) -> Outcome<Self> {
        let (url, leads) = (deployment.url.clone(), deployment.leads);
        let servers = deployment.start(folder.path(), Life::OfItsOwner, &mut |_| Ok(()))?;
        Ok(Self {
            url,
            leads,
            #[cfg(feature = "links")]
            network: None,
            servers,
            folder,
        })
    }

    /// The same with a network between the servers, which their descriptions lead through.
    #[cfg(feature = "links")]
    pub(crate) fn with_network(self, network: Network) -> Self {
        Self { network: Some(network), ..self }
    }

    /// What is between the servers.
    ///
    /// # Panics
    ///
    /// If they were not started apart.
    #[cfg(feature = "links")]
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("they were started apart")
    }

    /// The member that leads, as soon as there is one; the first, if these servers elect none.
    ///
    /// # Panics
    ///
    /// If there is none for half a minute.
    pub fn leader(&self) -> usize {
        let Some(leads) = self.leads else { return 0 };
        let limit = Instant::now() + LEADER_WITHIN;
        loop {
            let found = self.servers.iter().position(|server| leads(server.node().up.0));
            if let Some(at) = found {
                return at;
            }
            assert!(Instant::now() < limit, "no member leads");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The store's URL.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Where clients reach each server.
    pub fn hosts(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect()
    }

    /// Ends a server as a crash does.
    pub fn kill(&mut self, at: usize) {
        self.servers[at].kill();
    }

    /// Starts a server that was killed, with its data, and does not wait.
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

    /// Starts a server that was killed, with its data, and waits until it is up.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self, at: usize) {
        self.begin(at);
        self.wait(at);
    }

    /// Starts all servers, which were killed, and waits until all are up.
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
