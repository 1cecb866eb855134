//! `holdline doctor`: checks whether a store is configured so that locks in it are safe.

use crate::context::Session;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::printer::{Printer, clean, redact};
use crate::store_url;
use clap::Args;
use holdline::doctor::{self, Examination, Finding, Level, Report};
use serde_json::json;
use std::time::Duration;

const ABOUT: &str = "\
Every server that the URL names, or that those name, is asked how it is set up, and what the guides
of the stores warn of is looked for: eviction, persistence, replicas, quorums, rights, clocks,
disks, versions. Then round trips are measured against the lease, and a mutex is taken and released.

  ok       as it should be
  advice   worth knowing, or worth changing
  warning  a failure that is likely enough costs locks, or keeps everybody waiting
  problem  locks cannot be had, or two can hold the same one

Nothing is written but that mutex, `holdline-doctor`; with --no-lock nothing at all. No file is
made, and no table. Secrets are never shown.

The exit code is 0 if the store can be used (with warnings too), 78 if there is a problem, and 69 if
it cannot be reached.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  holdline doctor                                the store of HOLDLINE_STORE
  holdline doctor redis://cache:6379 --lease 3s  fast enough for leases of 3 s?
  holdline doctor etcd://a,b,c --no-lock         only look
  holdline doctor --json URL | jq '.findings[] | select(.level != \"ok\")'
";

/// Check a store: is it configured so that locks in it are safe?
#[derive(Args, Debug)]
#[command(long_about = format!("Check whether locks in a store are safe\n\n{ABOUT}"))]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// The store; without it, the one of HOLDLINE_STORE or --store
    url: Option<String>,

    /// The lease that locks will have: latencies are judged against it
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse_limit)]
    lease: Duration,

    /// How many round trips to measure
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(doctor::MOST_ROUND_TRIPS)))]
    round_trips: u32,

    /// Take no lock
    #[arg(long)]
    no_lock: bool,
}

impl Doctor {
    /// Whether it checks the store of `--store`.
    pub(crate) fn uses_store(&self) -> bool {
        self.url.is_none()
    }

    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        let mut wanted = Examination::default();
        wanted.lease = self.lease;
        wanted.round_trips = self.round_trips;
        wanted.lock = !self.no_lock;
        let store = match &self.url {
            Some(url) => store_url::resolve(Some(url))?,
            None => session.store.clone(),
        };
        let report = match store.as_str() {
            "" => doctor::examine_default(&wanted).await?,
            url => doctor::examine(url, &wanted).await?,
        };
        let text = if session.printer.json {
            as_json(&report, self.lease)
        } else {
            as_text(&report, session.printer.quiet)
        };
        Printer::answer_if_read(&text)?;
        Ok(exit(&report))
    }
}

fn exit(report: &Report) -> Exit {
    match (report.answers, report.worst()) {
        (false, Level::Problem) => Exit::STORE,
        (_, Level::Problem) => Exit::UNSAFE,
        _ => Exit::DONE,
    }
}

/// The findings, server by server, and the conclusion. With `quiet` only those that are not `ok`.
fn as_text(report: &Report, quiet: bool) -> String {
    let mut lines = vec![report.address.clone()];
    let mut server = None;
    for finding in &report.findings {
        if quiet && finding.level == Level::Ok {
            continue;
        }
        if server != Some(&finding.server) {
            let name = finding.server.as_deref();
            if name != Some(&report.address) {
                lines.push(format!("  {}", name.unwrap_or("the store")));
            }
            server = Some(&finding.server);
        }
        lines.push(format!("    {:<8} {}: {}", finding.level, finding.check, finding.found));
        lines.extend(finding.advice.as_ref().map(|advice| format!("             {advice}")));
    }
    lines.push(summary(&report.findings));
    lines.iter().map(|line| clean(&redact(line))).collect::<Vec<_>>().join("\n")
}

fn summary(findings: &[Finding]) -> String {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (problems, warnings) = (count(Level::Problem), count(Level::Warning));
    let counted = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    };
    let verdict = match (problems, warnings) {
        (0, 0) => "locks are as safe here as the store can make them",
        (0, _) => "it can be used; the warnings say what would cost locks",
        _ => "do not rely on locks here before the problems are solved",
    };
    format!("{}, {}: {verdict}", counted(problems, "problem"), counted(warnings, "warning"))
}

fn as_json(report: &Report, lease: Duration) -> String {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|finding| {
            json!({
                "level": finding.level.as_str(),
                "server": finding.server.as_deref().map(redact),
                "check": finding.check,
                "found": redact(&finding.found),
                "advice": finding.advice.as_deref().map(redact),
            })
        })
        .collect();
    json!({
        "store": redact(&report.address),
        "worst": report.worst().as_str(),
        "answers": report.answers,
        "lease_ms": u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        "exit": exit(report).0,
        "findings": findings,
    })
    .to_string()
}
