//! `holdline acquire`: holds a lock for a part of a script.

use crate::background;
use crate::context::Session;
use crate::exit::{Exit, Failure};
use crate::job::{HoldArgs, Job, LeaseArgs, WaitArgs};
use crate::owner::Owner;
use crate::{duration, lock_kind::LockKind};
use clap::{Args, ValueEnum};
use std::time::Duration;

/// The default limit of an outage during the wait, as for `run`.
const OUTAGE: Duration = Duration::from_secs(600);

/// Examples for the long help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  lock=$(holdline acquire backup) || exit  waits for the lock; held from here
  holdline release \"$lock\" || exit        to here; 76 if it was lost before

The lock is held by a process in the background until it is released, or the
process that called `holdline acquire` ends: the script, however it ends. In a
recipe of make, or behind a program such as sudo or timeout, that is a process
which ends at once; name the one that counts with --owner, as in --owner $$.
Where one process can do all the work, `holdline run` is the better way: it
stops its command when the lock is lost.
";

/// Hold a lock for a part of a script, until `holdline release`
#[derive(Args, Debug)]
pub(crate) struct Acquire {
    /// The lock's name: 1 to 512 bytes, without control characters
    name: String,

    /// Another lock to hold with it: all or none. Can be repeated; mutexes only
    #[arg(help_heading = "Kind of lock",
          long, value_name = "NAME", conflicts_with_all = ["shared", "exclusive", "permits"])]
    also: Vec<String>,

    #[command(flatten)]
    lock_kind: LockKind,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    lease: LeaseArgs,

    /// The process whose end releases the lock [default: the calling process]
    #[arg(help_heading = "Owner", long, value_name = "PID")]
    owner: Option<i32>,

    /// Let the lock outlive its caller, until it is released or this time is over; no further
    /// message is printed
    #[arg(help_heading = "Owner",
          long, value_name = "TIME", conflicts_with = "owner",
          value_parser = duration::parse_limit)]
    detach: Option<Duration>,

    /// What to do with the owner when the lock is lost
    #[arg(help_heading = "Owner", long, value_enum, default_value_t = OnLoss::Term)]
    on_loss: OnLoss,
}

/// The fate of the owner when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLoss {
    /// Send it TERM, which ends a script but not an interactive shell
    Term,
    /// Report it, and do nothing else
    Continue,
}

/// Refuses 0, also as a default that was meant for `run`, for a verb whose exit code alone says
/// whether the lock is held, or free.
pub(crate) fn check_busy_code(code: u8) -> Result<(), Failure> {
    if code == 0 {
        return Err(Failure::usage(
            "with the exit code 0 for a lock that is not free, a script would go on without it; \
             give this verb another --busy-code (in a file of defaults, in a table of its name)",
        ));
    }
    Ok(())
}

impl Acquire {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        check_busy_code(self.wait.busy_code)?;
        let owner = match self.detach {
            Some(_) => Owner::None,
            None => Owner::find(self.owner)?,
        };
        if !background::is_holder() {
            return background::start(session, &owner).await;
        }
        let job = Job {
            name: self.name,
            also: self.also,
            lock_kind: self.lock_kind,
            value: None,
            wait: self.wait,
            hold: HoldArgs::without_command(self.lease),
            min_hold: None,
            outage: OUTAGE,
            no_fork: false,
            shell: false,
            export_store: true,
            command: Vec::new(),
        };
        background::hold(session, job, owner, self.on_loss, self.detach).await
    }
}
