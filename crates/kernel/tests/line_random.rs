//! Long random runs of a line, with time, expiry, reserved tokens and a lost counter, against the
//! naive model. Small lines are searched completely in `line_exhaustive.rs`; here the lines are
//! longer, the leases uneven and the tokens reserved in ranges.

mod common;

use common::{Answer, Op, Pair};
use core::time::Duration;
use holdline_kernel::{Enter, Refusal, Seq, Standing, Ticket, TicketId, Time};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Enter {
        id: u128,
        weight: u32,
        how: u8,
        lease: u64,
        wait_lease: u64,
        token_count: u32,
        lift: u64,
        other: bool,
    },
    Leave(u128),
    Evict(u128),
    Expire,
    Later(u64),
    /// The counter of tokens is lost, and nothing else.
    LoseCounter,
}

fn step(ids: u128, heaviest: u32) -> impl Strategy<Value = Step> {
    let enter = (0..ids, 1..=heaviest, 0..6_u8, 1..60_u64, 1..30_u64, 0..4_u32, 0..40_u8).prop_map(
        |(id, weight, how, lease, wait_lease, token_count, other)| {
            let lift = if other > 35 { u64::from(other) } else { 0 };
            let other = other == 0;
            Step::Enter { id, weight, how, lease, wait_lease, token_count, lift, other }
        },
    );
    prop_oneof![
        12 => enter,
        3 => (0..ids).prop_map(Step::Leave),
        1 => (0..ids).prop_map(Step::Evict),
        1 => Just(Step::Expire),
        4 => (1..12_u64).prop_map(Step::Later),
        1 => Just(Step::LoseCounter),
    ]
}

/// A line of this capacity, and all tokens that were ever reserved on it.
struct Run {
    pair: Pair,
    capacity: u32,
    read_write: bool,
    reserved: Vec<(u64, u64)>,
}

impl Run {
    fn new(capacity: u32, read_write: bool) -> Self {
        Run { pair: Pair { stamp: 1, ..Pair::default() }, capacity, read_write, reserved: vec![] }
    }

    fn ticket(
        &self,
        id: u128,
        weight: u32,
        leases: (u64, u64),
        token_count: u32,
        other: bool,
    ) -> Ticket {
        let heavy = if weight == 1 { 1 } else { self.capacity };
        let weight = if self.read_write { heavy } else { weight.min(self.capacity) };
        Ticket {
            id: TicketId(id),
            weight,
            capacity: self.capacity + u32::from(other),
            lease: Duration::from_millis(leases.0),
            wait_lease: Duration::from_millis(leases.1),
            token_count,
            min_token: 0,
        }
    }

    fn seq_of(&self, id: u128) -> Option<Seq> {
        self.pair
            .naive
            .spots
            .iter()
            .find(|model_place| model_place.id == TicketId(id))
            .map(|model_place| model_place.seq)
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Later(millis) => {
                self.pair.now = self.pair.now.after(Duration::from_millis(millis));
                self.pair.stamp += millis * 1_000;
            }
            Step::LoseCounter => {
                // Time passes before the counter is lost: it must exceed the number of tokens in
                // microseconds.
                self.take(&Step::Later(1));
                self.pair.head.last = 0;
                self.pair.naive.last = 0;
            }
            Step::Expire => drop(self.pair.step(Op::Expire)),
            Step::Leave(id) => drop(self.pair.step(Op::Leave(TicketId(id)))),
            Step::Evict(id) => {
                let answer = self.pair.step(Op::Evict(TicketId(id)));
                // It is a new token, or that of the next place, which was counted when it was
                // taken.
                if let Answer::Evicted(Some(token)) = answer
                    && self.pair.naive.spots.iter().all(|model_place| model_place.seq != token)
                {
                    self.reserve(token.0, 1);
                }
            }
            Step::Enter { id, weight, how, lease, wait_lease, token_count, lift, other } => {
                let known = self.seq_of(id);
                let how = match (how, known) {
                    (0, _) => Enter::Try,
                    (1 | 2, _) | (3 | 4, None) => Enter::Queue,
                    (3 | 4, Some(seq)) => Enter::Keep(seq),
                    _ => Enter::Keep(Seq(1)),
                };
                let ticket = self.ticket(id, weight, (lease, wait_lease), token_count, other);
                // Sometimes a minimum token is given, as a quorum does.
                let min_token = if lift > 0 { self.pair.naive.last + lift } else { 0 };
                let ticket = Ticket { min_token, ..ticket };
                self.pair.step(Op::Enter(ticket, how));
                if let Some(seq) = self.seq_of(id)
                    && known != Some(seq)
                {
                    self.reserve(seq.0, u64::from(token_count.max(1)));
                }
            }
        }
    }

    /// Checks that the tokens of a ticket rise and never overlap another's.
    fn reserve(&mut self, first: u64, count: u64) {
        if let Some((_, last)) = self.reserved.last() {
            assert!(first > *last, "token {first} after {last}");
        }
        self.reserved.push((first, first + count - 1));
    }
}

