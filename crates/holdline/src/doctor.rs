//! The doctor: checks whether a store's servers are configured so that locks in it are safe, and
//! says what to change if they are not. See [`examine`].
//!
//! The stores' guides explain each finding.

use crate::client::Client;
use crate::clock;
use crate::error::Result;
use crate::findings::Findings;
pub use crate::findings::{Finding, Level};
use crate::open;
use crate::recipes::Mutex;
use holdline_base::url::show_duration;
use std::time::Duration;

mod quorum;

/// The name of the lock that [`examine`] takes briefly.
pub const LOCK: &str = "holdline-doctor";

/// The most round trips that are measured.
pub const MOST_ROUND_TRIPS: u32 = 1000;
/// The approximate time limit of all measured round trips together.
const MEASURE: Duration = Duration::from_secs(5);
/// The time limit for acquiring the lock.
const LOCK_WITHIN: Duration = Duration::from_secs(5);

/// The options of an examination.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Examination {
    /// The lease that locks will have; latencies and limits are judged against it.
    pub lease: Duration,
    /// How many round trips to measure, at most [`MOST_ROUND_TRIPS`].
    pub round_trips: u32,
    /// Whether to take and release a lock.
    pub lock: bool,
}

impl Default for Examination {
    /// Leases of 10 s, 30 round trips, and a lock.
    fn default() -> Self {
        Examination { lease: Duration::from_secs(10), round_trips: 30, lock: true }
    }
}

/// The report of an examination.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The store's address, without secrets.
    pub address: String,
    /// The findings: about each server in turn, then about the store as a whole.
    pub findings: Vec<Finding>,
    /// Whether the store was opened and answered.
    pub answers: bool,
}

impl Report {
    /// The highest level among the findings.
    pub fn worst(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }
}

/// Examines the store at this URL, each server named in the URL, and each server that those name in
/// turn. Reports what is wrong with them.
///
/// Nothing is written unless [`Examination::lock`] is set: then one mutex, [`LOCK`], is taken and
/// released once. A missing file is not created, and tables are not installed.
///
/// Each request has the store's own time limit, and the number of requests is bounded by the number
/// of servers.
///
/// # Errors
///
/// [`Invalid`](crate::ErrorKind::Invalid) if the URL is invalid or empty,
/// [`Unsupported`](crate::ErrorKind::Unsupported) if this build lacks the store. An unreachable
/// store is not an error but a finding.
///
/// # Cancel safety
///
/// Dropping the future closes everything it has opened, and releases the lock.
pub async fn examine(url: &str, wanted: &Examination) -> Result<Report> {
    let url = without_install(&open::canonical(url));
    let mut findings = Findings::default();
    let node_urls = open::nodes_of(&url);
    let exists = match &node_urls {
        Some(nodes) => quorum::nodes(nodes, wanted, &mut findings).await?,
        None => servers(&url, &mut findings).await?,
    };
    findings.about_all();
    let mut report =
        Report { address: open::address_of(&url), findings: Vec::new(), answers: exists };
    if exists {
        report.answers = whole(&url, wanted, &mut findings, &mut report.address).await;
    }
    report.findings = findings.list;
    Ok(report)
}

/// Examines the default store ([`open_default`](crate::open_default)), as [`examine`] does.
///
/// # Errors
///
/// [`Invalid`](crate::ErrorKind::Invalid) if the environment does not tell the user's directory,
/// [`Unsupported`](crate::ErrorKind::Unsupported) if this build lacks the store `sqlite`.
///
/// # Cancel safety
///
/// As that of [`examine`].
pub async fn examine_default(wanted: &Examination) -> Result<Report> {
    #[cfg(feature = "sqlite")]
    let url = format!("sqlite:{}", crate::stores::sqlite::default_path()?.display());
    #[cfg(not(feature = "sqlite"))]
    let url = "sqlite:"; // opening it says that the store is missing
    examine(&url, wanted).await
}

/// The same URL, and so those of a quorum's nodes, without the option that installs tables.
fn without_install(url: &str) -> String {
    if let Some(nodes) = open::nodes_of(url) {
        let nodes: Vec<String> = nodes.iter().map(|node| without_install(node)).collect();
        return format!("quorum:{}", nodes.join(","));
    }
    let Some((before, options)) = url.split_once('?') else { return url.to_owned() };
    let kept: Vec<&str> =
        options.split('&').filter(|option| !option.starts_with("install=")).collect();
    if kept.is_empty() { before.to_owned() } else { format!("{before}?{}", kept.join("&")) }
}

/// Examines the servers of a store other than a quorum. Returns whether there is a store to open.
#[allow(clippy::unused_async, unused_variables, reason = "stores across a network are asked")]
async fn servers(url: &str, findings: &mut Findings) -> Result<bool> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return open::open(url).await.map(|_| true); // the error says which URLs there are
    };
    match open::feature_of(scheme).unwrap_or_default() {
        "memory" => {
            findings.advice(
                "sharing",
                "the locks are in the memory of one process",
                "for several processes name a file or a server",
            );
            Ok(true)
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => crate::stores::sqlite::examine(rest, findings),
        #[cfg(feature = "redis")]
        "redis" => crate::stores::redis::examine(scheme, rest, findings).await.map(|()| true),
        #[cfg(feature = "etcd")]
        "etcd" => crate::stores::etcd::examine(scheme, rest, findings).await.map(|()| true),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => {
            crate::stores::zookeeper::examine(scheme, rest, findings).await.map(|()| true)
        }
        #[cfg(feature = "mysql")]
        "mysql" => crate::stores::mysql::examine(rest, findings).await.map(|()| true),
        #[cfg(feature = "postgres")]
        "postgres" => crate::stores::postgres::examine(rest, findings).await.map(|()| true),
        // The error says what is wrong with the URL.
        _ => open::open(url).await.map(|_| true),
    }
}

