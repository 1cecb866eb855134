//! The cost of the kernel's operations, which must not grow with the line.

use crate::Common;
use crate::report::{Cell, Report, Table, ratio};
use crate::stats::Spread;
use holdline_kernel::{
    Acquisition, Backoff, Enter, Event, Head, Lease, LeaseTimer, Line, MemoryPlaces, Place, Seq,
    Standing, Ticket, TicketId, Time, WaitMode,
};
use std::convert::Infallible;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The measured lengths of lines.
const LENGTHS: [u32; 5] = [0, 10, 100, 1_000, 10_000];
/// The capacity of a line of readers.
const READERS: u32 = 1 << 30;
/// The maximum cost of an operation in a line of 10,000, relative to one of 100 (which has an index
/// as well): it allows for cache misses, and is far below the 100 of a linear search.
const GROWTH: f64 = 10.0;

pub(crate) fn run(common: &Common, report: &mut Report) {
    let (waiting, growth_waiting) = lines(common, "waiters", 1);
    report.table(waiting);
    let (reading, growth_reading) = lines(common, "readers", READERS);
    report.table(reading);
    report.table(machines(common));
    let worst = growth_waiting.max(growth_reading);
    report.check(
        format!("kernel: an operation at 10,000 places costs at most {GROWTH} x that at 100"),
        ratio(worst),
        worst <= GROWTH,
    );
}

/// A line in memory, at a fixed time.
struct Memory {
    head: Head,
    places: MemoryPlaces<()>,
    capacity: u32,
    next: u128,
}

impl Memory {
    /// A line with this many places: readers that all hold, or one holder and waiters.
    fn with(places: u32, capacity: u32) -> Self {
        let mut memory =
            Memory { head: Head::default(), places: MemoryPlaces::default(), capacity, next: 0 };
        for _ in 0..places + u32::from(capacity == 1) {
            let ticket = memory.ticket();
            memory.enter(&ticket, Enter::Queue);
        }
        memory
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        let hour = Duration::from_secs(3600);
        // Real ids are random, so these are spread as well.
        let id = TicketId(self.next.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
        Ticket {
            id,
            weight: 1,
            capacity: self.capacity,
            lease: hour,
            wait_lease: hour,
            token_count: 1,
            min_token: 0,
        }
    }

    fn line(&mut self) -> Line<'_, MemoryPlaces<()>, impl FnMut(&Place<()>)> {
        let wake = |place: &Place<()>| {
            black_box(place.id);
        };
        Line { head: &mut self.head, places: &mut self.places, now: Time(1), stamp: 1, wake }
    }

    fn enter(&mut self, ticket: &Ticket, how: Enter) -> Standing {
        let Ok(standing) = self.line().enter(ticket, how, ());
        standing.expect("the ticket is not refused")
    }

    fn leave(&mut self, id: TicketId) -> bool {
        let Ok::<bool, Infallible>(left) = self.line().leave(id);
        left
    }

    fn front(&self) -> TicketId {
        self.places.iter().next().expect("somebody is there").id
    }
}

fn lines(common: &Common, who: &str, capacity: u32) -> (Table, f64) {
    let columns = [who, "enter + leave at the back", "turn at the front", "keep (renew)"];
    let mut table = Table::new(format!("Line, by the number of {who}"), &columns);
    let mut bests = Vec::new();
    for places in LENGTHS {
        let back = || {
            let mut line = Memory::with(places, capacity);
            move || {
                let ticket = line.ticket();
                black_box(line.enter(&ticket, Enter::Queue));
                black_box(line.leave(ticket.id));
            }
        };
        // The first place leaves, which admits another, and a new one enters at the back.
        let turn = || {
            let mut line = Memory::with(places.max(1), capacity);
            move || {
                let first = line.front();
                black_box(line.leave(first));
                let ticket = line.ticket();
                black_box(line.enter(&ticket, Enter::Queue));
            }
        };
        let keep = || {
            let mut line = Memory::with(places.max(1), capacity);
            let ticket = Ticket { id: line.front(), ..line.ticket() };
            let seq = line.places.iter().next().map_or(Seq(0), |place| place.seq);
            move || {
                black_box(line.enter(&ticket, Enter::Keep(seq)));
            }
        };
        let figures = [measure(common, back), measure(common, turn), measure(common, keep)];
        bests.push(figures.each_ref().map(|rounds| fastest(rounds)));
        let [back, turn, keep] = figures.map(Cell::times);
        table.row([(places as usize).into(), back, turn, keep]);
    }
    let growth = bests[4].iter().zip(&bests[2]).map(|(long, short)| long / short);
    (table, growth.fold(0.0, f64::max))
}

fn machines(common: &Common) -> Table {
    let mut table = Table::new("Acquisition and hold", &["operation", "time"]);
    let lease = Lease { length: Duration::from_secs(10), margin: Duration::from_millis(500) };
    let waiting = Event::Reply {
        sent: Time(1),
        standing: Standing::Waiting { seq: Some(Seq(7)), again: Duration::from_secs(1) },
    };
    let steps = || {
        let mut acquisition =
            Acquisition::new(WaitMode::Poll(Backoff::fixed(lease.margin)), lease, Time::NEVER);
        acquisition.restart();
        move || {
            black_box(acquisition.step(Time(2), 3, black_box(waiting)));
            black_box(acquisition.step(Time(3), 4, black_box(Event::Woken)));
        }
    };
    let halves: Vec<f64> = measure(common, steps).iter().map(|time| time / 2.0).collect();
    table.row(["Acquisition::step".into(), Cell::times(halves)]);
    let next = || {
        let mut hold = LeaseTimer::new(lease, Time(1), true);
        let mut now = Time(1);
        move || {
            now = now.after(lease.renew_interval());
            black_box(hold.next(black_box(now)));
            hold.renewed(lease, now);
        }
    };
    table
        .row(["LeaseTimer::next + LeaseTimer::renewed".into(), Cell::times(measure(common, next))]);
    table
}

/// The fastest round, which other programs disturbed least.
fn fastest(rounds: &[f64]) -> f64 {
    Spread::of(rounds.iter().copied()).map_or(f64::NAN, |spread| spread.low)
}

/// Seconds per call in each round. Every round begins with a state of its own.
fn measure<W: FnMut()>(common: &Common, make: impl Fn() -> W) -> Vec<f64> {
    let budget = Duration::from_secs_f64(common.seconds(0.03));
    let round = |_| {
        let mut work = make();
        let (mut calls, mut batch) = (0_u64, 64_u64);
        (0..batch).for_each(|_| work()); // warm up
        let start = Instant::now();
        loop {
            (0..batch).for_each(|_| work());
            calls += batch;
            let spent = start.elapsed();
            if spent >= budget {
                return spent.as_secs_f64() / calls as f64;
            }
            batch = (batch * 2).min(4096);
        }
    };
    (0..common.rounds()).map(round).collect()
}
