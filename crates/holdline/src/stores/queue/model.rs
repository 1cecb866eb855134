//! A model test: runs a server's rule against the kernel's line on random operations, step by step,
//! with a clock that the test sets. Answers, wake-ups and tokens must agree. Two lines take turns,
//! since an operation on one must not touch the other.

use crate::store::{
    EVICTION_TIME, EVICTIONS_KEPT, Enter, QueueSnapshot, Refusal, Seq, Standing, Ticket, TicketId,
};
use holdline_kernel::{Head, Line, MemoryPlaces, Place, Time};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The tickets that an operation woke, with their places.
pub(super) type Woken = BTreeSet<(TicketId, Seq)>;

/// Two lines in a server. Each operation happens at `now`, in microseconds on the server's clock.
pub(super) trait Subject {
    /// Turns to a line, 0 or 1: all that follows is about it.
    fn turn_to(&mut self, line: usize);
    /// Enters a ticket, always with the same note.
    fn enter(
        &mut self,
        now: u64,
        ticket: &Ticket,
        note: &str,
        how: Enter,
    ) -> (Result<Standing, Refusal>, Woken);
    /// Removes a place. With `bar`, the ticket takes no place for that time.
    fn leave(&mut self, now: u64, id: TicketId, bar: Option<Duration>) -> (bool, Woken);
    fn evict(&mut self, now: u64, id: TicketId, note: &str) -> (Option<Seq>, Woken);
    fn look(&mut self, now: u64) -> (QueueSnapshot, Woken);

    /// A note that begins with this text, with whatever else a note may contain.
    fn note(&self, text: String) -> String {
        text + ", with\nlines, a \0, ' and all"
    }

    /// Whether evictions expire by the test's clock.
    fn forgets_evictions(&self) -> bool {
        true
    }

    /// Whether it can bar tickets.
    fn bars(&self) -> bool {
        true
    }

    /// The number of tickets in a run.
    fn tickets(&self) -> u128 {
        12
    }

    /// The longest lease, in microseconds. With long ones, the line grows long.
    fn longest_lease(&self) -> u64 {
        3_000_000
    }

    /// Whether a waiting ticket's lease may be longer than its lease as a holder. No client's is.
    fn waits_longer(&self) -> bool {
        true
    }

    /// Removes data that the server can do without, if there is any.
    fn disturb(&mut self, _random: u64) {}
}

/// How long tickets are barred. Long, because a server may forget it by its own clock, too.
const BAR: Duration = Duration::from_secs(30);

type Wake<'a> = &'a mut dyn FnMut(&Place<()>);

#[derive(Default)]
struct Model {
    head: Head,
    line_places: MemoryPlaces<()>,
    /// When places were removed by force, in microseconds, with tickets and notes, oldest first.
    evicted: Vec<(u64, TicketId, String)>,
    /// Until when tickets are barred, in microseconds.
    barred: HashMap<TicketId, u64>,
}

impl Model {
    fn on<T>(
        &mut self,
        now: u64,
        work: impl FnOnce(&mut Line<'_, MemoryPlaces<()>, Wake<'_>>) -> T,
    ) -> (T, Woken) {
        let mut woken = Woken::new();
        let mut wake = |place: &Place<()>| {
            woken.insert((place.id, place.seq));
        };
        let mut line = Line {
            head: &mut self.head,
            places: &mut self.line_places,
            now: Time(now * 1000),
            stamp: now,
            wake: &mut wake as Wake<'_>,
        };
        (work(&mut line), woken)
    }

    /// Enters a ticket, in another way if it was barred. Returns the way, and the answer with the
    /// places that it wakes. A barred ticket is refused as if it wanted to keep a place that it
    /// lacks.
    fn enter(
        &mut self,
        now: u64,
        ticket: &Ticket,
        how: Enter,
    ) -> (Enter, (Result<Standing, Refusal>, Woken)) {
        let barred = self.barred.get(&ticket.id).is_some_and(|until| now < *until);
        let (how, modelled) = if barred { (Enter::Queue, Enter::Keep(Seq(1))) } else { (how, how) };
        let (Ok(answer), woken) = self.on(now, |line| line.enter(ticket, modelled, ()));
        (how, (answer, woken))
    }
}

/// The source of random choices; a number near the current time, for tokens; and the longest lease.
struct Choices(fastrand::Rng, u64, u64);

