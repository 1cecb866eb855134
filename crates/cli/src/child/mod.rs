//! The command's process: its start, its signals, and its end when the lock is lost.

mod launcher;
pub(crate) mod lookup;
mod tree;

#[cfg(feature = "bench")]
pub(crate) use launcher::command as command_that_ends_with_us;
pub(crate) use launcher::{launch_if_told, own_program};

use crate::exit::{Exit, Failure};
use crate::held::HeldLock;
use crate::printer::{Level, Printer};
use crate::signals::Signals;
use clap::ValueEnum;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpgrp, getpid, kill_process, kill_process_group, test_kill_process_group,
};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use serde_json::json;
use std::ffi::OsString;
use std::io::{IsTerminal, stdin, stdout};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::pin::pin;
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tokio::process::Child;
use tokio::time::{Instant, sleep_until, timeout_at};
use tree::Descendants;

/// The poll interval while processes are ending.
const PAUSE: Duration = Duration::from_millis(5);
/// The time limit for processes to end after KILL.
const DYING: Duration = Duration::from_secs(5);

/// The fate of the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLoss {
    /// TERM, the grace time, then KILL for all its processes
    Kill,
    /// TERM, then wait for it as long as it takes (others may hold the lock meanwhile)
    Term,
    /// Report it, and let the command run
    Continue,
}

/// The policy for a loss of the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) on_loss: OnLoss,
    pub(crate) grace: Duration,
    /// The time for KILL to take effect, after the grace time.
    pub(crate) reserve: Duration,
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    pid: Pid,
    /// Whether it has a process group of its own.
    grouped: bool,
    /// The modes of the terminal when it started, if the terminal was its own.
    modes: Option<Termios>,
    descendants: Descendants,
}

/// How a command ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    /// By itself, under the lock.
    Done(Exit),
    /// By itself, but the lock was lost before that.
    Late(Exit),
    /// By us, because the lock was lost.
    Stopped,
    /// Not at all: the lock was lost before the command was started.
    Unstarted,
}

impl Running {
    /// Starts a command with these variables set, or removed. At the terminal of our session it
    /// stays in our foreground process group, so that it can read there and Ctrl-C and Ctrl-Z reach
    /// it; otherwise it gets a group of its own. `None` if the lock is no longer valid: we may have
    /// been stopped for longer than the lease since it was granted.
    pub(crate) fn start(
        (file, argv): (&Path, &[OsString]),
        env: &[(&str, Option<String>)],
        hold: &HeldLock,
        signals: &mut Signals,
        printer: Printer,
    ) -> Result<Option<Self>, Failure> {
        // A terminal that is not that of our session sends us nothing.
        let foreign = tcgetpgrp(stdin()) == Err(Errno::NOTTY);
        let grouped = !stdin().is_terminal() || foreign;
        let modes = if owns_terminal() { tcgetattr(stdin()).ok() } else { None };
        signals.watch_command(grouped)?;
        let mut command = launcher::command(file, argv, printer.json);
        set_env(&mut command, env);
        if grouped {
            command.process_group(0);
        }
        let descendants = Descendants::adopt()?;
        if !hold.is_valid() {
            return Ok(None);
        }
        // The parent-death signal is bound to this thread, which lives to the end.
        let child = tokio::process::Command::from(command).spawn();
        let child = child.map_err(|error| lookup::refuse(&argv[0], Some(file), &error))?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pid = pid.ok_or_else(|| {
            Failure::new(Exit::INTERNAL, "internal", "the command started without a process id")
        })?;
        Ok(Some(Running { child, pid, grouped, modes, descendants }))
    }

