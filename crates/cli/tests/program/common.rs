//! A place of its own for each test, and processes whose output can be waited for.

pub(crate) use holdline_testkit::wait_until as until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before the test fails.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// The program under test.
pub(crate) const HOLDLINE: &str = env!("CARGO_BIN_EXE_holdline");

/// A folder with a store in it.
pub(crate) struct Place(tempfile::TempDir);

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Place(tempfile::tempdir().expect("there is a place for temporary files"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The names of what is in the folder.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("the folder is there");
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path("locks.db").display())
    }

    /// The program with these arguments, on this place's store.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(HOLDLINE);
        command.args(args).env("HOLDLINE_STORE", self.url()).env("HOLDLINE_CONFIG", "");
        for name in ["HOLDLINE_HELD", "HOLDLINE_NAME", "HOLDLINE_TOKEN", "HOLDLINE_STATE"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Run {
        finish(&mut self.command(args))
    }

    /// Starts the program, and goes on.
    pub(crate) fn start<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Running {
        Running::start(&mut self.command(args))
    }

    /// Starts `run NAME` with a command that says "in", and ends when told to or left alone.
    pub(crate) fn hold(&self, flags: &[&str], name: &str) -> Running {
        let args = [&["run", name], flags, &["--", "sh", "-c", "echo in; read x"]].concat();
        let mut running = self.start(args);
        assert_eq!(running.line(), "in");
        running
    }

    /// What `status --json NAME` says.
    pub(crate) fn status(&self, name: &str) -> Value {
        let run = self.run(["status", "--json", name]);
        assert_eq!(run.code, 0, "{run:?}");
        serde_json::from_str(&run.out).expect("it is JSON")
    }

    /// How many hold the lock, and how many wait for it.
    pub(crate) fn counts(&self, name: &str) -> (usize, usize) {
        let status = self.status(name);
        let count = |key: &str| status[key].as_array().expect("it is a list").len();
        (count("holders"), count("waiters"))
    }
}

/// Writes a script that all may run, by a process of its own: what another thread starts while this
/// one writes the file would have it open for writing as well for a moment, and so it could not be
/// run ("Text file busy").
pub(crate) fn write_script(path: &Path, text: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""]).arg(path).arg(text);
    let run = finish(&mut command);
    assert_eq!(run.code, 0, "{run:?}");
}

/// Runs a command to its end, without anything to read.
pub(crate) fn finish(command: &mut Command) -> Run {
    let mut running = Running::start(command);
    running.close_stdin();
    running.end()
}

/// A process that the test started. It is killed with the test.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    seen: String,
    err: Option<thread::JoinHandle<String>>,
    /// Whether it was asked for JSON: then all that it prints is held against the schema.
    json: bool,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        usual_signals();
        let json = command.get_args().any(|arg| arg == "--json");
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        let (send, lines) = channel();
        thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|l| send.send(l)));
        let mut err = child.stderr.take().expect("it is piped");
        let err = thread::spawn(move || {
            let mut text = String::new();
            let _ = err.read_to_string(&mut text);
            text
        });
        Running { child, lines, seen: String::new(), err: Some(err), json }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        match self.lines.recv_timeout(LONG) {
            Ok(line) => {
                if self.json {
                    super::events::check_lines(&line);
                }
                line
            }
            Err(error) => {
                let _ = self.child.kill();
                let status = self.child.wait();
                let said = self.err.take().map(thread::JoinHandle::join);
                panic!("no line came: {error}; it ended: {status:?}; it said: {said:?}")
            }
        }
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    pub(crate) fn tell(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().expect("it is open");
        stdin.write_all(text.as_bytes()).expect("it listens");
    }

    pub(crate) fn close_stdin(&mut self) {
        self.child.stdin = None;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it is there");
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Run {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break status;
            }
            assert!(start.elapsed() < LONG, "it does not end");
            thread::sleep(Duration::from_millis(2));
        };
        while let Ok(line) = self.lines.recv_timeout(LONG) {
            self.seen += &line;
            self.seen.push('\n');
        }
        let err = self.err.take().expect("taken once").join().expect("reading does not panic");
        if self.json {
            super::events::check_lines(&self.seen);
            super::events::check_lines(&err);
        }
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
        Run { code, out: std::mem::take(&mut self.seen), err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Gives the processes that this test starts the usual signal dispositions, whatever those of the
/// test are: `nohup`, and shells that start something in the background, have some ignored, and
/// that is inherited. A signal with a handler is not, so those that are ignored get one.
pub(crate) fn usual_signals() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or("0");
        let ignored = u64::from_str_radix(mask.trim(), 16).expect("in hexadecimal");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _inside = runtime.enter();
        let ours = [1, 2, 3, 10, 12, 15, 18, 20, 21, 22]; // HUP INT QUIT USR1 USR2 TERM CONT T*
        for signal in ours.into_iter().filter(|signal| ignored & (1 << (signal - 1)) != 0) {
            // The handler stays when the stream goes.
            let kind = tokio::signal::unix::SignalKind::from_raw(signal);
            drop(tokio::signal::unix::signal(kind).expect("it can be handled"));
        }
    });
}

/// Whether a process lives: it is there, and is not only a dead one that nobody has waited for.
pub(crate) fn lives(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}
