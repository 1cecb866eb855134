//! The store `redis:`: lines kept in Redis (6.2 or later) or Valkey, by scripts that the server
//! runs atomically. See `lua/enter_one.lua` and `lua/queue.lua` for the layout of a line.
//!
//! Entering, keeping and leaving are one round trip each, and their cost does not grow with the
//! number of waiters or holders. Leases are measured by the server's clock.
//!
//! ```text
//! config.rs       the options of the URL
//! batcher.rs      several operations in one call; scripts.rs: the scripts
//! encode.rs       arguments of scripts; decode.rs: snapshots; errors.rs: what faults mean
//! keys.rs         names to keys
//! pubsub.rs       notices; channels.rs: the channels of locks
//! evictions.rs    notes about evictions
//! examine.rs      what the guide warns of, looked for on each server
//! ```
//!
//! The connections are those of `holdline-redis-client`.
//!
//! The layouts of other libraries (`?scheme=`) are in `stores/single_key`.

mod batcher;
pub(in crate::stores) mod channels;
pub(in crate::stores) mod config;
mod decode;
pub(in crate::stores) mod encode;
pub(in crate::stores) mod errors;
pub(in crate::stores) mod evictions;
#[cfg(feature = "doctor")]
mod examine;
pub(in crate::stores) mod keys;
#[cfg(test)]
mod model;
pub(in crate::stores) mod pubsub;
mod scripts;

use crate::error::{Error, ErrorKind, Result};
use crate::names::{self, Name};
use crate::store::{
    AsyncStore, Capabilities, Enter, LossHint, QueueSnapshot, Seq, Standing, Store, Ticket,
    TicketId, refuse,
};
use crate::stores::queue::in_flight::{InFlight, outcome_unknown};
use crate::stores::single_key::{KeyLayout, Redisson, SingleKey, Strings};
use crate::stores::{opening, queue};
use batcher::{Batcher, Operation, Step};
use config::{Config, Layout};
use encode::{describe, digits, letter, millis, standing, tail, wants};
#[cfg(feature = "doctor")]
pub(crate) use examine::examine;
use futures_util::{StreamExt, TryStreamExt};
use holdline_redis_client::{Connection, Fault, Kind, Script, what_answers};
use pubsub::PubSub;
use redis::{Cmd, Value};
use scripts::{BUSY, EVICT, LOOK};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Locks on a Redis or Valkey server, or several of them in a cluster or behind sentinels.
pub struct Redis {
    shared: Arc<Shared>,
    batcher: Arc<Batcher>,
}

/// The state of a store and its background handles.
struct Shared {
    config: Config,
    pubsub: PubSub,
    in_flight: Arc<InFlight>,
    address: String,
}

/// How long a ticket that left with an `enter` unanswered is barred. After that the request has
/// been carried out, or never will be.
const BAR_TIME: Duration = Duration::from_secs(60);

/// The most lines in one request that asks which of them are in use.
const MOST_ASKED: usize = 256;

impl Redis {
    fn new(config: Config) -> Result<Redis> {
        let channel = format!("{}wake:{:032x}", config.prefix, names::random()?);
        // In a cluster a message would go to every node.
        let cluster = config.servers.kind == Kind::Cluster;
        let reply_order_channel = if cluster { String::new() } else { format!("{channel}:order") };
        let (servers, idle) = (Arc::clone(&config.servers), config.kept.idle);
        let shared = Shared {
            pubsub: PubSub::new(Arc::clone(&servers), Some(channel), |_| false),
            in_flight: Arc::default(),
            address: servers.address(),
            config,
        };
        Ok(Redis {
            shared: Arc::new(shared),
            batcher: Batcher::new(servers, idle, reply_order_channel),
        })
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
        with_retry(|| self.batcher.connection.run(script, size, &all)).await
    }

    /// Runs an operation on a line, possibly in a batch.
    async fn step(&self, line: &Name, operation: Operation) -> Result<Answer, Fault> {
        let key = keys::line(&self.shared.config.prefix, line);
        let step = Arc::new(Step { key, operation });
        with_retry(|| self.batcher.ask(&step)).await
    }

