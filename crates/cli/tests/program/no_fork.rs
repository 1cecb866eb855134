//! `run -F`: the command in place of the program.

use super::common::{HOLDLINE, Place, Running, finish, until, write_script};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn the_command_takes_the_place_of_the_program_and_holds() {
    let place = Place::new();
    let mut holder = place.start(["run", "-F", "x", "--", "sh", "-c", "echo $$; read x; exit 5"]);
    let pid: i32 = holder.line().parse().unwrap();
    assert_eq!(pid, holder.pid().as_raw_nonzero().get(), "there is no process in between");
    let status = place.status("x");
    assert_eq!(status["holders"][0]["pid"], pid);
    assert_eq!(place.run(["run", "-n", "x", "true"]).code, 75);
    let mut waiter = place.start(["run", "x", "--", "sh", "-c", "echo in; read x"]);
    until("it waits", || place.counts("x") == (1, 1));
    assert!(waiter.runs());
    holder.tell("\n");
    assert_eq!(holder.end().code, 5);
    assert_eq!(waiter.line(), "in", "the end of the command is the end of the lock");
}

#[test]
fn the_kill_of_the_command_frees_the_lock_and_a_child_keeps_it() {
    let place = Place::new();
    let holder = place.start(["run", "-F", "x", "--", "sleep", "600"]);
    until("it holds", || place.counts("x") == (1, 0));
    holder.signal(Signal::KILL);
    drop(holder);
    assert_eq!(place.run(["run", "-w", "50s", "x", "true"]).code, 0);

    // As with flock, what has inherited the lock holds it.
    let script = "sleep 600 & echo $!; read x";
    let mut holder = place.start(["run", "-F", "x", "--", "sh", "-c", script]);
    let child: i32 = holder.line().parse().unwrap();
    holder.signal(Signal::KILL);
    drop(holder);
    assert_eq!(place.run(["run", "-n", "x", "true"]).code, 75);
    kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    assert_eq!(place.run(["run", "-w", "50s", "x", "true"]).code, 0);
}

/// Each place has the number of the liveness lock that its process had then, and those who wait
/// behind it may have that file open.
#[test]
fn locks_that_were_taken_under_an_earlier_liveness_lock_are_held_too() {
    let place = Place::new();
    let mut second = place.hold(&[], "b");
    let script = "echo in; read x";
    let args = ["run", "-F", "a", "--also", "b", "--", "sh", "-c", script];
    let mut holder = place.start(args);
    until("it holds the first and waits for the second", || {
        place.counts("a") == (1, 0) && place.counts("b") == (1, 1)
    });
    let process_of = |name: &str| {
        let conn = rusqlite::Connection::open(place.path("locks.db")).unwrap();
        let last = "SELECT process FROM place WHERE name = ?1 ORDER BY seq DESC LIMIT 1";
        conn.query_row(last, [name], |row| row.get::<_, i64>(0)).unwrap()
    };
    let first = process_of("a");
    let path = place.path("locks.db.live").join(format!("{first:016x}.lock"));
    let lock = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    until("it takes another", || process_of("b") != first);
    assert_eq!(process_of("a"), first);
    second.tell("\n");
    assert_eq!(holder.line(), "in");
    let check = rustix::fs::FlockOperation::NonBlockingLockShared;
    assert!(rustix::fs::flock(&lock, check).is_err(), "whoever looks takes the holder for dead");
    holder.tell("\n");
    assert_eq!(holder.end().code, 0);
    until("its end is seen", || rustix::fs::flock(&lock, check).is_ok());
}

/// As one that was stopped in the middle of a write does. G23.
#[test]
fn a_process_that_blocks_all_writes_is_waited_for() {
    let place = Place::new();
    assert_eq!(place.run(["run", "x", "true"]).code, 0);
    let conn = rusqlite::Connection::open(place.path("locks.db")).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "exec \"$0\" run -F x -- echo in 2>&1", HOLDLINE]);
    let mut running = Running::start(shell.env("HOLDLINE_STORE", place.url()));
    let warning = running.line();
    assert!(warning.contains("warning: the store does not answer"), "{warning}");
    conn.execute_batch("ROLLBACK").unwrap();
    while running.line() != "in" {}
    assert_eq!(running.end().code, 0);
}

/// The guide warns of it: an open file is all that holds the lock.
#[test]
fn a_command_that_closes_what_it_inherits_frees_the_lock() {
    let place = Place::new();
    let close = "for fd in /proc/$$/fd/*; do fd=${fd##*/}; \
                 [ $fd -le 2 ] || eval \"exec $fd>&-\"; done; echo closed; read x";
    let mut running = place.start(["run", "-F", "x", "--", "bash", "-c", close]);
    assert_eq!(running.line(), "closed");
    assert_eq!(place.run(["run", "-n", "x", "true"]).code, 0);
    running.tell("\n");
    assert_eq!(running.end().code, 0);
}

/// The lock is the outer program's, which stays: there is nothing to inherit.
#[test]
fn inside_a_run_of_the_same_name_the_command_takes_the_place_too() {
    let place = Place::new();
    let inner = [HOLDLINE, "run", "-F", "x", "--", "sh", "-c", "echo in; exit 5"];
    for flags in [&["run", "x", "--"][..], &["run", "-F", "x", "--"]] {
        let run = place.run([flags, &inner].concat());
        assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (5, "in\n", ""), "{flags:?}");
        assert_eq!(place.counts("x"), (0, 0));
    }
}

#[test]
fn where_somebody_must_renew_it_is_refused() {
    let place = Place::new();
    let mut command = place.command(["run", "-F", "x", "echo", "ran"]);
    let run = finish(command.env("HOLDLINE_STORE", "redis://127.0.0.1:1"));
    assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
    assert!(run.err.contains("the file store alone"), "{run:?}");
    for flag in ["--lease=9s", "--grace=1s", "--min-hold=1s", "--on-loss=term"] {
        assert_eq!(place.run(["run", "-F", flag, "x", "true"]).code, 64, "{flag}");
    }
    let missing = place.run(["run", "-F", "x", "no-such-command"]);
    assert_eq!(missing.code, 127);
    assert_eq!(place.counts("x"), (0, 0));
}

#[test]
fn one_line_locks_a_whole_script() {
    let place = Place::new();
    let script = place.path("job.sh");
    let line = "[ \"$HOLDLINE_NAME\" = job ] || exec holdline run -n job -- \"$0\" \"$@\"\n";
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/program.md");
    assert!(std::fs::read_to_string(guide).unwrap().contains(line), "the guide has this line");
    write_script(&script, &format!("#!/bin/sh\n{line}echo in $1; read x\n"));
    let start = || {
        let mut command = std::process::Command::new("sh");
        let start = "PATH=$FOLDER:$PATH; exec \"$0\" one";
        command.args(["-c", start]).arg(&script);
        let folder = std::path::Path::new(super::common::HOLDLINE).parent().unwrap();
        command.env("FOLDER", folder).env("HOLDLINE_STORE", place.url());
        command.env("HOLDLINE_CONFIG", "").env_remove("HOLDLINE_NAME").env_remove("HOLDLINE_HELD");
        Running::start(&mut command)
    };
    let mut first = start();
    assert_eq!(first.line(), "in one");
    let second = start().end();
    assert_eq!((second.code, second.out.as_str()), (75, ""), "{second:?}");
    first.tell("\n");
    assert_eq!(first.end().code, 0);
}
