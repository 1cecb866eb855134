//! The checker's power: a right toy passes under all rules, and every planted bug is caught by the
//! rule that should catch it.

mod toy;

use holdline_checker::{Report, Rule, check};
use toy::Bug;

/// How many seeded runs a bug may survive.
const PATIENCE: u64 = 20;

fn report(seed: u64, bug: Option<Bug>) -> Report {
    check(&toy::run(seed, bug), &toy::promises())
}

#[test]
fn a_right_system_passes_under_all_rules() {
    for seed in 1..=200 {
        let report = report(seed, None);
        assert!(report.ok(), "seed {seed}\n{report}");
    }
}
