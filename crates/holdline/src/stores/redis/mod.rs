//! `redis:` lines kept in Redis (6.2 or later) or Valkey, by scripts that the server runs as one
//! step each. See `lua/enter_one.lua` and `lua/many.lua` for what a line looks like there.
//!
//! Entering, keeping and leaving are one round trip each, and their cost grows neither with those
//! who wait nor with those who hold. Leases are judged by the server's clock.
//!
//! ```text
//! config.rs  what the URL says          link.rs    the connection for commands, and the scripts
//! desk.rs    calls put together
//! keys.rs    names to keys              ears.rs    the connection for notices
//! dial.rs    making connections         flights.rs requests whose fate is unknown
//! checks.rs  what a server is asked at opening
//! scan.rs    keys that fit a pattern
//! fault.rs   errors                     topics.rs  the channels of locks, notices.rs their kinds
//! wire.rs    what is sent and answered       plain.rs  others' layouts: string.rs, redisson.rs
//! probe.rs   what listens at an address, if it is no Redis server
//! ```

mod checks;
mod config;
mod desk;
mod dial;
mod ears;
mod evictions;
mod fault;
mod flights;
mod keys;
mod link;
#[cfg(test)]
mod model;
mod notices;
mod plain;
mod probe;
mod redisson;
mod scan;
mod string;
mod topics;
mod view;
mod wire;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    Alarm, Async, Enter, Promises, Refusal, Seq, Standing, Store, Ticket, TicketId, View, refuse,
};
use config::{Config, Kind, Layout};
use desk::{Desk, Step, Verb};
use ears::Ears;
use fault::Fault;
use flights::Flights;
use futures_util::{StreamExt, TryStreamExt};
use link::{BUSY, EVICT, LOOK, Link, Script};
use plain::{Form, Plain};
use redis::{Cmd, Value};
use redisson::Redisson;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use string::Strings;
use wire::{describe, digits, millis, standing, tail, wants};

/// Locks on a Redis or Valkey server, or several of them in a cluster or behind sentinels.
pub struct Redis {
    shared: Arc<Shared>,
    desk: Arc<Desk>,
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

/// When opening has taken so long, it is asked what is there.
const SUSPICIOUS: Duration = Duration::from_millis(700);

impl Redis {
    fn new(config: Config) -> Result<Redis> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            let message = "the system gave no random numbers, which the Redis store needs";
            Error::because(ErrorKind::Denied, message, error)
        })?;
        let channel = format!("{}wake:{:032x}", config.prefix, u128::from_be_bytes(bytes));
        // In a cluster a message goes to every node.
        let cluster = config.kind == Kind::Cluster;
        let cue = if cluster { String::new() } else { format!("{channel}:cue") };
        let config = Arc::new(config);
        let shared = Shared {
            ears: Ears::new(Arc::clone(&config), Some(channel), |_| false),
            flights: Flights::default(),
            address: config.address(),
            config: Arc::clone(&config),
        };
        Ok(Redis { shared: Arc::new(shared), desk: Desk::new(config, cue) })
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
        twice(|| self.desk.link.run(script, size, &all)).await
    }

    /// Does something to a line, perhaps together with what others ask for.
    async fn step(&self, line: &Name, verb: Verb) -> Result<Answer, Fault> {
        let key = keys::line(&self.shared.config.prefix, line);
        let step = Arc::new(Step { key, verb });
        twice(|| self.desk.ask(&step)).await
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
        let verb = Verb::Enter {
            wants: wants(ticket, how, idle),
            tail: tail(ticket.id, ears.channel(), note),
        };
        match self.step(line, verb).await {
            Ok(answer) => {
                if let Some(flight) = flight.filter(|_| !answer.repeated) {
                    flight.landed();
                }
                standing(ticket, how, &answer.value)
                    .ok_or_else(|| self.nonsense(line, &answer.value))?
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
        let verb = Verb::Leave {
            id: digits(id),
            rest: millis(self.shared.config.idle),
            bar: barred.then_some(BAR.as_micros() as u64),
        };
        let answer = self.step(line, verb).await;
        let answer = answer.map_err(|fault| self.explain(fault, line))?;
        if barred {
            flights.forget(id);
        }
        match answer.value {
            Value::Int(1) => Ok(true),
            // Perhaps it was the first attempt, whose reply was lost, that gave the place up.
            Value::Int(0) if answer.repeated => Err(half_known(&self.shared.address, line)),
            Value::Int(0) => Ok(false),
            other => Err(self.nonsense(line, &other)),
        }
    }

    async fn do_evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let fill = |command: &mut Cmd| {
            command.arg(&digits(id)).arg(millis(self.shared.config.idle)).arg("").arg(0).arg(note);
        };
        let answer = self.run(&EVICT, line, &fill).await;
        let answer = answer.map_err(|fault| self.explain(fault, line))?;
        match answer.value {
            Value::Int(token) if token > 0 => Ok(Some(Seq(token.unsigned_abs()))),
            // Perhaps it was the first attempt, whose reply was lost, that removed it.
            Value::Nil if answer.repeated => Err(half_known(&self.shared.address, line)),
            Value::Nil => Ok(None),
            other => Err(self.nonsense(line, &other)),
        }
    }

    async fn do_look(&self, line: &Name) -> Result<View> {
        let answer = self.run(&LOOK, line, &|_| {}).await;
        let answer = answer.map_err(|fault| self.explain(fault, line))?;
        view::read(&answer.value).ok_or_else(|| self.foreign(line))
    }

    async fn do_list(&self, prefix: &str) -> Result<Vec<Name>> {
        let pattern = keys::pattern(&self.shared.config.prefix, prefix);
        let explain = |fault: Fault| fault.explain(&self.shared.address, "the list of locks");
        let keys = self.desk.link.scan(&pattern).await.map_err(explain)?;
        let mut names: Vec<Name> = keys
            .iter()
            .filter_map(|key| keys::name(&self.shared.config.prefix, key))
            .filter(|name| name.as_str().starts_with(prefix))
            .collect();
        names.sort();
        names.dedup();
        let busy = futures_util::stream::iter(names.into_iter().map(|name| async {
            match self.run(&BUSY, &name, &|_| {}).await.map_err(explain) {
                Ok(answer) => Ok((answer.value == Value::Int(1)).then_some(name)),
                Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None), // no line
                Err(error) => Err(error),
            }
        }));
        let found: Vec<Option<Name>> = busy.buffered(64).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The connection is given up as well: whatever else comes over it may belong to another call.
    fn nonsense(&self, line: &Name, answer: &Value) -> Error {
        self.desk.link.distrust();
        let message = format!(
            "{} gave an answer about lock \"{line}\" that makes no sense: {}; is it a Redis or \
             Valkey server?",
            self.shared.address,
            describe(answer)
        );
        Error::new(ErrorKind::Corrupt, message)
    }

    fn foreign(&self, line: &Name) -> Error {
        let message = format!(
            "{}: the key of lock \"{line}\" holds something else, which was not written by this \
             version of holdline; choose another prefix, or remove that key",
            self.shared.address
        );
        Error::new(ErrorKind::Corrupt, message)
    }
}

