//! The stores of a run: their URLs, the servers that were started for them, and the proxies in
//! front.

use crate::cell::{Cell, Scenario};
use crate::counters::{self, Counts};
use crate::delay::{self, DelayProxy};
use crate::error::{Error, Result};
use crate::launch::{SERVICES, Servers, Service};
use crate::machine;
use holdline_testkit::Wrap;
use std::collections::HashMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

/// The time limit for a store to be opened.
const ANSWER_TIME: Duration = Duration::from_secs(15);

/// One store of a run.
#[derive(Debug)]
pub(crate) struct Target {
    /// Its name in the report, without secrets.
    pub(crate) label: String,
    pub(crate) url: String,
    pub(crate) servers: Option<Servers>,
    pub(crate) service: Option<Service>,
    endpoints: Vec<Endpoint>,
    /// The URLs with a delay, and the proxies that cause it.
    delayed: HashMap<Duration, (String, Vec<DelayProxy>)>,
    /// Whether it did not answer in time when it was opened.
    silent: bool,
}

/// One of its servers.
#[derive(Clone, Debug)]
struct Endpoint {
    scheme: String,
    address: String,
    /// Its process, if it runs on this machine.
    pid: Option<u32>,
}

/// The resource usage of one server's process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfProcess {
    /// CPU time, in nanoseconds.
    pub(crate) cpu: u64,
    /// Resident memory, in bytes.
    pub(crate) memory: u64,
    pub(crate) sockets: u64,
}

/// The resource usage of the servers so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) counts: Counts,
    /// The usage of each server whose process is known.
    pub(crate) processes: Vec<OfProcess>,
}

impl Target {
    /// Finds a store by its argument on the command line, and starts its servers if that names a
    /// service.
    pub(crate) fn new(store: &str, folder: &Path, wrap: Wrap) -> Result<Self> {
        let (url, label) = match store {
            "memory" | "memory:" => (format!("memory:bench-{}", std::process::id()), "memory"),
            "file" => (format!("sqlite:{}", folder.join("locks.db").display()), "file"),
            _ => match Service::named(store) {
                Some(service) => return Self::start(service, wrap),
                None if store.contains(':') => (store.to_owned(), ""),
                None => return Err(unknown(store)),
            },
        };
        let label = if label.is_empty() { shown(&url) } else { label.to_owned() };
        let endpoints = endpoints(&url, &[]);
        let delayed = HashMap::new();
        let (servers, service) = (None, None);
        Ok(Target { label, url, servers, service, endpoints, delayed, silent: false })
    }

    fn start(service: Service, wrap: Wrap) -> Result<Self> {
        let servers = service.start(wrap)?;
        let endpoints = endpoints(&servers.url, &servers.pids());
        Ok(Target {
            label: service.name.to_owned(),
            url: servers.url.clone(),
            servers: Some(servers),
            service: Some(service),
            endpoints,
            delayed: HashMap::new(),
            silent: false,
        })
    }

    /// The URL for a cell: with its delay, and its mode's layout.
    pub(crate) fn url_for(&mut self, cell: &Cell) -> Result<String> {
        if cell.delay.is_zero() {
            return cell.mode.url(&self.url);
        }
        // An unsupported mode is refused before proxies are started.
        cell.mode.url(&self.url)?;
        if !self.delayed.contains_key(&cell.delay) {
            self.delayed.insert(cell.delay, delay::put_before(&self.url, cell.delay)?);
        }
        cell.mode.url(&self.delayed[&cell.delay].0)
    }

    /// Whether the store supports the cell, or why not.
    pub(crate) async fn check(&mut self, cell: &Cell) -> Result<()> {
        cell.check()?;
        let is_memory = self.url.starts_with("memory:");
        if is_memory && (cell.processes > 1 || cell.scenario == Scenario::Crash) {
            return Err(Error::usage("memory is that of one process: others cannot see its locks"));
        }
        if cell.scenario == Scenario::Leader && !self.service.is_some_and(Service::has_leader) {
            return Err(Error::usage(
                "leader needs a cluster that is started for the run: etcd-three or zookeeper-three",
            ));
        }
        let url = self.url_for(cell)?;
        // Once is enough: there may be many cells.
        let limit = if self.silent { Duration::ZERO } else { ANSWER_TIME };
        let opened = tokio::time::timeout(limit, holdline::open(&url)).await;
        self.silent = opened.is_err();
        let client = opened.map_err(|_| Error::failed("the store does not answer"))??;
        let capabilities = client.capabilities();
        cell.mode.check(capabilities)?;
        if cell.scenario.is_weighted() && !capabilities.weighted {
            return Err(Error::usage("the store has no semaphores and no read-write locks"));
        }
        if !(capabilities.lease_min..=capabilities.lease_max).contains(&cell.lease) {
            return Err(Error::usage(format!(
                "the store has leases from {:?} to {:?}",
                capabilities.lease_min, capabilities.lease_max
            )));
        }
        Ok(())
    }

