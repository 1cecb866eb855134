//! The file store step by step against the kernel's line in memory.

use crate::children::{name, note, together};
use holdline::store::{Enter, Refusal, Seq, Standing, Store, Ticket, TicketId};
use holdline::stores::sqlite::File;
use holdline_kernel::{Head, Line, MemoryPlaces, Place, Time};
use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

const RW: u32 = 1 << 30;

type LineOf<'a> = Line<'a, MemoryPlaces<()>, &'a mut dyn FnMut(&Place<()>)>;

/// The same line twice.
struct Mirror {
    stores: Vec<File>,
    line: holdline::Name,
    capacity: u32,
    head: Head,
    deck: MemoryPlaces<()>,
    /// The places of all tickets ever: in the model, and in the store.
    seqs: HashMap<TicketId, (Seq, Seq)>,
    tickets: Vec<Ticket>,
    next: u128,
    deepest: u64,
}

impl Mirror {
    fn model<T>(&mut self, work: impl FnOnce(&mut LineOf<'_>) -> Result<T, Infallible>) -> T {
        let mut wake = |_: &Place<()>| {};
        let mut line = Line {
            head: &mut self.head,
            places: &mut self.deck,
            now: Time(0),
            stamp: 0,
            wake: &mut wake as &mut dyn FnMut(&Place<()>),
        };
        let Ok(value) = work(&mut line);
        self.deepest = self.deepest.max(self.head.count);
        value
    }

    fn store(&self) -> &File {
        &self.stores[fastrand::usize(..self.stores.len())]
    }

    fn weight(&self) -> u32 {
        if self.capacity == RW {
            if fastrand::u8(..4) == 0 { RW } else { 1 }
        } else {
            fastrand::u32(1..=self.capacity)
        }
    }

    fn any(&self) -> Option<Ticket> {
        fastrand::choice(&self.tickets).copied()
    }

    fn new_ticket(&mut self) -> Ticket {
        self.next += 1;
        let lease = Duration::from_secs(3600);
        let ticket = Ticket {
            id: TicketId(self.next),
            weight: self.weight(),
            capacity: self.capacity,
            lease,
            wait_lease: lease,
            token_count: fastrand::u32(1..4),
            min_token: 0,
        };
        self.tickets.push(ticket);
        if self.tickets.len() > 80 {
            self.tickets.remove(fastrand::usize(..40));
        }
        ticket
    }

    /// Enters both, and compares the answers.
    async fn enter(&mut self, ticket: Ticket, how: Enter, stored: Enter) {
        let expected = self.model(|line| line.enter(&ticket, how, ()));
        let found = self.store().enter(&self.line, &ticket, &note(), stored).await;
        match (expected, found) {
            (Ok(Standing::Admitted(one)), Ok(Standing::Admitted(two)))
            | (
                Ok(Standing::Waiting { seq: Some(one), .. }),
                Ok(Standing::Waiting { seq: Some(two), .. }),
            ) => {
                let seqs = *self.seqs.entry(ticket.id).or_insert((one, two));
                assert_eq!(seqs, (one, two), "a place has moved");
            }
            (Ok(Standing::Waiting { seq: None, .. }), Ok(Standing::Waiting { seq: None, .. }))
            | (Ok(Standing::Lost), Ok(Standing::Lost)) => {}
            (Err(Refusal::Weight), Err(error)) => {
                assert_eq!(error.kind(), holdline::ErrorKind::Invalid);
            }
            (Err(Refusal::Capacity { .. }), Err(error)) => {
                assert_eq!(error.kind(), holdline::ErrorKind::Mismatch);
            }
            other => panic!("{ticket:?} {how:?}: {other:?}"),
        }
    }

    async fn step(&mut self, more: bool) {
        let new = if more { 0..6 } else { 0..2 };
        match fastrand::u8(..12) {
            n if new.contains(&n) => {
                let ticket = self.new_ticket();
                let how = if fastrand::u8(..4) == 0 { Enter::Try } else { Enter::Queue };
                self.enter(ticket, how, how).await;
            }
            0..8 => {
                let Some(ticket) = self.any() else { return };
                let (expected, id) = (self.model(|line| line.leave(ticket.id)), ticket.id);
                let found = self.store().leave(&self.line, id).await.unwrap();
                assert_eq!(found, expected);
            }
            8 => {
                let Some(ticket) = self.any() else { return };
                let expected = self.model(|line| line.evict(ticket.id));
                let found = self.store().evict(&self.line, ticket.id, "model").await.unwrap();
                assert_eq!(found.is_some(), expected.is_some());
            }
            9 => {
                // Again, perhaps lighter, perhaps heavier, perhaps after it left.
                let Some(ticket) = self.any() else { return };
                let how = if fastrand::bool() { Enter::Try } else { Enter::Queue };
                let weight = if fastrand::bool() { ticket.weight } else { self.weight() };
                if self.deck.iter().any(|place| place.id == ticket.id) {
                    self.enter(Ticket { weight, ..ticket }, how, how).await;
                }
            }
            10 => {
                let Some(ticket) = self.any() else { return };
                let (one, two) = self.seqs.get(&ticket.id).copied().unwrap_or((Seq(7), Seq(7)));
                let weight = if fastrand::bool() { ticket.weight } else { 1 };
                let wrong = u64::from(fastrand::u8(..8) == 0);
                let (one, two) = (Seq(one.0 + wrong), Seq(two.0 + wrong));
                self.enter(Ticket { weight, ..ticket }, Enter::Keep(one), Enter::Keep(two)).await;
            }
            _ => {
                let ticket = Ticket { capacity: self.capacity + 1, ..self.new_ticket() };
                if self.head.count > 0 {
                    self.enter(ticket, Enter::Queue, Enter::Queue).await;
                }
            }
        }
    }

    /// Compares the whole lines.
    async fn compare(&self) {
        let view = self.store().snapshot(&self.line).await.unwrap();
        let expected: Vec<_> = self
            .deck
            .iter()
            .map(|place| (place.id, place.weight, place.seq < self.head.front))
            .collect();
        let found: Vec<_> =
            view.places.iter().map(|place| (place.id, place.weight, place.admitted)).collect();
        assert_eq!(found, expected);
        assert!(view.places.is_sorted_by(|a, b| a.seq < b.seq));
        let names = self.store().list(self.line.as_str()).await.unwrap();
        assert_eq!(names.len(), usize::from(!expected.is_empty()));
    }
}

#[tokio::test]
async fn the_store_does_what_the_kernel_does_in_memory() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let stores: Vec<File> = (0..2).map(|_| File::open(&file).unwrap()).collect();
    for capacity in [1, 2, 3, RW] {
        let mut mirror = Mirror {
            stores: stores.clone(),
            line: name(&format!("of-{capacity}")),
            capacity,
            head: Head::default(),
            deck: MemoryPlaces::default(),
            seqs: HashMap::new(),
            tickets: Vec::new(),
            next: u128::from(capacity) << 64,
            deepest: 0,
        };
        for round in 0..2000 {
            // Long lines and short ones, in turn.
            mirror.step(round % 400 < 200).await;
            mirror.compare().await;
        }
        assert!(mirror.deepest > 20, "the line was never long: {}", mirror.deepest);
    }
}

#[tokio::test]
async fn lapsed_places_make_room_wherever_they_stand() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let store = File::open(folder.path().join("locks.db")).unwrap();
    let (line, note) = (name("job"), note());
    let ticket = |id: u128, wait_lease| Ticket {
        id: TicketId(id),
        weight: 1,
        capacity: 1,
        lease: Duration::from_millis(150),
        wait_lease: Duration::from_millis(wait_lease),
        token_count: 1,
        min_token: 0,
    };
    for id in 1..=60 {
        let wait_lease = if id == 50 { 30_000 } else { 120 };
        store.enter(&line, &ticket(id, wait_lease), &note, Enter::Queue).await.unwrap();
    }
    let last = async {
        loop {
            let again = ticket(50, 30_000);
            match store.enter(&line, &again, &note, Enter::Queue).await.unwrap() {
                Standing::Admitted(_) => break,
                Standing::Waiting { .. } => tokio::time::sleep(Duration::from_millis(20)).await,
                Standing::Lost => panic!("its wait lease is long"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), last).await.expect("the others lapse");
    let view = store.snapshot(&line).await.unwrap();
    assert_eq!(view.places.len(), 1);
    assert_eq!(view.places[0].id, TicketId(50));
    assert!(view.places[0].admitted);
}
