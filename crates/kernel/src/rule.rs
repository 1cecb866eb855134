//! The one rule, as functions over weights: a ticket is admitted when the weight ahead of it, plus
//! its own, fits the capacity.
//!
//! [`Line`](crate::Line) decides by it inside a server; clients that derive admission from what a
//! server lists, and all that shows who holds, call the same functions.

use alloc::vec::Vec;

/// Whether a ticket of this weight is admitted behind this much weight.
pub const fn fits(ahead: u64, weight: u32, capacity: u32) -> bool {
    ahead.saturating_add(weight as u64) <= capacity as u64
}

/// Says of each ticket of a line whether it is admitted, given their weights, front first.
///
/// Weights are at least 1, so the admitted tickets are a prefix: behind one that does not fit
/// nobody does.
pub fn admitted_prefix(
    capacity: u32,
    weights: impl IntoIterator<Item = u32>,
) -> impl Iterator<Item = bool> {
    let mut ahead = 0;
    weights.into_iter().map(move |weight| {
        let admitted = fits(ahead, weight, capacity);
        ahead = ahead.saturating_add(u64::from(weight));
        admitted
    })
}

/// The tickets that keep one out: as few as may be of those ahead of it, by their index in `ahead`
/// (their weights, front first). As long as all of them stay, it is not admitted. Empty if it is.
///
/// The heaviest come first, and of equal ones the nearest, so that each waiter of a mutex follows
/// another one and a departure wakes only one.
pub fn blockers(ahead: &[u32], weight: u32, capacity: u32) -> Vec<usize> {
    let total = ahead.iter().fold(0_u64, |sum, weight| sum.saturating_add(u64::from(*weight)));
    if fits(total, weight, capacity) {
        return Vec::new();
    }
    let mut chosen: Vec<usize> = (0..ahead.len()).rev().collect();
    chosen.sort_by_key(|at| core::cmp::Reverse(ahead[*at])); // stable
    let mut sum = 0_u64;
    let enough = chosen.iter().position(|at| {
        sum = sum.saturating_add(u64::from(ahead[*at]));
        !fits(sum, weight, capacity)
    });
    chosen.truncate(enough.map_or(0, |last| last + 1));
    chosen
}
