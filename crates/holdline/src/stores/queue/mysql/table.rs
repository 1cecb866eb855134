//! The lease table: the scheme `table`, the default.
//!
//! A line of leases is kept in tables; stored procedures apply the rule, by the server's clock, in
//! one round trip (`sql/`). A failed try only reads. Calls that write remove expired places. A
//! departure wakes the waiters of its own process directly, and those of other processes through
//! their listeners. Notices may be lost, so the waiters of a process also poll together, with one
//! small read and a backoff.
//!
//! Taking a free lock, renewing it, and releasing it when nobody waits are each one quick statement
//! by primary key. If the statement does not apply, it changes nothing, and the procedure is
//! called.

use super::config::{Config, Scheme};
use super::connection::Connections;
use super::listener::Listener;
use super::text::{self, Key, Statement};
use super::watches::Watches;
use crate::error::Result;
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, EVICTION_TIME, Enter, LossHint, QueueSnapshot, Seq, Standing, Ticket,
    TicketId, refuse,
};
use crate::stores::queue::calls::{Answer, snapshot};
use crate::stores::queue::sql::{Fault, LEASE_TABLE, invalid_reply, taker};
use crate::stores::recent::Recent;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long to bar a ticket that left while a request of it may still be in flight.
const BAR_TIME: Duration = Duration::from_secs(120);

/// A store with a line of leases for each lock.
#[derive(Clone)]
pub(super) struct Table {
    shared: Arc<Shared>,
    connections: Arc<Connections>,
}

/// The state shared by all handles of a store.
struct Shared {
    /// The store's own connections.
    connections: Arc<Connections>,
    watches: Arc<Watches>,
    listener: Listener,
    /// The lines that had waiters when this process last heard of them, so that the quick
    /// statements would be in vain. It is only a guess; a wrong one costs a round trip.
    busy: Recent<Name>,
    /// The tickets that probably hold a place behind the first, which no quick statement renews.
    behind: Recent,
}

/// The number of lines with waiters that are remembered.
const BUSY: usize = 1 << 10;
/// The number of tickets behind the first place that are remembered.
const BEHIND: usize = 1 << 15;

impl Table {
    pub(super) async fn open(config: Config) -> Result<Self> {
        let connections = Connections::new(config)?;
        let shared = Arc::new(Shared {
            connections: Arc::clone(&connections),
            listener: Listener::default(),
            watches: Arc::default(),
            busy: Recent::new(BUSY),
            behind: Recent::new(BEHIND),
        });
        let table = Table { shared, connections };
        table.call(None, Statement::text("SELECT 1")).await?;
        Ok(table)
    }

    async fn call(&self, taker: Option<TicketId>, statement: Statement) -> Result<Answer> {
        let answer = self.connections.call_for(taker, statement).await;
        answer.map_err(|fault| fault.explain(&self.connections, ""))
    }

    /// Runs the quick statement, if there is one, and the procedure if that changed nothing. Also
    /// returns whether the quick statement was enough.
    async fn step(
        &self,
        quick: Option<Statement>,
        full: impl FnOnce() -> String,
        taker: Option<TicketId>,
    ) -> Result<(Answer, bool)> {
        let mut repeated = false;
        if let Some(quick) = quick {
            let answer = self.call(taker, quick).await?;
            if answer.changed == 1 {
                return Ok((answer, true));
            }
            repeated = answer.repeated;
        }
        let answer = self.call(taker, Statement::text(full())).await?;
        Ok((Answer { repeated: repeated || answer.repeated, ..answer }, false))
    }
}

