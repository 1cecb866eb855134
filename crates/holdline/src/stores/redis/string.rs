//! `?scheme=string`: a lock is a string with an expiry, under the lock's own name, as redsync,
//! node-redlock, redis-py's `Lock`, bsm/redislock and many others have it. So they all share locks.
//!
//! The value is the ticket's id, unique to the attempt, and then the note; theirs is whatever they
//! like. Release is compare-and-delete, renewal compare-and-extend. A request whose answer was lost
//! is settled by asking again: ours, nobody's, or somebody else's.
//!
//! That is all that such a lock can do: nobody queues, so waiters poll and any of them may be next;
//! there are no fencing tokens (each is 0); no semaphores or read-write locks. A request that was
//! given up unanswered and that the server carries out later holds the lock for one lease.

use super::config::Config;
use super::fault::Fault;
use super::link::{Link, STRING_ENTER, STRING_LEAVE, STRING_LOOK, Script};
use super::{digits, ears::id_of, keys, millis};
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    Alarm, Async, Enter, Promises, Refusal, Seq, Standee, Standing, Store, Ticket, TicketId, View,
    refuse,
};
use redis::{Cmd, Value};
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

struct Strings {
    config: Arc<Config>,
    link: Link,
    address: String,
}

/// The one token of a store without tokens.
const NO_TOKEN: Seq = Seq(0);
/// The longest lease; also how long a lock without an end is said to last.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

pub(super) async fn open(config: Config) -> Result<Arc<dyn Store>> {
    let config = Arc::new(config);
    let address = config.address();
    let store = Strings { link: Link::new(Arc::clone(&config)), config, address };
    store.link.check(&store.address).await?;
    Ok(Arc::new(store))
}

impl Strings {
    fn key(&self, line: &Name) -> String {
        format!("{}{line}", self.config.prefix)
    }

    /// Runs a script on a key, again if the connection broke. Says too whether it may have run
    /// before.
    async fn run(
        &self,
        script: &Script,
        key: &str,
        fill: &(dyn Fn(&mut Cmd) + Sync),
    ) -> Result<(Value, bool), Error> {
        let all = |command: &mut Cmd| {
            command.arg(1).arg(key);
            fill(command);
        };
        let explain = |fault: Fault| fault.explain(&self.address, &format!("lock \"{key}\""));
        match self.link.run(script, key.len() + 256, &all).await {
            Err(fault @ Fault::Broken(..)) => {
                let value = self.link.run(script, key.len() + 256, &all).await.map_err(explain)?;
                Ok((value, fault.in_doubt()))
            }
            other => other.map(|value| (value, false)).map_err(explain),
        }
    }

