//! A store's raw operations, on one line.

use holdline::store::{Enter, QueueSnapshot, Seq, Standing, Store, Ticket, TicketId};
use holdline::{Name, Result, open};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) line: Name,
}

/// A new ticket, with leases that outlast a test.
pub(crate) fn ticket(weight: u32, capacity: u32) -> Ticket {
    Ticket {
        id: TicketId(fastrand::u128(..)),
        weight,
        capacity,
        lease: Duration::from_secs(600),
        wait_lease: Duration::from_secs(600),
        token_count: 1,
        min_token: 0,
    }
}

impl Raw {
    pub(crate) async fn open(url: &str) -> Raw {
        Raw::named(url, "x").await
    }

    pub(crate) async fn named(url: &str, name: &str) -> Raw {
        let client = open(url).await.expect("opens");
        Raw { store: Arc::clone(client.store()), line: Name::new(name).expect("a name") }
    }

    pub(crate) async fn enter(&self, ticket: &Ticket, how: Enter) -> Result<Standing> {
        self.store.enter(&self.line, ticket, &"note".into(), how).await
    }

    pub(crate) async fn hold(&self, ticket: &Ticket) -> Seq {
        match self.enter(ticket, Enter::Queue).await.expect("works") {
            Standing::Admitted(seq) => seq,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn queue(&self, ticket: &Ticket) -> Seq {
        match self.enter(ticket, Enter::Queue).await.expect("works") {
            Standing::Waiting { seq: Some(seq), .. } => seq,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn keep(&self, ticket: &Ticket, seq: Seq) -> Result<Standing> {
        self.enter(ticket, Enter::Keep(seq)).await
    }

    pub(crate) async fn leave(&self, ticket: &Ticket) -> bool {
        self.store.leave(&self.line, ticket.id).await.expect("works")
    }

    pub(crate) async fn seen(&self) -> QueueSnapshot {
        self.store.snapshot(&self.line).await.expect("works")
    }
}
