//! Starts a topology, and records what it starts.

use super::state::Running;
use crate::Outcome;
use holdline_testkit::{Folder, Ports, Topology};

/// Starts all nodes, and returns when they serve. If anything fails, nothing is left behind.
pub(super) fn start(topology: &Topology, ports: Ports) -> Outcome<Running> {
    let deployment = topology.deployment(ports);
    let mut running = Running {
        name: topology.name.to_owned(),
        root: crate::workspace::root(),
        base: ports.at(0),
        dir: Folder::new(topology.name)?.keep(),
        url: deployment.url.clone(),
        processes: Vec::new(),
        ready: false,
    };
    running.save()?;
    let dir = running.dir.clone();
    let result = deployment.start_for_others(&dir, &mut |server| {
        // If it has ended already, waiting for it will say so.
        running.processes.extend(server.process());
        running.save()
    });
    match result {
        Ok(_) => {
            running.ready = true;
            running.save()?;
            Ok(running)
        }
        Err(message) => {
            running.stop()?;
            Err(format!("{}: {message}", topology.name))
        }
    }
}
