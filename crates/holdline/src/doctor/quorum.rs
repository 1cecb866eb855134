//! The examination of a quorum as a whole: how many nodes it has, whether they fail together, and
//! whether one of them is slow or has another time.

use super::{Examination, round_trips, servers};
use crate::error::Result;
use crate::findings::Findings;
use crate::open;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

/// The limits for each node: the number of round trips, and the time for all of them.
const ROUND_TRIPS: u32 = 10;
const MEASURE: Duration = Duration::from_secs(2);
/// The difference between the nodes' clocks that is reported.
const APART: Duration = Duration::from_secs(1);

/// The findings about one node.
struct Node {
    findings: Findings,
    answers: bool,
    /// The node's machine, if the URL tells: an address, or the device of a file.
    machine: Option<String>,
}

/// Examines each node, and what they share. Returns whether there is a store to open.
pub(super) async fn nodes(
    urls: &[String],
    wanted: &Examination,
    findings: &mut Findings,
) -> Result<bool> {
    let asked = join_all(urls.iter().map(|url| Box::pin(node(url, wanted)))).await;
    let nodes: Vec<Node> = asked.into_iter().collect::<Result<_>>()?;
    let answer = nodes.iter().filter(|node| node.answers).count();
    let mut machines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (url, node) in urls.iter().zip(nodes) {
        if let Some(machine) = node.machine {
            machines.entry(machine).or_default().push(open::address_of(url));
        }
        findings.take(node.findings, &open::address_of(url));
    }
    findings.about_all();
    count(urls.len(), answer, findings);
    for (machine, nodes) in machines.iter().filter(|(_, nodes)| nodes.len() > 1) {
        findings.warning(
            "machines",
            format!("{} are on one machine ({machine})", nodes.join(" and ")),
            "one failure ends them together; put each node on a machine of its own",
        );
    }
    clocks(findings);
    Ok(true)
}

fn count(nodes: usize, answer: usize, findings: &mut Findings) {
    let found = format!("{answer} of {nodes} nodes answer");
    findings.majority("nodes", found, nodes, nodes, answer);
}

/// Compares the nodes' clocks. Leases do not depend on them, but tokens do.
fn clocks(findings: &mut Findings) {
    let (Some(first), Some(last)) = (
        findings.clocks.iter().min_by_key(|(_, ahead)| *ahead).cloned(),
        findings.clocks.iter().max_by_key(|(_, ahead)| *ahead).cloned(),
    ) else {
        return;
    };
    let apart = Duration::from_micros((last.1 - first.1).unsigned_abs());
    if apart > APART {
        findings.warning(
            "clocks",
            format!("the clock of {} is {apart:.1?} ahead of that of {}", last.0, first.0),
            "keep the nodes' clocks together (NTP): tokens depend on it, and a node whose clock is \
             set while locks are held lets others in",
        );
    } else {
        findings.ok("clocks", format!("the nodes' clocks are {apart:.1?} apart at most"));
    }
}

async fn node(url: &str, wanted: &Examination) -> Result<Node> {
    let mut findings = Findings::default();
    let exists = servers(url, &mut findings).await?;
    let answers = exists
        && !findings.says_why_nothing_was_asked()
        && measure(url, wanted, &mut findings).await;
    if !answers {
        // A minority that is away changes nothing: whether it is one, the count of the nodes says.
        findings.soften(&["reachable", "answers"]);
    }
    Ok(Node { findings, answers, machine: machine(url).await })
}

/// Measures the node's latency. Returns whether it answers.
async fn measure(url: &str, wanted: &Examination, findings: &mut Findings) -> bool {
    findings.about(open::address_of(url));
    let timed = async {
        let client = open::open(url).await?;
        client.inspect(super::LOCK).await?;
        round_trips(&client, ROUND_TRIPS.min(wanted.round_trips), MEASURE).await
    };
    let mut times = match timed.await {
        Ok(times) => times,
        Err(error) => {
            findings.error("answers", &error);
            return false;
        }
    };
    times.sort();
    let middle = times[times.len() / 2];
    // As the quorum counts it.
    let silent = (wanted.lease / 10).clamp(Duration::from_millis(50), Duration::from_millis(500));
    let found = format!("{middle:.1?} to answer");
    if middle > silent {
        let advice =
            format!("it counts as silent, after {silent:?}; use a longer lease, or another node");
        findings.warning("answers", found, advice);
    } else {
        findings.ok("answers", found);
    }
    true
}

/// A text that identifies the node's machine; `None` if it is unknown.
async fn machine(url: &str) -> Option<String> {
    let shown = open::address_of(url);
    let (scheme, rest) = shown.split_once(':')?;
    match scheme {
        "memory" => None,
        "sqlite" => device(rest),
        _ if scheme.ends_with("+unix") => Some("a socket of this one".to_owned()),
        _ => {
            let host = rest.trim_start_matches('/').split(['/', ',']).next()?.to_owned();
            let host = if host.ends_with(|c: char| c.is_ascii_digit()) && host.contains(':') {
                host
            } else {
                format!("{host}:1")
            };
            // On a thread of its own, because the system's resolver blocks.
            let found = tokio::task::spawn_blocking(move || {
                let mut found = host.to_socket_addrs().ok()?;
                found.next().map(|address| address.ip().to_canonical())
            });
            found.await.ok()?.map(|ip: IpAddr| ip.to_string())
        }
    }
}

/// The device of a file's directory.
fn device(path: &str) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let path = std::path::Path::new(path.trim_start_matches("//"));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let about = std::fs::metadata(folder.unwrap_or(std::path::Path::new("."))).ok()?;
    Some(format!("device {}", about.dev()))
}
