//! A run inside a run.

use super::common::{HOLDLINE, Place, Running, lives, until};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn the_same_name_inside_does_not_wait_for_itself() {
    let place = Place::new();
    let script = "echo $HOLDLINE_TOKEN";
    let inner = [HOLDLINE, "run", "a", "--", "sh", "-c", script];
    let run = place.run([&["run", "a", "--", HOLDLINE, "run", "b", "--"][..], &inner].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let outer = "echo $HOLDLINE_TOKEN; exec \"$0\" run a -- sh -c 'echo $HOLDLINE_TOKEN; exit 9'";
    let run = place.run(["run", "a", "--", "sh", "-c", outer, HOLDLINE]);
    let tokens: Vec<&str> = run.out.lines().collect();
    assert_eq!((run.code, tokens[0]), (9, tokens[1]), "one lock, one token: {run:?}");
}

/// A row in PostgreSQL does not show its token to others.
#[test]
#[cfg(feature = "postgres")]
fn the_token_inside_is_that_of_the_lock_around_where_the_store_tells_none() {
    super::common::usual_signals();
    let Some(server) = holdline_testkit::postgres::start("nested") else { return };
    let place = Place::new();
    let script = "echo $HOLDLINE_TOKEN; exec \"$0\" run a -- sh -c 'echo $HOLDLINE_TOKEN'";
    let mut command = place.command(["run", "a", "--", "sh", "-c", script, HOLDLINE]);
    command.env("HOLDLINE_STORE", format!("{}?scheme=row&install=yes", server.url()));
    let run = super::common::finish(&mut command);
    let tokens: Vec<&str> = run.out.lines().collect();
    assert!(run.code == 0 && tokens.len() == 2, "{run:?}");
    assert!(tokens[0] == tokens[1] && tokens[0] != "0", "{run:?}");
}

/// `sudo` removes the variable, for one.
#[test]
fn a_run_that_waits_for_the_one_around_it_unknowingly_is_warned() {
    let place = Place::new();
    let script = "env -u HOLDLINE_HELD \"$0\" run a -- true 2>&1";
    let mut running = place.start(["run", "a", "--", "sh", "-c", script, HOLDLINE]);
    let warning = running.line();
    let why = "warning: lock \"a\" is held by the holdline around this one, which it waits for in \
               vain: HOLDLINE_HELD is missing";
    assert!(warning.contains(why), "{warning}");
    // A wait that will end is none of this kind.
    let _holder = place.hold(&[], "b");
    let script = "\"$0\" run -w 3s b -- true 2>&1";
    let mut running = place.start(["run", "c", "--", "sh", "-c", script, HOLDLINE]);
    let busy = running.line();
    assert!(busy.contains("was not acquired in time"), "{busy}");
}

#[test]
fn another_name_inside_is_another_lock() {
    let place = Place::new();
    let inner = "\"$0\" run b -- \"$0\" run a -- \"$0\" status --json";
    let run = place.run(["run", "a", "--", "sh", "-c", inner, HOLDLINE]);
    let status: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
    assert_eq!((status[0]["name"].as_str(), status[1]["name"].as_str()), (Some("a"), Some("b")));
    for lock in [&status[0], &status[1]] {
        assert_eq!(lock["holders"].as_array().map(Vec::len), Some(1));
        assert_eq!(lock["waiters"].as_array().map(Vec::len), Some(0));
    }
}

#[test]
fn what_the_environment_only_claims_is_not_believed() {
    let place = Place::new();
    let script = "echo \"$HOLDLINE_HELD\"";
    let old = place.run(["run", "x", "--", "sh", "-c", script]).out;
    assert!(old.trim().ends_with(" x"), "{old}");
    let _holder = place.hold(&[], "x");
    let forged = format!("{:032x} x", 7);
    let garbage = "\n \nxyz x\nffffffffffffffffffffffffffffffffffffffff x\nx".to_owned();
    for held in [old, forged, garbage] {
        let mut command = place.command(["run", "-n", "x", "--", "echo", "ran"]);
        let mut running = Running::start(command.env("HOLDLINE_HELD", &held));
        running.close_stdin();
        let run = running.end();
        assert_eq!((run.code, run.out.as_str()), (75, ""), "{held}: {run:?}");
    }
    let mut command = place.command(["run", "-n", "y", "--", "echo", "ran"]);
    let mut running = Running::start(command.env("HOLDLINE_HELD", "nonsense"));
    running.close_stdin();
    assert_eq!(running.end().out, "ran\n");
}

#[test]
fn asked_for_in_another_way_it_says_so_and_does_not_wait() {
    let place = Place::new();
    let run =
        place.run(["run", "--shared", "a", "--", HOLDLINE, "run", "--exclusive", "a", "true"]);
    assert_eq!(run.code, 64, "{run:?}");
    assert!(run.err.contains("would wait for itself"), "{run:?}");
    let run =
        place.run(["run", "--exclusive", "a", "--", HOLDLINE, "run", "--shared", "a", "true"]);
    assert_eq!(run.code, 0, "a writer may read: {run:?}");
}

#[test]
fn a_loss_outside_ends_what_is_inside() {
    let place = Place::new();
    let inner = "echo $$; trap '' TERM; while :; do sleep .05; done";
    let args = ["run", "a", "--", HOLDLINE, "run", "b", "--", "sh", "-c", inner];
    let mut running = place.start(args);
    let pid: i32 = running.line().parse().unwrap();
    let id = place.status("a")["holders"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(place.run(["break", "a", &id, "--reason", "test"]).code, 0);
    assert_eq!(running.end().code, 76);
    until("the innermost command is dead", || !lives(pid));
    assert_eq!(place.run(["run", "-w", "20s", "b", "--", "true"]).code, 0);
}

#[test]
fn a_run_that_outlives_the_lock_around_it_is_stopped() {
    let place = Place::new();
    let code = place.path("code");
    let script = format!(
        "(\"$0\" run a -- sh -c 'echo $$; exec sleep 600'; echo $? > {0}.new; mv {0}.new {0}) &
        read x",
        code.display()
    );
    let mut running = place.start(["run", "a", "--", "sh", "-c", &script, HOLDLINE]);
    let pid: i32 = running.line().parse().unwrap();
    running.tell("\n");
    until("the inner run ended", || code.exists());
    assert_eq!(std::fs::read_to_string(&code).unwrap(), "76\n");
    assert!(!lives(pid));
    assert_eq!(running.end().code, 0);
}

/// Whatever comes more often than it looks at the lock.
#[test]
fn signals_do_not_keep_a_run_from_seeing_the_end_of_the_lock_around_it() {
    let place = Place::new();
    let code = place.path("code");
    let script = format!(
        "(\"$0\" run a -- sh -c 'trap \"\" USR1; echo $PPID; exec sleep 600'
          echo $? > {0}.new; mv {0}.new {0}) &
        read x",
        code.display()
    );
    let mut running = place.start(["run", "a", "--", "sh", "-c", &script, HOLDLINE]);
    let inner = Pid::from_raw(running.line().parse().unwrap()).unwrap();
    running.tell("\n");
    until("the inner run ended", || {
        let _ = kill_process(inner, Signal::USR1);
        code.exists()
    });
    assert_eq!(std::fs::read_to_string(&code).unwrap(), "76\n");
    assert_eq!(running.end().code, 0);
}

#[test]
fn a_signal_to_the_outer_run_reaches_the_innermost_command() {
    let place = Place::new();
    let inner = "trap 'echo got; exit 3' USR1; echo ready; while :; do sleep .02; done";
    let args = ["run", "a", "--", HOLDLINE, "run", "b", "--", HOLDLINE, "run", "a", "--"];
    let mut running = place.start([&args[..], &["sh", "-c", inner]].concat());
    assert_eq!(running.line(), "ready");
    running.signal(Signal::USR1);
    let run = running.end();
    assert_eq!((run.code, run.out.as_str()), (3, "got\n"), "{run:?}");
}
