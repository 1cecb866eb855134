//! Locks in MySQL and MariaDB.
//!
//! The default scheme keeps a line of leases in tables; procedures of the server apply the rule, by
//! the server's clock, in one round trip (`sql/`). A failed try only reads. Whoever passes removes
//! what has lapsed. The server cannot notify, so the waiters of a process look together, by one
//! small read with a back-off; a departure wakes the waiters of its own process directly.
//!
//! ```text
//! mod.rs         the contract
//! config.rs      what the URL says; opts.rs: what the client is told
//! connection.rs  the connections for calls
//! schema.rs      the tables and procedures, and their installation
//! watches.rs     the waiters of this process
//! errors.rs      what the server's errors mean
//! ```

mod config;
mod connection;
mod errors;
#[cfg(test)]
mod model;
mod opts;
mod schema;
mod text;
mod watches;

use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, EVICTION_TIME, Enter, LossHint, QueueSnapshot, Refusal, Seq,
    Standing, Store, Ticket, TicketId, refuse,
};
use crate::stores::queue::in_flight::InFlight;
use config::{Config, Scheme};
use connection::Connections;
use mysql_async::Row;
pub use schema::{SCHEMA, install};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use watches::Watches;

/// For how long a ticket that has left is barred, if a request of its is on its way.
const BAR_TIME: Duration = Duration::from_secs(120);

/// A store in MySQL or MariaDB: a line of leases for each lock.
#[derive(Clone)]
struct MySql {
    shared: Arc<Shared>,
    connections: Arc<Connections>,
}

/// What all handles of a store share.
struct Shared {
    config: Arc<Config>,
    address: String,
    in_flight: InFlight,
    watches: Watches,
    loss_hint: OnceLock<LossHint>,
}

impl MySql {
    fn new(config: Config) -> Result<Self> {
        let config = Arc::new(config);
        let connections = Arc::new(Connections::new(&config, config.connections)?);
        let shared = Arc::new(Shared {
            address: config.address(),
            config,
            in_flight: InFlight::default(),
            watches: Watches::default(),
            loss_hint: OnceLock::new(),
        });
        Ok(MySql { shared, connections })
    }

    async fn call(&self, sql: &str) -> Result<(Vec<Row>, bool)> {
        self.connections.call(sql).await.map_err(|fault| fault.explain(&self.shared.address))
    }

    fn invalid_reply(&self, line: &Name) -> Error {
        let message = format!(
            "{} gave an answer about lock \"{line}\" that makes no sense; were holdline's \
             procedures or tables changed?",
            self.shared.address
        );
        Error::new(ErrorKind::Corrupt, message)
    }

    fn outcome_unknown(&self, line: &Name) -> Error {
        let message = format!(
            "the connection to {} broke while a place in lock \"{line}\" was given up; it is not \
             there any more, but it is not known whether it was there until then",
            self.shared.address
        );
        Error::new(ErrorKind::Unknown, message)
    }
}

