//! The lock that a command runs under: our own, or one that an outer program holds.

use crate::nested::Inherited;
use holdline::store::TicketId;
use holdline::{Guard, Leader, Loss, WriteGuard};
use serde_json::{Value, json};
use std::time::Duration;

/// A held lock of any kind.
#[derive(Debug)]
pub(crate) enum Hold {
    Plain(Guard),
    Write(WriteGuard),
    Leader(Leader),
    Inherited(Inherited),
}

/// A reference to our own lock, or to the inherited one.
enum Which<'a> {
    Own(&'a Guard),
    Inherited(&'a Inherited),
}

impl Hold {
    fn which(&self) -> Which<'_> {
        match self {
            Hold::Plain(guard) => Which::Own(guard),
            Hold::Write(guard) => Which::Own(guard),
            Hold::Leader(leader) => Which::Own(leader),
            Hold::Inherited(inherited) => Which::Inherited(inherited),
        }
    }

    /// The fencing token.
    pub(crate) fn token(&self) -> u64 {
        match self.which() {
            Which::Own(guard) => guard.token(),
            Which::Inherited(inherited) => inherited.token(),
        }
    }

    /// The id that `status` shows.
    pub(crate) fn ticket(&self) -> TicketId {
        match self.which() {
            Which::Own(guard) => guard.ticket(),
            Which::Inherited(inherited) => inherited.ticket(),
        }
    }

    /// Whether it is known to be held.
    pub(crate) fn is_valid(&self) -> bool {
        match self.which() {
            Which::Own(guard) => guard.is_valid(),
            Which::Inherited(inherited) => inherited.is_valid(),
        }
    }

    /// Resolves when it is lost.
    pub(crate) async fn lost(&self) {
        match self.which() {
            Which::Own(guard) => guard.lost().await,
            Which::Inherited(inherited) => inherited.lost().await,
        }
    }

    /// The cause of its loss, for people and for machines. May ask the store, for a second at most.
    pub(crate) async fn loss(&self) -> (String, Value) {
        let loss = match self.which() {
            Which::Own(guard) => guard.loss().await,
            Which::Inherited(_) => {
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
            Which::Own(guard) => guard.time_to_stop(),
            Which::Inherited(_) => Duration::ZERO,
        }
    }

    /// Releases it. An inherited lock is left to its holder.
    pub(crate) async fn release(self) -> holdline::Result<()> {
        match self {
            Hold::Plain(guard) => guard.unlock().await,
            Hold::Write(guard) => guard.unlock().await,
            Hold::Leader(leader) => leader.resign().await,
            Hold::Inherited(_) => Ok(()),
        }
    }
}
