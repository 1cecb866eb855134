//! The connections for calls: few, made when they are first needed, and again when they break.
//!
//! A call takes a connection out of the list, and puts it back when it has read the whole answer.
//! It takes along calls that [wait for theirs](super::batch). It runs as a task, and goes on if its
//! future is not polled, or is dropped after sending. So calls that are given up cost no
//! connections. When a call's time is up, its connection is closed, so that a late answer cannot be
//! taken for another call's.
//!
//! The sockets belong to the stores' own runtime, so that a connection serves the program's
//! runtimes, one after another, and the renewer's. A call that finds a connection free runs on its
//! caller's runtime, which is the fastest; one that waits runs on the stores'. A call on a runtime
//! that has stopped, as between two futures that a program blocks on, keeps the others waiting
//! until its time is up; then another connection takes the place of its own.
//!
//! Renewals have a connection of their own while a call under way stalls with its program, or waits
//! for a row that another client has locked.

use super::batch::{self, Batcher, Queued};
use super::config::{Config, Scheme};
use super::errors::{READ_ONLY, is_read_only};
use super::text::Statement;
use super::{opts, shedlock};
use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::store::TicketId;
use crate::stores::queue::calls::{Answer, Row, repeat};
use crate::stores::queue::connecting::Connecting;
use crate::stores::queue::division::{self, Carrier};
use crate::stores::queue::in_flight::{InFlight, RequestInFlight};
use crate::stores::queue::sql::{Fault, answered, check_version};
use crate::stores::runtime::Background;
use crate::sync::Mutex;
use holdline_kernel::Time;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Value};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The version of the tables and procedures that this version of holdline needs.
pub(super) const SCHEMA: i32 = 1;
/// What the server calls itself.
const PRODUCT: &str = "CONCAT(VERSION(), ' ', @@version_comment)";
/// Servers that speak MySQL's protocol, and do not keep locks as MySQL does.
const FOREIGN: [&str; 3] = ["TiDB", "OceanBase", "Dolt"];
/// How long a renewal waits for a connection for calls before it makes its own: less than it may
/// take altogether, a quarter of a lease.
const PATIENCE: Duration = Duration::from_millis(100);

/// The runtime of the connections of all MySQL stores in this process.
pub(super) fn runtime() -> Result<&'static Background, Error> {
    static RUNTIME: Background = Background::new("mysql");
    RUNTIME.start().map(|()| &RUNTIME)
}

/// The connections of a store, or of its background handle.
pub(super) struct Connections {
    pub(super) config: Arc<Config>,
    pub(super) opts: Opts,
    pub(super) runtime: &'static Background,
    /// The store's connections, if these are its background handle's.
    shared: Option<Arc<Connections>>,
    permits: Arc<Semaphore>,
    /// The permits of calls on callers' runtimes, and when the time of each call is up.
    lent: Mutex<Vec<(Time, Weak<Permit>)>>,
    batcher: Batcher,
    idle: Mutex<Vec<Conn>>,
    /// One attempt at a time: a server blocks hosts that leave too many handshakes unfinished
    /// (`max_connect_errors`).
    connecting: Connecting,
    /// The tickets whose requests to take a place have been sent but not answered, shared by all
    /// handles of a store.
    pub(super) in_flight: Arc<InFlight>,
}

/// A permit for a connection. It is taken away from a call that has stopped.
type Permit = Mutex<Option<OwnedSemaphorePermit>>;

/// A call's turn on one of these connections.
struct Turn(Arc<Connections>, Arc<Permit>);

impl Connections {
    /// The connections of a store, as many as configured.
    pub(super) fn new(config: Config) -> Result<Arc<Self>, Error> {
        let (opts, runtime) = (opts::of(&config)?, runtime()?);
        Ok(Arc::new(Connections {
            permits: Arc::new(Semaphore::new(config.connections)),
            config: Arc::new(config),
            opts,
            runtime,
            shared: None,
            lent: Mutex::default(),
            batcher: Batcher::default(),
            idle: Mutex::default(),
            connecting: Connecting::default(),
            in_flight: Arc::default(),
        }))
    }

    /// The same connections, and one reserved for renewals.
    pub(super) fn background(self: &Arc<Self>) -> Arc<Self> {
        Arc::new(Connections {
            config: Arc::clone(&self.config),
            opts: self.opts.clone(),
            runtime: self.runtime,
            shared: Some(Arc::clone(self)),
            permits: Arc::new(Semaphore::new(1)),
            lent: Mutex::default(),
            batcher: Batcher::default(),
            idle: Mutex::default(),
            connecting: Connecting::default(),
            in_flight: Arc::clone(&self.in_flight),
        })
    }

