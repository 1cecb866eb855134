//! The connection for commands: one, shared by all calls of a store, made on first use and again
//! after it breaks.
//!
//! In a cluster there is one for each node: see [`cluster`](crate::cluster).
//!
//! It lives on the runtime of the call that made it. Every call has a time limit, including
//! connecting. A connection may be cut without either end noticing. So if a call has been given up
//! without a reply, and was sent more than a second ago, the next one gets a new connection, unless
//! a later call was answered since. Failed attempts are repeated with growing pauses, and so are
//! those whose connection had to be closed soon, as while a primary that became a replica is still
//! the only one known.

use crate::cluster::Cluster;
use crate::config::{Config, Kind};
use crate::connect::{self, Begin, or_error};
use crate::fault::{self, Fault, broken, no_script};
use crate::scan;
use holdline_base::clock::{self, within};
use holdline_base::sync::Mutex;
use holdline_kernel::{Backoff, Time};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Value};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// How long ago a call may have been sent that was given up without a reply, before the connection
/// is replaced.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// How soon a connection has to be closed after it was made to count as a failed attempt.
const SOON: Duration = Duration::from_secs(1);

/// The first pause between failed attempts to connect, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The connection for commands. It is made on first use, on the runtime of that call.
pub struct Connection {
    config: Arc<Config>,
    /// The channel that the connection subscribes to, or empty.
    reply_order_channel: String,
    slot: Arc<Mutex<Slot>>,
    /// The connections to the nodes of a cluster, used instead of this one.
    cluster: Option<Cluster>,
}

/// The current connection, or the attempt to make one.
#[derive(Default)]
struct Slot {
    conn: Option<MultiplexedConnection>,
    /// The last attempt, until it ends.
    attempt: Option<Attempt<Found>>,
    /// The number of the last attempt, and of the connection that it made.
    number: u64,
    /// When the first call was sent that was given up without a reply, and after the last one that
    /// was answered.
    silent: Option<Time>,
    /// When the last call was sent that was answered, or when the connection was made.
    heard: Time,
    /// When the connection was made.
    made: Time,
    /// The number of consecutive failures.
    failures: u32,
    /// The earliest time of the next attempt.
    not_before: Time,
}

/// An attempt to connect, or to look up the nodes of a cluster. It is a task, so that it continues
/// whatever happens to the calls that wait for it. Otherwise renewals, which have little time each,
/// might never get a connection, and a call that is not polled would keep the others from one.
pub(crate) struct Attempt<T> {
    pub(crate) outcome: watch::Receiver<Outcome<T>>,
    /// When it ends, unless its runtime has stalled.
    pub(crate) until: Time,
}

/// The outcome of an attempt, once it has ended.
pub(crate) type Outcome<T> = Option<Result<T, Fault>>;

/// A connection and its number.
#[derive(Clone)]
struct Found {
    conn: MultiplexedConnection,
    number: u64,
}

/// A script: its text, and the hash by which the server knows it.
pub struct Script {
    text: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    /// Creates a script from its text.
    pub const fn new(text: &'static str) -> Self {
        Script { text, hash: OnceLock::new() }
    }

    fn hash(&self) -> &str {
        self.hash.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }

    /// The script's text.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// A call of the script, by its hash or, if the server does not have it, by its text.
    fn call(&self, by_name: bool, size: usize, fill: &(dyn Fn(&mut Cmd) + Sync)) -> Cmd {
        let mut command = Cmd::with_capacity(18, size + 64);
        if by_name {
            command.arg("EVALSHA").arg(self.hash());
        } else {
            command.arg("EVAL").arg(self.text);
        }
        fill(&mut command);
        command
    }
}

impl Connection {
    /// Creates a connection to these servers. It also subscribes to `reply_order_channel`, unless
    /// that is empty: if a script publishes there first, the server writes the script's reply last,
    /// after the messages that the script publishes to others.
    pub fn new(config: Arc<Config>, reply_order_channel: String) -> Self {
        let cluster = (config.kind == Kind::Cluster).then(|| Cluster::new(Arc::clone(&config)));
        Connection { config, reply_order_channel, slot: Arc::default(), cluster }
    }

    /// The channel that the connection subscribes to, or empty.
    pub fn reply_order_channel(&self) -> &str {
        &self.reply_order_channel
    }

    /// Runs a script: one round trip, or two if the server has not cached it. `fill` adds the
    /// number of keys, the keys and the arguments, of about `size` bytes in total.
    ///
    /// # Errors
    ///
    /// The fault; [`Fault::in_doubt`] says whether the script may have run all the same.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the script may or may not run.
    pub async fn run(
        &self,
        script: &Script,
        size: usize,
        fill: &(dyn Fn(&mut Cmd) + Sync),
    ) -> Result<Value, Fault> {
        match self.ask(&script.call(true, size, fill)).await {
            Err(Fault::Refused(error)) if no_script(&error) => {
                self.ask(&script.call(false, size + script.text.len(), fill)).await
            }
            other => other,
        }
    }

