//! A lock that a command runs under: our own, or one that a program around us holds.

use crate::inherit::Inherited;
use holdline::store::TicketId;
use holdline::{Guard, Leader, WriteGuard};
use std::time::Duration;

/// A held lock of any kind.
#[derive(Debug)]
pub(crate) enum Hold {
    Plain(Guard),
    Write(WriteGuard),
    Leader(Leader),
    Inherited(Inherited),
}

/// Our own lock, or the inherited one.
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

    /// Whether it is certainly still held.
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

    /// How long until a rival can be in.
    pub(crate) fn time_to_stop(&self) -> Duration {
        match self.which() {
            Which::Own(guard) => guard.time_to_stop(),
            Which::Inherited(_) => Duration::ZERO,
        }
    }

    /// Gives it back. One that is inherited is not ours to give.
    pub(crate) async fn release(self) -> holdline::Result<()> {
        match self {
            Hold::Plain(guard) => guard.unlock().await,
            Hold::Write(guard) => guard.unlock().await,
            Hold::Leader(leader) => leader.resign().await,
            Hold::Inherited(_) => Ok(()),
        }
    }
}