impl AsyncStore for MySql {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        if ticket.weight == 0 || ticket.weight > ticket.capacity {
            return Err(refuse(line, ticket, Refusal::Weight));
        }
        let Shared { in_flight, watches, .. } = &*self.shared;
        let request = match how {
            Enter::Keep(_) => None, // never takes a place, however late it is carried out
            Enter::Try | Enter::Queue => Some(in_flight.begin(ticket.id)),
        };
        let answer = self.connections.call(&text::enter(line, ticket, note, how)).await;
        let settled = match &answer {
            Ok((_, repeated)) => !repeated,
            Err(fault) => !fault.in_doubt(),
        };
        if let Some(request) = request.filter(|_| settled) {
            request.answered();
        }
        let (rows, _) = answer.map_err(|fault| fault.explain(&self.shared.address))?;
        let (standing, woken) =
            text::standing(ticket, how, &rows).ok_or_else(|| self.invalid_reply(line))?;
        watches.admit(&woken);
        let standing = standing.map_err(|refusal| refuse(line, ticket, refusal))?;
        watches.note(line, ticket.id, how, standing);
        Ok(standing)
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let Shared { in_flight, watches, .. } = &*self.shared;
        watches.forget(id);
        let barred = in_flight.in_doubt(id);
        let bar = if barred { BAR_TIME } else { Duration::ZERO };
        let (rows, repeated) = self.call(&text::leave(line, id, bar)).await?;
        let (left, woken) = text::left(&rows).ok_or_else(|| self.invalid_reply(line))?;
        watches.admit(&woken);
        if barred {
            in_flight.forget(id);
        }
        match left {
            0 if repeated => Err(self.outcome_unknown(line)),
            left => Ok(left > 0),
        }
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let sql = text::evict(line, id, note, EVICTION_TIME);
        let (rows, repeated) = self.call(&sql).await?;
        let (token, woken) = text::left(&rows).ok_or_else(|| self.invalid_reply(line))?;
        let watches = &self.shared.watches;
        watches.admit(&woken);
        if token == 0 {
            return if repeated { Err(self.outcome_unknown(line)) } else { Ok(None) };
        }
        watches.wake(id);
        if let Some(hint) = self.shared.loss_hint.get() {
            hint(id);
        }
        Ok(Some(Seq(token)))
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let (rows, _) = self.call(&text::look(line)).await?;
        text::snapshot(rows).ok_or_else(|| self.invalid_reply(line))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let (rows, _) = self.call(&text::list(prefix)).await?;
        Ok(rows.into_iter().filter_map(text::name).collect())
    }

    /// Waits for a wake-up. Meanwhile the waiters of this process look at the server together.
    async fn watch(&self, _line: &Name, id: TicketId) -> Result<Option<Seq>> {
        let watches = &self.shared.watches;
        let _watched = watches.watched(id);
        loop {
            tokio::select! {
                biased;
                seq = watches.waiters().wait(id) => return Ok(seq),
                () = watches.pause() => {}
            }
            if let Some(look) = watches.begin_look() {
                let (connections, shared) =
                    (Arc::clone(&self.connections), Arc::clone(&self.shared));
                // In a task of its own: a look that is abandoned would close its connection. There
                // is one at a time, and it ends with the time limit of a call.
                tokio::spawn(async move {
                    let answer = connections.call(&text::fronts(&look)).await;
                    let fronts = answer.map(|(rows, _)| text::front_rows(rows));
                    shared.watches.end_look(&fronts.unwrap_or_default());
                });
            }
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair_queue: true,
            fencing_tokens: true,
            notifications: true, // by looking, at most some 100 ms later
            weighted: true,
            token_ranges: true,
            swaps: false,
            crash_release: false,
            survives_failover: false, // replication is asynchronous
            survives_restart: true,   // with innodb_flush_log_at_trx_commit = 1, the default
            lease_min: Duration::from_millis(100),
            lease_max: Duration::from_secs(24 * 3600),
        }
    }

    fn background_handle(&self) -> Self {
        let connections = Connections::new(&self.shared.config, 1);
        let connections = connections.map_or_else(|_| Arc::clone(&self.connections), Arc::new);
        MySql { shared: Arc::clone(&self.shared), connections }
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        let _ = self.shared.loss_hint.set(loss_hint);
    }

    fn address(&self) -> String {
        self.shared.address.clone()
    }
}

impl fmt::Debug for MySql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.address)
    }
}

/// Opens the store at a URL, of which `rest` follows the colon, and checks that it can be used.
pub(crate) async fn open(rest: &str) -> Result<Arc<dyn Store>> {
    let config = Config::read(rest)?;
    if config.install {
        schema::install_at(&config).await?;
    }
    match config.scheme {
        Scheme::Table => {}
        Scheme::Row | Scheme::Named => {
            let message = "this scheme of a MySQL store is not in this version";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
    }
    let store = MySql::new(config)?;
    store.call("SELECT 1").await?;
    Ok(Arc::new(store))
}
