//! The connection for commands: one, shared by all calls of a store, made when it is first needed
//! and again when it breaks.
//!
//! It lives on the runtime of the call that made it, which is why the renewer's [background handle]
//! has one of its own. Every call has a time limit, connecting included. A connection on which a
//! call has had no reply for a second is closed too: it may be cut without either end noticing.
//!
//! [background handle]: crate::store::Store::background_handle

use super::config::Config;
use super::connect::{self, Conn};
use super::errors::{Fault, broken, no_script};
use crate::clock::{self, within};
use crate::sync::Mutex;
use holdline_kernel::{Backoff, Time};
use redis::{Cmd, Value};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long a connection may leave a call without a reply before it is closed.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// The first and the longest pause between failed attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

pub(in crate::stores) struct Connection {
    config: Arc<Config>,
    /// The channel that its connection subscribes to, or empty: see `queue.lua`.
    reply_order_channel: String,
    slot: Mutex<Slot>,
    /// Held by the call that connects; the others wait for it, and for its result.
    connecting: tokio::sync::Mutex<Connecting>,
    /// How many attempts to connect have failed.
    attempts: AtomicU64,
}

/// The state of connecting.
#[derive(Default)]
struct Connecting {
    attempt: Option<Attempt>,
    /// The number of failures in a row.
    failures: u32,
    /// The last failure.
    fault: Option<Fault>,
    /// The time of the next attempt at the earliest.
    not_before: Time,
}

/// An attempt to connect: a task, so that it outlives a call whose time is over. Otherwise
/// renewals, which have little time each, might never get a connection.
struct Attempt {
    task: JoinHandle<Result<Conn, Fault>>,
    /// When it ends, unless its runtime stands still.
    until: Time,
}

#[derive(Default)]
struct Slot {
    conn: Option<Conn>,
    /// The number of connections made so far.
    number: u64,
    /// Since when calls have gone without a reply.
    silent: Option<Time>,
}

/// A connection and its number.
struct Found {
    conn: Conn,
    number: u64,
}

/// A script: its text, and the hash by which the server knows it.
pub(in crate::stores) struct Script {
    text: &'static str,
    hash: OnceLock<String>,
}

macro_rules! lua {
    ($($file:literal),+) => { concat!($(include_str!(concat!("lua/", $file)), "\n"),+) };
}

pub(in crate::stores) static ENTER: Script =
    Script::new(lua!("enter_head.lua", "enter_one.lua", "queue.lua", "enter.lua"));
pub(in crate::stores) static LEAVE: Script =
    Script::new(lua!("leave_head.lua", "leave_one.lua", "queue.lua", "leave.lua"));
pub(in crate::stores) static EVICT: Script =
    Script::new(lua!("leave_head.lua", "evicted.lua", "leave_one.lua", "queue.lua", "evict.lua"));
pub(in crate::stores) static BATCH: Script = Script::new(concat!(
    lua!("batch_head.lua"),
    "local function enter(line, wants, tail)\n",
    lua!("enter_one.lua", "queue.lua", "enter.lua"),
    "end\nlocal function leave(line, id, rest, barred_for)\n",
    lua!("leave_one.lua", "queue.lua", "leave.lua"),
    "end\n",
    lua!("batch.lua")
));
pub(in crate::stores) static BUSY: Script = Script::new(lua!("busy.lua"));
pub(in crate::stores) static LOOK: Script = Script::new(lua!("look.lua"));

impl Script {
    pub(in crate::stores) const fn new(text: &'static str) -> Self {
        Script { text, hash: OnceLock::new() }
    }

    fn hash(&self) -> &str {
        self.hash.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }

