//! The lock that a command runs under: our own, or one that an outer program holds.

use crate::nested::Inherited;
use holdline::store::TicketId;
use holdline::{Guard, Leader, Loss, MultiGuard, WriteGuard};
use serde_json::{Value, json};
use std::time::Duration;

/// A held lock of any kind.
#[derive(Debug)]
pub(crate) enum HeldLock {
    Plain(Guard),
    Write(WriteGuard),
    Leader(Leader),
    Several(MultiGuard),
    Inherited(Inherited),
}

/// A reference to our own lock or locks, or to the inherited one.
enum LockRef<'a> {
    Own(&'a Guard),
    Several(&'a MultiGuard),
    Inherited(&'a Inherited),
}

impl HeldLock {
    fn which(&self) -> LockRef<'_> {
        match self {
            HeldLock::Plain(guard) => LockRef::Own(guard),
            HeldLock::Write(guard) => LockRef::Own(guard),
            HeldLock::Leader(leader) => LockRef::Own(leader),
            HeldLock::Several(guards) => LockRef::Several(guards),
            HeldLock::Inherited(inherited) => LockRef::Inherited(inherited),
        }
    }

    /// Whether an outer program holds it.
    pub(crate) fn is_inherited(&self) -> bool {
        matches!(self, HeldLock::Inherited(_))
    }

    /// The names that are held, each with its ticket and its fencing token.
    pub(crate) fn entries(&self) -> Vec<(&str, TicketId, u64)> {
        fn entry(guard: &Guard) -> (&str, TicketId, u64) {
            (guard.name().as_str(), guard.ticket(), guard.token())
        }
        match self.which() {
            LockRef::Own(guard) => vec![entry(guard)],
            LockRef::Several(guards) => guards.guards().iter().map(entry).collect(),
            LockRef::Inherited(inherited) => vec![inherited.entry()],
        }
    }

    /// The id that `status` shows, and the fencing token.
    pub(crate) fn entry(&self, name: &str) -> (TicketId, u64) {
        let entries = self.entries();
        let found = entries.iter().find(|(of, ..)| *of == name).unwrap_or(&entries[0]);
        (found.1, found.2)
    }

    /// The fencing token of this name.
    pub(crate) fn token(&self, name: &str) -> u64 {
        self.entry(name).1
    }

    /// Whether the lock is certainly still held.
    pub(crate) fn is_valid(&self) -> bool {
        match self.which() {
            LockRef::Own(guard) => guard.is_valid(),
            LockRef::Several(guards) => guards.is_valid(),
            LockRef::Inherited(inherited) => inherited.is_valid(),
        }
    }

    /// Resolves when it is lost.
    pub(crate) async fn lost(&self) {
        match self.which() {
            LockRef::Own(guard) => guard.lost().await,
            LockRef::Several(guards) => guards.lost().await,
            LockRef::Inherited(inherited) => inherited.lost().await,
        }
    }

    /// The cause of the loss, for people and for machines. May ask the store, for a second at most.
    pub(crate) async fn loss(&self) -> (String, Value) {
        let loss = match self.which() {
            LockRef::Own(guard) => guard.loss().await,
            LockRef::Several(guards) => guards.loss().await,
            LockRef::Inherited(_) => {
                let why = "the holdline around this one no longer holds it";
                return (why.to_owned(), json!({ "cause": "gone" }));
            }
        };
        let fields = match &loss {
            Some(Loss::Expired) => json!({ "cause": "expired" }),
            Some(Loss::Broken { by, reason }) => json!({
                "cause": "broken",
                "by": { "host": by.host, "pid": by.pid, "label": by.label },
                "reason": reason,
            }),
            Some(Loss::Unrenewed) => json!({ "cause": "unrenewed" }),
            _ => json!({ "cause": "gone" }),
        };
        (loss.map_or_else(String::new, |loss| loss.to_string()), fields)
    }

    /// The time until another client can be admitted.
    pub(crate) fn time_to_stop(&self) -> Duration {
        match self.which() {
            LockRef::Own(guard) => guard.time_to_stop(),
            LockRef::Several(guards) => {
                let times = guards.guards().iter().map(Guard::time_to_stop);
                times.min().unwrap_or_default()
            }
            LockRef::Inherited(_) => Duration::ZERO,
        }
    }

    /// Releases it. An inherited lock is left to its holder.
    pub(crate) async fn release(self) -> holdline::Result<()> {
        match self {
            HeldLock::Plain(guard) => guard.unlock().await,
            HeldLock::Write(guard) => guard.unlock().await,
            HeldLock::Leader(leader) => leader.resign().await,
            HeldLock::Several(guards) => guards.unlock().await,
            HeldLock::Inherited(_) => Ok(()),
        }
    }
}
