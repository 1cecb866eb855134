//! `redis:` lines kept in Redis (6.2 or later) or Valkey, by scripts that the server runs as one
//! step each. See `lua/line.lua` for what a line looks like there.
//!
//! Entering, keeping and leaving are one round trip each, and their cost grows neither with those
//! who wait nor with those who hold. Leases are judged by the server's clock.
//!
//! ```text
//! config.rs  what the URL says          link.rs    the connection for commands, and the scripts
//! keys.rs    names to keys              ears.rs    the connection for notices
//! dial.rs    making connections         flights.rs requests whose fate is unknown
//! fault.rs   errors                     string.rs  the other layout, ?scheme=string
//! ```

mod config;
mod dial;
mod ears;
mod fault;
mod flights;
mod keys;
mod link;
#[cfg(test)]
mod model;
mod string;
mod view;

use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    Alarm, Async, Enter, Promises, Refusal, Seq, Standing, Store, Ticket, TicketId, View, refuse,
};
use config::{Config, Layout};
use ears::Ears;
use fault::Fault;
use flights::Flights;
use futures_util::{StreamExt, TryStreamExt};
use link::{BUSY, ENTER, EVICT, LEAVE, LOOK, Link, Script};
use redis::{Cmd, Value};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Locks on a Redis or Valkey server, or several of them in a cluster or behind sentinels.
pub struct Redis {
    shared: Arc<Shared>,
    link: Link,
}

/// What a store and its twin share.
struct Shared {
    config: Arc<Config>,
    ears: Ears,
    flights: Flights,
    address: String,
}

/// An enter of a ticket that was given up without an answer is refused for so long. By then it has
/// been carried out, or it never will be.
const BAR: Duration = Duration::from_secs(60);