    /// Sends a command, within the time limit.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn ask(&self, command: &Cmd) -> Result<Value, Fault> {
        match &self.cluster {
            None => self.ask_one(command, false).await,
            Some(cluster) => Box::pin(cluster.ask(command)).await,
        }
    }

    /// Sends a command to the one server. With `asking`, a node of a cluster serves it also if it
    /// is only taking over its slot.
    pub(crate) async fn ask_one(&self, command: &Cmd, asking: bool) -> Result<Value, Fault> {
        let sent = clock::now();
        let talk = pin!(self.converse(command, asking, sent));
        within(sent.after(self.config.timeout), talk).await.unwrap_or(Err(Fault::Silence))
    }

    async fn converse(&self, command: &Cmd, asking: bool, sent: Time) -> Result<Value, Fault> {
        let found = self.conn().await?;
        self.converse_over(found, command, asking, sent).await
    }

    async fn converse_over(
        &self,
        Found { mut conn, number }: Found,
        command: &Cmd,
        asking: bool,
        sent: Time,
    ) -> Result<Value, Fault> {
        let mut call = CallInFlight { connection: self, number, sent, answered: false };
        let reply = if asking {
            Box::pin(ask_behind_asking(&mut conn, command)).await
        } else {
            conn.req_packed_command(command).await
        };
        let reply = reply.and_then(or_error).map_err(Fault::from);
        call.answered = !matches!(reply, Err(Fault::Broken(..)));
        drop(call);
        if fault::breaks(&reply) {
            self.discard(number);
        }
        reply
    }

    /// The current connection, or a new one, made once for all calls that wait for it.
    async fn conn(&self) -> Result<Found, Fault> {
        match self.found_or_attempt() {
            Ok(found) => Ok(found),
            Err(attempt) => Box::pin(ended(attempt)).await, // rare, and large
        }
    }

    /// The current connection, or else the attempt in progress, or a new one.
    fn found_or_attempt(&self) -> Result<Found, watch::Receiver<Outcome<Found>>> {
        let mut slot = self.slot.lock();
        if let Some(found) = slot.usable() {
            return Ok(found);
        }
        if let Some(attempt) = slot.attempt.as_ref().filter(|attempt| attempt.goes_on()) {
            return Err(attempt.outcome.clone());
        }
        let attempt = self.begin(&mut slot);
        Err(slot.attempt.insert(attempt).outcome.clone())
    }

    /// Connects for the first time, for the single call that is made next, which shows whether the
    /// server answers. No other call shares this attempt, so it is no task.
    pub(crate) async fn connect(&self) -> Result<(), Fault> {
        if let Some(cluster) = &self.cluster {
            return cluster.connect().await;
        }
        let limit = clock::now().after(self.config.timeout);
        let connecting =
            connect::commands(&self.config, &self.reply_order_channel, Begin::Unanswered);
        let conn = within(limit, pin!(connecting)).await.unwrap_or(Err(Fault::Silence))?;
        (self.config.connected)();
        let mut slot = self.slot.lock();
        *slot = Slot::with(Found { conn, number: slot.number + 1 });
        Ok(())
    }

    /// Starts an attempt, which connects when its time has come. After a failure that is later,
    /// however many calls there are.
    fn begin(&self, slot: &mut Slot) -> Attempt<Found> {
        let (config, channel) = (Arc::clone(&self.config), self.reply_order_channel.clone());
        let shared = Arc::clone(&self.slot);
        let (outcome, receiver) = watch::channel(None);
        slot.number += 1;
        let (number, not_before) = (slot.number, slot.not_before);
        let until = clock::now().max(not_before).after(config.timeout);
        tokio::spawn(async move {
            clock::sleep_until(not_before).await;
            let made =
                within(until, pin!(connect::commands(&config, &channel, Begin::Answered))).await;
            let made = made.unwrap_or(Err(Fault::Silence)).map(|conn| Found { conn, number });
            if made.is_ok() {
                (config.connected)();
            }
            shared.lock().end_attempt(number, &made);
            outcome.send_replace(Some(made));
        });
        Attempt { outcome: receiver, until }
    }

    /// Closes the current connection, whose replies cannot be trusted.
    pub fn close_current(&self) {
        if let Some(cluster) = &self.cluster {
            return cluster.close_current();
        }
        let number = self.slot.lock().number;
        self.discard(number);
    }

    /// Closes a connection to new calls; calls that wait for a reply on it may still get one.
    fn discard(&self, number: u64) {
        let mut slot = self.slot.lock();
        if slot.number == number {
            slot.close();
        }
    }
}

impl<T> Attempt<T> {
    /// Whether its runtime exists and has not stalled.
    pub(crate) fn goes_on(&self) -> bool {
        self.outcome.has_changed().is_ok() && clock::now() <= self.until
    }
}

/// Sends a command right behind `ASKING`, which is for that command alone.
async fn ask_behind_asking(
    conn: &mut MultiplexedConnection,
    command: &Cmd,
) -> redis::RedisResult<Value> {
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command.clone());
    let replies = conn.req_packed_commands(&both, 1, 1).await?;
    Ok(replies.into_iter().next().unwrap_or(Value::Nil))
}

