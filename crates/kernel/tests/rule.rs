//! The rule's functions: they agree with one another and with their documentation.

use holdline_kernel::rule::{admitted_prefix, blockers, fits};
use proptest::prelude::*;

fn total(weights: &[u32]) -> u64 {
    weights.iter().map(|weight| u64::from(*weight)).sum()
}

proptest! {
    #[test]
    fn the_admitted_are_the_longest_prefix_that_fits(
        weights in prop::collection::vec(1_u32..8, 0..12),
        capacity in 1_u32..20,
    ) {
        let admitted: Vec<bool> = admitted_prefix(capacity, weights.iter().copied()).collect();
        let fitting = (0..=weights.len()).rev().find(|n| total(&weights[..*n]) <= capacity.into());
        let expected: Vec<bool> = (0..weights.len()).map(|at| at < fitting.unwrap_or(0)).collect();
        prop_assert_eq!(admitted, expected);
    }

    #[test]
    fn blockers_keep_a_ticket_out_and_none_can_be_spared(
        ahead in prop::collection::vec(1_u32..8, 0..12),
        capacity in 1_u32..20,
        weight in 1_u32..20,
    ) {
        let capacity = capacity.max(weight); // a heavier one is refused
        let found = blockers(&ahead, weight, capacity);
        let weights: Vec<u32> = found.iter().map(|at| ahead[*at]).collect();
        prop_assert_eq!(found.is_empty(), fits(total(&ahead), weight, capacity));
        if let Some((_, others)) = weights.split_last() {
            prop_assert!(!fits(total(&weights), weight, capacity), "they do not keep it out");
            prop_assert!(fits(total(others), weight, capacity), "one could be spared");
        }
        // No smaller set would do: any other of that size weighs no more.
        let mut heaviest = ahead;
        heaviest.sort_unstable_by(|one, two| two.cmp(one));
        prop_assert_eq!(weights, &heaviest[..found.len()]);
    }
}

#[test]
fn each_waiter_of_a_mutex_follows_the_one_before_it() {
    assert_eq!(blockers(&[1, 1, 1], 1, 1), [2]);
    assert_eq!(blockers(&[], 1, 1), [0_usize; 0]);
}

#[test]
fn absurd_weights_do_not_wrap() {
    let most = [u32::MAX; 4];
    assert!(!fits(u64::MAX, u32::MAX, u32::MAX));
    assert_eq!(admitted_prefix(u32::MAX, most).collect::<Vec<_>>(), [true, false, false, false]);
    assert_eq!(blockers(&most, 1, u32::MAX), [3]);
}
