//! Exhaustive search: every state that a small line can reach, and every operation in each of them,
//! against the naive model. Two lines that differ only in absolute time and absolute tokens are one
//! state, so the search ends: it covers sequences of operations of *any* length, not up to a depth.

mod common;

use common::{Op, Pair};
use core::time::Duration;
use holdline_kernel::{Enter, Seq, Ticket, TicketId, Time};
use std::collections::{BTreeSet, VecDeque};

const TICK: Duration = Duration::from_millis(10);
/// The leases of a waiter and of a holder, in ticks. With (2, 4) they expire in every order; (1, 2)
/// keeps the larger searches search.
type Leases = (u32, u32);
const WRITE: u32 = 1 << 30;

/// One search: the capacity, and the first and last weight of each ticket.
struct Search {
    capacity: u32,
    weights: Vec<u32>,
    leases: Leases,
}

impl Search {
    fn ticket(&self, id: usize, weight: u32, capacity: u32) -> Ticket {
        let (wait_lease, lease) = (TICK * self.leases.0, TICK * self.leases.1);
        Ticket {
            id: TicketId(id as u128),
            weight,
            capacity,
            lease,
            wait_lease,
            token_count: 1,
            min_token: 0,
        }
    }

    /// The weights to which a ticket may be lowered.
    fn lighter(&self, id: usize) -> Vec<u32> {
        let most = self.weights[id];
        if most == WRITE { vec![WRITE, 1] } else { (1..=most).rev().collect() }
    }

    fn ops(&self, pair: &Pair) -> Vec<Op> {
        let mut ops = vec![Op::Expire];
        for id in 0..self.weights.len() {
            let place =
                pair.naive.spots.iter().find(|model_place| model_place.id == TicketId(id as u128));
            let right = place.map_or(Seq(1), |model_place| model_place.seq);
            let most = self.weights[id];
            let full = self.ticket(id, most, self.capacity);
            for weight in self.lighter(id) {
                let ticket = self.ticket(id, weight, self.capacity);
                ops.push(Op::Enter(ticket, Enter::Keep(right)));
            }
            for how in [Enter::Try, Enter::Queue, Enter::Keep(Seq(right.0 + 1_000_000))] {
                ops.push(Op::Enter(full, how));
            }
            for how in [Enter::Try, Enter::Queue, Enter::Keep(right)] {
                // Refused are: no weight, too much, more than before, another capacity.
                for (weight, capacity) in [
                    (0, self.capacity),
                    (self.capacity + 1, self.capacity),
                    (most.saturating_add(1).min(self.capacity), self.capacity),
                    (most, self.capacity + 1),
                ] {
                    let may_pass = place.is_none() && how != Enter::Keep(right);
                    let harmless = place.is_none() && !pair.naive.spots.is_empty();
                    if !may_pass || weight == 0 || weight > self.capacity || !harmless {
                        ops.push(Op::Enter(self.ticket(id, weight, capacity), how));
                    }
                }
            }
            ops.push(Op::Leave(TicketId(id as u128)));
            ops.push(Op::Evict(TicketId(id as u128)));
        }
        ops
    }
}

/// The identity of a state: order, weights, time left, and the head's due time.
type Key = (Vec<(u128, u32, u64)>, u64, u32);

fn key(pair: &Pair) -> Key {
    let left = |time: Time| time.0.saturating_sub(pair.now.0);
    let spots = pair.naive.spots.iter();
    let places: Vec<_> = spots.map(|s| (s.id.0, s.weight, left(s.expires))).collect();
    let due = if pair.head.due == Time::NEVER { u64::MAX } else { left(pair.head.due) };
    let capacity = if places.is_empty() { 0 } else { pair.naive.capacity };
    (places, due, capacity)
}

/// Visits every reachable state; returns the number of states, the number of steps checked, and the
/// depth of the search.
fn explore(search: &Search) -> (usize, usize, usize) {
    let mut seen = BTreeSet::from([key(&Pair::default())]);
    let mut todo = VecDeque::from([(Pair::default(), 0)]);
    let (mut steps, mut deepest) = (0, 0);
    while let Some((pair, depth)) = todo.pop_front() {
        deepest = deepest.max(depth);
        let mut next: Vec<Pair> = Vec::new();
        for op in search.ops(&pair) {
            let mut after = pair.clone();
            after.step(op);
            steps += 1;
            next.push(after);
        }
        let mut later = pair.clone();
        later.now = pair.now.after(TICK);
        later.stamp = pair.stamp + 1;
        next.push(later);
        for after in next {
            // A ticket of another capacity in an empty line is checked, but not explored further.
            let ours = after.naive.spots.is_empty() || after.naive.capacity == search.capacity;
            if ours && seen.insert(key(&after)) {
                todo.push_back((after, depth + 1));
            }
        }
    }
    (seen.len(), steps, deepest)
}

fn check(capacity: u32, weights: &[u32], leases: Leases, states: usize) {
    let search = Search { capacity, weights: weights.to_vec(), leases };
    let (found, steps, deepest) = explore(&search);
    println!("{capacity} {weights:?} {leases:?}: {found} states, {steps} steps, {deepest} deep");
    assert!(found >= states, "only {found} states: the search did not search");
}

#[test]
fn mutex() {
    check(1, &[1, 1, 1], (2, 4), 367);
}

#[test]
fn semaphore_of_two() {
    check(2, &[1, 1, 1], (2, 4), 2_785);
    check(2, &[2, 1, 1], (2, 4), 2_801);
}

#[test]
fn semaphore_of_three() {
    check(3, &[2, 2, 1], (2, 4), 7_465);
    check(3, &[3, 2, 1], (2, 4), 7_478);
}

#[test]
fn semaphore_of_four() {
    check(4, &[3, 2, 2], (2, 4), 16_551);
    check(4, &[4, 1, 3], (2, 4), 14_957);
}

#[test]
fn read_write() {
    check(WRITE, &[WRITE, 1, 1], (2, 4), 5_997);
    check(WRITE, &[WRITE, WRITE, 1], (2, 4), 4_305);
}

/// One more ticket than the others, so that a step may admit two and leave one behind.
#[test]
fn four_tickets() {
    check(2, &[2, 1, 1, 1], (1, 2), 1_946);
    check(WRITE, &[WRITE, 1, WRITE, 1], (1, 2), 2_000);
}
