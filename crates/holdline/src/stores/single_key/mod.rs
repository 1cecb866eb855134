//! The store for locks that are a single key in another library's layout: the schemes `string` and
//! `redisson`.
//!
//! Such a lock has at most one holder and no queue. Waiters retry at intervals, and when notified
//! that the key is gone, if the server sends notices. So any waiter may be next, there are no
//! fencing tokens (each is 0), and no semaphores or read-write locks.
//!
//! A request whose reply was lost is repeated, and its reply says which owner holds the lock. A
//! request that was abandoned without a reply and is carried out later holds the lock for one
//! lease.
//!
//! To add a layout: a [`KeyLayout`] with its three scripts in a file of its own, its name in
//! `?scheme=`, a page in `docs/layouts/`, a row in the table of the conformance suite, and tests
//! with the library that uses the layout.

mod redisson;
mod string;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, Enter, Eviction, LossHint, QueueEntry, QueueSnapshot, Seq, Standing,
    Ticket, TicketId,
};
use crate::stores::queue;
use crate::stores::queue::in_flight::{InFlight, outcome_unknown};
use crate::stores::redis::config::Config;
use crate::stores::redis::encode::describe;
use crate::stores::redis::errors::explain;
use crate::stores::redis::evictions;
use crate::stores::redis::keys::{EVICTIONS, beside};
use crate::stores::redis::pubsub::PubSub;
use crate::stores::redis::{encode::millis, keys, with_retry};
use futures_util::{StreamExt, TryStreamExt};
use holdline_kernel::Time;
use holdline_redis_client::{Connection, Script, broken};
use redis::{Cmd, Value};
pub(super) use redisson::Redisson;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
pub(super) use string::Strings;

/// The layout of a lock in the server. All layouts' scripts have the same replies. Enter: the owner
/// if it holds the lock, 0 if it has lost it, `{ms}` for another owner's lock with this time to
/// live. Leave: 0 if there was nothing to remove, -1 if waiters could not be notified, otherwise 1
/// and the number of clients that are known to be notified. Look: an array that ends with the
/// evictions.
pub(in crate::stores) trait KeyLayout: Send + Sync + 'static {
    /// The name in `?scheme=`.
    fn scheme(&self) -> &'static str;

    /// The scripts to enter, leave and look. The first argument of the first two is the owner.
    fn scripts(&self) -> [&'static Script; 3];

    /// The owner value of this ticket.
    fn owner(&self, id: TicketId) -> String;

    /// Adds the last arguments of enter, after owner, lease, note, and 1 to renew only.
    fn to_enter(&self, key: &str, command: &mut Cmd);

    /// Adds the arguments of leave, after the owner. For an eviction, the key of the evictions, the
    /// ticket and the note follow.
    fn to_leave(&self, key: &str, command: &mut Cmd);

    /// Adds the arguments of look. The key of the evictions follows.
    fn to_look(&self, key: &str, command: &mut Cmd);

    /// Decodes the reply of look; `None` if it is invalid.
    fn read(&self, value: &Value) -> Option<Vec<Found>>;

    /// The channel of messages about this key, if there is one.
    fn channel(&self, key: &str) -> Option<String>;

    /// The function that says whether a message on that channel is a reason to try again.
    fn is_notification(&self) -> fn(&[u8]) -> bool;

    /// Refuses a key that the layout cannot use.
    fn check(&self, key: &str) -> Result<()>;
}

/// A holder, as stored in the server.
pub(in crate::stores) struct Found {
    pub(in crate::stores) id: TicketId,
    /// The owner value in the server.
    pub(in crate::stores) owner: Vec<u8>,
    pub(in crate::stores) note: String,
    pub(in crate::stores) expires_in: Duration,
    /// Whether it is certainly a lock of a client with this layout, and not some other key.
    pub(in crate::stores) certain: bool,
}

pub(in crate::stores) struct SingleKey {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    /// The connection over which tickets enter, through any handle: its own, or for a background
    /// handle that of its store.
    enter_connection: Arc<Connection>,
}

/// The state of a store and its background handles.
struct Shared {
    config: Config,
    layout: Box<dyn KeyLayout>,
    pubsub: PubSub,
    in_flight: Arc<InFlight>,
    /// Whether waiters are notified.
    notifications: bool,
    address: String,
}

/// The one token of a store without tokens.
const NO_TOKEN: Seq = Seq(0);
/// The longest lease; also the time to live shown for a lock without an expiry.
pub(in crate::stores) const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The least pause after a release that has notified waiters of other processes.
const LEAST_PAUSE: Duration = Duration::from_millis(1);
/// The time of a release below which there is such a pause. If it takes longer, who is next depends
/// little on who hears of it first, and the caller's time limit may be near.
const NEAR: Duration = Duration::from_millis(50);

