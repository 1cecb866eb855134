//! The lease table: a line with places, kept by the functions in `sql/line.sql`.

use super::address::Address;
use super::batch::Call;
use super::connection::Connection;
use super::encode;
use super::listener::Listener;
use super::schema::{self, quoted};
use super::session::{self, Lane};
use super::warnings;
use crate::clock;
use crate::error::{Error, Result};
use crate::names::{self, Name};
use crate::store::{
    AsyncStore, Capabilities, Enter, LossHint, QueueSnapshot, Seq, Standing, Ticket, TicketId,
    refuse,
};
use crate::stores::queue::calls::{Answer, snapshot};
use crate::stores::queue::sql::{Fault, LEASE_TABLE, invalid_reply, taker};
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tracing::instrument::WithSubscriber;

/// Locks in a table of leases, and the lane of the connection for its calls.
#[derive(Clone)]
pub(super) struct Table(Arc<Shared>, Lane);

/// The state of a store and its background handle.
struct Shared {
    connection: Connection,
    listener: Option<Listener>,
}

/// How long to bar a ticket that left with an unanswered `enter`. By then the request has been
/// carried out, or never will be.
const BAR_TIME: Duration = Duration::from_secs(60);

/// How long a store has been open when the database is checked for what slows locks down.
const BEFORE_WARNINGS: Duration = Duration::from_secs(1);

impl Table {
    /// Connects, and checks the server and the schema.
    pub(super) async fn open(address: Address) -> Result<Self> {
        let address = Arc::new(address);
        let channel = format!("holdline_{:016x}", names::random()? as u64);
        let connection = Connection::new(Arc::clone(&address));
        let mut opened = connection.session().await;
        if schema::wanted(&opened, &address) {
            schema::install_at(&address).await?;
            opened = connection.session().await;
        }
        opened.map_err(|fault| fault.explain(&address, "the schema"))?;
        let listener = address.listen_at().map(|address| Listener::new(address, channel, None));
        let shared = Arc::new(Shared { connection, listener });
        let later = warn_later(Arc::downgrade(&shared));
        session::runtime()?.spawn(later.with_current_subscriber());
        Ok(Table(shared, Lane::Foreground))
    }

    /// Makes a call about a line; every one may be repeated. `taker` is the ticket that may take a
    /// place by it.
    async fn call(
        &self,
        line: &Name,
        taker: Option<TicketId>,
        durable: bool,
        sql: String,
    ) -> Result<Answer> {
        let call = Call { line: Some(line.clone()), durable, ..Call::alone(sql) };
        self.answer(taker, call, &lock(line)).await
    }

    async fn answer(&self, taker: Option<TicketId>, call: Call, what: &str) -> Result<Answer> {
        let Connection { address, .. } = &self.0.connection;
        let answer = self.0.connection.call(taker, Call { lane: self.1, ..call }).await;
        answer.map_err(|fault| fault.explain(address, what))
    }

    fn schema(&self) -> String {
        quoted(&self.0.connection.address.schema)
    }

    fn invalid_reply(&self, line: &Name) -> Error {
        invalid_reply(&self.0.connection.address, line)
    }
}

/// Warns about the database if the store is still in use after a while. The first lock does not
/// wait for that.
async fn warn_later(shared: Weak<Shared>) {
    clock::pause(BEFORE_WARNINGS).await;
    let Some(shared) = shared.upgrade() else { return };
    let Connection { address, .. } = &shared.connection;
    let Ok(session) = shared.connection.session().await else { return };
    for old in warnings::old(&session).await {
        tracing::warn!("at {address} {old}: {}", warnings::ADVICE);
    }
}

/// A line, for messages.
fn lock(line: &Name) -> String {
    format!("lock \"{line}\"")
}

impl AsyncStore for Table {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        let listener = self.0.listener.as_ref();
        // A try does not wait.
        let unnotified = listener.filter(|listener| how != Enter::Try && !listener.listens());
        let channel = listener.map_or("", Listener::channel);
        let sql = encode::enter(&self.schema(), line.as_str(), ticket, how, channel, note)?;
        let answer = self.call(line, taker(ticket, how), true, sql).await?;
        let repeated = answer.repeated;
        let notices = listener.is_some_and(Listener::has_heard);
        let standing = encode::standing(ticket, &answer.first(), notices)
            .ok_or_else(|| self.invalid_reply(line))?;
        if let (Some(listener), Ok(Standing::Waiting { .. })) = (unnotified, &standing) {
            listener.catch_up(ticket.id);
        }
        if repeated && matches!(standing, Ok(Standing::Waiting { seq: None, .. })) {
            return Err(Fault::doubtful().explain(&self.0.connection.address, &lock(line)));
        }
        standing.map_err(|refusal| refuse(line, ticket, refusal))
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let in_flight = &self.0.connection.in_flight;
        let barred = in_flight.stays_in_doubt(id).await;
        let bar = if barred { BAR_TIME } else { Duration::ZERO };
        let sql = encode::leave(&self.schema(), line.as_str(), id, bar)?;
        let answer = self.call(line, None, false, sql).await?;
        if barred {
            in_flight.forget(id);
        }
        let row = answer.rows.first();
        let found = row.and_then(|row| row.truth(0)).ok_or_else(|| self.invalid_reply(line))?;
        answer.found(found, &self.0.connection.address, line)
    }

    async fn watch(&self, _line: &Name, id: TicketId) -> Result<Option<Seq>> {
        match &self.0.listener {
            Some(listener) => Ok(listener.waiters().wait(id).await),
            None => pending().await,
        }
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let sql = format!("SELECT * FROM {}.look({})", self.schema(), encode::text(line.as_str())?);
        let answer = self.answer(None, Call::alone(sql), &lock(line)).await?;
        snapshot(&answer.rows).ok_or_else(|| self.invalid_reply(line))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let sql = format!("SELECT * FROM {}.list({})", self.schema(), encode::text(prefix)?);
        Ok(self.answer(None, Call::alone(sql), "the list of locks").await?.names())
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let sql = encode::evict(&self.schema(), line.as_str(), id, note)?;
        let answer = self.call(line, None, true, sql).await?;
        let row = answer.rows.first().ok_or_else(|| self.invalid_reply(line))?;
        // NULL means that there is no such place; it is not malformed.
        let token = row.bytes(0).map(|_| row.number(0).ok_or_else(|| self.invalid_reply(line)));
        let token = token.transpose()?.map(Seq);
        answer.found(token.is_some(), &self.0.connection.address, line)?;
        Ok(token)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { notifications: self.0.listener.is_some(), ..LEASE_TABLE }
    }

    fn background_handle(&self) -> Self {
        // Connections run on a thread of their own.
        Table(Arc::clone(&self.0), Lane::Background)
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        if let Some(listener) = &self.0.listener {
            listener.waiters().loss.set(loss_hint);
        }
    }

    fn address(&self) -> String {
        self.0.connection.address.to_string()
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.connection.address.fmt(f)
    }
}
