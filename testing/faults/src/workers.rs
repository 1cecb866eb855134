//! The client processes: starting, stopping, killing, and ending them.

use crate::client::{ROLE, Role};
use holdline_testkit::end_with_us;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// A time longer than any step here, to distinguish hanging from slowness.
const LIMIT: Duration = Duration::from_secs(40);
/// The polling interval.
const LOOK: Duration = Duration::from_millis(1);

/// One client process, killed when it is dropped.
pub(crate) struct Member {
    role: Role,
    child: Child,
    input: Option<ChildStdin>,
}

impl Member {
    pub(crate) fn start(role: Role) -> Self {
        let text = serde_json::to_string(&role).unwrap();
        let mut child = start(command(ROLE, &text).envs(role.environment.clone()));
        let input = child.stdin.take();
        Member { role, child, input }
    }

    /// Its name in the history.
    pub(crate) fn name(&self) -> &str {
        &self.role.process
    }

    /// The path of its history.
    pub(crate) fn history(&self) -> &Path {
        &self.role.history
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Stops it, and returns when it has stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let stands = || waitid(WaitId::Pid(pid), options).unwrap().is_some();
        assert!(soon(stands), "{} does not stop", self.name());
    }

    /// Continues it.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it, and returns when it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Restarts it under a new name.
    pub(crate) fn replace(&mut self, serial: u64) {
        let first = self.name().split('.').next().unwrap();
        let process = format!("{first}.{serial}");
        let seed = self.role.seed.wrapping_add(serial << 20);
        *self = Member::start(Role { process, serial, seed, ..self.role.clone() });
    }

    /// Asks it to end: it finishes its work and begins nothing new.
    pub(crate) fn dismiss(&mut self) {
        self.input = None;
    }

    /// Waits until it has ended by itself. False if it does not, although all sections together
    /// take no longer than `work`.
    pub(crate) fn ended(&mut self, work: Duration) -> bool {
        let ended = within(LIMIT + work, || self.child.try_wait().unwrap().is_some());
        assert!(!ended || self.child.wait().unwrap().success(), "{} failed", self.name());
        ended
    }
}

/// Starts this program once more, in the role that this variable assigns, until its input ends.
pub(crate) fn process(variable: &str, role: &str) -> Child {
    start(&mut command(variable, role))
}

/// Starts a process that ends with this one, even if it is stopped then.
fn start(command: &mut Command) -> Child {
    let child = command.spawn().unwrap();
    end_with_us(&child).unwrap();
    child
}

fn command(variable: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(variable, role).stdin(Stdio::piped()).stdout(Stdio::null());
    command
}

/// Whether the condition becomes true within [`LIMIT`].
pub(crate) fn soon(done: impl FnMut() -> bool) -> bool {
    within(LIMIT, done)
}

fn within(time: Duration, mut done: impl FnMut() -> bool) -> bool {
    let limit = Instant::now() + time;
    while !done() {
        if Instant::now() > limit {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
