//! The lease table: a line with places, kept by the functions in `sql/line.sql`.

use super::address::Address;
use super::batch::Call;
use super::connection::Connection;
use super::encode::{self, Param};
use super::listener::Listener;
use super::schema::{self, statement};
use super::session::{self, Lane};
use super::warnings;
use crate::clock;
use crate::error::Result;
use crate::names::{self, Name};
use crate::store::{
    AsyncStore, Capabilities, Enter, LossHint, QueueSnapshot, Refusal, Seq, Standing, Ticket,
    TicketId, refuse,
};
use crate::stores::queue::calls::{Answer, Row, snapshot};
use crate::stores::queue::sql::{
    Fault, LEASE_TABLE, invalid_reply, micros, number_of, outcome_unknown,
};
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

/// The function that gives up a place, the only one whose commit is not waited for.
const LEAVE: &str = "SELECT \"holdline\".leave";

impl Table {
    /// Connects, and checks the server and the schema.
    pub(super) async fn open(address: Address) -> Result<Self> {
        let address = Arc::new(address);
        let channel = format!("holdline_{:016x}", names::random()? as u64);
        let connection = Connection::new(Arc::clone(&address));
        let mut opened = connection.session().await;
        if schema::wanted(&opened, &address) {
            schema::install(&address).await?;
            opened = connection.session().await;
        }
        opened.map_err(|fault| fault.explain(&address, "the schema"))?;
        let listener = address.listen_at().map(|address| Listener::new(address, channel, None));
        let shared = Arc::new(Shared { connection, listener });
        let later = warn_later(Arc::downgrade(&shared));
        session::runtime()?.spawn(later.with_current_subscriber());
        Ok(Table(shared, Lane::Foreground))
    }

    /// Calls a function on one line; every function may be repeated. `taker` is the ticket that may
    /// take a place by it.
    async fn call(
        &self,
        line: &Name,
        taker: Option<TicketId>,
        function: &str,
        params: &[Param<'_>],
    ) -> Result<Answer> {
        let durable = function != LEAVE;
        let call = Call { line: Some(line.clone()), durable, ..self.statement(function, params)? };
        self.answer(taker, call, &lock(line)).await
    }

    /// Calls a function that only reads.
    async fn read(&self, what: &str, function: &str, param: &str) -> Result<Answer> {
        self.answer(None, self.statement(function, &[Param::Text(param)])?, what).await
    }

    fn statement(&self, function: &str, params: &[Param<'_>]) -> Result<Call> {
        let schema = &self.0.connection.address.schema;
        let sql = encode::call(&statement(schema, function), params)?;
        Ok(Call { lane: self.1, ..Call::alone(sql) })
    }

    async fn answer(&self, taker: Option<TicketId>, call: Call, what: &str) -> Result<Answer> {
        let Connection { address, .. } = &self.0.connection;
        let answer = self.0.connection.call(taker, call).await;
        answer.map_err(|fault| fault.explain(address, what))
    }

    /// The value of the only row of a result.
    fn value<T>(
        &self,
        line: &Name,
        rows: &[Row],
        read: impl FnOnce(&Row, usize) -> Option<T>,
    ) -> Result<T> {
        rows.first()
            .and_then(|row| read(row, 0))
            .ok_or_else(|| invalid_reply(&self.0.connection.address, line))
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
        let refused = |refusal| Err(refuse(line, ticket, refusal));
        let Ok(min_token) = i64::try_from(ticket.min_token) else {
            return refused(Refusal::Exhausted);
        };
        let listener = self.0.listener.as_ref();
        let taker = match how {
            Enter::Keep(_) => None, // never takes a place, however late it is carried out
            Enter::Try | Enter::Queue => Some(ticket.id),
        };
        // A try does not wait.
        let unnotified = listener.filter(|listener| how != Enter::Try && !listener.listens());
        let params = [
            Param::Text(line.as_str()),
            Param::Id(ticket.id),
            Param::Number(ticket.weight.into()),
            Param::Number(ticket.capacity.into()),
            Param::Number(micros(ticket.lease)),
            Param::Number(micros(ticket.wait_lease)),
            Param::Number(ticket.token_count.into()),
            Param::Number(min_token),
            Param::Number(number_of(how)),
            Param::Text(listener.map_or("", Listener::channel)),
            Param::Text(note),
        ];
        let answer = self.call(line, taker, "SELECT \"holdline\".enter", &params).await?;
        let numbers = self.value(line, &answer.rows, encode::numbers)?;
        let standing = encode::standing(ticket, &numbers, listener.is_some())
            .ok_or_else(|| invalid_reply(&self.0.connection.address, line))?;
        if let (Some(listener), Ok(Standing::Waiting { .. })) = (unnotified, &standing) {
            listener.catch_up(ticket.id);
        }
        if answer.repeated && matches!(standing, Ok(Standing::Waiting { seq: None, .. })) {
            return Err(Fault::doubtful().explain(&self.0.connection.address, &lock(line)));
        }
        standing.or_else(refused)
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let in_flight = &self.0.connection.in_flight;
        let barred = in_flight.stays_in_doubt(id).await;
        let bar = if barred { micros(BAR_TIME) } else { 0 };
        let params = [Param::Text(line.as_str()), Param::Id(id), Param::Number(bar)];
        let answer = self.call(line, None, LEAVE, &params).await?;
        if barred {
            in_flight.forget(id);
        }
        let found = self.value(line, &answer.rows, Row::truth)?;
        if !found && answer.repeated {
            return Err(outcome_unknown(&self.0.connection.address, line));
        }
        Ok(found)
    }

    async fn watch(&self, _line: &Name, id: TicketId) -> Result<Option<Seq>> {
        match &self.0.listener {
            Some(listener) => Ok(listener.wait(id).await),
            None => pending().await,
        }
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let look = "SELECT * FROM \"holdline\".look";
        let answer = self.read(&lock(line), look, line.as_str()).await?;
        snapshot(&answer.rows).ok_or_else(|| invalid_reply(&self.0.connection.address, line))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let list = "SELECT * FROM \"holdline\".list";
        Ok(self.read("the list of locks", list, prefix).await?.names())
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let params = [Param::Text(line.as_str()), Param::Id(id), Param::Text(note)];
        let answer = self.call(line, None, "SELECT \"holdline\".evict", &params).await?;
        // NULL means no token; it is not malformed.
        let token = self.value(line, &answer.rows, |row, at| Some(row.number(at)))?;
        if token.is_none() && answer.repeated {
            return Err(outcome_unknown(&self.0.connection.address, line));
        }
        Ok(token.map(Seq))
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
            listener.on_loss_hint(loss_hint);
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