fn runs(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(runs(300))]

    #[test]
    fn a_semaphore_agrees_with_the_model(
        capacity in 1..6_u32,
        steps in prop::collection::vec(step(8, 6), 1..200),
    ) {
        let mut run = Run::new(capacity, false);
        for step in &steps {
            run.take(step);
        }
    }

    #[test]
    fn a_read_write_line_agrees_with_the_model(
        steps in prop::collection::vec(step(8, 3), 1..200),
    ) {
        let mut run = Run::new(1 << 30, true);
        for step in &steps {
            run.take(step);
        }
    }

    #[test]
    fn a_long_line_agrees_with_the_model(
        steps in prop::collection::vec(step(60, 3), 100..300),
    ) {
        let mut run = Run::new(4, false);
        for step in &steps {
            run.take(step);
        }
    }
}

fn one(id: u128) -> Ticket {
    let second = Duration::from_secs(1);
    Ticket {
        id: TicketId(id),
        weight: 1,
        capacity: 1,
        lease: second,
        wait_lease: second,
        token_count: 1,
        min_token: 0,
    }
}

/// After the loss of the counter tokens still rise, while the store's clock runs forward.
#[test]
fn the_stamp_keeps_tokens_rising() {
    let mut pair = Pair { stamp: 1_700_000_000_000_000, ..Pair::default() };
    let Answer::Stands(Ok(Standing::Admitted(before))) = pair.step(Op::Enter(one(1), Enter::Try))
    else {
        panic!("an empty line admits")
    };
    assert_eq!(before.0, pair.stamp);
    let stamp = pair.stamp + 1;
    let mut pair = Pair { stamp, now: Time(1_000), ..Pair::default() };
    let Answer::Stands(Ok(Standing::Admitted(after))) = pair.step(Op::Enter(one(2), Enter::Try))
    else {
        panic!("an empty line admits")
    };
    assert!(after > before);
}

/// A line that has run out of tokens refuses new tickets; it does not start again from 1.
#[test]
fn tokens_end_rather_than_wrap() {
    let mut pair = Pair::default();
    pair.head.last = i64::MAX as u64 - 1;
    pair.naive.last = pair.head.last;
    let last = pair.step(Op::Enter(one(1), Enter::Queue));
    assert_eq!(last, Answer::Stands(Ok(Standing::Admitted(Seq(i64::MAX as u64)))));
    for how in [Enter::Try, Enter::Queue] {
        let run = |pair: &Pair, ticket: Ticket| {
            let (mut head, mut places) = (pair.head, pair.places.clone());
            common::run(&mut head, &mut places, (pair.now, pair.stamp), Op::Enter(ticket, how)).0
        };
        let mut gone = pair.clone();
        gone.step(Op::Leave(TicketId(1)));
        assert_eq!(run(&gone, one(2)), Answer::Stands(Err(Refusal::Exhausted)));
        let huge = Ticket { token_count: u32::MAX, ..one(2) };
        assert_eq!(run(&gone, huge), Answer::Stands(Err(Refusal::Exhausted)));
    }
}
