//! `doctor` against real servers: healthy ones, and ones that are set up wrong on purpose.
#![cfg(feature = "doctor")]

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "sqlite")]
mod file;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(all(feature = "redis", feature = "sqlite"))]
mod quorum;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use holdline::doctor::{self, Examination, Finding, Level, Report};
use std::time::Duration;

/// No answer is slow for such a lease: a twentieth of it is longer than any answer is waited for.
const LONG: Duration = Duration::from_secs(40);

/// What is found in the store at this URL.
async fn examine(url: &str) -> Report {
    examine_for(LONG, url).await
}

/// The same without taking a lock.
async fn look(url: &str) -> Report {
    let mut wanted = Examination::default();
    wanted.lease = LONG;
    wanted.lock = false;
    doctor::examine(url, &wanted).await.expect("a good URL")
}

/// The same for locks with this lease.
async fn examine_for(lease: Duration, url: &str) -> Report {
    let mut wanted = Examination::default();
    wanted.lease = lease;
    doctor::examine(url, &wanted).await.expect("a good URL")
}

/// The finding of this check that matters most.
fn worst<'a>(report: &'a Report, check: &str) -> &'a Finding {
    let of_check = report.findings.iter().filter(|finding| finding.check == check);
    of_check.max_by_key(|finding| finding.level).unwrap_or_else(|| panic!("{check}: {report:#?}"))
}

/// A finding of this check says this, and has this level; none of this check is worse. What is
/// wrong comes with what to do.
fn found(report: &Report, check: &str, level: Level, words: &str) {
    assert_eq!(worst(report, check).level, level, "{report:#?}");
    let says = |finding: &&Finding| {
        finding.check == check && finding.level == level && finding.found.contains(words)
    };
    let finding = report.findings.iter().find(says);
    let finding = finding.unwrap_or_else(|| panic!("{check}, {words}: {report:#?}"));
    assert!(level != Level::Warning || finding.advice.is_some(), "{report:#?}");
}

/// Nothing is worse than this.
fn at_worst(report: &Report, level: Level) {
    let worse: Vec<_> = report.findings.iter().filter(|finding| finding.level > level).collect();
    assert!(worse.is_empty(), "{worse:#?}");
}

/// An empty URL and one that makes no sense are not taken for stores that are away.
#[tokio::test]
async fn a_url_that_makes_no_sense_is_an_error() {
    for url in ["", "nothing", "bogus://x", "quorum:memory:a,bogus://b,memory:c"] {
        let error = doctor::examine(url, &Examination::default()).await.expect_err(url);
        assert_eq!(error.kind(), holdline::ErrorKind::Invalid, "{url}");
    }
}

#[tokio::test]
async fn memory_is_not_shared() {
    let report = examine("memory:").await;
    found(&report, "sharing", Level::Advice, "one process");
    found(&report, "lock", Level::Ok, "holdline-doctor");
    at_worst(&report, Level::Advice);
    let report = examine_for(Duration::from_millis(1), "memory:").await;
    found(&report, "lease", Level::Problem, "cannot be had");
}
