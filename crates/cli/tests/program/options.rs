//! Options of `run`: a shell line, several locks, ways to wait, a fixed lease, a hidden store.

use super::common::{Place, Run, finish};
use std::time::{Duration, Instant};

fn said(run: &Run, part: &str) {
    assert!(run.err.contains(part), "{run:?}");
}

#[test]
fn a_line_is_run_by_the_shell() {
    let place = Place::new();
    let run = place.run(["run", "x", "-c", "echo one | tr e E; echo $HOLDLINE_NAME; exit 3"]);
    assert_eq!((run.code, run.out.as_str()), (3, "onE\nx\n"), "{run:?}");
    let both = place.run(["run", "x", "-c", "true", "--", "true"]);
    assert_eq!(both.code, 64, "{both:?}");
    let none = place.run(["run", "x"]);
    assert_eq!(none.code, 64, "{none:?}");
}

/// It is meant for `--store`: as a name, its password would be printed, and looked for in another
/// store.
#[test]
fn a_name_is_no_url_with_a_password() {
    let place = Place::new();
    let url = "redis://:secret@127.0.0.1:1";
    for args in [
        &["run", url, "true"][..],
        &["run", "a", "--also", url, "true"],
        &["acquire", url],
        &["try", url],
        &["status", url],
        &["watch", url],
        &["elect", "--observe", url],
        &["break", url, "012345", "--reason", "test"],
    ] {
        let run = place.run(args);
        assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
        assert!(run.err.contains("--store") && !run.err.contains("secret"), "{run:?}");
    }
    assert_eq!(place.run(["try", "http://host/path"]).code, 0);
}

#[test]
fn the_store_can_be_kept_from_the_command() {
    let place = Place::new();
    let line = "echo \"${HOLDLINE_STORE-none} $HOLDLINE_NAME\"";
    let run = place.run(["run", "--no-export-store", "x", "-c", line]);
    assert_eq!((run.code, run.out.as_str()), (0, "none x\n"), "{run:?}");
}

#[test]
fn several_locks_are_held_together_or_not_at_all() {
    let place = Place::new();
    let both = place.hold(&["--also", "b", "--also", "a"], "a");
    assert_eq!((place.counts("a"), place.counts("b")), ((1, 0), (1, 0)));
    for name in ["a", "b"] {
        assert_eq!(place.run(["run", "-n", name, "true"]).code, 75, "{name}");
    }
    drop(both);
    for name in ["a", "b"] {
        assert_eq!(place.run(["run", "-w", "20s", name, "true"]).code, 0, "{name}");
    }

    let one = place.hold(&[], "b");
    let run = place.run(["run", "-n", "a", "--also", "b", "--", "echo", "ran"]);
    assert_eq!((run.code, run.out.as_str()), (75, ""), "{run:?}");
    said(&run, "the set of locks \"a\", \"b\"");
    said(&run, "\"b\" is held by");
    assert_eq!(place.counts("a"), (0, 0), "what was taken of the set is free again");
    drop(one);
}

#[test]
fn a_set_of_locks_is_not_taken_inside_one_of_them() {
    let place = Place::new();
    let inner = format!("{} run b --also a -- echo ran", super::common::HOLDLINE);
    let run = place.run(["run", "a", "-c", &inner]);
    assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
    said(&run, "ask for all of them in the outer one");

    // One name of a set that is held around it is inherited.
    let inner = format!("{} run -n b -c 'echo $HOLDLINE_NAME'", super::common::HOLDLINE);
    let run = place.run(["run", "a", "--also", "b", "-c", &inner]);
    assert_eq!((run.code, run.out.as_str()), (0, "b\n"), "{run:?}");
}

#[test]
fn sets_of_locks_are_of_mutexes() {
    let place = Place::new();
    for kind in [&["--shared"][..], &["--permits", "1/2"]] {
        let run = place.run([&["run", "a", "--also", "b"], kind, &["--", "true"]].concat());
        assert_eq!(run.code, 64, "{run:?}");
    }
    assert_eq!(place.run(["run", "a", "--also", "b\nc", "--", "true"]).code, 64);
}

#[test]
fn waiters_may_poll_or_keep_no_place() {
    let place = Place::new();
    for flags in [&["--poll", "20ms"][..], &["--unfair"], &["--unfair", "--poll", "20ms"]] {
        let mut holder = place.hold(&[], "x");
        let mut waiter = place.start([&["run", "x"], flags, &["--", "echo", "mine"]].concat());
        if !flags.contains(&"--unfair") {
            super::common::until("it waits in line", || place.counts("x") == (1, 1));
        }
        assert!(waiter.runs(), "{flags:?}");
        holder.tell("\n");
        assert_eq!(holder.end().code, 0);
        assert_eq!(waiter.line(), "mine", "{flags:?}");
        assert_eq!(waiter.end().code, 0);
    }
    let run = place.run(["run", "-n", "--unfair", "x", "true"]);
    assert_eq!(run.code, 64, "no wait, no way to wait: {run:?}");
    let run = place.run(["run", "--poll", "0", "x", "true"]);
    assert_eq!(run.code, 64, "that would be one look after the other: {run:?}");
}

