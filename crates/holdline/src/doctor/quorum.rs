//! What matters to a quorum besides its nodes: how many there are, whether they fail together, and
//! whether one of them is slower than the others, or has another time.

use super::{Examination, round_trips, servers};
use crate::error::Result;
use crate::findings::Findings;
use crate::open;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

/// The round trips to each node, and all of them together, at most.
const ROUND_TRIPS: u32 = 10;
const MEASURE: Duration = Duration::from_secs(2);
/// How far the nodes' clocks may be apart before it is worth a word.
const APART: Duration = Duration::from_secs(1);

/// What was found about one node.
struct Node {
    findings: Findings,
    answers: bool,
    /// The machine that it is on, if the URL tells: an address, or the device of a file.
    machine: Option<String>,
}

/// Looks at each node, and at what they have in common. Returns whether there is something to open.
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
            machines.entry(machine).or_default().push(open::shown(url));
        }
        findings.take(node.findings, &open::shown(url));
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
    let needed = nodes / 2 + 1;
    let found = format!("{answer} of {nodes} nodes answer, {needed} are needed");
    findings.majority("nodes", found, nodes, nodes, answer);
}

/// How far the nodes' clocks are apart. Leases do not depend on it, but tokens do.
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
    let mut answers = false;
    if exists {
        answers = measure(url, wanted, &mut findings).await;
    }
    Ok(Node { findings, answers, machine: machine(url).await })
}

/// How fast the node answers. Returns whether it does.
async fn measure(url: &str, wanted: &Examination, findings: &mut Findings) -> bool {
    findings.about(open::shown(url));
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

/// What tells the machine of a node from those of others; `None` if nothing does.
async fn machine(url: &str) -> Option<String> {
    let shown = open::shown(url);
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
            // On a thread of its own: the system's resolver blocks.
            let found = tokio::task::spawn_blocking(move || {
                let mut found = host.to_socket_addrs().ok()?;
                found.next().map(|address| address.ip().to_canonical())
            });
            found.await.ok()?.map(|ip: IpAddr| ip.to_string())
        }
    }
}

/// The device of a file's folder.
fn device(path: &str) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let path = std::path::Path::new(path.trim_start_matches("//"));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let about = std::fs::metadata(folder.unwrap_or(std::path::Path::new("."))).ok()?;
    Some(format!("device {}", about.dev()))
}
