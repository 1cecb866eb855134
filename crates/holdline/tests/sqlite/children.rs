//! Other processes: child_processes, which do to a store what they read, and report in lines.

use crate::storm;
use holdline::store::{Enter, Seq, Standing, Store, Ticket, TicketId};
use holdline::stores::sqlite::File;
use holdline::{Name, clock};
use holdline_testkit::end_with_us;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

const FILE: &str = "HOLDLINE_TEST_FILE";
const MARK: &str = "@@";
/// Longer than anything here takes, so that a hang is told from slowness.
const LIMIT: Duration = Duration::from_secs(60);

static MACHINE: RwLock<()> = RwLock::new(());

/// For a test that measures time: no other test of this program runs meanwhile.
pub(crate) fn alone() -> impl Sized {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// For all other tests.
pub(crate) fn together() -> impl Sized {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn note() -> Arc<str> {
    r#"{"host":"test","pid":1}"#.into()
}

pub(crate) fn ticket(id: u128) -> Ticket {
    let lease = Duration::from_secs(60);
    Ticket { wait_lease: lease / 2, ..holdline_testkit::ticket(id, lease) }
}

/// A ticket that nobody else has.
pub(crate) fn fresh() -> Ticket {
    ticket(fastrand::u128(..))
}

/// Enters, and asks again while the database is busy, as the library's driver does.
pub(crate) async fn enter(store: &File, line: &Name, ticket: &Ticket, how: Enter) -> Standing {
    let limit = clock::now().after(LIMIT);
    loop {
        match store.enter(line, ticket, &note(), how).await {
            Err(error) if error.retryable() && clock::now() < limit => {}
            standing => return standing.unwrap(),
        }
    }
}

/// Leaves, and asks again while the database is busy. Says whether there was a place.
pub(crate) async fn leave(store: &File, line: &Name, id: TicketId) -> bool {
    let limit = clock::now().after(LIMIT);
    loop {
        match store.leave(line, id).await {
            Err(error) if error.retryable() && clock::now() < limit => {}
            left => return left.unwrap(),
        }
    }
}

/// Waits in line as the library's driver does.
pub(crate) async fn lock(store: &File, line: &Name, ticket: &Ticket) -> Seq {
    let mut how = Enter::Queue;
    loop {
        match enter(store, line, ticket, how).await {
            Standing::Admitted(seq) => return seq,
            Standing::Waiting { seq: Some(seq), again } => {
                how = Enter::Keep(seq);
                let _ = tokio::time::timeout(again, store.watch(line, ticket.id)).await;
            }
            other => panic!("a waiter that keeps its place is {other:?}"),
        }
    }
}

/// Waits in line by notices alone: if one is missing, it waits for ever. Says also whether a notice
/// has told the place.
pub(crate) async fn await_lock(store: &File, line: &Name, ticket: &Ticket) -> (Seq, bool) {
    let mut how = Enter::Queue;
    loop {
        match enter(store, line, ticket, how).await {
            Standing::Admitted(seq) => return (seq, false),
            Standing::Waiting { seq: Some(seq), .. } => how = Enter::Keep(seq),
            other => panic!("a waiter that keeps its place is {other:?}"),
        }
        if let Some(seq) = store.watch(line, ticket.id).await.unwrap() {
            assert_eq!(how, Enter::Keep(seq), "the notice is about its place");
            return (seq, true);
        }
    }
}

/// Another process, killed when it is dropped.
pub(crate) struct ChildProcess {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl ChildProcess {
    /// Starts one that has the store open.
    pub(crate) fn new(url: impl AsRef<Path>) -> Self {
        let mut child_process = ChildProcess::start(url, |_| {});
        child_process.expect("open");
        child_process
    }

    /// Starts one, which will report `open` or `error`.
    pub(crate) fn start(url: impl AsRef<Path>, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        prepare(&mut command);
        ChildProcess::spawn(url, command)
    }

    /// Starts one by a program that runs the command that follows its own arguments.
    pub(crate) fn inside(wrapper: &[String], url: impl AsRef<Path>) -> Self {
        let mut command = Command::new(&wrapper[0]);
        command.args(&wrapper[1..]).arg(std::env::current_exe().unwrap());
        ChildProcess::spawn(url, command)
    }

    fn spawn(url: impl AsRef<Path>, mut command: Command) -> Self {
        command
            .args([
                "--exact",
                "children::child_process",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(FILE, url.as_ref())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        end_with_us(&child).unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test harness writes on the same line.
                if let Some((_, line)) = line.split_once(MARK)
                    && tell.send(line.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        ChildProcess { child, input, lines }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it what to do.
    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
    }

    /// The next report.
    pub(crate) fn report(&mut self) -> String {
        self.lines.recv_timeout(LIMIT).expect("the process reports in time")
    }

    /// The next report, which begins with this word; what follows it.
    pub(crate) fn expect(&mut self, word: &str) -> String {
        let report = self.report();
        let (first, rest) = report.split_once(' ').unwrap_or((&report, ""));
        assert_eq!(first, word, "{report}");
        rest.to_owned()
    }

    /// Tells it what to do, and returns the report, which begins with this word.
    pub(crate) fn ask(&mut self, command: &str, word: &str) -> String {
        self.tell(command);
        self.expect(word)
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal)
            .unwrap();
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Has it end by itself.
    pub(crate) fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Numbers at the beginning of a report.
pub(crate) fn numbers(report: &str) -> Vec<u64> {
    report.split(' ').map_while(|word| word.parse().ok()).collect()
}

fn say(report: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{report}").unwrap();
    out.flush().unwrap();
}

#[test]
#[ignore = "not a test: the role of another process"]
fn child_process() {
    let Ok(file) = std::env::var(FILE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = match File::open_url(&file) {
        Ok(store) => store,
        Err(error) => return say(&format!("error {:?} {error}", error.kind())),
    };
    store.on_loss_hint(Arc::new(|id| say(&format!("loss_hint {} {}", id.0, clock::now().0))));
    say("open");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        if words == ["stick"] {
            stick(&file);
        }
        runtime.block_on(obey(&store, &words));
    }
}

async fn obey(store: &File, words: &[&str]) {
    let number = |at: usize| -> u64 { words[at].parse().unwrap() };
    match words[0] {
        // enter LINE ID LEASE-MS try|queue
        "enter" => {
            let lease = Duration::from_millis(number(3));
            let ticket = Ticket { lease, ..ticket(number(2).into()) };
            let how = if words[4] == "try" { Enter::Try } else { Enter::Queue };
            report(store.enter(&name(words[1]), &ticket, &note(), how).await);
        }
        // keep LINE ID SEQ
        "keep" => {
            let how = Enter::Keep(Seq(number(3)));
            let ticket = ticket(number(2).into());
            report(store.enter(&name(words[1]), &ticket, &note(), how).await);
        }
        "lock" => {
            let seq = lock(store, &name(words[1]), &ticket(number(2).into())).await;
            say(&format!("held {} {}", seq.0, clock::now().0));
        }
        // await LINE ID OF: one permit of so many, by notices alone
        "await" => {
            let ticket = Ticket { capacity: words[3].parse().unwrap(), ..ticket(number(2).into()) };
            let (seq, told) = await_lock(store, &name(words[1]), &ticket).await;
            say(&format!("held {} {} {}", seq.0, clock::now().0, u8::from(told)));
        }
        "leave" => {
            let before = clock::now();
            let there = leave(store, &name(words[1]), TicketId(number(2).into())).await;
            say(&format!("left {} {there}", before.0));
        }
        // contend LINE MS: locks again and again, and says when it held
        "contend" => contend(store, words[1], Duration::from_millis(number(2))).await,
        // storm MS CANCELLED: has many give up for so long, and so many more be cancelled
        "storm" => {
            let (time, cancelled) = (Duration::from_millis(number(1)), words[2].parse().unwrap());
            let store = store.clone();
            let storm = std::thread::spawn(move || storm::run(&store, time, cancelled));
            let [before, most, after] = storm.join().unwrap();
            say(&format!("calm {before} {most} {after}"));
        }
        // starve SPARE FILE: uses another store with so many file descriptors left, then with more
        "starve" => starve(words[1].parse().unwrap(), words[2]).await,
        // write LINES: takes and gives up locks until it is killed
        "write" => loop {
            let line = name(&format!("line-{}", fastrand::u64(..number(1))));
            let ticket = fresh();
            enter(store, &line, &ticket, Enter::Queue).await;
            if fastrand::bool() {
                leave(store, &line, ticket.id).await;
            }
        },
        other => panic!("a child_process cannot {other}"),
    }
}

fn report(result: holdline::Result<Standing>) {
    say(&match result {
        Ok(Standing::Admitted(seq)) => format!("admitted {}", seq.0),
        Ok(Standing::Waiting { seq, .. }) => format!("waiting {}", seq.map_or(0, |seq| seq.0)),
        Ok(Standing::Lost) => "lost".to_owned(),
        Err(error) => format!("error {:?} {error}", error.kind()),
    });
}

async fn starve(spare: usize, file: &str) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit { current: Some(128), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut full = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        full.push(file);
    }
    full.truncate(full.len() - spare);
    let result = match File::open(file) {
        Ok(starved) => {
            let (line, ticket) = (name("job"), fresh());
            let tried = starved.enter(&line, &ticket, &note(), Enter::Queue).await;
            let looked = starved.snapshot(&line).await;
            drop(full);
            // With more of them the same store works.
            enter(&starved, &line, &ticket, Enter::Queue).await;
            assert!(starved.leave(&line, ticket.id).await.unwrap());
            tried.map(|_| ()).and(looked.map(|_| ()))
        }
        Err(error) => {
            drop(full);
            Err(error)
        }
    };
    match result {
        Ok(()) => say("worked"),
        Err(error) => say(&format!("{:?} {error}", error.kind())),
    }
    let store = File::open(file).unwrap();
    assert!(store.snapshot(&name("job")).await.unwrap().places.is_empty());
    say("worked");
    say("fed");
}

async fn contend(store: &File, line: &str, time: Duration) {
    let (line, over) = (name(line), clock::now().after(time));
    let mut spans = Vec::new();
    while clock::now() < over {
        let ticket = fresh();
        let asked = clock::now();
        enter(store, &line, &ticket, Enter::Queue).await;
        let placed = clock::now();
        let seq = lock(store, &line, &ticket).await;
        let from = clock::now();
        std::thread::sleep(Duration::from_micros(100));
        let until = clock::now();
        assert!(leave(store, &line, ticket.id).await);
        spans.push([seq.0, asked.0, placed.0, from.0, until.0]);
    }
    for [seq, asked, placed, from, until] in spans {
        say(&format!("span {seq} {asked} {placed} {from} {until}"));
    }
    say("done");
}

/// Holds the write lock of the database until it is killed.
fn stick(file: &str) -> ! {
    let path = file.split('?').next().unwrap();
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE; UPDATE meta SET cursor = 'stuck'").unwrap();
    say("stuck");
    loop {
        std::thread::park();
    }
}
