//! Ports for servers: topologies share those above the base; tests get free ones.

use crate::Outcome;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// The ports of all topologies lie between the base and this far above it.
pub const PORTS: u16 = 400;

/// A Redis in cluster mode also listens this far above its port.
pub const CLUSTER_BUS: u16 = 10_000;

/// The base of the ports that topologies use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ports(u16);

impl Ports {
    /// The base in `HOLDLINE_PORT_BASE`, or 21000: with it the bus ports of a Redis cluster are
    /// still below those that Linux gives to outgoing connections (32768 and up), any of which may
    /// be in use.
    ///
    /// # Errors
    ///
    /// The variable is not a number, or leaves no room.
    pub fn from_env() -> Outcome<Self> {
        std::env::var("HOLDLINE_PORT_BASE").map_or(Ok(Self(21_000)), |text| Self::parse(&text))
    }

    /// A base that leaves room for all ports, and for the bus ports of a Redis cluster.
    ///
    /// # Errors
    ///
    /// The text is not a number, or leaves no room.
    pub fn parse(text: &str) -> Outcome<Self> {
        let highest = u16::MAX - CLUSTER_BUS - PORTS;
        match text.parse::<u16>() {
            Ok(base) if (1024..=highest).contains(&base) => Ok(Self(base)),
            _ => Err(format!(
                "HOLDLINE_PORT_BASE is {text:?}; it must be a number from 1024 to {highest}."
            )),
        }
    }

    /// The port `offset` above the base.
    pub fn at(self, offset: u16) -> u16 {
        self.0 + offset
    }
}

/// Free ports of tests, the lowest and how many: above those of the default base, and below the
/// buses of its Redis cluster and those that Linux gives to outgoing connections.
const FREE: Range = Range(22_700, 8_300);

/// The same for nodes of a Redis cluster, whose buses lie there as well.
const FREE_WITH_BUS: Range = Range(21_500, 1_200);

/// Returns a port on which nothing listens, and which no other test of this machine gets while this
/// process runs: a file for each port in the temporary folder is locked.
///
/// # Panics
///
/// If thousands of ports are taken.
pub fn free_port() -> u16 {
    FREE.take(&[0])
}

/// Returns a free port whose cluster bus port is free as well.
///
/// # Panics
///
/// If a thousand ports are taken.
pub fn free_cluster_port() -> u16 {
    FREE_WITH_BUS.take(&[0, CLUSTER_BUS])
}

/// The first port of a range, and the number of ports.
struct Range(u16, u16);

impl Range {
    /// A free port of the range, for which the ports at these distances above it are free, too.
    fn take(&self, above: &[u16]) -> u16 {
        static COUNT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(std::process::id()));
        static LOCKED: Mutex<Vec<File>> = Mutex::new(Vec::new());
        let Self(first, size) = *self;
        for _ in 0..size {
            // Other processes start elsewhere.
            let count = COUNT.fetch_add(1, Ordering::Relaxed).wrapping_mul(7);
            let port = first + (count % u32::from(size)) as u16;
            if let Ok(file) = lock(port)
                && above.iter().all(|above| is_free(port + above))
            {
                // The lock ends with the process, and not earlier.
                LOCKED.lock().unwrap_or_else(PoisonError::into_inner).push(file);
                return port;
            }
        }
        panic!("none of {size} ports from {first} is free")
    }
}

/// The time limit for a listener's answer: the kernel gives it, unless too many wait for it.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// Whether nothing listens on a port of this machine.
///
/// Found out by a connection, not by listening there: a process that another thread starts at that
/// moment would have our listener, too, until it is the program that it is to become.
pub(crate) fn is_free(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let attempt = TcpStream::connect_timeout(&address, ANSWERS_WITHIN);
    attempt.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Another process has been given the port.
struct Taken;

/// Locks the file that stands for a port.
fn lock(port: u16) -> Result<File, Taken> {
    let folder = folder();
    let _ = std::fs::create_dir_all(&folder);
    let file = File::create(folder.join(port.to_string())).map_err(|_| Taken)?;
    file.try_lock().map_err(|_| Taken)?;
    Ok(file)
}

/// One folder per user: another user's files could not be opened.
fn folder() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    std::env::temp_dir().join(format!("holdline-ports-{user}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_without_room_is_refused() {
        for bad in ["", "80", "60000", "70000", "x"] {
            let error = Ports::parse(bad).unwrap_err();
            assert!(error.contains("must be a number"), "{error}");
        }
        assert_eq!(Ports::parse("4000").unwrap().at(7), 4007);
    }

    #[test]
    fn a_free_port_is_given_once() {
        let ports: std::collections::BTreeSet<u16> = (0..50).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 50);
        // Its file is locked, for other processes too.
        assert!(ports.iter().all(|port| lock(*port).is_err()));
        let Range(first, size) = FREE;
        assert!(ports.iter().all(|port| (first..first + size).contains(port)));
        let (port, Range(first, size)) = (free_cluster_port(), FREE_WITH_BUS);
        assert!((first..first + size).contains(&port) && lock(port).is_err());
    }

    /// Looking at a port does not take it, not even for the processes that are started meanwhile.
    #[test]
    fn a_port_stays_free_while_processes_are_started() {
        let port = free_port();
        std::thread::scope(|scope| {
            let starts = || {
                for _ in 0..200 {
                    assert!(std::process::Command::new("true").status().unwrap().success());
                }
            };
            let starting = [scope.spawn(starts), scope.spawn(starts)];
            while starting.iter().any(|thread| !thread.is_finished()) {
                assert!(is_free(port));
            }
        });
        let _listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(!is_free(port));
    }
}