    /// Runs a statement that may be [repeated](repeat), and returns its answer.
    pub(super) async fn call(self: &Arc<Self>, sql: &str) -> Result<Answer, Fault> {
        self.call_for(None, Statement::text(sql.to_owned())).await
    }

    /// The same for a ticket that may take a place by it. The ticket is recorded as in flight until
    /// the statement is answered.
    pub(super) async fn call_for(
        self: &Arc<Self>,
        taker: Option<TicketId>,
        statement: Statement,
    ) -> Result<Answer, Fault> {
        repeat(self.config.timeout, |limit| self.once(taker, &statement, limit)).await
    }

    async fn once(
        self: &Arc<Self>,
        taker: Option<TicketId>,
        statement: &Statement,
        limit: Time,
    ) -> Result<Answer, Fault> {
        // Recorded before the work begins, because the caller may give up first.
        let request = taker.map(|id| self.in_flight.begin(id));
        let (caller, gives_up) = oneshot::channel();
        let turn = self.turn_at_once();
        let here = turn.as_ref().and_then(|_| Handle::try_current().ok());
        let work = Arc::clone(self).make(statement.clone(), request, limit, gives_up, turn);
        // Other calls wait for the connection, so this one goes on even if its future is not
        // polled.
        let call = match here {
            Some(here) => here.spawn(work),
            None => self.runtime.spawn(work),
        };
        let answer = call.await.unwrap_or(Err(Fault::Silence)); // its runtime has ended
        drop(caller);
        answer
    }

    /// Makes a call when its turn has come, unless the caller gives up before, or another call
    /// takes it along.
    async fn make(
        self: Arc<Self>,
        statement: Statement,
        request: Option<RequestInFlight>,
        limit: Time,
        gives_up: oneshot::Receiver<()>,
        turn: Option<Turn>,
    ) -> Result<Answer, Fault> {
        let (number, mut answer) = self.batcher.queue(statement, request, limit);
        let turn = tokio::select! {
            biased;
            answer = &mut answer => return answer.unwrap_or_else(abandoned),
            _ = gives_up => None,
            turn = self.turn(turn) => Some(turn),
        };
        match turn {
            None => self.batcher.withdraw(number),
            Some(Turn(connections, _permit)) => {
                division::send(&connections, self.batcher.take(number)).await;
            }
        }
        answer.await.unwrap_or_else(abandoned)
    }

    /// A turn for a call on the caller's runtime, if no other call is in the way.
    fn turn_at_once(self: &Arc<Self>) -> Option<Turn> {
        let connections = self.shared.as_ref().unwrap_or(self);
        let permit = Arc::clone(&connections.permits).try_acquire_owned().ok()?;
        let turn = self.turn_on(connections, Some(permit));
        let mut lent = connections.lent.lock();
        lent.retain(|(_, permit)| permit.strong_count() > 0);
        lent.push((clock::now().after(self.config.timeout), Arc::downgrade(&turn.1)));
        Some(turn)
    }

    /// The turn that a call has got at once, or the next one. Callers' runtimes may stop, and those
    /// who wait be given a permit then; so they wait on the stores' runtime.
    async fn turn(self: &Arc<Self>, at_once: Option<Turn>) -> Turn {
        if let Some(turn) = at_once {
            return turn;
        }
        if let Some(shared) = &self.shared {
            let soon = clock::now().after(PATIENCE);
            if let Some(permit) = clock::within(soon, shared.permit()).await {
                return self.turn_on(shared, permit);
            }
        }
        let permit = self.permit().await;
        self.turn_on(self, permit)
    }

    fn turn_on(&self, connections: &Arc<Self>, permit: Option<OwnedSemaphorePermit>) -> Turn {
        if self.shared.as_ref().is_some_and(|shared| Arc::ptr_eq(shared, connections)) {
            self.idle.lock().clear(); // no longer needed
        }
        Turn(Arc::clone(connections), Arc::new(Mutex::new(permit)))
    }

