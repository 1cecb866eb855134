//! The lock is lost while the command runs.

use super::common::{HOLDLINE, Place, Running, lives, until};
use rustix::process::{Pid, Signal, kill_process};
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
struct BlockedStore(#[allow(dead_code, reason = "held for its drop")] rusqlite::Connection);

impl BlockedStore {
    fn new(place: &Place) -> Self {
        let connection = rusqlite::Connection::open(place.path("locks.db")).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        BlockedStore(connection)
    }
}

#[test]
fn stopped_for_longer_than_the_lease_it_kills_the_command_first() {
    let place = Place::new();
    let args = ["run", "--lease", "2s", "x", "--", "sh", "-c", STUBBORN];
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

/// The lock is broken while the command runs, and nothing notices that before the command's end: as
/// on a store without notices, here because the program is stopped. G21.
#[test]
fn a_loss_before_the_commands_end_is_reported_although_the_lock_is_held_longer() {
    for _ in 0..5 {
        let place = Place::new();
        let script = "echo $$; read x";
        let mut running = place.start(["run", "--min-hold", "1h", "x", "--", "sh", "-c", script]);
        let command: i32 = running.line().parse().unwrap();
        running.signal(Signal::STOP);
        break_it(&place);
        running.tell("\n");
        until("the command ended", || !lives(command));
        running.signal(Signal::CONT);
        let run = running.end();
        assert_eq!(run.code, 76, "{run:?}");
        assert!(run.err.contains("lost"), "{run:?}");
    }
}

// G21
#[cfg(target_os = "linux")]
#[test]
fn a_daemon_of_the_command_dies_with_it() {
    let place = Place::new();
    let file = place.path("pid");
    // In a session of its own, without its parents, and deaf to TERM.
    let leader = "echo $$ > \"$0.new\"; mv \"$0.new\" \"$0\"; (trap '' TERM HUP; exec sleep 600) &";
    let script = "setsid sh -c \"$0\" \"$1\" >/dev/null; \
                  until test -s \"$1\"; do sleep .02; done; echo in; read x";
    let args = ["run", "x", "--", "sh", "-c", script, leader, file.to_str().unwrap()];
    let mut running = place.start(args);
    assert_eq!(running.line(), "in");
    let group = std::fs::read_to_string(&file).unwrap();
    let group: i32 = group.trim().parse().unwrap();
    let daemons = || {
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let session = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(3));
            session == Some(&group.to_string()) && lives(*pid)
        })
        .collect::<Vec<_>>()
    };
    until("its parents have ended", || daemons().len() == 1);
    break_it(&place);
    assert_eq!(running.end().code, 76);
    assert_eq!(daemons(), Vec::<i32>::new());
}

/// A shell that executes the program leaves its own children to it, and later theirs.
#[cfg(target_os = "linux")]
#[test]
fn processes_from_before_the_command_are_left_alone() {
    let place = Place::new();
    let file = place.path("pids");
    let earlier = "sleep 600 & echo $! $$ > \"$0.new\"; mv \"$0.new\" \"$0\"; wait";
    let script = "sh -c \"$1\" \"$2\" >/dev/null 2>&1 & \
                  until test -s \"$2\"; do sleep .02; done; \
                  sleep 600 >/dev/null 2>&1 & echo $!; exec \"$0\" run x -- \
                  sh -c 'echo in; read x'";
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", script, HOLDLINE, earlier]).arg(&file).env("HOLDLINE_STORE", place.url());
    let mut running = Running::start(shell.env("HOLDLINE_CONFIG", ""));
    let child: i32 = running.line().parse().unwrap();
    assert_eq!(running.line(), "in");
    let (grandchild, parent) = two_pids(std::fs::read_to_string(&file).unwrap().trim());
    let kill = |pid| kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    kill(parent).unwrap();
    let adopted = format!(") S {} ", running.pid().as_raw_nonzero());
    let stat = || std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap();
    until("the grandchild is a child", || stat().contains(&adopted));
    break_it(&place);
    assert_eq!(running.end().code, 76);
    assert_eq!([child, grandchild].map(lives), [true, true]);
    for pid in [child, grandchild] {
        kill(pid).unwrap();
    }
}