impl AsyncStore for Table {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        let Shared { watches, busy, behind, .. } = &*self.shared;
        let key = Key::new(Scheme::Table, line);
        let quick = match how {
            Enter::Try => None, // a failed try must lock nothing
            Enter::Queue => text::quick_enter(&key, ticket, note).filter(|_| !busy.contains(line)),
            Enter::Keep(_) if watches.waits(ticket.id) || behind.contains(ticket.id) => None,
            Enter::Keep(seq) => text::quick_renew(&key, ticket, note, seq),
        };
        let full = || text::enter(&key, ticket, note, how, self.shared.listener.number);
        let (answer, enough) = self.step(quick, full, taker(ticket, how)).await?;
        if enough {
            let kept = if let Enter::Keep(seq) = how { Some(seq) } else { None };
            return Ok(Standing::Admitted(kept.unwrap_or(Seq(answer.insert_id))));
        }
        let (standing, woken) = text::standing(ticket, how, &answer.rows)
            .ok_or_else(|| invalid_reply(&self.connections, line))?;
        match (how, &standing) {
            (Enter::Queue, Ok(Standing::Waiting { .. })) => busy.insert(line.clone()),
            // Others may hold beside it, and one of them have the first place.
            (Enter::Keep(_), Ok(Standing::Admitted(_))) if ticket.weight < ticket.capacity => {
                behind.insert(ticket.id);
            }
            _ => {}
        }
        watches.admit(&woken);
        let standing = standing.map_err(|refusal| refuse(line, ticket, refusal))?;
        watches.note(line, ticket.id, how, standing);
        if answer.repeated && matches!(standing, Standing::Waiting { seq: None, .. }) {
            return Err(Fault::doubtful().explain(&self.connections, ""));
        }
        Ok(standing)
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let Shared { watches, busy, behind, .. } = &*self.shared;
        let in_flight = &self.connections.in_flight;
        watches.forget(id);
        behind.remove(id);
        let barred = in_flight.stays_in_doubt(id).await;
        let bar = if barred { BAR_TIME } else { Duration::ZERO };
        let listener = self.shared.listener.number;
        let key = Key::new(Scheme::Table, line);
        let quick = (!barred && !busy.contains(line)).then(|| text::quick_leave(&key, id));
        let full = || text::leave(&key, id, bar, listener);
        let (answer, enough) = self.step(quick, full, None).await?;
        if enough {
            return Ok(true);
        }
        let (left, woken) =
            text::left(&answer.rows).ok_or_else(|| invalid_reply(&self.connections, line))?;
        // A woken ticket means that there are waiters; otherwise there are no more.
        if woken.is_empty() {
            busy.remove(line);
        } else {
            busy.insert(line.clone());
        }
        watches.admit(&woken);
        if barred {
            in_flight.forget(id);
        }
        answer.found(left > 0, &self.connections, line)
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let evict = text::evict(&Key::new(Scheme::Table, line), id, note, EVICTION_TIME);
        let answer = self.call(None, Statement::text(evict)).await?;
        let (token, woken) =
            text::left(&answer.rows).ok_or_else(|| invalid_reply(&self.connections, line))?;
        let watches = &self.shared.watches;
        watches.admit(&woken);
        if !answer.found(token > 0, &self.connections, line)? {
            return Ok(None);
        }
        watches.evicted(id);
        Ok(Some(Seq(token)))
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let look = text::look(&Key::new(Scheme::Table, line));
        let answer = self.call(None, Statement::text(look)).await?;
        snapshot(&answer.rows).ok_or_else(|| invalid_reply(&self.connections, line))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        Ok(self.call(None, Statement::text(text::list(Scheme::Table, prefix))).await?.names())
    }

    /// Waits for a wake-up. Meanwhile a task looks for admissions, for all waiters of this process.
    async fn watch(&self, _line: &Name, id: TicketId) -> Result<Option<Seq>> {
        let watches = &self.shared.watches;
        self.shared.listener.start(&self.shared.connections, watches);
        if watches.starts_looking() {
            let looks = look(Arc::clone(watches), Arc::downgrade(&self.shared));
            self.connections.runtime.spawn(looks);
        }
        Ok(watches.waiters.wait(id).await)
    }

    fn capabilities(&self) -> Capabilities {
        LEASE_TABLE // a lost notice costs a second at most
    }

    fn background_handle(&self) -> Self {
        Table { shared: Arc::clone(&self.shared), connections: self.connections.background() }
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        self.shared.watches.waiters.loss.set(loss_hint);
    }

    fn address(&self) -> String {
        self.connections.to_string()
    }
}

/// Looks for admissions by other processes while tickets of this one wait.
async fn look(watches: Arc<Watches>, shared: Weak<Shared>) {
    while let Some(lines) = watches.next_look().await {
        let Some(shared) = shared.upgrade() else { return };
        let answer = shared.connections.call(&text::fronts(&lines)).await;
        let fronts = answer.map(|answer| text::front_rows(&answer.rows));
        watches.end_look(&fronts.unwrap_or_default());
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.connections, f)
    }
}