impl Redis {
    fn new(config: Config) -> Result<Redis> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            let message = "the system gave no random numbers, which the Redis store needs";
            Error::because(ErrorKind::Denied, message, error)
        })?;
        let channel = format!("{}wake:{:032x}", config.prefix, u128::from_be_bytes(bytes));
        let config = Arc::new(config);
        let shared = Shared {
            ears: Ears::new(Arc::clone(&config), channel),
            flights: Flights::default(),
            address: config.address(),
            config: Arc::clone(&config),
        };
        Ok(Redis { shared: Arc::new(shared), link: Link::new(config) })
    }

    /// Runs a script on a line. `fill` adds the arguments.
    async fn run(
        &self,
        script: &Script,
        line: &Name,
        fill: &(dyn Fn(&mut Cmd) + Sync),
    ) -> Result<Answer, Fault> {
        let key = keys::line(&self.shared.config.prefix, line);
        let all = |command: &mut Cmd| {
            command.arg(1).arg(&key);
            fill(command);
        };
        let size = key.len() + 512;
        match self.link.run(script, size, &all).await {
            // Every operation may be repeated. Most often the server has closed an idle connection.
            Err(fault @ Fault::Broken(..)) => {
                let value = self.link.run(script, size, &all).await?;
                Ok(Answer { value, repeated: fault.in_doubt() })
            }
            other => other.map(|value| Answer { value, repeated: false }),
        }
    }

    fn explain(&self, fault: Fault, line: &Name) -> Error {
        fault.explain(&self.shared.address, &format!("lock \"{line}\""))
    }

    async fn do_enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &str,
        how: Enter,
    ) -> Result<Standing> {
        if ticket.weight == 0 || ticket.weight > ticket.capacity {
            return Err(refuse(line, ticket, Refusal::Weight));
        }
        let Shared { ears, flights, .. } = &*self.shared;
        let flight = match how {
            Enter::Keep(_) => None, // never takes a place, however late it is carried out
            Enter::Try | Enter::Queue => Some(flights.begin(ticket.id)),
        };
        match how {
            Enter::Queue => ears.ready().await,
            Enter::Try | Enter::Keep(_) => ears.open(),
        }
        let idle = self.shared.config.idle;
        let (wants, life) = (wants(ticket, how, idle), millis(ticket.lease + idle) + 1);
        let words = format!("{} {note}", ears.channel());
        let fill = |command: &mut Cmd| {
            command.arg(&digits(ticket.id)).arg(&wants[..]).arg(&words).arg(life);
        };
        match self.run(&ENTER, line, &fill).await {
            Ok(answer) => {
                if let Some(flight) = flight.filter(|_| !answer.repeated) {
                    flight.landed();
                }
                standing(ticket, &answer.value)
                    .ok_or_else(|| self.nonsense(line))?
                    .map_err(|refusal| refuse(line, ticket, refusal))
            }
            Err(fault) => {
                if let Some(flight) = flight.filter(|_| !fault.in_doubt()) {
                    flight.landed();
                }
                Err(self.explain(fault, line))
            }
        }
    }

    async fn do_leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let flights = &self.shared.flights;
        let barred = flights.in_doubt(id);
        let fill = |command: &mut Cmd| {
            command.arg(&digits(id)).arg(millis(self.shared.config.idle));
            if barred {
                command.arg(BAR.as_micros() as u64);
            }
        };
        let answer = self.run(&LEAVE, line, &fill).await;
        let answer = answer.map_err(|fault| self.explain(fault, line))?;
        if barred {
            flights.forget(id);
        }
        match answer.value {
            Value::Int(1) => Ok(true),
            // Perhaps it was the first attempt, whose reply was lost, that gave the place up.
            Value::Int(0) if answer.repeated => Err(half_known(&self.shared.address, line)),
            Value::Int(0) => Ok(false),
            _ => Err(self.nonsense(line)),
        }
    }

    async fn do_evict(&self, line: &Name, id: TicketId, reason: &str) -> Result<Option<Seq>> {
        let fill = |command: &mut Cmd| {
            command.arg(&digits(id)).arg(millis(self.shared.config.idle)).arg(0);
        };
        let answer = self.run(&EVICT, line, &fill).await;
        match answer.map_err(|fault| self.explain(fault, line))?.value {
            Value::Int(token) => {
                tracing::info!(name = %line, reason, "place removed by force");
                Ok(Some(Seq(token.unsigned_abs())))
            }
            Value::Nil => Ok(None),
            _ => Err(self.nonsense(line)),
        }
    }

    async fn do_look(&self, line: &Name) -> Result<View> {
        let key = keys::line(&self.shared.config.prefix, line);
        let fill = |command: &mut Cmd| {
            command.arg(1).arg(&key);
        };
        let value = self.link.run(&LOOK, key.len() + 64, &fill).await;
        let value = value.map_err(|fault| self.explain(fault, line))?;
        view::read(&value).ok_or_else(|| self.nonsense(line))
    }

    async fn do_list(&self, prefix: &str) -> Result<Vec<Name>> {
        let pattern = keys::pattern(&self.shared.config.prefix, prefix);
        let explain = |fault: Fault| fault.explain(&self.shared.address, "the list of locks");
        let keys = self.link.scan(&pattern).await.map_err(explain)?;
        let mut names: Vec<Name> = keys
            .iter()
            .filter_map(|key| keys::name(&self.shared.config.prefix, key))
            .filter(|name| name.as_str().starts_with(prefix))
            .collect();
        names.sort();
        names.dedup();
        let busy = futures_util::stream::iter(names.into_iter().map(|name| async {
            let answer = self.run(&BUSY, &name, &|_| {}).await.map_err(explain)?;
            Ok((answer.value == Value::Int(1)).then_some(name))
        }));
        let found: Vec<Option<Name>> = busy.buffered(64).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    fn nonsense(&self, line: &Name) -> Error {
        let message = format!(
            "{} gave an answer about lock \"{line}\" that makes no sense; is it a Redis or Valkey \
             server?",
            self.shared.address
        );
        Error::new(ErrorKind::Corrupt, message)
    }
}

fn half_known(address: &str, line: &Name) -> Error {
    let message = format!(
        "the connection to {address} broke while lock \"{line}\" was released; it is not held any \
         more, but it is not known whether it was held until then"
    );
    Error::new(ErrorKind::Unknown, message)
}

/// What a script answered, and whether it may have been run before.
struct Answer {
    value: Value,
    repeated: bool,
}