impl Choices {
    fn of<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.0.usize(..options.len())]
    }

    fn ticket(&mut self, ids: &[TicketId], capacity: u32) -> Ticket {
        let id = self.of(ids);
        // Most of the time, a ticket keeps the same weight.
        let weight = match self.0.u8(..10) {
            0 => 1 + self.0.u32(..capacity),
            _ => 1 + (id.0 as u32) % capacity,
        };
        Ticket {
            id,
            weight,
            capacity: if self.0.u8(..50) == 0 { capacity + 1 } else { capacity },
            lease: Duration::from_micros(self.0.u64(1000..self.2)),
            wait_lease: Duration::from_micros(self.0.u64(1000..self.2 / 3)),
            token_count: self.of(&[1, 1, 1, 0, 7]),
            min_token: self.of(&[0, 0, 0, 0, self.1]),
        }
    }
}

fn note_of(subject: &dyn Subject, id: TicketId) -> String {
    subject.note(format!("ticket {:x}", id.0))
}

/// A snapshot must change nothing in the server, so it changes nothing in the model.
#[allow(clippy::redundant_closure_for_method_calls, reason = "a path is not general enough")]
fn same_view(subject: &mut dyn Subject, model: &Model, now: u64) {
    let kept = &model.evicted;
    let (head, line_places) = (model.head, model.line_places.clone());
    let mut model = Model { head, line_places, ..Model::default() };
    let (Ok(()), _) = model.on(now, |line| line.expire());
    let (seen, woken) = subject.look(now);
    assert_eq!(woken, Woken::new(), "a look wakes nobody");
    let front = model.head.front;
    let left = |expires| Time(now * 1000).until(expires);
    let place = |p: &Place<()>| {
        (p.id, p.seq, p.weight, p.seq < front, left(p.expires), note_of(subject, p.id).into())
    };
    let expected: Vec<_> = model.line_places.iter().map(place).collect();
    let places = seen.places.iter();
    let places: Vec<_> = places
        .map(|p| (p.id, p.seq, p.weight, p.admitted, p.expires_in, Arc::clone(&p.note)))
        .collect();
    assert_eq!(places, expected);
    let evicted: Vec<_> = seen.evictions.iter().map(|one| (one.id, &*one.note)).collect();
    let forgets = subject.forgets_evictions();
    let fresh = |at: u64| !forgets || now < at + EVICTION_TIME.as_micros() as u64;
    let last = kept[kept.len().saturating_sub(EVICTIONS_KEPT)..].iter();
    let last = last.filter(|(at, ..)| fresh(*at)).map(|(_, id, note)| (*id, &**note));
    assert_eq!(evicted, last.collect::<Vec<_>>());
}

/// One of the lines of a run.
struct ModelLine {
    model: Model,
    ids: Vec<TicketId>,
    capacity: u32,
    seqs: Vec<(TicketId, Seq)>,
    longest: u64,
}

impl ModelLine {
    fn new(number: u128, tickets: u128) -> Self {
        let id = |n| TicketId(u128::MAX / (tickets + 1) * n + 2 * n + number);
        let ids = (0..tickets).map(id).collect();
        ModelLine { model: Model::default(), ids, capacity: 1, seqs: Vec::new(), longest: 0 }
    }

    /// The time until the very instant at which a place lapses.
    fn until_an_end(&self, choices: &mut Choices, now: u64) -> u64 {
        let number = choices.0.usize(..self.ids.len());
        let place = self.model.line_places.iter().nth(number);
        place.map_or(0, |place| (place.expires.0 / 1000).saturating_sub(now))
    }

    fn enter(&mut self, subject: &mut dyn Subject, choices: &mut Choices, now: u64) {
        let mut ticket = choices.ticket(&self.ids, self.capacity);
        if !subject.waits_longer() {
            ticket.wait_lease = ticket.wait_lease.min(ticket.lease);
        }
        let known = self.seqs.iter().rev().find(|(id, _)| *id == ticket.id);
        let how = match (choices.0.u8(..5), known) {
            (0, _) => Enter::Try,
            (1 | 2, Some((_, seq))) => Enter::Keep(*seq),
            (3, Some((_, seq))) if choices.0.u8(..7) == 0 => Enter::Keep(Seq(seq.0 + 1)),
            _ => Enter::Queue,
        };
        let (how, expected) = self.model.enter(now, &ticket, how);
        let note = note_of(subject, ticket.id);
        let answer = subject.enter(now, &ticket, &note, how);
        assert_eq!(answer, expected, "{how:?} {ticket:?}");
        if let Ok(Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. }) = answer.0 {
            self.seqs.push((ticket.id, seq));
        }
    }

    fn leave(&mut self, subject: &mut dyn Subject, choices: &mut Choices, now: u64, bars: bool) {
        let id = choices.of(&self.ids);
        let bars = bars && choices.0.u8(..20) == 0;
        let (Ok(expected), woken) = self.model.on(now, |line| line.leave(id));
        let answer = subject.leave(now, id, bars.then_some(BAR));
        assert_eq!(answer, (expected, woken));
        if bars {
            self.model.barred.insert(id, now + BAR.as_micros() as u64);
        }
    }

    fn evict(&mut self, subject: &mut dyn Subject, choices: &mut Choices, now: u64) {
        let id = choices.of(&self.ids);
        let (Ok(expected), woken) = self.model.on(now, |line| line.evict(id));
        let note = subject.note(format!("evicted at {now}"));
        let answer = subject.evict(now, id, &note);
        assert_eq!(answer, (expected, woken));
        self.model.evicted.extend(expected.map(|_| (now, id, note)));
    }
}

