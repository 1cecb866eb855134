//! The lock that a command runs under: our own, or one that an outer program holds.

use crate::nested::Inherited;
use holdline::store::TicketId;
use holdline::{Guard, Leader, Loss, WriteGuard};
use serde_json::{Value, json};
use std::time::Duration;

/// A held lock of any kind.
#[derive(Debug)]
pub(crate) enum HeldLock {
    Plain(Guard),
    Write(WriteGuard),
    Leader(Leader),
    Inherited(Inherited),
}

/// A reference to our own lock, or to the inherited one.
enum LockRef<'a> {
    Own(&'a Guard),
    Inherited(&'a Inherited),
}

impl HeldLock {
    fn which(&self) -> LockRef<'_> {
        match self {
            HeldLock::Plain(guard) => LockRef::Own(guard),
            HeldLock::Write(guard) => LockRef::Own(guard),
            HeldLock::Leader(leader) => LockRef::Own(leader),
            HeldLock::Inherited(inherited) => LockRef::Inherited(inherited),
        }
    }

    /// The fencing token.
    pub(crate) fn token(&self) -> u64 {
        match self.which() {
            LockRef::Own(guard) => guard.token(),
            LockRef::Inherited(inherited) => inherited.token(),
        }
    }

    /// The id that `status` shows.
    pub(crate) fn ticket(&self) -> TicketId {
        match self.which() {
            LockRef::Own(guard) => guard.ticket(),
            LockRef::Inherited(inherited) => inherited.ticket(),
        }
    }

    /// Whether it is known to be held.
    pub(crate) fn is_valid(&self) -> bool {
        match self.which() {
            LockRef::Own(guard) => guard.is_valid(),
            LockRef::Inherited(inherited) => inherited.is_valid(),
        }
    }

    /// Resolves when it is lost.
    pub(crate) async fn lost(&self) {
        match self.which() {
            LockRef::Own(guard) => guard.lost().await,
            LockRef::Inherited(inherited) => inherited.lost().await,
        }
    }

    /// The cause of its loss, for people and for machines. May ask the store, for a second at most.
    pub(crate) async fn loss(&self) -> (String, Value) {
        let loss = match self.which() {
            LockRef::Own(guard) => guard.loss().await,
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
            LockRef::Inherited(_) => Duration::ZERO,
        }
    }

    /// Releases it. An inherited lock is left to its holder.
    pub(crate) async fn release(self) -> holdline::Result<()> {
        match self {
            HeldLock::Plain(guard) => guard.unlock().await,
            HeldLock::Write(guard) => guard.unlock().await,
            HeldLock::Leader(leader) => leader.resign().await,
            HeldLock::Inherited(_) => Ok(()),
        }
    }
}
