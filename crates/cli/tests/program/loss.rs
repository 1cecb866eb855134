//! The lock is lost while the command runs.

use super::common::{Place, Running, lives, until};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Ignores TERM, and has a child that does so too.
const STUBBORN: &str = "trap '' TERM; sleep 600 & echo $! $$; wait; sleep 600";

fn two_pids(line: &str) -> (i32, i32) {
    let (one, two) = line.split_once(' ').expect("two pids");
    (one.parse().unwrap(), two.parse().unwrap())
}

/// Breaks whatever holds the lock, and returns the new token.
fn break_it(place: &Place) -> u64 {
    let status = place.status("x");
    let id = status["holders"][0]["id"].as_str().expect("somebody holds").to_owned();
    let run = place.run(["break", "x", &id[..8], "--reason", "a test"]);
    assert_eq!(run.code, 0, "{run:?}");
    let token: u64 = run.out.trim().parse().expect("a token");
    assert!(token > status["holders"][0]["token"].as_u64().unwrap());
    token
}

/// Keeps the store from answering until it is dropped.
struct Jam(#[allow(dead_code, reason = "held for its drop")] rusqlite::Connection);

impl Jam {
    fn new(place: &Place) -> Self {
        let connection = rusqlite::Connection::open(place.path("locks.db")).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        Jam(connection)
    }
}

#[test]
fn stopped_for_longer_than_the_lease_it_kills_the_command_first() {
    let place = Place::new();
    let args = ["run", "--lease", "500ms", "x", "--", "sh", "-c", STUBBORN];
    let mut running = place.start(args);
    let (grandchild, child) = two_pids(&running.line());
    running.signal(Signal::STOP);
    until("the lease ran out", || place.counts("x") == (0, 0));
    assert!(lives(child), "the command itself was not stopped");
    let rival = place.run(["run", "-w", "20s", "x", "--", "true"]);
    assert_eq!(rival.code, 0);
    running.signal(Signal::CONT);
    let run = running.end();
    assert_eq!(run.code, 76, "{run:?}");
    assert!(run.err.contains("lost"), "{run:?}");
    assert!(!lives(child));
    until("its child is dead", || !lives(grandchild));
}

#[test]
fn broken_by_force_it_is_killed_at_once() {
    let place = Place::new();
    let mut running = place.start(["run", "x", "--", "sh", "-c", STUBBORN]);
    let (grandchild, child) = two_pids(&running.line());
    let began = Instant::now();
    break_it(&place);
    let run = running.end();
    assert_eq!(run.code, 76, "{run:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "before the lease of 10 s is over");
    assert!(!lives(child));
    until("its child is dead", || !lives(grandchild));
    assert_eq!(place.run(["run", "-n", "x", "--", "true"]).code, 0);
}

/// Starts a run, jams the store, and waits until the run ends.
fn jammed(place: &Place, flags: &[&str], script: &str) -> (super::common::Run, Duration) {
    let command = ["--", "sh", "-c", script];
    let mut running = place.start([&["run", "--lease", "4s", "x"], flags, &command].concat());
    assert_eq!(running.line(), "in");
    let jam = Jam::new(place);
    let began = Instant::now();
    let run = running.end();
    let took = began.elapsed();
    drop(jam);
    (run, took)
}

#[test]
fn a_silent_store_gives_the_command_its_grace_time() {
    let place = Place::new();
    let script = "trap 'echo term; exit 0' TERM; echo in; while :; do sleep .02; done";
    let (run, took) = jammed(&place, &["--grace", "1900ms"], script);
    assert_eq!((run.code, run.out.as_str()), (76, "term\n"), "{run:?}");
    assert!(took < Duration::from_secs(4), "it took {took:?}");
}

// G21
#[test]
fn a_command_that_does_not_heed_it_is_killed_before_a_rival_can_be_in() {
    let place = Place::new();
    let script = "trap 'echo term' TERM; echo in; while :; do sleep .02; done";
    let (run, took) = jammed(&place, &["--grace", "1s"], script);
    assert_eq!((run.code, run.out.as_str()), (76, "term\n"), "{run:?}");
    assert!(took < Duration::from_secs(4), "the lease was over: it took {took:?}");
}

#[test]
fn it_can_be_let_run_on() {
    let place = Place::new();
    let script = "trap 'echo term' TERM; echo in; read x; echo done";
    let args = ["run", "--on-loss", "continue", "x", "--", "sh", "-c", script];
    let mut running = place.start(args);
    assert_eq!(running.line(), "in");
    break_it(&place);
    // A rival is in, and the command still runs.
    assert_eq!(place.run(["run", "-n", "x", "--", "true"]).code, 0);
    until("the loss was noticed", || place.counts("x") == (0, 0));
    assert!(running.runs());
    running.tell("\n");
    let run = running.end();
    assert_eq!((run.code, run.out.as_str()), (76, "done\n"), "{run:?}");
}

#[test]
fn it_can_be_asked_to_end_without_force() {
    let place = Place::new();
    let script = "trap 'read x; echo bye; exit 0' TERM; echo in; while :; do sleep .02; done";
    let mut running: Running =
        place.start(["run", "--on-loss", "term", "x", "--", "sh", "-c", script]);
    assert_eq!(running.line(), "in");
    break_it(&place);
    running.tell("\n");
    let run = running.end();
    assert_eq!((run.code, run.out.as_str()), (76, "bye\n"), "{run:?}");
}

#[test]
fn json_says_lost() {
    let place = Place::new();
    let mut running =
        place.start(["run", "--json", "x", "--", "sh", "-c", "echo in; exec sleep 600"]);
    assert_eq!(running.line(), "in");
    break_it(&place);
    let run = running.end();
    let last: serde_json::Value =
        serde_json::from_str(run.err.lines().last().expect("it says something")).unwrap();
    assert_eq!((run.code, last["event"].as_str()), (76, Some("lost")));
    assert_eq!(last["exit"], 76);
}
