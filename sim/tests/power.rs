//! The invariants have power: each planted mistake is caught within 50 seeds, by the rule that it
//! offends; and exclusion really does break where it is not promised.

use holdline_sim::{Bug, Class, Config, run};

const SEEDS: u64 = 50;

fn caught(bug: Bug, only: &'static str) -> Option<u64> {
    (0..SEEDS).find(|&seed| {
        let config = Config { seed, bug: Some(bug), only: Some(only), ..Config::default() };
        run(config).violation.is_some_and(|violation| violation.invariant == only)
    })
}

fn is_caught(bug: Bug, by: &[&'static str]) {
    for only in by {
        assert!(caught(bug, only).is_some(), "{bug:?} is not caught by {only} in {SEEDS} seeds");
    }
}

#[test]
fn validity_from_the_reply() {
    is_caught(Bug::ValidFromReply, &["loss"]);
}

#[test]
fn a_renewal_that_enters_again() {
    is_caught(Bug::KeepRecreates, &["loss"]);
}

#[test]
fn a_retry_with_a_new_ticket() {
    is_caught(Bug::RetryWithNewId, &["clean"]);
}

#[test]
fn a_wake_up_taken_for_a_grant() {
    is_caught(Bug::NoProofAfterWait, &["loss", "exclusion"]);
}

#[test]
fn a_leave_that_removes_whoever_is_first() {
    is_caught(Bug::LeaveByName, &["loss", "exclusion"]);
}

#[test]
fn tokens_without_a_clock() {
    is_caught(Bug::CounterOnly, &["tokens"]);
}

#[test]
fn a_try_that_passes_the_line() {
    is_caught(Bug::TryOvertakes, &["fairness"]);
}

#[test]
fn places_that_never_lapse() {
    is_caught(Bug::NeverLapses, &["progress", "clean"]);
}

/// Exclusion is not asserted for servers that forget or whose clocks jump, because it does break
/// there, while the tokens and the promise about losses do not (see `holds.rs`).
#[test]
fn exclusion_breaks_where_it_is_not_promised() {
    for class in [Class::Wipes, Class::Jumps] {
        let breaks = (0..SEEDS).any(|seed| {
            let config = Config {
                seed,
                class: Some(class),
                only: Some("exclusion"),
                exclusion_anyway: true,
                ..Config::default()
            };
            run(config).violation.is_some()
        });
        assert!(breaks, "{class:?} never broke exclusion: the check has no power");
    }
}
