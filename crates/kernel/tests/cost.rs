//! The cost of an operation: its number of look-ups and writes must not grow with the line.
//!
//! In a store each is a query or a script's call; thousands may wait, and thousands may hold.

mod common;

use common::{Op, run};
use core::convert::Infallible;
use core::time::Duration;
use holdline_kernel::{Enter, Head, MemoryPlaces, Place, Places, Seq, Ticket, TicketId, Time};

/// Places that count the calls.
#[derive(Default)]
struct Counting {
    places: MemoryPlaces<()>,
    calls: usize,
}

impl Places for Counting {
    type Data = ();
    type Error = Infallible;

    fn by_id(&mut self, id: TicketId) -> Result<Option<Place<()>>, Infallible> {
        self.calls += 1;
        self.places.by_id(id)
    }

    fn first_from(&mut self, seq: Seq) -> Result<Option<Place<()>>, Infallible> {
        self.calls += 1;
        self.places.first_from(seq)
    }

    fn push(&mut self, place: &Place<()>) -> Result<(), Infallible> {
        self.calls += 1;
        self.places.push(place)
    }

    fn update(&mut self, place: &Place<()>) -> Result<(), Infallible> {
        self.calls += 1;
        self.places.update(place)
    }

    fn remove(&mut self, seq: Seq) -> Result<(), Infallible> {
        self.calls += 1;
        self.places.remove(seq)
    }

    fn lapsed(&mut self, now: Time) -> Result<Option<Place<()>>, Infallible> {
        self.calls += 1;
        self.places.lapsed(now)
    }

    fn earliest(&mut self) -> Result<Time, Infallible> {
        self.calls += 1;
        self.places.earliest()
    }
}

const ALL: u32 = 1 << 30;
const SIZES: [u128; 4] = [10, 100, 1_000, 10_000];

fn ticket(id: u128, weight: u32, capacity: u32) -> Ticket {
    let (lease, wait_lease) = (Duration::from_secs(30), Duration::from_secs(3));
    Ticket { id: TicketId(id), weight, capacity, lease, wait_lease, token_count: 1, min_token: 0 }
}

struct TestLine {
    head: Head,
    places: Counting,
}

impl TestLine {
    /// A line of `size` places: one writer and the rest behind it, or readers only.
    fn new(size: u128, first: u32, rest: u32, capacity: u32) -> Self {
        let mut line = TestLine { head: Head::default(), places: Counting::default() };
        for id in 0..size {
            let weight = if id == 0 { first } else { rest };
            line.calls(Op::Enter(ticket(id, weight, capacity), Enter::Queue));
        }
        assert_eq!(line.head.count, size as u64);
        line
    }

    fn calls(&mut self, op: Op) -> usize {
        self.places.calls = 0;
        run(&mut self.head, &mut self.places, (Time(1), 1), op);
        self.places.calls
    }

    fn seq(&mut self, id: u128) -> Seq {
        let Ok(place) = self.places.by_id(TicketId(id));
        place.expect("it is in the line").seq
    }

    /// The number of calls of each operation, at the front, in the middle and at the back.
    fn all(&mut self, size: u128, weight: u32, capacity: u32) -> Vec<usize> {
        let new = ticket(size, weight, capacity);
        let mut calls = vec![
            self.calls(Op::Enter(new, Enter::Try)),
            self.calls(Op::Leave(new.id)),
            self.calls(Op::Enter(new, Enter::Queue)),
        ];
        for id in [1, size / 2, size] {
            let keep = Enter::Keep(self.seq(id));
            calls.push(self.calls(Op::Enter(ticket(id, weight, capacity), keep)));
        }
        let lost = Enter::Keep(Seq::END);
        calls.push(self.calls(Op::Enter(ticket(size + 9, weight, capacity), lost)));
        for id in [size / 2, size, 0] {
            calls.push(self.calls(Op::Leave(TicketId(id))));
        }
        calls.push(self.calls(Op::Evict(TicketId(1))));
        calls
    }
}

fn same_for_every_size(calls: impl Fn(u128) -> Vec<usize>) {
    let counted: Vec<_> = SIZES.iter().map(|size| calls(*size)).collect();
    for (size, calls) in SIZES.iter().zip(&counted) {
        assert_eq!(calls, &counted[0], "the cost grows with {size} places");
        assert!(calls.iter().all(|calls| (1..=6).contains(calls)), "{calls:?}");
    }
}

/// A mutex with many waiters.
#[test]
fn waiters_cost_nothing() {
    same_for_every_size(|size| TestLine::new(size, 1, 1, 1).all(size, 1, 1));
}

/// A read-write lock that many readers hold at once.
#[test]
fn holders_cost_nothing() {
    same_for_every_size(|size| TestLine::new(size, 1, 1, ALL).all(size, 1, ALL));
}

/// A waiting writer that polls behind many readers.
#[test]
fn a_writer_behind_many_readers_costs_nothing() {
    same_for_every_size(|size| {
        let mut line = TestLine::new(size, 1, 1, ALL);
        let writer = ticket(size, ALL, ALL);
        let mut calls = vec![line.calls(Op::Enter(writer, Enter::Queue))];
        let keep = Enter::Keep(line.seq(size));
        calls.push(line.calls(Op::Enter(writer, keep)));
        calls.push(line.calls(Op::Leave(TicketId(3))));
        calls.push(line.calls(Op::Enter(ticket(size + 1, 1, ALL), Enter::Try)));
        calls.push(line.calls(Op::Leave(writer.id)));
        calls
    });
}

/// The two exceptions: the cost grows with the places that are admitted or expire.
#[test]
fn admitting_and_lapsing_cost_what_they_do() {
    for size in SIZES {
        let mut line = TestLine::new(size, ALL, 1, ALL);
        let calls = line.calls(Op::Leave(TicketId(0)));
        assert!(calls as u128 <= size + 3, "{calls} calls to let {} in", size - 1);
        assert_eq!(u128::from(line.head.held), size - 1);
    }
    let mut line = TestLine::new(1_000, 1, 1, 1);
    line.places.calls = 0;
    let later = Time(0).after(Duration::from_secs(10));
    run(&mut line.head, &mut line.places, (later, 1), Op::Expire);
    assert_eq!(line.head.count, 1, "the holder's lease is the longer one");
    assert!(line.places.calls <= 2 * 999 + 4, "{} calls", line.places.calls);
}