    #[cfg(test)]
    pub(in crate::stores) fn text(&self) -> &'static str {
        self.text
    }

    /// A call of it, by its hash or, if the server does not know that, by its text.
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
    pub(in crate::stores) fn new(config: Arc<Config>, reply_order_channel: String) -> Self {
        Connection {
            config,
            reply_order_channel,
            slot: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            attempts: AtomicU64::new(0),
        }
    }

    pub(in crate::stores) fn reply_order_channel(&self) -> &str {
        &self.reply_order_channel
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock()
    }

    /// Runs a script: one round trip, or two if the server has not cached it. `fill` adds the
    /// number of keys, the keys and the arguments.
    pub(in crate::stores) async fn run(
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
    pub(in crate::stores) async fn ask(&self, command: &Cmd) -> Result<Value, Fault> {
        let limit = clock::now().after(self.config.timeout);
        let talk = pin!(self.converse(command));
        within(limit, talk).await.unwrap_or(Err(Fault::Silence))
    }

    async fn converse(&self, command: &Cmd) -> Result<Value, Fault> {
        let Found { mut conn, number } = self.conn().await?;
        let mut call = CallInFlight { connection: self, number, answered: false };
        let reply = conn.ask(command).await.map_err(Fault::from);
        call.answered = !matches!(reply, Err(Fault::Broken(..)));
        drop(call);
        if let Err(fault) = &reply
            && fault.breaks()
        {
            self.discard(number);
        }
        reply
    }

    /// The present connection, unless it is silent; or a new one.
    async fn conn(&self) -> Result<Found, Fault> {
        match self.usable() {
            Some(found) => Ok(found),
            None => Box::pin(self.connect()).await, // rare, and large
        }
    }

    /// A new connection, made once for all calls that wait for one. After a failure the next
    /// attempt backs off, however many calls there are; the calls that waited for a failed attempt
    /// share its error.
    async fn connect(&self) -> Result<Found, Fault> {
        let attempts = self.attempts.load(Ordering::Relaxed);
        let mut connecting = self.connecting.lock().await;
        if let Some(found) = self.usable() {
            return Ok(found); // made by another call in the meantime
        }
        if let Some(fault) = &connecting.fault
            && self.attempts.load(Ordering::Relaxed) != attempts
        {
            return Err(fault.copy());
        }
        let outcome = self.attempt(&mut connecting).await;
        connecting.attempt = None;
        match outcome {
            Ok(conn) => {
                *connecting = Connecting::default();
                let mut slot = self.slot();
                slot.number += 1;
                slot.silent = None;
                slot.conn = Some(conn.clone());
                crate::metrics::connected("redis");
                Ok(Found { conn, number: slot.number })
            }
            Err(fault) => {
                let backoff = Backoff::exponential(FIRST_PAUSE, LONGEST_PAUSE).jitter(50);
                let pause = backoff.pause(connecting.failures, fastrand::u64(..));
                connecting.not_before = clock::now().after(pause);
                connecting.failures = connecting.failures.saturating_add(1);
                connecting.fault = Some(fault.copy());
                self.attempts.fetch_add(1, Ordering::Relaxed);
                Err(fault)
            }
        }
    }

    /// Waits for the attempt under way, or for a new one, which begins when its time has come.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the attempt under way.
    async fn attempt(&self, connecting: &mut Connecting) -> Result<Conn, Fault> {
        let stands_still =
            |attempt: &Attempt| !attempt.task.is_finished() && attempt.until < clock::now();
        let under_way = connecting.attempt.take().filter(|attempt| !stands_still(attempt));
        if under_way.is_none() {
            clock::sleep_until(connecting.not_before).await;
        }
        let attempt = connecting.attempt.insert(under_way.unwrap_or_else(|| self.begin()));
        // It is gone if its runtime is.
        (&mut attempt.task).await.unwrap_or_else(|_| Err(broken(true)))
    }

    fn begin(&self) -> Attempt {
        let (config, channel) = (Arc::clone(&self.config), self.reply_order_channel.clone());
        let until = clock::now().after(config.timeout);
        let task = tokio::spawn(async move {
            let made = within(until, pin!(connect::commands(&config, &channel))).await;
            made.unwrap_or(Err(Fault::Silence))
        });
        Attempt { task, until }
    }

    fn usable(&self) -> Option<Found> {
        let mut slot = self.slot();
        if slot.silent.is_some_and(|since| since.until(clock::now()) > MAX_SILENCE) {
            slot.conn = None;
            slot.silent = None;
        }
        let number = slot.number;
        slot.conn.clone().map(|conn| Found { conn, number })
    }

    /// Closes the present connection, whose replies cannot be trusted.
    pub(in crate::stores) fn close_current(&self) {
        let number = self.slot().number;
        self.discard(number);
    }

    /// Closes a connection to new calls; calls that wait for a reply over it may still get one.
    fn discard(&self, number: u64) {
        let mut slot = self.slot();
        if slot.number == number {
            slot.conn = None;
            slot.silent = None;
        }
    }
}

impl Connection {
    /// Every key that matches the pattern, on every server; some perhaps twice.
    pub(in crate::stores) async fn scan(&self, pattern: &str) -> Result<Vec<String>, Fault> {
        let limit = clock::now().after(self.config.timeout * 5);
        let scanning = async {
            // Most often the server has closed an idle connection: retry on a new one.
            match self.scan_once(pattern).await {
                Err(Fault::Broken(..)) => self.scan_once(pattern).await,
                other => other,
            }
        };
        within(limit, scanning).await.unwrap_or(Err(Fault::Silence))
    }

    async fn scan_once(&self, pattern: &str) -> Result<Vec<String>, Fault> {
        let Found { conn, number, .. } = self.conn().await?;
        let found = conn.scan(pattern).await;
        if found.as_ref().is_err_and(Fault::breaks) {
            self.discard(number);
        }
        found
    }
}

/// A call in flight, which records on drop whether it had a reply.
struct CallInFlight<'a> {
    connection: &'a Connection,
    number: u64,
    answered: bool,
}

impl Drop for CallInFlight<'_> {
    fn drop(&mut self) {
        let mut slot = self.connection.slot();
        if slot.number != self.number {
            return;
        }
        if self.answered {
            slot.silent = None;
        } else if slot.silent.is_none() {
            slot.silent = Some(clock::now());
        }
    }
}
