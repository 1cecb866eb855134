//! A server's counters of commands and bytes, read over a separate connection in the server's own
//! protocol, independently of the library under test.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The counts of a server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) commands: Option<f64>,
    pub(crate) bytes: Option<f64>,
}

impl Counts {
    /// The counts between two readings.
    pub(crate) fn since(self, before: Counts) -> Counts {
        let less = |now: Option<f64>, then: Option<f64>| Some((now? - then?).max(0.0));
        Counts {
            commands: less(self.commands, before.commands),
            bytes: less(self.bytes, before.bytes),
        }
    }

    /// The sum of both; unknown if either is.
    pub(crate) fn plus(self, other: Counts) -> Counts {
        let both = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        Counts {
            commands: both(self.commands, other.commands),
            bytes: both(self.bytes, other.bytes),
        }
    }
}

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The maximum length of its answer.
const LONGEST: u64 = 4 << 20;

/// Reads the counts of the server at `address`; `None` where they are unknown.
pub(crate) fn read(scheme: &str, address: &str) -> Counts {
    match scheme {
        "redis" => redis(address),
        "etcd" => etcd(address),
        "zookeeper" | "zk" => zookeeper(address),
        _ => Counts::default(),
    }
}

fn redis(address: &str) -> Counts {
    let Some(text) = ask(address, "INFO stats\r\nQUIT\r\n") else { return Counts::default() };
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().parse::<f64>().ok()
    };
    let (input, output) = (field("total_net_input_bytes"), field("total_net_output_bytes"));
    Counts {
        commands: field("total_commands_processed"),
        bytes: input.zip(output).map(|(input, output)| input + output),
    }
}

fn etcd(address: &str) -> Counts {
    let request = "GET /metrics HTTP/1.0\r\nHost: bench\r\n\r\n";
    let Some(text) = ask(address, request) else { return Counts::default() };
    let sum = |name: &str| sum_of(&text, name);
    // Streams count by message, plain calls by call.
    let (received, sent) = (
        sum("etcd_network_client_grpc_received_bytes_total"),
        sum("etcd_network_client_grpc_sent_bytes_total"),
    );
    Counts {
        commands: sum("grpc_server_msg_received_total"),
        bytes: received.zip(sent).map(|(received, sent)| received + sent),
    }
}

/// The sum of all series of a metric.
fn sum_of(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    });
    values.reduce(|a, b| a + b)
}

fn zookeeper(address: &str) -> Counts {
    let Some(text) = ask(address, "mntr") else { return Counts::default() };
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'))?;
        line.trim().parse::<f64>().ok()
    };
    Counts { commands: field("zk_packets_received"), bytes: None }
}

/// Whether this server is the leader of its cluster.
pub(crate) fn leads(scheme: &str, address: &str) -> bool {
    match scheme {
        "etcd" => ask(address, "GET /metrics HTTP/1.0\r\nHost: bench\r\n\r\n")
            .is_some_and(|text| sum_of(&text, "etcd_server_is_leader") == Some(1.0)),
        "zk" | "zookeeper" => {
            ask(address, "srvr").is_some_and(|text| text.contains("Mode: leader"))
        }
        _ => false,
    }
}

/// Whether this server serves.
pub(crate) fn serves(scheme: &str, address: &str) -> bool {
    match scheme {
        "redis" => ask(address, "PING\r\nQUIT\r\n").is_some_and(|text| text.contains("PONG")),
        "etcd" => ask(address, "GET /health HTTP/1.0\r\nHost: bench\r\n\r\n")
            .is_some_and(|text| text.contains("\"health\":\"true\"")),
        _ => ask(address, "srvr").is_some_and(|text| text.contains("Mode: ")),
    }
}

/// Sends a request, and reads until the server closes the connection.
fn ask(address: &str, request: &str) -> Option<String> {
    let address = address.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_and_longer_names_are_not() {
        let text = "a_total{x=\"1\"} 2\na_total{x=\"2\"} 3e0\na_total_more 7\n# a_total x\n";
        assert_eq!(sum_of(text, "a_total"), Some(5.0));
        assert_eq!(sum_of(text, "b_total"), None);
    }

    #[test]
    fn what_one_server_does_not_tell_is_unknown_of_all() {
        let one = Counts { commands: Some(5.0), bytes: Some(1.0) };
        let other = Counts { commands: Some(2.0), bytes: None };
        assert_eq!(one.plus(other), Counts { commands: Some(7.0), bytes: None });
        assert_eq!(one.since(other).commands, Some(3.0));
    }
}