    /// Waits for its end, forwards signals, and stops it when the lock is lost.
    pub(crate) async fn supervise(
        mut self,
        hold: &HeldLock,
        signals: &mut Signals,
        policy: Policy,
        printer: Printer,
    ) -> Result<Ended, Failure> {
        let mut lost = false;
        // A signal that came after the lock's time was over, but before the loss was dealt with.
        let mut pending = None;
        // One future for all rounds: that of an inherited lock waits for its next look.
        let mut loss = pin!(hold.lost());
        loop {
            // Checked first: we may have been stopped for longer than the lease. Here and
            // everywhere, signals come before messages.
            if !lost && !hold.is_valid() {
                lost = true;
                match policy.on_loss {
                    OnLoss::Kill => return Ok(self.stop(hold, policy, printer).await),
                    OnLoss::Term => self.terminate(),
                    OnLoss::Continue => self.send(Signal::CONT),
                }
                if let Some(signal) = pending.take() {
                    self.forward(signal);
                }
                self.tell_loss(hold, policy, printer).await;
            }
            tokio::select! {
                biased;
                () = &mut loss, if !lost => {}
                // Before signals: one that came after the end is not for the command.
                status = self.child.wait() => {
                    if status.as_ref().is_ok_and(|status| status.signal().is_some()) {
                        self.restore_terminal();
                    }
                    let exit = exit_of(status)?;
                    let late = lost || !hold.is_valid();
                    return Ok(if late { Ended::Late(exit) } else { Ended::Done(exit) });
                }
                signal = signals.next() => {
                    if lost || hold.is_valid() {
                        self.forward(signal);
                    } else {
                        pending = Some(signal);
                    }
                }
                () = self.descendants.ended() => Descendants::reap(self.pid),
            }
        }
    }

    /// Reports the loss and its cause, while the command continues.
    async fn tell_loss(&self, hold: &HeldLock, policy: Policy, printer: Printer) {
        let what = match policy.on_loss {
            OnLoss::Kill | OnLoss::Term => "the command was sent TERM",
            OnLoss::Continue => "the command goes on, as --on-loss continue says",
        };
        let (why, mut fields) = hold.loss().await;
        let message = format!("the lock was lost while the command ran: {why}; {what}");
        fields["pid"] = self.pid.as_raw_nonzero().get().into();
        printer.say(Level::Always, "lost", &message, fields);
    }

