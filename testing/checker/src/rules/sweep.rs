//! One sweep over the claims of a lock that finds where more weight is held than fits.

use std::collections::BTreeSet;

use crate::index::Attempt;

/// An interval in which a grant counts as held. Its end is exclusive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span<'a, 'h> {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) grant: &'a Attempt<'h>,
}

/// A span that did not fit, and those that it overlaps.
#[derive(Debug)]
pub(super) struct Overflow<'a, 'h> {
    pub(super) late: Span<'a, 'h>,
    pub(super) held: Vec<Span<'a, 'h>>,
    pub(super) weight: u128,
}

/// Finds every span whose start raises the held weight above the capacity. O(n log n) if there is
/// none.
pub(super) fn overflows<'a, 'h>(
    mut spans: Vec<Span<'a, 'h>>,
    capacity: u64,
) -> Vec<Overflow<'a, 'h>> {
    spans.retain(|s| s.end > s.start);
    spans.sort_by_key(|s| s.start);
    let mut active: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut held: u128 = 0;
    let mut found = Vec::new();
    for (i, span) in spans.iter().enumerate() {
        while let Some((end, gone)) = active.first().copied().filter(|(end, _)| *end <= span.start)
        {
            active.remove(&(end, gone));
            held -= u128::from(spans[gone].grant.weight());
        }
        let weight = held + u128::from(span.grant.weight());
        if weight > u128::from(capacity) {
            let held = active.iter().rev().map(|(_, j)| spans[*j]).collect();
            found.push(Overflow { late: *span, held, weight });
        }
        active.insert((span.end, i));
        held = weight;
    }
    found
}