/// Opens the store, measures its latency, and takes a lock in it. Returns whether it answered.
async fn whole(
    url: &str,
    wanted: &Examination,
    findings: &mut Findings,
    address: &mut String,
) -> bool {
    let client = match open::open(url).await {
        Ok(client) => client,
        Err(error) => {
            // Do not repeat a finding about its only server.
            let is_said = findings.list.iter().any(|it| it.found == format!("{error:#}"));
            if !is_said && !findings.says_why_nothing_was_asked() {
                findings.error("open", &error);
            }
            return !error.retryable();
        }
    };
    *address = client.address();
    // Some stores connect now.
    if let Err(error) = client.inspect(LOCK).await {
        if !findings.says_why_nothing_was_asked() {
            findings.error("latency", &error);
        }
        return !error.retryable();
    }
    lease(&client, wanted.lease, findings);
    if let Err(error) = latency(&client, wanted, findings).await {
        findings.error("latency", &error);
        return !error.retryable();
    }
    if wanted.lock {
        lock(&client, wanted.lease, findings).await;
    }
    true
}

/// Checks that the store accepts leases of this length.
fn lease(client: &Client, lease: Duration, findings: &mut Findings) {
    let can = client.capabilities();
    let limits = format!("{} to {}", show_duration(can.lease_min), show_duration(can.lease_max));
    let shown = show_duration(lease);
    if lease < can.lease_min || lease > can.lease_max {
        let found = format!("a lease of {shown} cannot be had");
        findings.problem("lease", found, format!("use one from {limits}"));
    } else {
        findings.ok("lease", format!("{shown}, of {limits} that can be had"));
    }
}

/// Compares round trips with the lease: a holder renews three times within a lease, and stops a
/// twentieth of it before its end.
async fn latency(client: &Client, wanted: &Examination, findings: &mut Findings) -> Result<()> {
    let mut times = round_trips(client, wanted.round_trips, MEASURE).await?;
    times.sort();
    let Some(&last) = times.last() else { return Ok(()) };
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
    let (middle, tail) = (at(50), at(99));
    let shown = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
    let found = format!(
        "{} to answer, P99 {}, at most {} ({} questions)",
        shown(middle),
        shown(tail),
        shown(last),
        times.len()
    );
    let lease = wanted.lease;
    if middle > lease / 4 {
        let advice =
            format!("use a lease of {:?} or more, or a store that is closer", at_least(tail));
        findings.problem("latency", found, advice);
    } else if tail > lease / 20 {
        let advice = format!(
            "a renewal may come too late; use a lease of {:?} or more, or find out why it is slow",
            at_least(tail)
        );
        findings.warning("latency", found, advice);
    } else {
        findings.ok("latency", found);
    }
    Ok(())
}

/// The shortest lease, in whole seconds, that suits this response time.
fn at_least(answer: Duration) -> Duration {
    Duration::from_secs((answer * 20).as_secs() + 1)
}

/// Measures `count` requests, or as many as the time limit allows.
async fn round_trips(client: &Client, count: u32, limit: Duration) -> Result<Vec<Duration>> {
    let end = clock::now().after(limit);
    let mut times = Vec::new();
    for _ in 0..count.clamp(1, MOST_ROUND_TRIPS) {
        let began = clock::now();
        client.inspect(LOCK).await?;
        times.push(began.until(clock::now()));
        if clock::now() > end {
            break;
        }
    }
    Ok(times)
}

/// Takes the lock and releases it.
async fn lock(client: &Client, lease: Duration, findings: &mut Findings) {
    let can = client.capabilities();
    let mutex = Mutex::new(client, LOCK).lease(lease.clamp(can.lease_min, can.lease_max));
    let began = clock::now();
    let guard = match mutex.lock_within(LOCK_WITHIN).await {
        Ok(Some(guard)) => guard,
        Ok(None) => {
            let found = format!("\"{LOCK}\" is held by another client, so it was not taken");
            findings.advice("lock", found, "try again, or see `holdline status`");
            return;
        }
        Err(error) => return findings.error("lock", &error),
    };
    let taken = began.until(clock::now());
    let leaves = clock::now();
    let released = match guard.unlock().await {
        Ok(()) => leaves.until(clock::now()),
        Err(error) => return findings.error("lock", &error),
    };
    let found = format!("\"{LOCK}\" taken in {taken:.1?}, released in {released:.1?}");
    if taken > lease / 20 {
        let advice = format!(
            "writing is slow: look at the servers' disks and load, or use a lease of {:?} or more",
            at_least(taken)
        );
        findings.warning("lock", found, advice);
    } else {
        findings.ok("lock", found);
    }
}

#[cfg(test)]
mod tests {
    use super::without_install;

    #[test]
    fn no_node_of_a_quorum_is_asked_to_install_tables() {
        for (url, without) in [
            ("memory:", "memory:"),
            ("mysql://a/d?install=yes", "mysql://a/d"),
            ("mysql://a,b/d?install=yes&x=1,2", "mysql://a,b/d?x=1,2"),
            (
                "quorum:mysql://a/d?install=yes,mysql://b,c/d?x=1&install=yes,mysql://e/d",
                "quorum:mysql://a/d,mysql://b,c/d?x=1,mysql://e/d",
            ),
        ] {
            assert_eq!(without_install(url), without);
        }
    }
}
