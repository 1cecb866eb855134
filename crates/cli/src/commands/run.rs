//! `holdline run`: runs a command under a lock.

use crate::context::Session;
use crate::exit::{Exit, Failure};
use crate::job::{HoldArgs, Job, WaitArgs};
use crate::{duration, lock_kind::LockKind};
use clap::Args;
use std::ffi::OsString;
use std::io::{IsTerminal, stdin};
use std::time::Duration;

/// The default limit of an outage during the wait: longer than a restart or a failover takes, and
/// short enough for cron to report it.
const OUTAGE: Duration = Duration::from_secs(600);

/// Examples for the long help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  holdline run backup -- tar czf b.tgz data   wait for the lock, however long
  holdline run -w 30s backup -- ./backup.sh   for 30 s at most, else end with 75
  holdline run -n -E 0 backup -- ./backup.sh  if somebody else does it: fine
  holdline run --min-hold 9s job -- ./job.sh  where clocks of machines differ
  holdline run --shared table -- ./read.sh    many of these, or one --exclusive
  holdline run backup -c 'dump | gzip >b.gz'  a line for the shell
  holdline run a --also b -- ./move.sh        both locks, or neither

The command gets stdin and signals, and HOLDLINE_TOKEN: a number that is higher
than that of every earlier holder. Whatever it writes to should refuse a lower
one. When the lock is lost, the command gets TERM, the grace time, then KILL,
before anybody else can hold the lock. Only a lock that was broken by force is
free at once, and then the command is killed as soon as that is known.
";

/// Run a command while holding a lock
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The lock's name: 1 to 512 bytes, without control characters
    name: String,

    #[command(flatten)]
    lock_kind: LockKind,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    hold: HoldArgs,

    /// Hold the lock for at least this long, even if the command ends sooner
    #[arg(help_heading = "Holding", long, value_name = "TIME", value_parser = duration::parse)]
    min_hold: Option<Duration>,

    /// Another lock to hold with it: all or none. Can be repeated; mutexes only
    #[arg(help_heading = "Kind of lock",
          long, value_name = "NAME", conflicts_with_all = ["shared", "exclusive", "permits"])]
    also: Vec<String>,

    /// Do not tell the command the store's URL, which may contain a password
    ///
    /// A `holdline` inside the command must then get the store in another way.
    #[arg(help_heading = "Command", long)]
    no_export_store: bool,

    /// Replace this process with the command: no process of ours remains
    ///
    /// Only with the file store. The lock ends when the command has ended, together with all
    /// processes that inherited its lock file, even daemons; and after 24 hours at the latest. The
    /// command is not stopped if the lock is broken by force. A command that closes the files that
    /// it inherits (sudo, many daemons) frees the lock and runs on.
    #[arg(help_heading = "Command",
          long, short = 'F', conflicts_with_all = ["lease", "fixed_lease", "renew_every", "on_loss",
          "grace", "min_hold"])]
    no_fork: bool,

    /// Run this line with /bin/sh
    #[arg(
        help_heading = "Command",
        short = 'c',
        long = "shell",
        value_name = "LINE",
        conflicts_with = "command"
    )]
    shell: Option<OsString>,

    /// The command and its arguments, preferably after --. Can be omitted at a terminal: the
    /// default is a shell
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        let shell = self.shell.is_none() && self.command.is_empty();
        let command = match self.shell {
            Some(line) => vec!["/bin/sh".into(), "-c".into(), line],
            None if !self.command.is_empty() => self.command,
            None if stdin().is_terminal() => vec![interactive_shell()],
            None => {
                return Err(Failure::usage(
                    "there is no command to run; give one after the name, or use `holdline \
                     acquire` for a part of a script",
                ));
            }
        };
        let job = Job {
            name: self.name,
            also: self.also,
            lock_kind: self.lock_kind,
            value: None,
            wait: self.wait,
            hold: self.hold,
            min_hold: self.min_hold,
            outage: OUTAGE,
            no_fork: self.no_fork,
            shell,
            export_store: !self.no_export_store,
            command,
        };
        job.run(session).await
    }
}

/// The user's shell, to run under the lock.
fn interactive_shell() -> OsString {
    std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh".into())
}
