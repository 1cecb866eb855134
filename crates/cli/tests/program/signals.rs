//! Signals: to the command while it runs, to the wait before, and the one that nobody can catch.

use super::common::{HOLDLINE, Place, Running, finish, lives, until};
use rustix::process::{Signal, kill_process};
use std::process::Command;

#[test]
fn signals_reach_the_command_and_what_it_started() {
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let place = Place::new();
        // The inner shell is a grandchild; it is in the group, and hears it too.
        let inner =
            format!("trap 'echo inner; exit' {name}; echo ready; while :; do sleep .05; done");
        let outer = format!("trap 'echo outer; exit 5' {name}; sh -c \"$0\"; :");
        let mut running = place.start(["run", "x", "--", "sh", "-c", &outer, &inner]);
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        let mut said = [running.line(), running.line()];
        said.sort();
        assert_eq!(said, ["inner", "outer"], "{name}");
        assert_eq!(running.end().code, 5, "{name}");
        assert_eq!(place.counts("x"), (0, 0));
    }
}

#[test]
fn a_command_that_dies_of_a_signal_is_waited_for() {
    let place = Place::new();
    let mut running = place.start(["run", "x", "--", "sh", "-c", "echo $$; exec sleep 600"]);
    let pid: i32 = running.line().parse().unwrap();
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, 143);
    assert!(!lives(pid));
    assert_eq!(place.counts("x"), (0, 0));
}

// G21
#[test]
fn kill_9_takes_the_command_along() {
    let place = Place::new();
    let mut running = place.start(["run", "x", "--", "sh", "-c", "echo $$; exec sleep 600"]);
    let pid: i32 = running.line().parse().unwrap();
    assert!(lives(pid));
    running.signal(Signal::KILL);
    assert_eq!(running.end().code, -9);
    until("the command is dead", || !lives(pid));
    assert_eq!(place.run(["run", "-w", "20s", "x", "--", "true"]).code, 0);
}

#[test]
fn a_signal_ends_the_wait_and_leaves_no_place() {
    let place = Place::new();
    let _holder = place.hold(&[], "x");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let waiter = place.start(["run", "x", "--", "echo", "ran"]);
        until("it waits", || place.counts("x") == (1, 1));
        waiter.signal(signal);
        let run = waiter.end();
        assert_eq!((run.code, run.out.as_str()), (code, ""));
        assert!(run.err.contains("ended the wait"), "{run:?}");
        assert_eq!(place.counts("x"), (1, 0));
    }
}

#[test]
fn a_stop_is_passed_on_and_so_is_its_end() {
    let place = Place::new();
    let script = "trap 'echo continued' CONT; echo $$; while :; do read x && exit 6; done";
    let mut running = place.start(["run", "--lease", "60s", "x", "--", "sh", "-c", script]);
    let pid: i32 = running.line().parse().unwrap();
    running.signal(Signal::TSTP);
    let is_stopped = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    let own = running.pid().as_raw_nonzero().get();
    until("both are stopped", || is_stopped(pid) && is_stopped(own));
    running.signal(Signal::CONT);
    assert_eq!(running.line(), "continued");
    running.tell("\n");
    assert_eq!(running.end().code, 6);
}

#[cfg(target_os = "linux")]
#[test]
fn what_was_ignored_before_stays_ignored() {
    let place = Place::new();
    let grep = "grep SigIgn /proc/self/status";
    let script = format!("trap '' HUP PIPE; exec {HOLDLINE} run x -- {grep}");
    let mut command = Command::new("sh");
    let run = finish(command.args(["-c", &script]).env("HOLDLINE_STORE", place.url()));
    let mask = run.out.trim().rsplit('\t').next().expect("a mask");
    let mask = u64::from_str_radix(mask, 16).expect("in hexadecimal");
    assert_eq!(mask & 1, 1, "HUP is ignored: {run:?}");
    assert_eq!(mask & (1 << 14), 0, "TERM is not: {run:?}");
    assert_eq!(mask & (1 << 12), 0, "PIPE is not any more, as the guide says: {run:?}");
}

/// This program ignores PIPE, as Rust has it; its command does not, and ends as it does without us.
#[cfg(target_os = "linux")]
#[test]
fn a_command_whose_reader_is_gone_ends_by_pipe() {
    let place = Place::new();
    for flags in ["run x --", "run -F x --"] {
        let script = format!("{HOLDLINE} {flags} yes | head -n 1; echo ${{PIPESTATUS[0]}}");
        let mut command = Command::new("bash");
        let run = finish(command.args(["-c", &script]).env("HOLDLINE_STORE", place.url()));
        assert_eq!((run.out.as_str(), run.err.as_str()), ("y\n141\n", ""), "{flags}");
        assert_eq!(place.counts("x"), (0, 0));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_ignored_interrupt_ends_neither_the_wait_nor_the_command() {
    let place = Place::new();
    let mut holder = place.hold(&[], "x");
    let script = format!("trap '' INT; exec {HOLDLINE} run x -- sh -c 'echo in; read x'");
    let mut command = Command::new("sh");
    let mut waiter =
        Running::start(command.args(["-c", &script]).env("HOLDLINE_STORE", place.url()));
    until("it waits", || place.counts("x") == (1, 1));
    waiter.signal(Signal::INT);
    holder.tell("\n");
    assert_eq!(holder.end().code, 0);
    assert_eq!(waiter.line(), "in");
    waiter.signal(Signal::INT);
    waiter.tell("\n");
    assert_eq!(waiter.end().code, 0);
}

#[test]
fn grandchildren_are_left_alone_when_all_goes_well() {
    let place = Place::new();
    let script = "sleep 600 >/dev/null 2>&1 & echo $!";
    let run = place.run(["run", "x", "--", "sh", "-c", script]);
    let pid: i32 = run.out.trim().parse().unwrap();
    assert!(run.code == 0 && lives(pid));
    kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}