    /// Forwards a signal, unless the terminal has sent it to the command as well.
    fn forward(&self, signal: Signal) {
        let from_terminal = [Signal::INT, Signal::QUIT, Signal::CONT, Signal::WINCH];
        if !self.grouped && from_terminal.contains(&signal) {
            return;
        }
        self.send(signal);
        if signal == Signal::TSTP {
            // Ctrl-Z stops us as well; when we are continued, so is the command.
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }

    /// Sends a signal to the command, or to its group if it has one. There may be no process left.
    fn send(&self, signal: Signal) {
        if self.grouped {
            let _ = kill_process_group(self.pid, signal);
        } else if self.child.id().is_some() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Sends TERM to all its processes, also to those that left its group and were adopted by us,
    /// and continues those that are stopped.
    fn terminate(&self) {
        let below = self.descendants.alive();
        if self.grouped {
            self.send(Signal::TERM);
            // A nested run in a group of its own forwards the signal itself.
            below.adopted_outside(self.pid).signal(Signal::TERM);
        } else {
            below.signal(Signal::TERM);
        }
        self.send(Signal::CONT);
        below.signal(Signal::CONT);
    }

    /// Ends all its processes before another client can be admitted: TERM, the grace time or what
    /// is left of it, then KILL.
    async fn stop(mut self, hold: &HeldLock, policy: Policy, printer: Printer) -> Ended {
        // A late notice of the loss shortens the grace time, not the time for KILL.
        let left = hold.time_to_stop().saturating_sub(policy.reserve);
        let grace = policy.grace.min(left);
        let end = Instant::now() + grace;
        if !grace.is_zero() {
            self.terminate();
            let message = "the lock was lost while the command ran; the command is being stopped";
            let fields = json!({ "pid": self.pid.as_raw_nonzero().get() });
            printer.say(Level::Always, "stopping", message, fields);
            let _ = timeout_at(end, self.child.wait()).await;
            while Instant::now() < end && self.is_left() {
                sleep_until((Instant::now() + PAUSE).min(end)).await;
            }
        }
        let last = Instant::now() + DYING;
        loop {
            self.send(Signal::KILL);
            self.descendants.alive().signal(Signal::KILL);
            let wait = (Instant::now() + PAUSE).min(last);
            let ended = timeout_at(wait, self.child.wait()).await.is_ok();
            if ended && !self.is_left() {
                self.restore_terminal();
                return Ended::Stopped;
            }
            if Instant::now() >= last {
                break;
            }
            sleep_until(wait).await;
        }
        let pids = self.descendants.alive().pids();
        let message = format!("these processes do not end even by KILL; look after them: {pids:?}");
        printer.say(Level::Always, "stuck", &message, json!({ "pids": pids }));
        Ended::Stopped
    }

    /// Restores the terminal's modes after a command that was killed, as a shell does. Not where
    /// another group is in the foreground, as after a shell: that would stop us.
    fn restore_terminal(&self) {
        if let Some(modes) = &self.modes
            && owns_terminal()
        {
            let _ = tcsetattr(stdin(), OptionalActions::Now, modes);
        }
    }

    /// Whether any of its processes is left, when the command itself has been waited for.
    fn is_left(&self) -> bool {
        tree::reap_all();
        self.grouped && test_kill_process_group(self.pid).is_ok()
            || !self.descendants.alive().pids().is_empty()
    }
}

/// Whether the terminal is ours: we are in its foreground, and in no pipe to a pager, which sets
/// modes of its own.
fn owns_terminal() -> bool {
    stdout().is_terminal() && tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}

/// Sets variables of a command's environment, or removes them.
pub(crate) fn set_env(command: &mut Command, env: &[(&str, Option<String>)]) {
    for (key, value) in env {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
}

/// The exit code that a shell would report.
fn exit_of(status: std::io::Result<ExitStatus>) -> Result<Exit, Failure> {
    let status = status.map_err(|error| {
        let message = format!("cannot wait for the command: {error}");
        Failure::new(Exit::INTERNAL, "internal", message)
    })?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).map(Exit);
    Ok(code.unwrap_or_else(|| Exit::signal(status.signal().unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdline::stores::memory::Memory;
    use holdline::{Client, Mutex};
    use std::sync::Arc;

    #[tokio::test]
    async fn a_command_is_not_started_under_a_lock_that_is_lost_meanwhile() {
        let client = Client::new(Arc::new(Memory::new()));
        let lease = Duration::from_millis(100);
        let guard = Mutex::new(&client, "x").fixed_lease(lease).lock().await.unwrap();
        while guard.is_valid() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("made");
        let argv = ["touch".into(), made.clone().into_os_string()];
        let mut signals = Signals::new().unwrap();
        let printer = Printer { json: false, quiet: true, verbose: false };
        let hold = HeldLock::Plain(guard);
        let touch = (Path::new("/usr/bin/touch"), &argv[..]);
        let started = Running::start(touch, &[], &hold, &mut signals, printer).unwrap();
        assert!(started.is_none() && !made.exists());
    }

    /// A signal that comes when the lock is no longer valid, before anything has noticed that, is
    /// for the command if that goes on.
    #[tokio::test]
    async fn a_signal_at_the_moment_of_a_loss_reaches_the_command() {
        let client = Client::new(Arc::new(Memory::new()));
        let lock = Mutex::new(&client, "x").fixed_lease(Duration::from_secs(3));
        let hold = HeldLock::Plain(lock.lock().await.unwrap());
        let mut signals = Signals::new().unwrap();
        let printer = Printer { json: false, quiet: true, verbose: false };
        let argv = ["sleep".into(), "600".into()];
        let sleep = (Path::new("/usr/bin/sleep"), &argv[..]);
        let running = Running::start(sleep, &[], &hold, &mut signals, printer).unwrap();
        // Without an await: the runtime does not notice the loss before the signal.
        while hold.is_valid() {
            std::thread::sleep(Duration::from_millis(1));
        }
        kill_process(getpid(), Signal::USR1).unwrap();
        let policy =
            Policy { on_loss: OnLoss::Continue, grace: Duration::ZERO, reserve: Duration::ZERO };
        let ended = running.unwrap().supervise(&hold, &mut signals, policy, printer);
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        assert!(matches!(ended, Ok(Ok(Ended::Late(_)))), "{ended:?}");
    }
}