/// Compares two lines of a server, which are empty at first, with the kernel's. Each seed is a
/// different run. Returns the greatest length of the first line, which gets most operations.
pub(super) fn run(subject: &mut dyn Subject, seed: u64, steps: u32) -> u64 {
    let mut lines = [0, 1].map(|number| ModelLine::new(number, subject.tickets()));
    let mut choices = Choices(fastrand::Rng::with_seed(seed), 0, subject.longest_lease());
    let mut now = 1_700_000_000_000_000;
    // In some runs only: while a line has barred tickets, it is never idle.
    let bars = subject.bars() && seed.is_multiple_of(3);
    for step in 0..steps {
        let _context = Context { seed, step };
        let number = usize::from(choices.0.u8(..6) == 0);
        subject.turn_to(number);
        let line = &mut lines[number];
        line.longest = line.longest.max(line.model.head.count);
        now += match choices.0.u8(..20) {
            0 => choices.0.u64(..4_000_000),
            1 => line.until_an_end(&mut choices, now),
            2..6 => 0,
            _ => choices.0.u64(..50_000),
        };
        choices.1 = now - 1_000_000 + choices.0.u64(..2_000_000);
        if line.model.head.count == 0 && choices.0.u8(..4) == 0 {
            line.capacity = choices.of(&[1, 2, 5, 1 << 30]);
        }
        match choices.0.u8(..12) {
            0..7 => line.enter(subject, &mut choices, now),
            7..10 => line.leave(subject, &mut choices, now, bars),
            10 => line.evict(subject, &mut choices, now),
            _ => {
                if choices.0.bool() {
                    subject.disturb(choices.0.u64(..));
                }
                same_view(subject, &line.model, now);
            }
        }
    }
    assert!(lines[0].seqs.len() > steps as usize / 10, "the run did something");
    lines[0].longest
}

/// Tests the end of the place numbers in an SQL server, which gives all but the last: that means
/// "the end of the line" there. The kernel's line, which has another number for that, gives it too.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn numbers_end(subject: &mut dyn Subject) {
    const LAST: u64 = i64::MAX as u64 - 1;
    let (now, lease) = (1_700_000_000_000_000, Duration::from_secs(60));
    let ticket = |id, min_token, token_count| {
        let (id, weight, capacity, wait_lease) = (TicketId(id), 1, 1, lease);
        Ticket { id, weight, capacity, lease, wait_lease, token_count, min_token }
    };
    let queue = |subject: &mut dyn Subject, ticket| subject.enter(now, &ticket, "", Enter::Queue).0;
    for (least, count) in [(u64::MAX, 1), (LAST + 1, 1), (LAST, 2)] {
        let refused = queue(subject, ticket(1, least, count));
        assert_eq!(refused, Err(Refusal::Exhausted), "{least} {count}");
    }
    let first = queue(subject, ticket(1, LAST - 1, 1));
    assert_eq!(first, Ok(Standing::Admitted(Seq(LAST - 1))));
    let second = queue(subject, ticket(2, 0, 1));
    assert!(matches!(second, Ok(Standing::Waiting { seq: Some(Seq(LAST)), .. })), "{second:?}");
    assert_eq!(queue(subject, ticket(3, 0, 1)), Err(Refusal::Exhausted));
    let woken = Woken::from([(TicketId(2), Seq(LAST))]);
    assert_eq!(subject.leave(now, TicketId(1), None), (true, woken));
    for (least, kept) in [
        (0, Ok(Standing::Admitted(Seq(LAST)))),
        (LAST, Ok(Standing::Admitted(Seq(LAST)))),
        (LAST + 1, Err(Refusal::Exhausted)),
    ] {
        let answer = subject.enter(now, &ticket(2, least, 1), "", Enter::Keep(Seq(LAST))).0;
        assert_eq!(answer, kept, "{least}");
    }
}

/// Tells which step of a run has failed.
struct Context {
    seed: u64,
    step: u32,
}

impl Drop for Context {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {} step {}", self.seed, self.step);
        }
    }
}