impl SingleKey {
    pub(in crate::stores) fn new(
        config: Config,
        connection: Connection,
        layout: Box<dyn KeyLayout>,
    ) -> Self {
        let shared = Shared {
            pubsub: PubSub::new(Arc::clone(&config.servers), None, layout.is_notification()),
            in_flight: Arc::default(),
            notifications: layout.channel("x").is_some(),
            address: config.servers.address(),
            config,
            layout,
        };
        let connection = Arc::new(connection);
        SingleKey {
            shared: Arc::new(shared),
            enter_connection: Arc::clone(&connection),
            connection,
        }
    }

    fn key(&self, line: &Name) -> String {
        format!("{}{line}", self.shared.config.prefix)
    }

    /// Runs a script on a key, and retries once if the connection breaks. Also returns whether an
    /// earlier attempt may have run it.
    async fn run(
        &self,
        connection: &Connection,
        script: &Script,
        key: &str,
        fill: &(dyn Fn(&mut Cmd) + Sync),
    ) -> Result<(Value, bool), Error> {
        let all = |command: &mut Cmd| {
            command.arg(1).arg(key);
            fill(command);
        };
        let size = 2 * key.len() + 512;
        let explain = |fault| explain(fault, &self.shared.address, &format!("lock \"{key}\""));
        let answer = with_retry(|| connection.run(script, size, &all)).await;
        answer.map(|answer| (answer.value, answer.doubt.is_some())).map_err(explain)
    }

    async fn ask(&self, key: &str, ticket: &Ticket, note: &str, how: Enter) -> Result<Standing> {
        let layout = &self.shared.layout;
        let owner = layout.owner(ticket.id);
        let keep = i32::from(matches!(how, Enter::Keep(_)));
        let fill = |command: &mut Cmd| {
            let lease = millis(ticket.lease).max(1);
            command.arg(&owner).arg(lease).arg(note).arg(keep);
            layout.to_enter(key, command);
        };
        let request = (keep == 0).then(|| self.shared.in_flight.begin(ticket.id));
        let connection = if keep == 0 { &self.enter_connection } else { &self.connection };
        let (answer, repeated) = self.run(connection, layout.scripts()[0], key, &fill).await?;
        // A reply that makes no sense may be that to another request.
        let standing = standing(ticket, &owner, &answer);
        let standing = standing.ok_or_else(|| self.invalid_reply(connection, &answer))?;
        if let Some(request) = request.filter(|_| !repeated) {
            request.answered();
        }
        if repeated && matches!(standing, Standing::Waiting { .. }) {
            // The earlier attempt may yet take the lock, which the caller must give up.
            return Err(explain(broken(false), &self.shared.address, &format!("lock \"{key}\"")));
        }
        Ok(standing)
    }

    /// Leaves after an abandoned request to enter: over the connection for such requests, so that
    /// the server cannot carry it out later. If that connection fails, over another. In that case,
    /// or if it has replaced the one of the request, the server may carry the request out, and the
    /// lock is held for one lease. Returns what [`run`](Self::run) does.
    async fn follow(
        &self,
        key: &str,
        fill: &(dyn Fn(&mut Cmd) + Sync),
    ) -> Result<(Value, bool), Error> {
        let script = self.shared.layout.scripts()[1];
        let all = |command: &mut Cmd| {
            command.arg(1).arg(key);
            fill(command);
        };
        match self.enter_connection.run(script, 2 * key.len() + 512, &all).await {
            Ok(value) => Ok((value, false)),
            Err(fault) => {
                let (value, repeated) = self.run(&self.connection, script, key, fill).await?;
                Ok((value, repeated || fault.in_doubt()))
            }
        }
    }

    /// Warns if the lock was released but its waiters could not be notified.
    fn warn_unnotified(&self, key: &str, done: i64) -> bool {
        if done < 0 {
            tracing::warn!(
                "{} did not notify the waiters that lock \"{key}\" is free; may the user \
                 publish?",
                self.shared.address
            );
        }
        true
    }

    /// Gives the waiters of other processes, if a release has notified any, the time of a request.
    /// This process hears of its release before they do, and could take the lock again each time.
    /// `sent` is when the release was sent.
    async fn let_others_ask(&self, key: &str, done: i64, sent: Time) {
        if done <= 1 {
            return;
        }
        let Shared { layout, pubsub, .. } = &*self.shared;
        let ours = layout.channel(key).is_some_and(|it| pubsub.channels().is_subscribed(&it));
        let took = sent.until(clock::now());
        if done > 1 + i64::from(ours) && took < NEAR {
            clock::pause(took.max(LEAST_PAUSE)).await;
        }
    }