    async fn do_enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &str,
        how: Enter,
    ) -> Result<Standing> {
        if ticket.weight != 1 || ticket.capacity != 1 {
            if ticket.weight == 0 || ticket.weight > ticket.capacity {
                return Err(refuse(line, ticket, Refusal::Weight));
            }
            let message = format!(
                "{} with scheme=string has only plain locks; semaphores and read-write locks need \
                 scheme=line",
                self.address
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let keep = match how {
            Enter::Keep(seq) if seq != NO_TOKEN => return Ok(Standing::Lost),
            Enter::Keep(_) => 1,
            Enter::Try | Enter::Queue => 0,
        };
        let fill = |command: &mut Cmd| {
            let lease = millis(ticket.lease).max(1);
            command.arg(&digits(ticket.id)).arg(lease).arg(note).arg(keep);
        };
        let (value, _) = self.run(&STRING_ENTER, &self.key(line), &fill).await?;
        match value {
            Value::Int(1) => Ok(Standing::Admitted(NO_TOKEN)),
            Value::Int(0) => Ok(Standing::Lost),
            Value::Array(items) => {
                let Some(Value::Int(left)) = items.first() else { return Err(self.nonsense()) };
                let keep = ticket.patience / 3;
                let left = u64::try_from(*left).map_or(keep, Duration::from_millis);
                let again = keep.min(left).max(Duration::from_millis(2));
                Ok(Standing::Waiting { seq: None, again })
            }
            _ => Err(self.nonsense()),
        }
    }

    async fn do_leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let fill = |command: &mut Cmd| {
            command.arg(&digits(id));
        };
        match self.run(&STRING_LEAVE, &self.key(line), &fill).await? {
            (Value::Int(1), _) => Ok(true),
            (Value::Int(0), false) => Ok(false),
            (Value::Int(0), true) => Err(super::half_known(&self.address, line)),
            _ => Err(self.nonsense()),
        }
    }

    /// The value and what is left of its time.
    async fn read(&self, key: &str) -> Result<Option<(String, Duration)>> {
        let (value, _) = self.run(&STRING_LOOK, key, &|_| {}).await?;
        let Value::Array(parts) = value else { return Err(self.nonsense()) };
        match &parts[..] {
            [Value::Nil, _] => Ok(None),
            [Value::BulkString(bytes), Value::Int(left)] => {
                let left = u64::try_from(*left).map_or(LONGEST, Duration::from_millis);
                Ok(Some((String::from_utf8_lossy(bytes).into_owned(), left)))
            }
            _ => Err(self.nonsense()),
        }
    }

    async fn do_look(&self, line: &Name) -> Result<View> {
        let Some((value, expires_in)) = self.read(&self.key(line)).await? else {
            return Ok(View::default());
        };
        let (id, note) = who(&value);
        let holder =
            Standee { id, seq: NO_TOKEN, weight: 1, admitted: true, expires_in, note: note.into() };
        Ok(View { capacity: 1, places: vec![holder] })
    }

    /// Our own locks; and, below a prefix that is for locks, those of others too.
    async fn do_list(&self, prefix: &str) -> Result<Vec<Name>> {
        let pattern = keys::glob(&format!("{}{prefix}", self.config.prefix)) + "*";
        let found = self.link.scan(&pattern).await;
        let found = found.map_err(|fault| fault.explain(&self.address, "the list of locks"))?;
        let mut names = Vec::new();
        for key in found {
            let name = key.strip_prefix(&self.config.prefix).and_then(|name| Name::new(name).ok());
            let Some(name) = name else { continue };
            match self.read(&key).await {
                Ok(Some((value, _))) if !self.config.prefix.is_empty() || is_ours(&value) => {
                    names.push(name);
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Corrupt => {} // no string
                Err(error) => return Err(error),
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    async fn do_evict(&self, line: &Name, id: TicketId) -> Result<Option<Seq>> {
        let key = self.key(line);
        let Some((value, _)) = self.read(&key).await?.filter(|(value, _)| who(value).0 == id)
        else {
            return Ok(None);
        };
        let fill = |command: &mut Cmd| {
            command.arg(&value).arg(1);
        };
        let (gone, _) = self.run(&STRING_LEAVE, &key, &fill).await?;
        Ok((gone == Value::Int(1)).then_some(NO_TOKEN))
    }

    fn nonsense(&self) -> Error {
        let message = format!("{} gave an answer that makes no sense", self.address);
        Error::new(ErrorKind::Corrupt, message)
    }
}

fn is_ours(value: &str) -> bool {
    value.as_bytes().get(..32).and_then(id_of).is_some()
}

/// Whose a value is, and what it says. Somebody else's gets an id that follows from the value.
fn who(value: &str) -> (TicketId, &str) {
    if let Some(id) = value.as_bytes().get(..32).and_then(id_of) {
        return (id, &value[32..]);
    }
    let hash = redis::Script::new(value).get_hash().to_owned();
    (id_of(&hash.as_bytes()[..32]).unwrap_or(TicketId(0)), value)
}

impl Store for Strings {
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

    fn watch<'a>(&'a self, _line: &'a Name, _id: TicketId) -> Async<'a, ()> {
        Box::pin(pending())
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
        _reason: &'a str,
    ) -> Async<'a, Option<Seq>> {
        Box::pin(self.do_evict(line, id))
    }

    fn promises(&self) -> Promises {
        Promises {
            queues: false,
            fences: false,
            wakes: false,
            weights: false,
            spans: false,
            crash_release: false,
            survives_failover: false,
            survives_restart: false,
            lease_min: Duration::from_millis(100),
            lease_max: LONGEST,
        }
    }

    fn twin(&self) -> Arc<dyn Store> {
        Arc::new(Strings {
            config: Arc::clone(&self.config),
            link: Link::new(Arc::clone(&self.config)),
            address: self.address.clone(),
        })
    }

    fn alarm(&self, _alarm: Alarm) {}

    fn address(&self) -> String {
        self.address.clone()
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}