/// What a ticket wants, as `enter_one.lua` unpacks it: eight numbers, in one argument because each
/// costs the server time.
fn wants(ticket: &Ticket, how: Enter, idle: Duration) -> [u8; 64] {
    let how = match how {
        Enter::Try => -1.0,
        Enter::Queue => -2.0,
        Enter::Keep(Seq(seq)) => seq as f64,
    };
    // Whole microseconds, at least as long.
    let micros = |time: Duration| time.as_nanos().div_ceil(1000) as f64;
    let numbers = [
        f64::from(ticket.weight),
        f64::from(ticket.capacity),
        micros(ticket.lease),
        micros(ticket.patience),
        f64::from(ticket.span),
        how,
        micros(idle),
        ticket.floor as f64,
    ];
    let mut packed = [0; 64];
    for (bytes, number) in packed.chunks_exact_mut(8).zip(numbers) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    packed
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// An id as it is written in the server.
fn digits(id: TicketId) -> [u8; 32] {
    let mut digits = [0; 32];
    for (n, digit) in digits.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(id.0 >> (124 - 4 * n)) as usize & 15];
    }
    digits
}

/// Reads the answer of `enter.lua`; nothing if it makes no sense.
fn standing(ticket: &Ticket, value: &Value) -> Option<Result<Standing, Refusal>> {
    if let Value::Int(seq) = value {
        return Some(Ok(Standing::Admitted(Seq(u64::try_from(*seq).ok()?))));
    }
    let Value::Array(items) = value else { return None };
    let number = |at: usize| match items.get(at) {
        Some(Value::Int(number)) => Some(*number),
        _ => None,
    };
    let seq = |at| number(at).and_then(|seq| u64::try_from(seq).ok());
    Some(Ok(match number(0)? {
        1 => {
            let keep = ticket.patience / 3;
            let wait = match number(2)? {
                due if due < 0 => keep,
                due => keep.min(Duration::from_micros(due.unsigned_abs())),
            };
            let seq = Some(Seq(seq(1)?)).filter(|seq| seq.0 > 0);
            Standing::Waiting { seq, again: wait.max(Duration::from_millis(2)) }
        }
        2 => Standing::Lost,
        3 => return Some(Err(Refusal::Capacity { line: u32::try_from(number(1)?).ok()? })),
        4 => return Some(Err(Refusal::Weight)),
        5 => return Some(Err(Refusal::Exhausted)),
        _ => return None,
    }))
}

impl Store for Redis {
    fn enter<'a>(
        &'a self,
        line: &'a Name,
        ticket: &'a Ticket,
        note: &'a Arc<str>,
        how: Enter,
    ) -> Async<'a, Standing> {
        Box::pin(self.do_enter(line, ticket, note, how))
    }

    fn leave<'a>(&'a self, line: &'a Name, id: TicketId) -> Async<'a, bool> {
        Box::pin(self.do_leave(line, id))
    }

    fn watch<'a>(&'a self, _line: &'a Name, id: TicketId) -> Async<'a, ()> {
        Box::pin(async move {
            self.shared.ears.open();
            self.shared.ears.wakes().wait(id).await;
            Ok(())
        })
    }

    fn look<'a>(&'a self, line: &'a Name) -> Async<'a, View> {
        Box::pin(self.do_look(line))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Async<'a, Vec<Name>> {
        Box::pin(self.do_list(prefix))
    }

    fn evict<'a>(
        &'a self,
        line: &'a Name,
        id: TicketId,
        reason: &'a str,
    ) -> Async<'a, Option<Seq>> {
        Box::pin(self.do_evict(line, id, reason))
    }

    fn promises(&self) -> Promises {
        Promises {
            queues: true,
            fences: true,
            wakes: true,
            weights: true,
            spans: true,
            crash_release: false,
            survives_failover: false, // replication is asynchronous
            survives_restart: false,  // unless the server syncs every write: not the default
            lease_min: Duration::from_millis(100),
            lease_max: Duration::from_secs(24 * 3600),
        }
    }

    fn twin(&self) -> Arc<dyn Store> {
        let link = Link::new(Arc::clone(&self.shared.config));
        Arc::new(Redis { shared: Arc::clone(&self.shared), link })
    }

    fn alarm(&self, alarm: Alarm) {
        self.shared.ears.alarm(alarm);
    }

    fn address(&self) -> String {
        self.shared.address.clone()
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.address)
    }
}

/// Opens the store at a URL of this scheme, of which `rest` follows the colon, and makes sure that
/// it can be used.
pub(crate) async fn open(scheme: &str, rest: &str) -> Result<Arc<dyn Store>> {
    let config = Config::read(scheme, rest)?;
    match config.layout {
        Layout::Line => {
            let store = Redis::new(config)?;
            store.link.check(&store.shared.address).await?;
            Ok(Arc::new(store))
        }
        Layout::String => string::open(config).await,
    }
}