    /// Waits for a permit, and takes it away from a call whose time is up.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let mut free = pin!(Arc::clone(&self.permits).acquire_owned());
        loop {
            if let Some(permit) = clock::within(clock::now().after(PATIENCE), &mut free).await {
                return permit.ok();
            }
            self.lent.lock().retain(|(up, permit)| {
                let over = *up <= clock::now();
                if let Some(permit) = permit.upgrade().filter(|_| over) {
                    drop(permit.lock().take());
                }
                !over
            });
        }
    }

    /// Sends calls as one message, over a connection that nothing else uses until it is answered.
    async fn ask(self: &Arc<Self>, calls: &[Queued], patient: bool) -> Result<Vec<Answer>, Fault> {
        let mut conn = Owned(Some(self.connection().await?));
        let answers = conn.run(calls, patient).await;
        let fault = answers.as_ref().err();
        // After an error a transaction may be open; closing the connection ends it. A conflict has
        // already ended it, and so has a procedure that met a locked row.
        if fault.is_none_or(Fault::conflict) {
            let mut idle = self.idle.lock();
            // Another may have taken the place of this one.
            if idle.len() < self.config.connections {
                idle.extend(conn.0.take());
            }
        } else if fault.is_some_and(Fault::ended) {
            self.idle.lock().clear(); // they are just as old
        }
        answers
    }

    /// A connection from the list.
    async fn connection(self: &Arc<Self>) -> Result<Conn, Fault> {
        loop {
            if let Some(conn) = self.idle.lock().pop() {
                return Ok(conn);
            }
            let connect = || Arc::clone(self).connect();
            self.connecting.attempt(self.runtime, self.config.timeout, connect).await?;
        }
    }

    /// Makes a connection for the list.
    async fn connect(self: Arc<Self>) -> Result<(), Fault> {
        let conn = match self.config.scheme {
            Scheme::Shedlock => shedlock::connect(&self.opts, &self.config).await?,
            _ => connect(&self.opts, &self.config).await?,
        };
        crate::metrics::connected("mysql");
        self.idle.lock().push(conn);
        Ok(())
    }
}

/// The store's URL, for messages.
impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

impl Carrier for Arc<Connections> {
    type Call = Statement;

    async fn carry(&self, calls: &[Queued], patient: bool) -> Result<Vec<Answer>, Fault> {
        let limit = calls.iter().map(|call| call.limit).max().unwrap_or_default();
        answered(limit, self.ask(calls, patient)).await
    }
}

/// A connection that is closed on drop. On a runtime, the client would first wait in a task for the
/// answer under way, however long that takes; on a thread without a runtime it does not.
pub(super) struct Owned(pub(super) Option<Conn>);

impl Owned {
    /// See [`ask`].
    pub(super) async fn ask(&mut self, sql: &str) -> Result<Answer, Fault> {
        match &mut self.0 {
            Some(conn) => ask(conn, sql).await,
            None => Err(Fault::Silence),
        }
    }

    /// Runs a batch; or a patient statement as [`ask`] does, but prepared if it has values.
    async fn run(&mut self, calls: &[Queued], patient: bool) -> Result<Vec<Answer>, Fault> {
        let Some(conn) = &mut self.0 else { return Err(Fault::Silence) };
        let ([Queued { call: statement, .. }], true) = (calls, patient) else {
            return batch::send(conn, calls).await;
        };
        let answer = if statement.values.is_empty() {
            ask(conn, &statement.text).await
        } else {
            run(conn, statement).await
        };
        answer.map(|answer| vec![answer])
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(conn) = self.0.take() {
            let close = std::thread::Builder::new().name("holdline-mysql".to_owned());
            let _ = close.spawn(move || drop(conn)); // if it fails, it is dropped here
        }
    }
}