/// In a PID namespace without a `/proc` of its own, that of the namespace around it lists other
/// processes: here process 1 is not the program, and has a child that is not the program's.
#[cfg(target_os = "linux")]
#[test]
fn what_the_proc_of_another_namespace_lists_is_left_alone() {
    if !rustix::process::geteuid().is_root() {
        return holdline_testkit::missing("the right to make a process namespace (root)");
    }
    let place = Place::new();
    let script = "sleep 600 & unshare --pid --fork \"$0\" run --fixed-lease --lease 2s x -- \
                  sh -c \"echo in; sleep 600\"; echo $?";
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc", "sh", "-c", script, HOLDLINE]);
    unshare.env("HOLDLINE_STORE", place.url()).env("HOLDLINE_CONFIG", "");
    let mut running = Running::start(&mut unshare);
    assert_eq!((running.line().as_str(), running.line().as_str()), ("in", "76"));
    let run = running.end();
    assert!(run.err.contains("was lost") && !run.err.contains("even by KILL"), "{run:?}");
}

/// Starts a run, jams the store, and waits until the run ends: before its lease is over, but on a
/// busy machine not each time.
fn jammed(flags: &[&str], script: &str) -> super::common::Run {
    let mut late = Vec::new();
    while late.len() < 4 {
        let place = Place::new();
        let command = ["--", "sh", "-c", script];
        let mut running = place.start([&["run", "--lease", "8s", "x"], flags, &command].concat());
        assert_eq!(running.line(), "in");
        let _jam = BlockedStore::new(&place);
        let began = Instant::now();
        let run = running.end();
        if began.elapsed() < Duration::from_secs(8) {
            return run;
        }
        late.push((began.elapsed(), run));
    }
    panic!("the lease was over: {late:#?}");
}

#[test]
fn a_silent_store_gives_the_command_its_grace_time() {
    let script = "trap 'echo term; exit 0' TERM; echo in; while :; do sleep .02; done";
    let run = jammed(&["--grace", "1900ms"], script);
    assert_eq!((run.code, run.out.as_str()), (76, "term\n"), "{run:?}");
    assert!(run.err.contains("its lease ran out before a renewal was confirmed"), "{run:?}");
    assert!(run.err.contains("warning: renewal "), "the library's warnings are shown: {run:?}");
}

// G21
#[test]
fn a_command_that_does_not_heed_it_is_killed_before_a_rival_can_be_in() {
    let script = "trap 'echo term' TERM; echo in; while :; do sleep .02; done";
    let run = jammed(&["--grace", "1s"], script);
    assert_eq!((run.code, run.out.as_str()), (76, "term\n"), "{run:?}");
}

#[test]
fn a_release_says_that_the_store_did_not_confirm_it() {
    let place = Place::new();
    let handle = place.run(["acquire", "--detach", "10m", "x"]);
    assert_eq!(handle.code, 0, "{handle:?}");
    let _jam = BlockedStore::new(&place);
    let run = place.run(["release", handle.out.trim()]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.err.contains("the release of lock \"x\"") && run.err.contains("not confirmed"));
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

/// The victim is told who broke the lock, and for what reason.
#[test]
fn a_victim_is_told_who_broke_its_lock_and_why() {
    let place = Place::new();
    for json in [false, true] {
        let flags = if json { &["--json"][..] } else { &[] };
        let running = place.hold(flags, "x");
        let id = place.status("x")["holders"][0]["id"].as_str().unwrap().to_owned();
        let mut breaker = place.start(["break", "x", &id, "--reason", "a \u{202e}stuck deploy"]);
        breaker.close_stdin();
        let pid = breaker.pid().as_raw_nonzero().get();
        assert_eq!(breaker.end().code, 0);
        let run = running.end();
        assert_eq!(run.code, 76, "{run:?}");
        assert!(!run.err.contains('\u{202e}'), "{run:?}");
        let last = run.err.lines().last().unwrap();
        if json {
            let last: serde_json::Value = serde_json::from_str(last).unwrap();
            assert_eq!((&last["event"], &last["cause"]), (&"lost".into(), &"broken".into()));
            assert_eq!(last["reason"], "a \u{202e}stuck deploy");
            assert_eq!(last["by"]["pid"], pid);
        } else {
            let words = [&*format!("broken by force by process {pid}"), "stuck deploy"];
            assert!(words.iter().all(|word| last.contains(word)), "{run:?}");
        }
    }
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
    assert!(["broken", "gone"].contains(&last["cause"].as_str().unwrap()), "{last}");
}
