//! Fault runs on the file store.

use crate::inject::{Breakage, Fault};
use crate::run::{Run, WOKEN};
use crate::stall_detector;
use crate::workload::Behaviour;
use crate::{Case, cases};
use holdline_checker::{
    Event, Expect, FaultKind, History, Op, Phase, Register, Rule, Unpromised, check,
};
use holdline_testkit::Folder;
use rusqlite::Connection;
use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const CASES: &[Case] = cases![
    sqlite_calm,
    sqlite_kill,
    sqlite_pause,
    sqlite_force,
    sqlite_mixed,
    sqlite_ignored_losses,
    sqlite_deceived
];

/// The promises of the file store: everything.
fn strict() -> Expect {
    let stuck = |fault| Unpromised::to_all(fault, [Rule::R12]);
    Expect {
        fifo: true,
        keeps_leases: true,
        liveness_ns: Some(5_000_000_000),
        // A process that is stopped during a write blocks all other writers: a holder that cannot
        // renew loses its lock, and is told.
        unpromised: vec![stuck(FaultKind::Pause), stuck(stall_detector::kind())],
        ..Expect::default()
    }
}

/// A run on a new file; the folder lives as long as the run.
fn run(title: &'static str, expect: Expect) -> (Run, PathBuf, Folder) {
    let folder = Folder::on_disk(title).unwrap();
    let file = folder.path().join("locks.db");
    let run = Run::new(title, format!("sqlite:{}", file.display()), expect);
    (run, file, folder)
}

/// A breakage: another transaction blocks all writers.
struct Stuck(PathBuf);

impl Breakage for Stuck {
    fn kind(&self) -> FaultKind {
        FaultKind::Other("stuck".to_owned())
    }

    fn start(&self) -> Box<dyn Any> {
        let conn = Connection::open(&self.0).unwrap();
        conn.busy_timeout(Duration::from_secs(20)).unwrap();
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        Box::new(conn)
    }
}

fn sqlite_calm() {
    let handoff = Some(WOKEN);
    let (run, _, _folder) = run("sqlite_calm", Expect { handoff, ..strict() });
    run.go().must_be_ok();
}

fn sqlite_kill() {
    let (run, _, _folder) = run("sqlite_kill", strict());
    Run { faults: vec![Fault::Kill; 2], ..run }.go().must_be_ok();
}

fn sqlite_pause() {
    let (run, _, _folder) = run("sqlite_pause", Expect { min_expiries: 3, ..strict() });
    let lease = Duration::from_millis(500);
    let time = run.time.mul_f64(1.5);
    Run { faults: vec![Fault::Pause; 3], time, lease, gap_ms: 200, ..run }.go().must_be_ok();
}

fn sqlite_force() {
    let (run, _, _folder) = run("sqlite_force", strict());
    let outcome = Run { faults: vec![Fault::Force; 2], gap_ms: 150, ..run }.go();
    if outcome.tally.lost < 5 {
        return outcome.must(false, "too few victims of force were told of it");
    }
    outcome.must_be_ok();
}

fn sqlite_mixed() {
    let (run, file, _folder) = run("sqlite_mixed", Expect { min_expiries: 3, ..strict() });
    let stuck = Fault::Store(vec![Arc::new(Stuck(file))]);
    let faults = vec![Fault::Kill, Fault::Pause, Fault::Pause, Fault::Force, stuck];
    Run { faults, lease: Duration::from_millis(500), gap_ms: 800, ..run }.rounds(12);
}

/// The clients go on with their work after they were told to stop. The harness must then detect the
/// damage to the unfenced register, while the fenced register must lose nothing.
fn sqlite_ignored_losses() {
    let (run, _, _folder) =
        run("sqlite_ignored_losses", Expect { fifo: false, min_expiries: 10, ..strict() });
    let lease = Duration::from_millis(300);
    let (behaviour, work) = (Behaviour::IgnoresLosses, Duration::from_millis(100));
    let run = Run { behaviour, lease, work, gap_ms: 100, pause: (1.0, 3.0), ..run };
    let (faults, time) = (vec![Fault::Pause; 2], run.time.mul_f64(1.5));
    let outcome = Run { faults, time, expect: fewer(run.expect), ..run }.go();
    let tally = &outcome.tally;
    let broken = tally.overlaps > 0 && tally.stale > 0 && tally.missing(Register::Plain) > 0;
    let fenced = tally.missing(Register::FencedReadWrite);
    if !broken || fenced > 0 {
        return outcome
            .must(false, "clients that ignore losses must harm the plain register, and no other");
    }
    // The same history, as recorded by clients that never check their deadlines.
    let blind = check(&blinded(&outcome.history), &outcome.expect);
    if !blind.failed(Rule::R1) {
        return outcome.must(false, "who ignores deadlines must be caught");
    }
    outcome.must_be_ok();
}

/// A store that admits two holders at once is caught by every rule about holders.
fn sqlite_deceived() {
    let (run, _, _folder) = run("sqlite_deceived", strict());
    let time = Duration::from_secs(3);
    let outcome = Run { behaviour: Behaviour::Deceived, time, ..run }.go();
    let found = [Rule::R1, Rule::R3Plain].into_iter().all(|rule| outcome.report.failed(rule));
    outcome.must(found, "a store that deceives must be caught");
}

/// Long sections make few grants.
fn fewer(expect: Expect) -> Expect {
    Expect { min_acquires: 50, min_share_percent: 0, ..expect }
}

fn blinded(history: &History) -> History {
    let told = |e: &&Event| e.op != Op::Lost && !(e.op == Op::Renew && e.ph == Phase::Fail);
    let blind = |e: &Event| Event { deadline: None, ..e.clone() };
    History::new(history.events.iter().filter(told).map(blind).collect())
}