fn half_known(address: &str, line: &Name) -> Error {
    let message = format!(
        "the connection to {address} broke while a place in lock \"{line}\" was given up; it is \
         not there any more, but it is not known whether it was there until then"
    );
    Error::new(ErrorKind::Unknown, message)
}

/// What a script answered, and whether it may have been run before.
struct Answer {
    value: Value,
    repeated: bool,
}

/// Asks, and once more if the connection breaks: every operation may be repeated. Most often the
/// server has closed an idle connection.
async fn twice<F>(ask: impl Fn() -> F) -> Result<Answer, Fault>
where
    F: Future<Output = Result<Value, Fault>>,
{
    match ask().await {
        Err(fault @ Fault::Broken(..)) => {
            let value = ask().await?;
            Ok(Answer { value, repeated: fault.in_doubt() })
        }
        other => other.map(|value| Answer { value, repeated: false }),
    }
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

    fn watch<'a>(&'a self, _line: &'a Name, id: TicketId) -> Async<'a, Option<Seq>> {
        Box::pin(async move {
            self.shared.ears.open();
            let seq = self.shared.ears.wakes().wait(id).await;
            // No replica has confirmed it yet.
            Ok(seq.filter(|_| self.shared.config.ack.is_none()))
        })
    }

    fn look<'a>(&'a self, line: &'a Name) -> Async<'a, View> {
        Box::pin(self.do_look(line))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Async<'a, Vec<Name>> {
        Box::pin(self.do_list(prefix))
    }

    fn evict<'a>(&'a self, line: &'a Name, id: TicketId, note: &'a str) -> Async<'a, Option<Seq>> {
        Box::pin(self.do_evict(line, id, note))
    }

    fn promises(&self) -> Promises {
        Promises {
            queues: true,
            fences: true,
            wakes: true,
            weights: true,
            spans: true,
            swaps: false,
            crash_release: false,
            survives_failover: false, // replication is asynchronous
            survives_restart: false,  // unless the server syncs every write: not the default
            lease_min: Duration::from_millis(100),
            lease_max: Duration::from_secs(24 * 3600),
        }
    }

    fn twin(&self) -> Arc<dyn Store> {
        let desk = Desk::new(Arc::clone(&self.shared.config), String::new());
        Arc::new(Redis { shared: Arc::clone(&self.shared), desk })
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
/// it can be used: within the time that one request may take. If it cannot be reached, the error
/// says what is there instead, as far as that can be found out soon.
pub(crate) async fn open(scheme: &str, rest: &str) -> Result<Arc<dyn Store>> {
    let config = Config::read(scheme, rest)?;
    let limit = clock::now().after(config.timeout);
    let why = async {
        clock::pause(SUSPICIOUS.min(config.timeout / 2)).await;
        probe::why(&config).await
    };
    let error = tokio::select! {
        opened = Box::pin(connect(config.clone())) => match opened {
            Err(error) if error.retryable() => error,
            opened => return opened,
        },
        Some(error) = why => return Err(error),
        () = clock::sleep_until(limit) => Fault::Silence.explain(&config.address(), ""),
    };
    Err(clock::within(limit, probe::why(&config)).await.flatten().unwrap_or(error))
}

async fn connect(mut config: Config) -> Result<Arc<dyn Store>> {
    if config.layout == Layout::Line {
        let store = Redis::new(config)?;
        store.desk.link.check(&store.shared.address).await?;
        return Ok(Arc::new(store));
    }
    let link = Link::new(Arc::new(config.clone()), String::new());
    link.check(&config.address()).await?;
    let cluster = config.kind == Kind::Cluster;
    let form: Box<dyn Form> = if config.layout == Layout::Redisson {
        config.sharded = cluster && link.shards().await;
        Box::new(Redisson { sharded: config.sharded, cluster })
    } else {
        // In a cluster each node tells only of its own keys, and only to those who ask it.
        let tells = !cluster && link.tells_of_keys().await;
        Box::new(Strings { tells: tells.then_some(config.db) })
    };
    Ok(Arc::new(Plain::new(Arc::new(config), link, form)))
}
