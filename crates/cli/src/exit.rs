//! The one list of exit codes. `--help` and the guide show it; scripts may rely on it.

use crate::cli;
use holdline::ErrorKind;
use rustix::io::Errno;
use serde_json::{Map, Value};
use std::error::Error;

/// One exit code of the program's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const DONE: Exit = Exit(0);
    pub(crate) const NOTHING: Exit = Exit(1);
    pub(crate) const USAGE: Exit = Exit(64);
    pub(crate) const STORE: Exit = Exit(69);
    pub(crate) const INTERNAL: Exit = Exit(70);
    pub(crate) const SYSTEM: Exit = Exit(71);
    pub(crate) const OUTPUT: Exit = Exit(74);
    pub(crate) const BUSY: Exit = Exit(75);
    pub(crate) const LOST: Exit = Exit(76);
    pub(crate) const UNSAFE: Exit = Exit(78);
    pub(crate) const NOT_EXECUTABLE: Exit = Exit(126);
    pub(crate) const NOT_FOUND: Exit = Exit(127);

    /// The exit code that a shell reports for a process that this signal ended.
    pub(crate) fn signal(number: i32) -> Exit {
        Exit(u8::try_from(128 + number).unwrap_or(u8::MAX))
    }
}

/// The meanings of the codes, in order.
const MEANINGS: &[(Exit, &str)] = &[
    (Exit::DONE, "done; from `run` and `elect` any code may be the command's own"),
    (Exit::NOTHING, "`break`: no holder or waiter has that id, or you said no"),
    (Exit::USAGE, "a flag, name, URL or combination makes no sense"),
    (Exit::STORE, "the store cannot be used: unreachable, not set up, refused, or damaged"),
    (Exit::INTERNAL, "a bug in holdline"),
    (
        Exit::SYSTEM,
        "this machine lacks file descriptors, processes, memory, or a folder for a socket",
    ),
    (Exit::OUTPUT, "the answer could not be written"),
    (Exit::BUSY, "not acquired, or not free (`--busy-code` chooses another)"),
    (Exit::LOST, "the lock was lost while the command ran, or before `release`"),
    (Exit::UNSAFE, "`doctor`: the store is set up such that locks in it are not safe"),
    (Exit::NOT_EXECUTABLE, "the command cannot be executed"),
    (Exit::NOT_FOUND, "the command was not found"),
];

/// The list, for `--help`.
pub(crate) fn table() -> String {
    let mut text = String::from("Exit codes:\n");
    for (code, meaning) in MEANINGS {
        text.push_str(&cli::row(&code.0.to_string(), 9, meaning));
    }
    text.push_str("  128+n  signal n ended the command, or the wait for the lock");
    text
}

/// The failure that ends the program: a code, a word for machines and a sentence for people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) event: &'static str,
    pub(crate) message: String,
    /// For machines, beside the sentence.
    pub(crate) fields: Map<String, Value>,
    /// Whether `--quiet` hides the message.
    pub(crate) expected: bool,
}

impl Failure {
    pub(crate) fn new(exit: Exit, event: &'static str, message: impl Into<String>) -> Self {
        Failure { exit, event, message: message.into(), fields: Map::new(), expected: false }
    }

    /// The failure for a shortage of a system resource; `None` if the error is another.
    pub(crate) fn resource_shortage(doing: &str, error: &std::io::Error) -> Option<Self> {
        let errno = Errno::from_io_error(error)?;
        let advice = match errno {
            Errno::MFILE => "this process may open too few files; raise the limit (ulimit -n)",
            Errno::NFILE => "the whole system has too many files open",
            Errno::AGAIN => "too many processes or threads; raise the limit (ulimit -u, pids.max)",
            Errno::NOMEM => "not enough memory",
            _ => return None,
        };
        Some(Failure::new(Exit::SYSTEM, "system", format!("{doing}: {advice}")))
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(Exit::USAGE, "usage", message)
    }

    /// The same, with more fields for machines.
    pub(crate) fn with(mut self, fields: Value) -> Self {
        if let Value::Object(fields) = fields {
            self.fields.extend(fields);
        }
        self
    }

    /// The same, as an expected outcome, whose message `--quiet` hides.
    pub(crate) fn expected(self) -> Self {
        Failure { expected: true, ..self }
    }
}

impl From<holdline::Error> for Failure {
    fn from(error: holdline::Error) -> Self {
        let (exit, event) = match error.kind() {
            ErrorKind::Invalid | ErrorKind::Mismatch | ErrorKind::Unsupported => {
                (Exit::USAGE, "usage")
            }
            ErrorKind::Lost => (Exit::LOST, "lost"),
            ErrorKind::Unavailable if is_shortage(&error) => (Exit::SYSTEM, "system"),
            _ => (Exit::STORE, "store"),
        };
        Failure::new(exit, event, format!("{error:#}"))
    }
}

/// Whether this machine lacks what the library needs to use the store.
fn is_shortage(error: &holdline::Error) -> bool {
    let mut causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.any(|cause| match cause.downcast_ref().and_then(Errno::from_io_error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => true,
        // Also said of a socket whose queue is full.
        Some(Errno::AGAIN) => std::thread::Builder::new().spawn(|| {}).is_err(),
        _ => false,
    })
}