    /// The names among these whose lines have a live place.
    async fn busy(&self, names: Vec<Name>) -> Result<Vec<Name>> {
        let key = |name| keys::line(&self.shared.config.prefix, name);
        let keys: Vec<String> = names.iter().map(key).collect();
        let all = |command: &mut Cmd| {
            command.arg(keys.len()).arg(&keys);
        };
        let connection = &self.batcher.connection;
        let size = keys.iter().map(|key| key.len() + 16).sum();
        let answer = with_retry(|| connection.run(&BUSY, size, &all)).await;
        let explain = |fault| errors::explain(fault, &self.shared.address, "the list of locks");
        let value = match answer.map_err(explain) {
            Ok(answer) => answer.value,
            Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
            Err(_) if names.len() == 1 => return Ok(Vec::new()), // it is no line
            Err(_) => {
                let each = names.into_iter().map(|name| Box::pin(self.busy(vec![name])));
                return futures_util::stream::iter(each).buffered(64).try_concat().await;
            }
        };
        let Value::Array(numbers) = &value else {
            return Err(self.invalid_reply(&names[0], &value));
        };
        let name = |number: &Value| match number {
            Value::Int(number) => names.get(usize::try_from(*number).ok()?.checked_sub(1)?),
            _ => None,
        };
        Ok(numbers.iter().filter_map(name).cloned().collect())
    }

    fn explain(&self, fault: Fault, line: &Name) -> Error {
        errors::explain(fault, &self.shared.address, &format!("lock \"{line}\""))
    }