/// The outcome of an attempt, once it has ended. All calls that wait for a failing attempt get its
/// error.
pub(crate) async fn ended<T: Clone>(mut attempt: watch::Receiver<Outcome<T>>) -> Result<T, Fault> {
    match attempt.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(Ok(found))) => Ok(found.clone()),
        Ok(Some(Err(fault))) => Err(fault.copy()),
        Ok(None) | Err(_) => Err(broken(true)), // it is gone with its runtime
    }
}

impl Slot {
    fn with(Found { conn, number }: Found) -> Self {
        let now = clock::now();
        Slot { conn: Some(conn), number, heard: now, made: now, ..Slot::default() }
    }

    /// The current connection, unless it is silent.
    fn usable(&mut self) -> Option<Found> {
        if self.silent.is_some_and(|since| since.until(clock::now()) > MAX_SILENCE) {
            self.close();
        }
        self.conn.clone().map(|conn| Found { conn, number: self.number })
    }

    /// Stores the connection that an attempt made, or records its failure, unless another attempt
    /// has replaced it.
    fn end_attempt(&mut self, number: u64, made: &Result<Found, Fault>) {
        if self.number != number {
            return;
        }
        self.attempt = None;
        if let Ok(found) = made {
            *self = Slot { failures: self.failures, ..Slot::with(found.clone()) };
        } else {
            self.failed();
        }
    }

    /// Closes the connection to new calls.
    fn close(&mut self) {
        if self.conn.take().is_none() {
            return;
        }
        self.silent = None;
        if self.made.until(clock::now()) < SOON {
            self.failed();
        } else {
            self.failures = 0;
        }
    }

    /// Delays the next attempt.
    fn failed(&mut self) {
        let backoff = Backoff::exponential(FIRST_PAUSE, LONGEST_PAUSE).jitter(50);
        let pause = backoff.pause(self.failures, fastrand::u64(..));
        self.not_before = clock::now().after(pause);
        self.failures = self.failures.saturating_add(1);
    }
}

impl Connection {
    /// Sends a command that needs no key; in a cluster, to nodes in turn until one replies.
    pub(crate) async fn ask_any(&self, command: &Cmd) -> Result<Value, Fault> {
        match &self.cluster {
            None => self.ask_one(command, false).await,
            Some(cluster) => Box::pin(cluster.ask_one_of(command)).await,
        }
    }

    /// Sends a command to the server; in a cluster, to all primaries. Leaves out those that do not
    /// answer, unless none does.
    pub(crate) async fn ask_all(&self, command: &Cmd) -> Result<Vec<Value>, Fault> {
        match &self.cluster {
            None => Ok(vec![self.ask_one(command, false).await?]),
            Some(cluster) => Box::pin(cluster.ask_primaries(command)).await,
        }
    }

    /// All keys that match the pattern and are text, on every server; some may come twice.
    ///
    /// # Errors
    ///
    /// The fault of the first request that failed.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn scan(&self, pattern: &str) -> Result<Vec<String>, Fault> {
        let limit = clock::now().after(self.config.timeout * 5);
        let scanning = async {
            match &self.cluster {
                None => self.scan_one(pattern).await,
                Some(cluster) => Box::pin(cluster.scan(pattern)).await,
            }
        };
        within(limit, scanning).await.unwrap_or(Err(Fault::Silence))
    }

    /// Scans the one server.
    pub(crate) async fn scan_one(&self, pattern: &str) -> Result<Vec<String>, Fault> {
        // Usually the server has closed an idle connection: retry on a new one.
        match self.scan_once(pattern).await {
            Err(Fault::Broken(..)) => self.scan_once(pattern).await,
            other => other,
        }
    }

    /// Scans over one connection: another may lead to another server, whose cursors differ.
    async fn scan_once(&self, pattern: &str) -> Result<Vec<String>, Fault> {
        let limit = clock::now().after(self.config.timeout);
        let found = within(limit, pin!(self.conn())).await.unwrap_or(Err(Fault::Silence))?;
        let (mut keys, mut cursor) = (Vec::new(), 0);
        loop {
            let (sent, page) = (clock::now(), scan::from(cursor, pattern));
            let reply = pin!(self.converse_over(found.clone(), &page, false, sent));
            let reply = within(sent.after(self.config.timeout), reply).await;
            let added = scan::add(reply.unwrap_or(Err(Fault::Silence))?, &mut keys);
            // A reply of another form may be that to another call, and so may later ones.
            cursor = added.inspect_err(|_| self.discard(found.number))?;
            if cursor == 0 {
                return Ok(keys);
            }
        }
    }
}

/// A call in flight, which records on drop whether it had a reply.
struct CallInFlight<'a> {
    connection: &'a Connection,
    number: u64,
    sent: Time,
    answered: bool,
}

impl Drop for CallInFlight<'_> {
    fn drop(&mut self) {
        let mut slot = self.connection.slot.lock();
        if slot.number != self.number {
            return;
        }
        if self.answered {
            slot.silent = None;
            slot.heard = slot.heard.max(self.sent);
        } else if slot.silent.is_none() {
            slot.silent = Some(slot.heard.max(self.sent));
        }
    }
}