    async fn read(&self, key: &str) -> Result<(Vec<Found>, Vec<Eviction>)> {
        let layout = &self.shared.layout;
        let fill = |command: &mut Cmd| {
            layout.to_look(key, command);
            command.arg(beside(key, EVICTIONS));
        };
        let (value, _) = self.run(&self.connection, layout.scripts()[2], key, &fill).await?;
        let found = layout.read(&value);
        let found = found.ok_or_else(|| self.invalid_reply(&self.connection, &value))?;
        Ok((found, evictions::last_of(&value)))
    }

    fn only_plain_locks(&self) -> Error {
        let message = format!(
            "{} with scheme={} has only plain locks; semaphores and read-write locks need \
             scheme=line",
            self.shared.address,
            self.shared.layout.scheme()
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// The error for a lock whose key is that of another lock's note: a note overwrites the lock.
    fn is_for_notes(&self, key: &str) -> Error {
        let message = format!(
            "lock \"{key}\" cannot be kept by {} with scheme={}: a key of this form is for notes \
             about another lock; use another name",
            self.shared.address,
            self.shared.layout.scheme()
        );
        Error::new(ErrorKind::Invalid, message)
    }

    /// The error for a reply of the wrong form. The connection is closed as well: later replies on
    /// it may belong to other calls.
    fn invalid_reply(&self, connection: &Connection, answer: &Value) -> Error {
        connection.close_current();
        let address = &self.shared.address;
        let message = format!("{address} gave an answer that makes no sense: {}", describe(answer));
        Error::new(ErrorKind::Corrupt, message)
    }
}

/// Decodes the reply of enter; `None` if it is invalid.
fn standing(ticket: &Ticket, owner: &str, answer: &Value) -> Option<Standing> {
    Some(match answer {
        Value::BulkString(whose) if whose == owner.as_bytes() => Standing::Admitted(NO_TOKEN),
        Value::Int(0) => Standing::Lost,
        Value::Array(items) => {
            let [Value::Int(left)] = &items[..] else { return None };
            let keep = ticket.wait_lease / 3;
            let left = u64::try_from(*left).map_or(keep, Duration::from_millis);
            let again = keep.min(left).max(Duration::from_millis(2));
            Standing::Waiting { seq: None, again }
        }
        _ => return None,
    })
}

impl AsyncStore for SingleKey {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        if ticket.capacity != 1 {
            return Err(self.only_plain_locks());
        }
        let Shared { layout, pubsub, .. } = &*self.shared;
        let key = self.key(line);
        if keys::is_beside(&key) {
            return Err(self.is_for_notes(&key));
        }
        layout.check(&key)?;
        let channel = match how {
            Enter::Keep(seq) if seq != NO_TOKEN => return Ok(Standing::Lost),
            Enter::Keep(_) | Enter::Try => None,
            Enter::Queue => layout.channel(&key),
        };
        let Some(channel) = channel else { return self.ask(&key, ticket, note, how).await };
        let subscribed = pubsub.channels().join(&channel, ticket.id);
        let standing = self.ask(&key, ticket, note, how).await?;
        if !subscribed && matches!(standing, Standing::Waiting { .. }) {
            pubsub.follow(&channel, ticket.id);
        }
        if !matches!(standing, Standing::Waiting { .. }) {
            pubsub.channels().remove_ticket(&channel, ticket.id);
        }
        Ok(standing)
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let key = self.key(line);
        let Shared { layout, pubsub, address, .. } = &*self.shared;
        if let Some(channel) = layout.channel(&key) {
            pubsub.channels().remove_ticket(&channel, id);
        }
        let (owner, sent) = (layout.owner(id), clock::now());
        let fill = |command: &mut Cmd| {
            command.arg(&owner);
            layout.to_leave(&key, command);
        };
        let answer = if self.shared.in_flight.in_doubt(id) {
            self.follow(&key, &fill).await?
        } else {
            self.run(&self.connection, layout.scripts()[1], &key, &fill).await?
        };
        if let Value::Int(_) = answer.0 {
            self.shared.in_flight.forget(id);
        }
        match answer {
            (Value::Int(0), false) => Ok(false),
            (Value::Int(0), true) => Err(outcome_unknown(address, line)),
            (Value::Int(done), _) => {
                self.let_others_ask(&key, done, sent).await;
                Ok(self.warn_unnotified(&key, done))
            }
            (answer, _) => Err(self.invalid_reply(&self.connection, &answer)),
        }
    }

    async fn watch(&self, _line: &Name, id: TicketId) -> Result<Option<Seq>> {
        if !self.shared.notifications {
            pending::<()>().await;
        }
        self.shared.pubsub.waiters().wait(id).await;
        Ok(None)
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let (found, evictions) = self.read(&self.key(line)).await?;
        let places = found.into_iter().map(|found| QueueEntry {
            id: found.id,
            seq: NO_TOKEN,
            weight: 1,
            admitted: true,
            expires_in: found.expires_in,
            note: found.note.into(),
        });
        let places: Vec<_> = places.collect();
        Ok(QueueSnapshot { capacity: places.len().min(1) as u32, places, evictions })
    }

    // The keys that are certainly locks and, if a prefix is set, all that look like locks.
    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let before = &self.shared.config.prefix;
        let pattern = keys::glob(&format!("{before}{prefix}")) + "*";
        let found = self.connection.scan(&pattern).await;
        let explain = |fault| explain(fault, &self.shared.address, "the list of locks");
        let mut names: Vec<Name> = found
            .map_err(explain)?
            .iter()
            .filter(|key| !keys::is_beside(key))
            .filter_map(|key| Name::new(key.strip_prefix(before)?).ok())
            .collect();
        names.sort();
        names.dedup();
        let held = futures_util::stream::iter(names.into_iter().map(|name| async {
            match self.read(&self.key(&name)).await {
                Ok((found, _)) if !before.is_empty() && !found.is_empty() => Ok(Some(name)),
                Ok((found, _)) => Ok(found.iter().any(|found| found.certain).then_some(name)),
                // The key is not a lock.
                Err(error) if !error.retryable() && error.kind() != ErrorKind::Denied => Ok(None),
                Err(error) => Err(error),
            }
        }));
        let found: Vec<Option<Name>> = held.buffered(64).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let key = self.key(line);
        let layout = &self.shared.layout;
        let (found, _) = self.read(&key).await?;
        if found.len() > 1 {
            return Err(self.only_plain_locks());
        }
        let Some(holder) = found.into_iter().find(|found| found.id == id) else { return Ok(None) };
        let fill = |command: &mut Cmd| {
            command.arg(&holder.owner);
            layout.to_leave(&key, command);
            command.arg(beside(&key, EVICTIONS)).arg(id.to_string()).arg(note);
        };
        match self.run(&self.connection, layout.scripts()[1], &key, &fill).await? {
            // The first attempt, whose reply was lost, may have removed it.
            (Value::Int(0), true) => Err(outcome_unknown(&self.shared.address, line)),
            (Value::Int(0), false) => Ok(None),
            (Value::Int(done), _) => Ok(self.warn_unnotified(&key, done).then_some(NO_TOKEN)),
            (answer, _) => Err(self.invalid_reply(&self.connection, &answer)),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair_queue: false,
            fencing_tokens: false,
            notifications: self.shared.notifications,
            weighted: false,
            read_write: false,
            token_ranges: false,
            ..queue::CAPABILITIES
        }
    }

