//! The model: random operations on the real store and on the kernel's line must agree, step by
//! step.

use super::kit::{Raw, ticket};
use super::{Ctx, group};
use holdline::store::{Enter, Seq, Standing, Ticket, TicketId};
use holdline_kernel::{Head, Line, MemoryPlaces, Time};
use std::collections::HashMap;
use std::convert::Infallible;

group! { "model":
    a_mutex_does_as_the_kernel_does needs Queues,
    a_semaphore_does_as_the_kernel_does needs Queues Weights,
    readers_and_writers_do_as_the_kernel_does needs Queues Weights,
}

async fn a_mutex_does_as_the_kernel_does(ctx: Ctx) {
    agree(&ctx, 1, &[1]).await;
}

async fn a_semaphore_does_as_the_kernel_does(ctx: Ctx) {
    agree(&ctx, 5, &[1, 2, 3, 5]).await;
}

async fn readers_and_writers_do_as_the_kernel_does(ctx: Ctx) {
    agree(&ctx, 1 << 30, &[1, 1, 1, 1 << 30]).await;
}

/// The number of operations on one line.
const STEPS: u32 = 400;
/// The number of tickets at a time.
const TICKETS: usize = 8;

/// The kernel's line, with the store's place number of each ticket.
struct Model {
    head: Head,
    line_places: MemoryPlaces<()>,
    /// The place in the store, by ticket.
    places: HashMap<TicketId, Seq>,
}

impl Model {
    fn on<T>(&mut self, work: impl FnOnce(&mut ModelLine<'_>) -> Result<T, Infallible>) -> T {
        let mut line = Line {
            head: &mut self.head,
            places: &mut self.line_places,
            now: Time(1),
            stamp: 0,
            wake: (|_| {}) as fn(&holdline_kernel::Place<()>),
        };
        let Ok(done) = work(&mut line);
        done
    }

    /// The tickets in the line, front first, and whether each is admitted.
    fn seen(&self) -> Vec<(TicketId, bool)> {
        self.line_places.iter().map(|place| (place.id, place.seq < self.head.front)).collect()
    }

    /// The same entry, with the model's place number.
    fn translate(&self, id: TicketId, how: Enter) -> Enter {
        match how {
            Enter::Keep(seq) if self.places.get(&id) == Some(&seq) => {
                let place = self.line_places.iter().find(|place| place.id == id);
                Enter::Keep(place.map_or(Seq(0), |place| place.seq))
            }
            Enter::Keep(_) => Enter::Keep(Seq(0)),
            other => other,
        }
    }
}

type ModelLine<'a> = Line<'a, MemoryPlaces<()>, fn(&holdline_kernel::Place<()>)>;

async fn agree(ctx: &Ctx, capacity: u32, weights: &[u32]) {
    let raw = Raw::new(ctx).await;
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut model = Model {
        head: Head::default(),
        line_places: MemoryPlaces::default(),
        places: HashMap::new(),
    };
    let mut tickets: Vec<Ticket> = Vec::new();
    for step in 0..STEPS {
        if tickets.len() < TICKETS {
            tickets.push(ticket(ctx, *rng.choice(weights).expect("some"), capacity));
        }
        let which = rng.usize(..tickets.len());
        let story = match rng.u32(..10) {
            0..=2 => leave(&raw, &mut model, tickets.remove(which)).await,
            3 => evict(&raw, &mut model, tickets.remove(which)).await,
            roll => {
                let known = model.places.get(&tickets[which].id).copied();
                let how = match (roll, known) {
                    (4..=5, _) => Enter::Try,
                    (6..=7, _) | (_, None) => Enter::Queue,
                    (_, Some(seq)) => Enter::Keep(seq),
                };
                let lighter = roll == 9 && matches!(how, Enter::Keep(_));
                if lighter {
                    tickets[which].weight = rng.u32(1..=tickets[which].weight);
                }
                enter(&raw, &mut model, tickets[which], how).await
            }
        };
        let (store, kernel) = (raw.seen().await, model.seen());
        assert_eq!(store, kernel, "step {step} of seed {seed}: {story}");
    }
    for ticket in tickets {
        leave(&raw, &mut model, ticket).await;
    }
    assert_eq!(raw.seen().await, []);
}

async fn enter(raw: &Raw, model: &mut Model, ticket: Ticket, how: Enter) -> String {
    let stored = raw.enter(&ticket, how).await;
    let same = model.translate(ticket.id, how);
    let kernel = model.on(|line| line.enter(&ticket, same, ())).expect("the ticket makes sense");
    let agree = match (&stored, &kernel) {
        (Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. }, _) => {
            let before = model.places.insert(ticket.id, *seq);
            assert!(before.is_none_or(|before| before == *seq), "a place moved");
            match kernel {
                Standing::Admitted(_) => matches!(stored, Standing::Admitted(_)),
                Standing::Waiting { seq: Some(_), .. } => {
                    matches!(stored, Standing::Waiting { .. })
                }
                _ => false,
            }
        }
        (Standing::Waiting { seq: None, .. }, Standing::Waiting { seq: None, .. })
        | (Standing::Lost, Standing::Lost) => true,
        _ => false,
    };
    assert!(agree, "{how:?} of {ticket:?}: the store says {stored:?}, the kernel {kernel:?}");
    format!("{how:?} of {ticket:?}")
}

async fn leave(raw: &Raw, model: &mut Model, ticket: Ticket) -> String {
    let stored = raw.leave(&ticket).await;
    let kernel = model.on(|line| line.leave(ticket.id));
    assert_eq!(stored, kernel, "leaving by {ticket:?}");
    format!("leaving by {ticket:?}")
}

async fn evict(raw: &Raw, model: &mut Model, ticket: Ticket) -> String {
    let stored = raw.store.evict(&raw.line, ticket.id, "a test").await.expect("works").is_some();
    let kernel = model.on(|line| line.evict(ticket.id)).is_some();
    assert_eq!(stored, kernel, "eviction of {ticket:?}");
    format!("eviction of {ticket:?}")
}
