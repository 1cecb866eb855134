//! The output queue: bounded, with a thread that writes to stderr or stdout.
//!
//! A full pipe, a stopped terminal or a slow disk can block a write for ever, and must not keep the
//! program from stopping its command. So the rest of the program only adds to the queue, which
//! never blocks: when it is full, lines are dropped and counted.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp};
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result, stderr, stdout};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The capacity of the queue, in lines.
const MOST_LINES: usize = 256;
const MOST_BYTES: usize = 256 * 1024;
/// The pause before the next write to an output that currently accepts nothing.
const PAUSE: Duration = Duration::from_millis(20);

/// The output: stderr or stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Stdout,
    Stderr,
}

/// One chunk of text.
#[derive(Debug)]
enum Chunk {
    /// A line of its own.
    Line(String),
    /// A line that the next chunk replaces; for terminals only.
    Live(String),
}

/// A queue with its thread.
#[derive(Debug)]
pub(crate) struct OutputQueue {
    output: Output,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Chunk>,
    bytes: usize,
    /// The number of lines dropped since the last notice, and the notice's format.
    dropped: u64,
    notice: Option<fn(u64) -> String>,
    /// Whether a chunk is being written, and so is no longer in the queue.
    writing: bool,
    started: bool,
}

/// The queue for messages.
pub(crate) static STDERR: OutputQueue = OutputQueue::new(Output::Stderr);
/// The queue for answers that must not block the program.
pub(crate) static STDOUT: OutputQueue = OutputQueue::new(Output::Stdout);