    /// The resource usage of its servers so far.
    pub(crate) fn usage(&self) -> Usage {
        let counts = self.endpoints.iter().map(|at| counters::read(&at.scheme, &at.address));
        let processes = self.endpoints.iter().filter_map(|endpoint| {
            let pid = endpoint.pid?;
            let (cpu, memory) = (machine::family_cpu(pid)?, machine::resident(pid)?);
            let sockets = machine::family(pid).into_iter().map(machine::sockets).sum();
            Some(OfProcess { cpu, memory, sockets })
        });
        Usage {
            counts: counts.reduce(Counts::plus).unwrap_or_default(),
            processes: processes.collect(),
        }
    }

    /// A remark about the location of its servers.
    pub(crate) fn about(&self) -> String {
        let version = self.servers.as_ref().map(|servers| servers.version.clone());
        let here = self.endpoints.iter().filter(|endpoint| endpoint.pid.is_some()).count();
        match (version, self.endpoints.len()) {
            (Some(version), 1) => format!("{version}; started for the run, on this machine"),
            (Some(version), n) => format!("{n} × {version}; started for the run, on this machine"),
            (None, 0) => "in this process or this machine's file system".to_owned(),
            (None, n) => format!("{n} server(s), {here} of them on this machine"),
        }
    }

    /// The number of the server that leads, if one does.
    pub(crate) fn leader(&self) -> Option<usize> {
        self.endpoints.iter().position(|at| counters::leads(&at.scheme, &at.address))
    }

    pub(crate) fn scheme(&self) -> String {
        self.endpoints.first().map_or(String::new(), |at| at.scheme.clone())
    }

    /// Finds the processes again after a restart.
    pub(crate) fn refresh(&mut self) {
        if let Some(servers) = &self.servers {
            for (endpoint, pid) in self.endpoints.iter_mut().zip(servers.pids()) {
                endpoint.pid = Some(pid);
            }
        }
    }
}

fn unknown(store: &str) -> Error {
    let names: Vec<&str> = SERVICES.iter().map(|service| service.name).collect();
    Error::usage(format!(
        "{store:?} is no store: give a URL, or memory, file, or what is started for the run: {}",
        names.join(", ")
    ))
}

/// The servers of a URL, with the processes that are known or can be found on this machine.
fn endpoints(url: &str, pids: &[u32]) -> Vec<Endpoint> {
    let first = url.strip_prefix("quorum:").unwrap_or(url);
    let scheme = first.split(':').next().unwrap_or("").to_owned();
    let hosts = delay::hosts(url).into_iter().enumerate();
    // Other ports than that of a sentinel, or of a cluster's first node, serve the locks.
    let serves = !scheme.contains('+');
    hosts
        .map(|(at, address)| {
            let pid = pids.get(at).copied().or_else(|| {
                if !serves {
                    return None;
                }
                let mut addresses = address.to_socket_addrs().ok()?;
                let local = addresses.find(|address: &SocketAddr| address.ip().is_loopback())?;
                machine::listener(local.port())
            });
            Endpoint { scheme: scheme.clone(), address, pid }
        })
        .collect()
}

/// The options of a URL that distinguish stores at one address, and hold no secrets.
const SHOWN_OPTIONS: [&str; 5] = ["scheme", "listen", "connections", "dialect", "session"];

/// The URL without its secrets.
pub(crate) fn shown(url: &str) -> String {
    let mut shown = holdline::address_of(url);
    let plain = |value: &str| value.chars().all(|c| c.is_ascii_alphanumeric());
    let options = url.split_once('?').map_or("", |(_, options)| options).split('&');
    let options = options.filter(|option| {
        option.split_once('=').is_some_and(|(key, value)| {
            SHOWN_OPTIONS.contains(&key) && !value.is_empty() && plain(value)
        })
    });
    for (at, option) in options.enumerate() {
        shown.push(if at == 0 { '?' } else { '&' });
        shown.push_str(option);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_shown() {
        assert_eq!(shown("redis://al:secret@h:1/2?password=x"), "redis://h:1/2");
        assert_eq!(shown("quorum:redis://:s@a,redis://:s@b"), "quorum:redis://a,redis://b");
        assert_eq!(shown("sqlite:/a/b"), "sqlite:/a/b");
        assert_eq!(shown("redis://:it's-secret@h"), "redis://h");
    }

    /// Otherwise two schemes of one server would be one contestant.
    #[test]
    fn stores_at_one_address_differ_by_their_options() {
        let url = "postgres://al:secret@h/db?scheme=row&password_file=/s&connections=4";
        assert_eq!(shown(url), "postgres://h/db?scheme=row&connections=4");
        let url = "postgres://h/db?listen=postgres%3A%2F%2F%3Asecret%40i%2Fdb&scheme=table";
        assert_eq!(shown(url), "postgres://h/db?scheme=table");
    }

    /// Sentinels, and the first nodes of a cluster, are not the servers that hold the locks.
    #[test]
    fn the_process_behind_a_list_of_servers_is_unknown() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let pid = |scheme: &str| endpoints(&format!("{scheme}://127.0.0.1:{port}/x"), &[])[0].pid;
        assert_eq!(pid("redis"), Some(std::process::id()));
        assert_eq!(pid("redis+sentinel"), None);
        assert_eq!(pid("redis+cluster"), None);
    }
}
