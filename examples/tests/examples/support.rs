//! An example as another process, and the store that it shares with its test.

use holdline::blocking::{self, Client};
use holdline::store::TicketId;
pub(crate) use holdline_testkit::wait_for as until;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::iter::{once, once_with};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any working step takes on a busy machine.
const PATIENT: Duration = Duration::from_secs(30);

/// A store of the test's own.
pub(crate) struct Store {
    pub(crate) folder: TempDir,
    pub(crate) url: String,
    pub(crate) client: Client,
}

impl Store {
    /// A store in a file.
    pub(crate) fn file() -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        Store { client: blocking::open(&url).expect("the file can be made"), folder, url }
    }

    /// A file store, and then the store on the server whose URL is in this variable. `rest` is
    /// appended to the URL, followed by a number, to separate this test from others on that server.
    pub(crate) fn file_and(variable: &str, rest: &str) -> impl Iterator<Item = Self> {
        let on_server = move || Store::on_server(variable, rest);
        once(Store::file()).chain(once_with(on_server).flatten())
    }

    fn on_server(variable: &str, rest: &str) -> Option<Self> {
        let Ok(url) = std::env::var(variable) else {
            holdline_testkit::missing(&format!("{variable} is not set"));
            return None;
        };
        let url = format!("{url}{rest}{}", std::process::id());
        let client = blocking::open(&url).expect("the server is there");
        Some(Store { url, client, ..Store::file() })
    }

    /// The command of an example with this store.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("HOLDLINE_STORE", &self.url).current_dir(self.folder.path());
        command
    }

    /// The first holder of a lock, once there is one.
    pub(crate) fn holder(&self, name: &str) -> TicketId {
        until(&format!("{name:?} is held"), || {
            let info = self.client.inspect(name).expect("the store is there");
            info.holders.first().map(|holder| holder.id)
        })
    }

    /// Waits until a lock has a waiter.
    pub(crate) fn is_awaited(&self, name: &str) {
        until(&format!("{name:?} is waited for"), || {
            let info = self.client.inspect(name).expect("the store is there");
            (!info.waiters.is_empty()).then_some(())
        });
    }

    /// Takes a lock away from its holder.
    pub(crate) fn break_lock(&self, name: &str, id: TicketId) {
        let token = self.client.force_unlock(name, id, "a test").expect("the store is there");
        assert!(token.is_some(), "{name:?} was held");
    }

    /// Whether a lock has no holder or waiter.
    pub(crate) fn is_free(&self, name: &str) -> bool {
        let info = self.client.inspect(name).expect("the store is there");
        info.holders.is_empty() && info.waiters.is_empty()
    }
}

/// A running example. Dropping it kills it.
pub(crate) struct Example {
    child: Child,
    lines: Receiver<String>,
}

impl Example {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("cargo built it");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (send, lines) = channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|l| send.send(l)));
        Example { child, lines }
    }

    /// The next line that contains these words.
    pub(crate) fn says(&self, words: &str) -> String {
        let limit = Instant::now() + PATIENT;
        let mut said = Vec::new();
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => said.push(line),
                Err(why) => panic!("it did not say {words:?} ({why}), but {said:?}"),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Its exit code, once it ends; `None` if a signal ended it.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        until("it ends", || self.child.try_wait().expect("it is our child")).code()
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