impl OutputQueue {
    const fn new(output: Output) -> Self {
        let state = State {
            queue: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            notice: None,
            writing: false,
            started: false,
        };
        OutputQueue { output, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, or drops it; `notice` formats the number of dropped lines. Never blocks.
    pub(crate) fn line(&'static self, text: String, notice: fn(u64) -> String) {
        let mut state = self.lock();
        state.notice = Some(notice);
        if !state.has_room(&text) {
            state.dropped += 1;
            return;
        }
        state.add_notice();
        state.push(Chunk::Line(text));
        self.start(state);
    }

    /// Shows a line that the next one replaces; an empty one removes it. Never blocks.
    pub(crate) fn live(&'static self, text: String) {
        let mut state = self.lock();
        if let Some(Chunk::Live(last)) = state.queue.back_mut() {
            *last = text;
        } else if state.queue.len() < MOST_LINES {
            state.push(Chunk::Live(text));
        }
        self.start(state);
    }

    /// Wakes the thread, and starts it first if necessary.
    fn start(&'static self, mut state: MutexGuard<'_, State>) {
        if !state.started {
            let thread = thread::Builder::new().name("printing".to_owned());
            state.started = thread.spawn(|| self.write_loop()).is_ok();
        }
        if state.started {
            self.changed.notify_all();
        } else {
            // No thread can be started: write at once as much as fits, and drop the rest.
            while let Some(chunk) = state.pop() {
                if self.output.is_writable() {
                    let mut bytes = chunk.bytes(&mut false);
                    bytes.truncate(4096); // what a pipe accepts at once, if it is writable
                    let _ = self.output.write_all(&bytes);
                }
            }
        }
    }

    /// The loop of the writer thread.
    fn write_loop(&self) {
        let mut live = false;
        loop {
            let mut state = self.lock();
            let chunk = loop {
                if let Some(chunk) = state.pop() {
                    break chunk;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            state.writing = true;
            drop(state);
            // A closed output must not change the program's behaviour.
            let _ = self.output.write_all(&chunk.bytes(&mut live));
            self.lock().writing = false;
            self.changed.notify_all();
        }
    }

    /// Waits until everything is written: up to `wait_limit` if nothing is accepted, up to `limit`
    /// if the output is slow (or the machine busy).
    pub(crate) fn flush(&self, wait_limit: Duration, limit: Duration) {
        let began = Instant::now();
        let mut state = self.lock();
        while state.started && (!state.queue.is_empty() || state.dropped > 0 || state.writing) {
            let waited = began.elapsed();
            if waited >= limit || waited >= wait_limit && !self.output.is_writable() {
                return;
            }
            let woken = self.changed.wait_timeout(state, PAUSE);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    /// Whether a line fits. An empty queue takes one of any length: of a lock with many holders,
    /// say.
    fn has_room(&self, text: &str) -> bool {
        let len = self.queue.len();
        len == 0 || len < MOST_LINES && self.bytes + text.len() <= MOST_BYTES
    }

    fn push(&mut self, chunk: Chunk) {
        self.bytes += chunk.text().len();
        self.queue.push_back(chunk);
    }

    fn pop(&mut self) -> Option<Chunk> {
        if self.queue.is_empty() {
            self.add_notice();
        }
        let chunk = self.queue.pop_front()?;
        self.bytes = self.bytes.saturating_sub(chunk.text().len());
        Some(chunk)
    }

    /// Adds the notice, in place of the dropped lines.
    fn add_notice(&mut self) {
        if let Some(notice) = self.notice.filter(|_| self.dropped > 0) {
            let text = notice(self.dropped);
            self.dropped = 0;
            self.push(Chunk::Line(text));
        }
    }
}

impl Chunk {
    fn text(&self) -> &str {
        match self {
            Chunk::Line(text) | Chunk::Live(text) => text,
        }
    }

    /// The bytes to write. `live` is whether a replaceable line is shown, before and after.
    fn bytes(&self, live: &mut bool) -> Vec<u8> {
        const ERASE: &str = "\r\x1b[K";
        let was_live =
            std::mem::replace(live, matches!(self, Chunk::Live(text) if !text.is_empty()));
        match self {
            Chunk::Line(text) if was_live => format!("{ERASE}{text}\n").into_bytes(),
            Chunk::Line(text) => format!("{text}\n").into_bytes(),
            Chunk::Live(text) => format!("{ERASE}{text}").into_bytes(),
        }
    }
}

impl Output {
    /// Calls `with` with the output's descriptor.
    fn with<T>(self, with: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match self {
            Output::Stdout => with(stdout().as_fd()),
            Output::Stderr => with(stderr().as_fd()),
        }
    }

    /// Writes all bytes, however long that takes.
    ///
    /// Unlike the standard library, it reports a write to a bad descriptor as an error.
    pub(crate) fn write_all(self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            while self.stops_writers() {
                thread::sleep(PAUSE);
            }
            match self.with(|fd| rustix::io::write(fd, bytes)) {
                Ok(0) => return Err(Error::from(ErrorKind::WriteZero)),
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => thread::sleep(PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether it is a terminal that stops background processes on writing (`stty tostop`), and we
    /// are in the background. A holder of a lock must not be stopped.
    fn stops_writers(self) -> bool {
        self.with(|fd| {
            tcgetpgrp(fd).is_ok_and(|group| group != getpgrp())
                && tcgetattr(fd).is_ok_and(|modes| modes.local_modes.contains(LocalModes::TOSTOP))
        })
    }

    /// Whether a short write would not block.
    fn is_writable(self) -> bool {
        !self.stops_writers()
            && self.with(|fd| {
                let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
                let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
            })
    }

    /// Blocks until nothing can read it any more: the pipe has no reader, or the terminal is gone.
    pub(crate) fn wait_until_unread(self) {
        loop {
            // Nothing is asked for; errors and hang-ups are told nevertheless.
            let gone = self.with(|fd| poll(&mut [PollFd::new(&fd, PollFlags::empty())], None));
            match gone {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return,
                Err(_) => thread::park(),
            }
        }
    }

    /// Whether it seems to have been closed when the program started.
    ///
    /// Before `main`, Rust's runtime opens `/dev/null` for reading and writing in its place, where
    /// shells would open it for writing only. If stderr is the same, no output is wanted, as in a
    /// daemon. Python and Node.js open it in that way too where no output is wanted, so only verbs
    /// that are useless without a reader may fail because of this.
    pub(crate) fn was_closed(self) -> bool {
        use rustix::fs::{OFlags, fcntl_getfl, fstat, major, minor};
        let replaced = |fd: BorrowedFd<'_>| {
            let device = fstat(fd).map(|stat| (major(stat.st_rdev), minor(stat.st_rdev)));
            device == Ok((1, 3)) && fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::RDWR))
        };
        let other = if self == Output::Stdout { Output::Stderr } else { Output::Stdout };
        cfg!(target_os = "linux") && self.with(replaced) && !other.with(replaced)
    }
}

#[cfg(test)]
mod tests {
    use super::{Chunk, MOST_BYTES, State};

    #[test]
    fn a_line_takes_the_place_of_a_live_one() {
        let mut live = false;
        let mut shown = |chunk: Chunk| String::from_utf8(chunk.bytes(&mut live)).unwrap();
        assert_eq!(shown(Chunk::Line("a".into())), "a\n");
        assert_eq!(shown(Chunk::Live("b".into())), "\r\x1b[Kb");
        assert_eq!(shown(Chunk::Line("c".into())), "\r\x1b[Kc\n");
        assert_eq!(shown(Chunk::Live(String::new())), "\r\x1b[K");
        assert_eq!(shown(Chunk::Line("d".into())), "d\n");
    }

    #[test]
    fn a_line_that_is_longer_than_the_queue_is_written_alone() {
        let mut state = State::default();
        let long = "x".repeat(MOST_BYTES + 1);
        assert!(state.has_room(&long), "it would never be written");
        state.push(Chunk::Line(long));
        assert!(!state.has_room("x"));
        state.pop();
        state.push(Chunk::Line("x".into()));
        assert!(state.has_room("x") && !state.has_room(&"x".repeat(MOST_BYTES)));
    }

    #[test]
    fn the_notice_stands_where_lines_are_missing() {
        let mut state = State { notice: Some(|count| format!("{count} lost")), ..State::default() };
        for at in 0..3 {
            state.push(Chunk::Line(at.to_string()));
        }
        state.dropped = 2;
        state.add_notice();
        state.push(Chunk::Line("after".into()));
        let texts: Vec<_> =
            std::iter::from_fn(|| state.pop()).map(|chunk| chunk.text().to_owned()).collect();
        assert_eq!(texts, ["0", "1", "2", "2 lost", "after"]);
        assert_eq!((state.bytes, state.dropped), (0, 0));
    }
}
