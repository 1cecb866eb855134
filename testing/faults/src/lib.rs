//! Fault runs: processes use the library's locks while they are killed, stopped and lose their
//! locks by force; they record what they see, and the history checker judges it.
//!
//! The harness is independent of stores: `run::Run` takes a URL, faults, times, a seed and the
//! expectations. `docs/faults/README.md` says how to run it for longer and how to read its output.

mod breakages;
mod client;
mod clusters;
mod contention;
mod copies;
mod databases;
mod inject;
mod judge;
mod mysql;
mod nodes;
mod outages;
mod postgres;
mod recording_store;
mod redis;
mod redis_failover;
mod redis_quorum;
mod run;
mod silence;
mod sqlite;
mod stall_detector;
mod stats;
mod storms;
mod workers;
mod workload;

use holdline_testkit::Choice;
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A fault run: its name, and its function. It fails by a panic.
pub(crate) type Case = (&'static str, fn());

/// Functions as [`Case`]s, by their own names.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => { &[$((stringify!($case), $case)),+] };
}
use cases;

/// The fault runs on all stores: each works on many stores at once.
const ON_ALL_STORES: &[&[Case]] = &[outages::CASES, storms::CASES];

/// The fault runs on one store each.
const ON_ONE_STORE: &[&[Case]] = &[
    sqlite::CASES,
    redis::CASES,
    redis_failover::CASES,
    redis_quorum::CASES,
    clusters::CASES,
    postgres::CASES,
    mysql::CASES,
];

/// The role of a client process: the environment variable that assigns it, and the function that
/// runs it with that variable's value.
type Role = (&'static str, fn(&str));

const ROLES: &[Role] = &[
    (client::ROLE, client::client),
    (storms::PART, storms::storm),
    (outages::PART, outages::role),
    (contention::PART, contention::part),
];

/// Runs the fault runs that the arguments name, or all of them. The calling program is started
/// again as each client process, so it must do nothing else.
pub fn main() -> ExitCode {
    for (variable, role) in ROLES {
        if let Ok(text) = std::env::var(variable) {
            role(&text);
            return ExitCode::SUCCESS;
        }
    }
    let choice = Choice::from_args();
    let chosen = |cases: &[&[Case]]| -> Vec<Case> {
        let cases = cases.concat().into_iter();
        cases.filter(|(name, _)| choice.chooses(name)).collect()
    };
    let (on_all, on_one) = (chosen(ON_ALL_STORES), chosen(ON_ONE_STORE));
    if choice.lists() {
        for (name, _) in on_all.iter().chain(&on_one) {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let (began, all) = (Instant::now(), on_all.len() + on_one.len());
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let failed = [play(on_all, 1), play(on_one, cores * 3 / 2)].concat();
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {} failed; finished in {:.2?}",
        all - failed.len(),
        failed.len(),
        began.elapsed()
    );
    for name in &failed {
        println!("    {name}");
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs them, so many at once, and returns the names of those that failed. Each has its own servers
/// and clients. On a busier machine, rules that excuse stalls prove less.
fn play(cases: Vec<Case>, at_once: usize) -> Vec<&'static str> {
    let (queue, failed) = (Mutex::new(cases.into_iter()), Mutex::new(Vec::new()));
    let next = || queue.lock().unwrap().next();
    let worker = || {
        while let Some((name, case)) = next() {
            let began = Instant::now();
            // The name of the thread shows which run a message is about.
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(case);
            let ok = thread.unwrap().join().is_ok();
            let took = Duration::as_secs_f64(&began.elapsed());
            println!("test {name} ... {} ({took:.1} s)", if ok { "ok" } else { "FAILED" });
            if !ok {
                failed.lock().unwrap().push(name);
            }
        }
    };
    std::thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(worker))));
    failed.into_inner().unwrap()
}
