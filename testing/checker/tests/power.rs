//! The checker's power: a right toy passes under all rules, and every planted bug is caught by the
//! rule that should catch it.

mod toy;

use holdline_checker::{Expect, Report, Rule, Verdict, check};
use toy::Bug;

/// How many seeded runs of the right system have to pass.
const RIGHT_RUNS: u64 = 300;
/// How many seeded runs a bug may survive.
const PATIENCE: u64 = 20;

fn report(seed: u64, bug: Option<Bug>) -> Report {
    check(&toy::run(seed, bug, false), &toy::promises())
}

#[test]
fn a_right_system_passes_under_all_rules() {
    for seed in 1..=RIGHT_RUNS {
        let report = report(seed, None);
        assert!(report.ok(), "seed {seed}\n{report}");
    }
}

#[test]
fn a_calm_run_loses_neither_locks_nor_updates() {
    let expect = Expect { calm: true, min_expiries: 0, ..toy::promises() };
    for seed in 1..=50 {
        let report = check(&toy::run(seed, None, true), &expect);
        assert!(report.ok(), "seed {seed}\n{report}");
        assert_eq!(report.rule(Rule::R3Plain).verdict, Verdict::Pass);
    }
}

#[test]
fn a_seed_replays_exactly() {
    assert_eq!(toy::run(7, None, false).events, toy::run(7, None, false).events);
    assert_ne!(toy::run(7, None, false).events, toy::run(8, None, false).events);
}

/// Every planted bug with the rule that has to catch it.
const BUGS: [(Bug, Rule); 20] = [
    (Bug::ValidityFromReply, Rule::R1),
    (Bug::LeaveWithoutCompare, Rule::R4),
    (Bug::RenewRecreates, Rule::R1),
    (Bug::NoRecheckAfterWait, Rule::R1),
    (Bug::FenceFromOwner, Rule::R2),
    (Bug::FenceResetWhenEmpty, Rule::R2),
    (Bug::CancelNotCleaned, Rule::R8),
    (Bug::RetryNewOwner, Rule::R8),
    (Bug::WallClockDeadline, Rule::R5),
    (Bug::NotificationOnly, Rule::R7),
    (Bug::RenewAfterRelease, Rule::R4),
    (Bug::RenewerStarves, Rule::R12),
    (Bug::LossNotTold, Rule::R5),
    (Bug::ReaderPastHoldingWriter, Rule::R1),
    (Bug::ReaderPastWaitingWriter, Rule::R9),
    (Bug::NewestFirst, Rule::R9),
    (Bug::TryReadsStaleCopy, Rule::R6),
    (Bug::SemaphoreOffByOne, Rule::R1),
    (Bug::CachedRead, Rule::R3),
    (Bug::TokenFromResource, Rule::R3),
];

/// The row of one bug: how many runs its rule needed, in how many of all runs it fired, and what
/// else fired.
fn row(bug: Bug, rule: Rule) -> (Option<u64>, String) {
    let reports: Vec<Report> = (1..=PATIENCE).map(|seed| report(seed, Some(bug))).collect();
    let needed = reports.iter().position(|r| r.failed(rule)).map(|i| i as u64 + 1);
    let count = |rule: Rule| reports.iter().filter(|r| r.failed(rule)).count();
    let others = Rule::ALL.iter().filter(|r| **r != rule && count(**r) > 0);
    let others: Vec<String> = others.map(|r| format!("{} {}", r.name(), count(*r))).collect();
    let shown = needed.map_or("NOT CAUGHT".to_owned(), |n| n.to_string());
    let hits = count(rule);
    let (bug, rule) = (format!("{bug:?}"), rule.name());
    (needed, format!("| {bug:<23} | {rule:<4} | {shown:>6} | {hits:>2} | {} |", others.join(", ")))
}

#[test]
fn every_planted_bug_is_caught_by_its_rule() {
    println!("| bug | rule | runs needed | runs of {PATIENCE} in which it fired | others |");
    println!("| --- | --- | ---: | ---: | --- |");
    let rows: Vec<_> = BUGS.iter().map(|(bug, rule)| row(*bug, *rule)).collect();
    for (_, text) in &rows {
        println!("{text}");
    }
    let missed: Vec<&str> = rows.iter().filter(|r| r.0.is_none()).map(|r| r.1.as_str()).collect();
    assert!(missed.is_empty(), "not caught within {PATIENCE} runs:\n{}", missed.join("\n"));
}
