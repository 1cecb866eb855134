//! A holder's process is stopped for longer than its lease, at any instant, and goes on while
//! another process holds the lock on the same Redis server (G5).

use holdline::{Guard, Mutex, clock, open};
use holdline_checker::Register::FencedReadWrite;
use holdline_checker::Writer;
use holdline_checker::resource::{Client as Resource, Reply, Server as ResourceServer};
use holdline_kernel::Time;
use holdline_testkit::end_with_us;
use holdline_testkit::redis::private;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const URL: &str = "HOLDLINE_TEST_STOPPED_URL";
const RESOURCE: &str = "HOLDLINE_TEST_STOPPED_RESOURCE";
const MARK: &str = "@@";
const LEASE: Duration = Duration::from_secs(1);
/// Longer than anything here takes, so that a hang is told from slowness.
const LIMIT: Duration = Duration::from_secs(30);

fn say(report: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{report}").and_then(|()| out.flush()).expect("somebody listens");
}

/// Asks again and again, and returns when it last asked and was told that the lock is held. Of many
/// who do so, one asks before anything else in its process has noticed the stop.
fn believed(guard: &Guard) -> Time {
    let (mut last, mut asked) = (Time(0), clock::now());
    while guard.is_valid() {
        std::thread::sleep(Duration::from_micros(50));
        (last, asked) = (asked, clock::now());
    }
    last
}

#[tokio::test]
#[ignore = "not a test: the role of another process"]
async fn holder() {
    let (Ok(url), Ok(resource)) = (std::env::var(URL), std::env::var(RESOURCE)) else { return };
    let client = open(&url).await.expect("opens");
    let resource = Resource::connect(Path::new(&resource)).expect("it is there");
    let guard = Mutex::new(&client, "x").lease(LEASE).lock().await.expect("works");
    let token = guard.token();
    let opened = resource.open("x", FencedReadWrite, token).expect("it answers");
    assert!(matches!(opened, Reply::Done { .. }), "{opened:?}");
    say(&format!("held {token}"));
    // The runtime does nothing meanwhile: what renews, and what tells, is not in its hands.
    let last = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(|| believed(&guard))).collect();
        asking.into_iter().map(|thread| thread.join().expect("no panic")).max()
    });
    let last = last.expect("there are some");
    say(&format!("lost {}", last.0));
    let read = resource.read("x", FencedReadWrite, token).expect("it answers");
    let written = resource.write("x", FencedReadWrite, token, None, 1).expect("it answers");
    say(&format!("resource {read:?} {written:?}"));
    assert!(!guard.is_valid());
    guard.lost().await;
    let error = guard.protect(async { say("acts") }).await.expect_err("it is lost");
    say(&format!("protect {:?}", error.kind()));
    say(&format!("unlock {:?}", guard.unlock().await.expect_err("it is lost").kind()));
}

/// The other process. Dropping it kills it.
struct Holder {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Holder {
    fn start(url: &str, resource: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("the system knows what runs"))
            .args(["--exact", "stopped::holder", "--ignored", "--nocapture", "--test-threads=1"])
            .env(URL, url)
            .env(RESOURCE, resource)
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        end_with_us(&child).expect("there is a shell");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Holder { child, output }
    }

    /// What follows this word in its next report.
    fn expect(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("it is text") > 0 {
            // The test harness writes on the same line.
            let Some((_, report)) = line.split_once(MARK) else {
                line.clear();
                continue;
            };
            let report = report.trim_end();
            let rest = report.strip_prefix(word).unwrap_or_else(|| panic!("{report}, not {word}"));
            return rest.trim_start().to_owned();
        }
        panic!("it ended before it said {word}")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it lives");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_knows_before_it_does_anything() {
    let Some(server) = private("stopped", &[]) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("resource");
    let resource = ResourceServer::bind(&socket).expect("there is room");
    let history =
        Writer::open(&folder.path().join("history"), "stopped", "resource").expect("there is room");
    let serving = std::thread::spawn(move || resource.run(&history));
    let client = open(server.url()).await.expect("opens");
    let lock = Mutex::new(&client, "x");
    let mine = Resource::connect(&socket).expect("it is there");
    let (mut last, mut in_time) = (None, 0);
    for round in 0..4 {
        let mut holder = Holder::start(server.url(), &socket);
        let theirs: u64 = holder.expect("held").parse().expect("a token");
        // Once the next one stands in the line already, and once it comes later.
        let lock = lock.clone();
        let next = tokio::spawn(async move {
            if round % 2 == 1 {
                tokio::time::sleep(LEASE * 2).await;
            }
            let guard = lock.lock().await.expect("works");
            (clock::now(), guard)
        });
        std::thread::sleep(LEASE.mul_f64(fastrand::f64()));
        let stopped = clock::now();
        holder.signal(Signal::STOP);
        let (got, guard) = tokio::time::timeout(LIMIT, next).await.expect("it comes").expect("ok");
        // On a very busy machine it may have lost its lock before.
        in_time += u32::from(got > stopped);
        assert!(guard.token() > theirs);
        let uid = 10 + round;
        mine.open("x", FencedReadWrite, guard.token()).expect("it answers");
        let done = mine.write("x", FencedReadWrite, guard.token(), last, uid).expect("it answers");
        assert_eq!(done, Reply::Done { last: Some(uid), len: round + 1 });
        last = Some(uid);

        holder.signal(Signal::CONT);
        let believed: u64 = holder.expect("lost").parse().expect("a time");
        assert!(believed < got.0, "it believed that it held while the next one did");
        let stale = Reply::Stale { highest: guard.token() };
        assert_eq!(holder.expect("resource"), format!("{stale:?} {stale:?}"));
        assert_eq!(holder.expect("protect"), "Lost");
        assert_eq!(holder.expect("unlock"), "Lost");
        assert!(guard.is_valid(), "what was lost releases nothing of others");
        let read = mine.read("x", FencedReadWrite, guard.token()).expect("it answers");
        assert_eq!(read, Reply::Done { last, len: round + 1 }, "and writes nothing");
        guard.unlock().await.expect("held");
    }
    assert!(in_time > 0, "no holder was stopped while it held");
    mine.stop().expect("it answers");
    serving.join().expect("no panic").expect("it served");
}