#[test]
fn a_fixed_lease_ends_and_the_command_with_it() {
    let place = Place::new();
    let start = Instant::now();
    let run = place.run(["run", "--lease", "2s", "--fixed-lease", "x", "sleep", "60"]);
    assert_eq!(run.code, 76, "{run:?}");
    assert!(start.elapsed() < Duration::from_secs(50), "it was stopped");
    assert!(run.err.contains("the lease was a fixed one"), "the store was not silent: {run:?}");
    assert_eq!(place.run(["run", "--fixed-lease", "x", "true"]).code, 64, "it needs a lease");
    let soon = place.run(["run", "--lease", "20s", "--fixed-lease", "x", "true"]);
    assert_eq!(soon.code, 0, "{soon:?}");
}

#[test]
fn the_lock_can_be_renewed_more_often() {
    let place = Place::new();
    for (every, code) in [("100ms", 0), ("1s", 0), ("3s", 64), ("1ms", 64)] {
        let run = place.run(["run", "--renew-every", every, "x", "true"]);
        assert_eq!(run.code, code, "{every}: {run:?}");
    }
    let args = ["run", "--lease", "9s", "--fixed-lease", "--renew-every", "1s", "x", "true"];
    assert_eq!(place.run(args).code, 64);
    // Without the flag it would be some 25 minutes until the first renewal.
    let _holder = place.hold(&["--lease", "2h", "--renew-every", "50ms"], "x");
    let expiry = || {
        let conn = rusqlite::Connection::open(place.path("locks.db")).unwrap();
        conn.query_row("SELECT expires FROM place", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    for _ in 0..3 {
        let before = expiry();
        super::common::until("it is renewed, and again", || expiry() > before);
    }
}

#[test]
fn a_name_that_begins_with_a_dash_gets_help() {
    let place = Place::new();
    let wrong = place.run(["run", "-name", "--", "true"]);
    assert_eq!(wrong.code, 64);
    said(&wrong, "holdline run -- -name COMMAND");
    let run = place.run(["run", "--", "-name", "sh", "-c", "echo $HOLDLINE_NAME"]);
    assert_eq!((run.code, run.out.as_str()), (0, "-name\n"), "{run:?}");
    assert_eq!(place.run(["try", "--", "-name"]).code, 0);
    for verb in ["acquire", "try", "status", "watch", "top", "break", "elect"] {
        let run = place.run([verb, "-name"]);
        let told = run.err.contains(&format!("goes behind \"--\": holdline {verb} -- -name"));
        assert_eq!((run.code, told), (64, verb != "top"), "{run:?}");
    }
    let run = place.run(["release", "-x"]);
    assert!(run.code == 64 && !run.err.contains("A name"), "a handle is no name: {run:?}");
}

#[test]
fn a_negative_number_is_no_flag() {
    let place = Place::new();
    for (flag, value) in [("-w", "-1"), ("--lease", "-5s"), ("-E", "-1"), ("--outage", "-1s")] {
        let run = place.run(["run", flag, value, "x", "true"]);
        assert_eq!(run.code, 64, "{run:?}");
        said(&run, &format!("invalid value '{value}' for '--"));
    }
    for owner in ["-1", "0"] {
        let run = place.run(["acquire", "--owner", owner, "x"]);
        assert_eq!(run.code, 64, "{run:?}");
        said(&run, "there is no process that owns the lock");
    }
}

#[test]
fn no_time_and_no_count_are_refused_where_they_make_no_sense() {
    let place = Place::new();
    for args in [
        &["watch", "--every", "0"][..],
        &["status", "--watch", "--every", "0"],
        &["top", "--every", "0"],
        &["top", "--looks", "0"],
        &["acquire", "x", "--detach", "0"],
        &["status", "--connect-timeout", "0"],
        &["run", "--connect-timeout", "0", "x", "true"],
        &["run", "--poll", "0", "x", "true"],
        &["run", "--renew-every", "0", "x", "true"],
        &["doctor", "--round-trips", "0"],
        &["doctor", "--lease", "0"],
    ] {
        let run = place.run(args);
        assert_eq!((run.code, run.out.as_str()), (64, ""), "{args:?}: {run:?}");
        said(&run, "invalid value '0' for '--");
        assert!(place.files().is_empty(), "{args:?}");
    }
    let by_default = finish(place.command(["watch"]).env("HOLDLINE_EVERY", "0"));
    assert_eq!(by_default.code, 64, "{by_default:?}");
    for args in [["run", "-w", "0"], ["run", "--outage", "0"], ["run", "--min-hold", "0"]] {
        assert_eq!(place.run([&args[..], &["x", "true"]].concat()).code, 0, "{args:?}");
    }
}

#[test]
fn a_command_given_to_try_is_told_what_runs_one() {
    let place = Place::new();
    for command in [&["try", "x", "--", "true"][..], &["try", "x", "true"]] {
        let run = place.run(command);
        assert_eq!(run.code, 64);
        assert!(run.err.contains("holdline run --no-wait NAME -- COMMAND"), "{}", run.err);
        assert!(!run.err.contains("begins with"), "{}", run.err);
    }
}
