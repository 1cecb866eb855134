//! The admission rule, as functions over weights: a ticket is admitted when the weight ahead of it,
//! plus its own, fits the capacity.
//!
//! [`Line`](crate::Line) applies it inside a server. Clients that derive admission from a server's
//! list of tickets call the same functions.

use alloc::vec::Vec;

/// Whether a ticket of this weight is admitted behind this much weight.
pub const fn fits(ahead: u64, weight: u32, capacity: u32) -> bool {
    ahead.saturating_add(weight as u64) <= capacity as u64
}

/// Whether each ticket of a line is admitted, given their weights, front first.
///
/// Weights are at least 1, so the admitted tickets are a prefix: none fits behind one that does
/// not.
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

/// The blockers of a ticket: the fewest tickets ahead of it that keep it waiting as long as all of
/// them stay, as indexes into `ahead` (their weights, front first). Empty if the ticket is
/// admitted.
///
/// The heaviest are chosen first, and of equal ones the nearest, so that each waiter of a mutex
/// watches another ticket and a departure wakes only one.
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