    fn background_handle(&self) -> Self {
        let connection =
            Arc::new(Connection::new(Arc::clone(&self.shared.config.servers), String::new()));
        let (shared, enter_connection) =
            (Arc::clone(&self.shared), Arc::clone(&self.enter_connection));
        SingleKey { shared, connection, enter_connection }
    }

    fn on_loss_hint(&self, _loss_hint: LossHint) {}

    fn address(&self) -> String {
        self.shared.address.clone()
    }
}

impl fmt::Debug for SingleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdline_testkit::ticket;

    /// A reply that names another owner, or nobody, is that to another request.
    #[test]
    fn a_reply_about_another_owner_is_no_standing() {
        let ticket = ticket(1, Duration::from_secs(3));
        let read = |answer: Value| standing(&ticket, "mine", &answer);
        let owner = |owner: &str| Value::BulkString(owner.into());
        assert_eq!(read(owner("mine")), Some(Standing::Admitted(NO_TOKEN)));
        assert_eq!(read(Value::Int(0)), Some(Standing::Lost));
        for other in [owner("another's"), owner("mine, too"), owner(""), Value::Int(1), Value::Nil]
        {
            assert_eq!(read(other.clone()), None, "{other:?}");
        }
        assert_eq!(read(Value::Array(Vec::new())), None);
        // A waiter comes back when the lock lapses, but within a third of its own time.
        for (left, again) in [(-1, 1000), (0, 2), (500, 500), (60_000, 1000)] {
            let again = Duration::from_millis(again);
            let waits = Some(Standing::Waiting { seq: None, again });
            assert_eq!(read(Value::Array(vec![Value::Int(left)])), waits, "{left}");
        }
    }
}