/// Runs one or several statements. All results are read; a procedure call has two.
pub(super) async fn ask(conn: &mut Conn, sql: &str) -> Result<Answer, Fault> {
    let mut result = conn.query_iter(sql).await?;
    let (changed, insert_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
    let mut rows = Vec::new();
    while rows.is_empty() && !result.is_empty() {
        rows = result.collect().await?.into_iter().map(row).collect();
    }
    result.drop_result().await?;
    Ok(Answer { rows, changed, insert_id, repeated: false })
}

fn row(row: mysql_async::Row) -> Row {
    let value = |value| match value {
        Value::Bytes(bytes) => Some(bytes),
        _ => None, // in a text answer, all else is NULL
    };
    Row(row.unwrap().into_iter().map(value).collect())
}

/// Runs a prepared statement whose answer has no rows.
pub(super) async fn run(conn: &mut Conn, statement: &Statement) -> Result<Answer, Fault> {
    let result = conn.exec_iter(&*statement.text, &statement.values).await?;
    let (changed, insert_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
    result.drop_result().await?;
    Ok(Answer { changed, insert_id, ..Answer::default() })
}

/// The settings of a session. A call that was given up waits in the server for at most a second, be
/// it for a row or for a table: the server does not notice that its connection was closed. Calls
/// have a time limit of their own; the server's, which MariaDB and MySQL name differently,
/// would end calls that wait for a row. With another `completion_type`, what follows a procedure
/// would be part of a transaction that nothing ends.
const SESSION: &str = "SET SESSION time_zone = '+00:00', autocommit = 1, sql_mode = '', \
    completion_type = 0, sql_safe_updates = 0, sql_select_limit = 18446744073709551615, \
    /*M! max_statement_time = 0, */ /*!80000 max_execution_time = 0, */ \
    innodb_lock_wait_timeout = 1, lock_wait_timeout = 1; \
    SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE";

/// A connection with its session configured.
pub(super) async fn bare(opts: &Opts) -> Result<Conn, Fault> {
    let mut conn = Conn::new(opts.clone()).await?;
    ask(&mut conn, SESSION).await?;
    Ok(conn)
}

/// The same, to a server whose clock and role have been checked in the same round trip. Also
/// returns a row with the values of `columns`, from column 2 on. `session` adds to the settings.
pub(super) async fn checked(
    opts: &Opts,
    config: &Config,
    session: &str,
    columns: &str,
) -> Result<(Conn, Row), Fault> {
    let mut conn = Conn::new(opts.clone()).await?;
    let sql = format!(
        "{SESSION}{session}; \
         SELECT SLEEP(0.001) + (SYSDATE(6) <> NOW(6)), @@GLOBAL.read_only, {columns}, {PRODUCT}"
    );
    let found = match ask(&mut conn, &sql).await {
        Ok(answer) => answer.first(),
        Err(fault) => {
            // The name of the server says more than its error, which may end the connection.
            if matches!(fault, Fault::Refused(_))
                && let Err(foreign @ Fault::Ours(..)) = check_product(opts, config).await
            {
                return Err(foreign);
            }
            return Err(fault);
        }
    };
    is_product(found.text(found.0.len().saturating_sub(1)), config)?;
    let fault = |kind, why| Err(Fault::Ours(kind, format!("{config} {why}")));
    if found.text(1).is_some_and(is_read_only) {
        return fault(ErrorKind::Unavailable, READ_ONLY);
    }
    if found.number(0) == Some(0) {
        let why = "runs with --sysdate-is-now, so that its clock stands still while a statement \
                   waits; start it without that option";
        return fault(ErrorKind::Unsupported, why);
    }
    Ok((conn, found))
}

/// Refuses a server that only speaks MySQL's protocol, asked over a connection of its own.
pub(super) async fn check_product(opts: &Opts, config: &Config) -> Result<(), Fault> {
    let mut conn = Conn::new(opts.clone()).await?;
    is_product(ask(&mut conn, &format!("SELECT {PRODUCT}")).await?.first().text(0), config)
}

/// The same by the text of [`PRODUCT`].
fn is_product(version: Option<&str>, config: &Config) -> Result<(), Fault> {
    let name = FOREIGN.into_iter().find(|name| version.is_some_and(|text| text.contains(name)));
    let Some(name) = name else { return Ok(()) };
    let message = format!(
        "{config} is {name}, which only speaks MySQL's protocol: its transactions, procedures \
         and clocks differ, so that two clients could hold one lock; use MySQL or MariaDB \
         itself, or etcd or ZooKeeper"
    );
    Err(Fault::Ours(ErrorKind::Unsupported, message))
}

/// A connection to a usable server with the right tables.
pub(super) async fn connect(opts: &Opts, config: &Config) -> Result<Conn, Fault> {
    let version = "(SELECT version FROM holdline_schema WHERE one = 1)";
    let (conn, found) = checked(opts, config, "", version).await?;
    check_version(config, "mysql", found.number(2).unwrap_or(0), SCHEMA)?;
    Ok(conn)
}

/// The answer to a call that was taken along by one whose runtime has ended.
fn abandoned(_: oneshot::error::RecvError) -> Result<Answer, Fault> {
    Err(Fault::Broken("the call that it was sent with has ended".to_owned()))
}
