//! The division of a batch of calls that the server has refused, and has undone.
//!
//! If a row is locked, the batch is divided in halves, and they again, so that the calls for other
//! rows do not wait for that one. What is left, for locked rows, is sent call by call after all
//! others. After another refusal all calls are sent one by one, so that none can fail the others.

use std::collections::VecDeque;
use std::mem;

/// The parts of a batch that have yet to be sent.
#[derive(Debug)]
pub(super) struct Division<C> {
    parts: VecDeque<Vec<C>>,
    alone: Vec<C>,
}

impl<C> Division<C> {
    pub(super) fn new(calls: Vec<C>) -> Self {
        Division { parts: VecDeque::from([calls]), alone: Vec::new() }
    }

    /// The next part to send as a batch; `None` if all that are left are to be sent alone.
    pub(super) fn next(&mut self) -> Option<Vec<C>> {
        // A single call has no others to wait for.
        if self.alone.is_empty() && self.parts.len() == 1 && self.parts[0].len() < 2 {
            self.alone = mem::take(&mut self.parts).into_iter().flatten().collect();
        }
        self.parts.pop_front()
    }

    /// Takes a part back that was refused, and whether the reason is that a row is locked.
    pub(super) fn refused(&mut self, mut part: Vec<C>, locked: bool) {
        if locked && part.len() > 1 {
            let half = part.split_off(part.len() / 2);
            self.parts.extend([part, half]);
        } else {
            self.alone.extend(part);
        }
    }

    /// The calls to send alone.
    pub(super) fn alone(self) -> Vec<C> {
        self.alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts that are sent as batches, and the calls that are then sent alone.
    fn sent(calls: Vec<u32>, locked: &[u32]) -> (Vec<Vec<u32>>, Vec<u32>) {
        let (mut division, mut batches) = (Division::new(calls), Vec::new());
        while let Some(part) = division.next() {
            batches.push(part.clone());
            if part.iter().any(|call| locked.contains(call)) {
                division.refused(part, true);
            }
        }
        (batches, division.alone())
    }

    #[test]
    fn a_batch_that_is_not_refused_is_not_divided() {
        assert_eq!(sent(vec![1, 2, 3], &[]), (vec![vec![1, 2, 3]], vec![]));
    }

    #[test]
    fn a_single_call_is_sent_alone() {
        assert_eq!(sent(vec![1], &[]), (vec![], vec![1]));
        assert_eq!(sent(vec![], &[]), (vec![], vec![]));
    }

    #[test]
    fn only_calls_for_locked_rows_are_sent_alone() {
        let (batches, alone) = sent((0..64).collect(), &[7, 40]);
        assert_eq!(alone, [7, 40]);
        assert!(batches.len() <= 2 * 2 * 6 + 1, "{batches:?}");
        let (batches, alone) = sent(vec![1, 2], &[1]);
        assert_eq!((batches, alone), (vec![vec![1, 2], vec![1], vec![2]], vec![1]));
    }

    #[test]
    fn after_another_refusal_all_are_sent_alone() {
        let mut division = Division::new(vec![1, 2, 3]);
        let part = division.next().expect("a batch");
        division.refused(part, false);
        assert!(division.next().is_none());
        assert_eq!(division.alone(), [1, 2, 3]);
    }
}