    /// The error for a reply of the wrong form. The connection is closed as well: later replies on
    /// it may belong to other calls.
    fn invalid_reply(&self, line: &Name, answer: &Value) -> Error {
        self.batcher.connection.close_current();
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

/// The reply of a script, and the fault of an earlier attempt that may have run it too, or may yet
/// do so.
pub(in crate::stores) struct Answer {
    pub(in crate::stores) value: Value,
    pub(in crate::stores) doubt: Option<Fault>,
}

/// Sends a request, and retries once if the connection breaks, usually because the server has
/// closed an idle connection. Every operation is idempotent. If both attempts fail, what the first
/// may have done must be known above all.
pub(in crate::stores) async fn with_retry<F>(ask: impl Fn() -> F) -> Result<Answer, Fault>
where
    F: Future<Output = Result<Value, Fault>>,
{
    let first = match ask().await {
        Err(fault @ Fault::Broken(..)) => fault,
        other => return other.map(|value| Answer { value, doubt: None }),
    };
    let doubt = Some(first).filter(Fault::in_doubt);
    match ask().await {
        Ok(value) => Ok(Answer { value, doubt }),
        Err(second) => Err(doubt.filter(|_| !second.in_doubt()).unwrap_or(second)),
    }
}

impl AsyncStore for Redis {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        let Shared { pubsub, in_flight, .. } = &*self.shared;
        let request = match how {
            Enter::Keep(_) => None, // never takes a place, however late it is carried out
            Enter::Try | Enter::Queue => Some(in_flight.begin(ticket.id)),
        };
        let unsubscribed = how == Enter::Queue && !pubsub.is_on();
        let operation = Operation::Enter {
            wants: wants(ticket, how, self.shared.config.kept),
            way: letter(how),
            tail: tail(ticket.id, pubsub.channel(), note),
        };
        let answer = self.step(line, operation).await;
        // Not sooner: the first lock must not wait for it.
        pubsub.open();
        match answer {
            Ok(answer) => {
                // A reply that makes no sense may be that to another request.
                let standing = standing(ticket, how, &answer.value)
                    .ok_or_else(|| self.invalid_reply(line, &answer.value))?;
                if let Some(request) = request.filter(|_| answer.doubt.is_none()) {
                    request.answered();
                }
                if unsubscribed && matches!(standing, Ok(Standing::Waiting { .. })) {
                    pubsub.catch_up(ticket.id);
                }
                if let Some(fault) = answer.doubt
                    && matches!(standing, Ok(Standing::Waiting { seq: None, .. }))
                {
                    // The earlier attempt may yet take a place, which the caller must give up.
                    return Err(self.explain(fault, line));
                }
                standing.map_err(|refusal| refuse(line, ticket, refusal))
            }
            Err(fault) => {
                if let Some(request) = request.filter(|_| !fault.in_doubt()) {
                    request.answered();
                }
                Err(self.explain(fault, line))
            }
        }
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let in_flight = &self.shared.in_flight;
        let barred = in_flight.in_doubt(id);
        let operation =
            Operation::Leave { id: digits(id), bar: barred.then_some(BAR_TIME.as_micros() as u64) };
        let answer = self.step(line, operation).await;
        let answer = answer.map_err(|fault| self.explain(fault, line))?;
        if barred && matches!(answer.value, Value::Int(0 | 1)) {
            in_flight.forget(id);
        }
        match answer.value {
            Value::Int(1) => Ok(true),
            // The first attempt, whose reply was lost, may have removed the place.
            Value::Int(0) if answer.doubt.is_some() => {
                Err(outcome_unknown(&self.shared.address, line))
            }
            Value::Int(0) => Ok(false),
            other => Err(self.invalid_reply(line, &other)),
        }
    }

    async fn watch(&self, _line: &Name, id: TicketId) -> Result<Option<Seq>> {
        self.shared.pubsub.open();
        Ok(self.shared.pubsub.waiters().wait(id).await)
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let answer = self.run(&LOOK, line, &|_| {}).await;
        let answer = answer.map_err(|fault| self.explain(fault, line))?;
        decode::read(&answer.value).ok_or_else(|| self.foreign(line))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let pattern = keys::pattern(&self.shared.config.prefix, prefix);
        let explain = |fault| errors::explain(fault, &self.shared.address, "the list of locks");
        let keys = self.batcher.connection.scan(&pattern).await.map_err(explain)?;
        let mut names: Vec<Name> = keys
            .iter()
            .filter_map(|key| keys::name(&self.shared.config.prefix, key))
            .filter(|name| name.as_str().starts_with(prefix))
            .collect();
        names.sort();
        names.dedup();
        let in_cluster = self.shared.config.servers.kind == Kind::Cluster;
        let some = names.chunks(if in_cluster { 1 } else { MOST_ASKED });
        let some: Vec<Vec<Name>> = some.map(<[Name]>::to_vec).collect();
        let busy = futures_util::stream::iter(some.into_iter().map(|names| self.busy(names)));
        busy.buffered(64).try_concat().await
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let kept = self.shared.config.kept;
        let fill = |command: &mut Cmd| {
            command
                .arg(&digits(id))
                .arg(millis(kept.idle))
                .arg("")
                .arg(0)
                .arg(note)
                .arg(kept.clock_span.as_micros().to_string());
        };
        let answer = self.run(&EVICT, line, &fill).await;
        let answer = answer.map_err(|fault| self.explain(fault, line))?;
        match answer.value {
            Value::Int(token) if token > 0 => Ok(Some(Seq(token.unsigned_abs()))),
            // The first attempt, whose reply was lost, may have removed it.
            Value::Nil if answer.doubt.is_some() => {
                Err(outcome_unknown(&self.shared.address, line))
            }
            Value::Nil => Ok(None),
            other => Err(self.invalid_reply(line, &other)),
        }
    }

    fn capabilities(&self) -> Capabilities {
        // Replication is asynchronous, and the default is not to sync every write.
        queue::CAPABILITIES
    }

    fn background_handle(&self) -> Self {
        let Config { servers, kept, .. } = &self.shared.config;
        let batcher = Batcher::new(Arc::clone(servers), kept.idle, String::new());
        Redis { shared: Arc::clone(&self.shared), batcher }
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        self.shared.pubsub.on_loss_hint(loss_hint);
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

/// Opens the store at a URL of this scheme (`rest` follows the colon), and checks that it is
/// usable, within the time limit of one request. If it is unreachable, the error says which other
/// service listens there, if that is found in time.
pub(crate) async fn open(scheme: &str, rest: &str) -> Result<Arc<dyn Store>> {
    let config = Config::read(scheme, rest)?;
    let servers = Arc::clone(&config.servers);
    let silent = Fault::Silence.explain(&servers.address()).into();
    let servers = &*servers;
    let foreign = || async move { what_answers(servers).await.map(Error::from) };
    let (limit, patience) = (servers.timeout, opening::patience(servers.timeout));
    opening::open(limit, patience, Box::pin(connect(config)), silent, foreign).await
}

async fn connect(mut config: Config) -> Result<Arc<dyn Store>> {
    if config.layout == Layout::Line {
        let store = Redis::new(config)?;
        store.batcher.connection.check(&store.shared.address).await?;
        return Ok(Arc::new(store));
    }
    let connection = Connection::new(Arc::clone(&config.servers), String::new());
    connection.check(&config.servers.address()).await?;
    let cluster = config.servers.kind == Kind::Cluster;
    let layout: Box<dyn KeyLayout> = if config.layout == Layout::Redisson {
        let sharded = if cluster {
            connection.shards().await.map_err(|fault| fault.explain(&config.servers.address()))?
        } else {
            false
        };
        Arc::make_mut(&mut config.servers).sharded = sharded;
        Box::new(Redisson { sharded, cluster })
    } else {
        // In a cluster each node notifies only of its own keys, and only its own subscribers.
        let notified = !cluster && connection.tells_of_keys().await;
        let notified_db = notified.then_some(config.servers.db);
        let (prefix, signals) = (config.prefix.clone(), config.signals.clone());
        Box::new(Strings { notified_db, prefix, signals })
    };
    Ok(Arc::new(SingleKey::new(config, connection, layout)))
}
