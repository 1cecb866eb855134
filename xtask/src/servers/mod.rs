//! `cargo xtask servers`: real servers for tests and benchmarks.

mod launch;
mod state;

pub(crate) use holdline_testkit::servers::{TOPOLOGIES, topology};
pub(crate) use holdline_testkit::{Process, in_path, packages_from_apt};

use crate::Outcome;
use holdline_testkit::{Ports, Topology, install_missing};
use state::{OneAtATime, Running};

/// `cargo xtask servers VERB [NAME...]`
pub(crate) fn main(words: &[&str]) -> Outcome<bool> {
    let [verb, names @ ..] = words else { return Err("servers: start, stop or status?".into()) };
    let chosen: Vec<&'static Topology> = if names.is_empty() {
        TOPOLOGIES.to_vec()
    } else {
        names.iter().map(|name| topology(name)).collect::<Outcome<_>>()?
    };
    match *verb {
        "start" => Ok(start_and_print(&chosen)),
        "stop" => Ok(stop_and_print(&chosen)),
        "status" => print_status(&chosen),
        other => Err(format!("servers: I know start, stop and status, but not {other:?}.")),
    }
}

/// The result of a successful start.
pub(crate) struct Started {
    /// The address for tests.
    pub(crate) url: String,
    /// Whether it was already running.
    pub(crate) already: bool,
    /// A remark about it, if any.
    pub(crate) remark: Option<String>,
}

/// Starts one topology, unless it is running. Cleans up an incomplete earlier start first.
pub(crate) fn start(topology: &'static Topology) -> Outcome<Started> {
    let _lock = OneAtATime::acquire()?;
    let ports = Ports::from_env()?;
    if let Some(running) = Running::load(topology.name)? {
        if running.is_whole() {
            let remark = other_ports(topology.name, running.base, ports);
            return Ok(Started { url: running.url, already: true, remark });
        }
        running.stop()?;
    }
    let running = launch::start(topology, ports)?;
    Ok(Started { url: running.url, already: false, remark: None })
}

/// The remark about servers that run on other ports than would be chosen now.
fn other_ports(name: &str, base: u16, wanted: Ports) -> Option<String> {
    (base != wanted.at(0)).then(|| {
        format!(
            "{name} was started with HOLDLINE_PORT_BASE={base} and runs there still, though it is \
             {} now; to move it, stop it and start it again.",
            wanted.at(0)
        )
    })
}

/// Stops one topology; `false` if it was not running.
pub(crate) fn stop(name: &str) -> Outcome<bool> {
    let _lock = OneAtATime::acquire()?;
    Running::load(name)?.map_or(Ok(false), |running| running.stop().map(|()| true))
}

/// Whether it is running.
pub(crate) fn runs(name: &str) -> Outcome<bool> {
    Ok(Running::load(name)?.is_some_and(|running| running.is_whole()))
}

/// Installs what these topologies lack, if this machine allows it; [`Topology::missing`] tells what
/// is still missing.
pub(crate) fn install(chosen: &[&Topology]) {
    install_missing(chosen.iter().flat_map(|topology| topology.programs()));
}

fn start_and_print(chosen: &[&'static Topology]) -> bool {
    install(chosen);
    let mut all_well = true;
    for topology in chosen {
        let begun = std::time::Instant::now();
        match start(topology) {
            Ok(Started { url, already, remark }) => {
                // A quorum's URL has commas, which are harmless to a shell, but be safe.
                println!("export {}='{url}'", topology.env);
                let seconds = begun.elapsed().as_secs_f64();
                if already {
                    eprintln!("xtask: {} runs already", topology.name);
                } else {
                    eprintln!("xtask: {} is ready after {seconds:.1} s", topology.name);
                }
                if let Some(remark) = remark {
                    eprintln!("xtask: {remark}");
                }
            }
            Err(message) => {
                eprintln!("xtask: {message}");
                all_well = false;
            }
        }
    }
    all_well
}

fn stop_and_print(chosen: &[&'static Topology]) -> bool {
    let mut all_well = true;
    for topology in chosen {
        match stop(topology.name) {
            Ok(true) => println!("{}: stopped", topology.name),
            Ok(false) => println!("{}: did not run", topology.name),
            Err(message) => {
                eprintln!("xtask: {message}");
                all_well = false;
            }
        }
    }
    all_well
}

/// Prints the running topologies. True unless one is broken: one that is not running is fine.
fn print_status(chosen: &[&'static Topology]) -> Outcome<bool> {
    let mut all_well = true;
    for topology in chosen {
        let Some(running) = Running::load(topology.name)? else {
            let other = Running::other_checkout(topology.name)?.map_or(String::new(), |root| {
                format!(" (the state file here is of {}; ignored)", root.display())
            });
            println!("{:<18} not running{other}", topology.name);
            continue;
        };
        let pids: Vec<String> = running.processes.iter().map(|p| p.pid.to_string()).collect();
        let pids = pids.join(" ");
        let Running { url, dir, .. } = &running;
        if running.is_whole() {
            println!("{:<18} runs at {url} (pids {pids}; {})", topology.name, dir.display());
        } else {
            all_well = false;
            println!(
                "{:<18} is not whole: of pids {pids} some ended, or a start was cut off (or \
                 goes on now); start it again, or stop it",
                topology.name
            );
        }
    }
    Ok(all_well)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_on_other_ports_are_spoken_of() {
        let ports = Ports::parse("4000").unwrap();
        assert_eq!(other_ports("redis-single", 4000, ports), None);
        let remark = other_ports("redis-single", 21_000, ports).unwrap();
        assert!(remark.contains("HOLDLINE_PORT_BASE=21000"), "{remark}");
        assert!(remark.contains("it is 4000 now"), "{remark}");
    }
}
