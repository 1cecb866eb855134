//! Locks for a part of a script: `acquire` and `release`.

use super::common::{HOLDLINE, Place, Running, finish, until};
use rustix::process::{Signal, kill_process};
use std::process::Command;

/// A shell that runs a script in which `$H` is the program.
fn shell(place: &Place, name: &str, script: &str) -> Running {
    Running::start(&mut shell_command(place, name, script))
}

fn shell_command(place: &Place, name: &str, script: &str) -> Command {
    let mut command = Command::new(name);
    command.args(["-c", script]).env("H", HOLDLINE).env("HOLDLINE_STORE", place.url());
    command.env("HOLDLINE_CONFIG", "").env("XDG_RUNTIME_DIR", place.path(""));
    command
}

/// The process whose end releases the lock `x`: the holder has a descriptor of it.
fn owner(place: &Place) -> i64 {
    let holder = place.status("x")["holders"][0]["pid"].as_i64().expect("it is held");
    let about = std::fs::read_to_string(format!("/proc/{holder}/fdinfo/0")).unwrap();
    let pid = about.lines().find_map(|line| line.strip_prefix("Pid:")).expect("it is a process");
    pid.trim().parse().unwrap()
}

#[test]
fn a_section_of_a_script_is_locked() {
    let place = Place::new();
    for name in ["bash", "dash", "sh"] {
        let mut script = shell(
            &place,
            name,
            "lock=$($H acquire backup) || exit; \
             HOLDLINE_HELD=\"$lock backup\" $H run -n backup echo in; \
             read x; $H release $lock; echo $?; read x",
        );
        assert_eq!(script.line(), "in", "{name}");
        assert_eq!(place.counts("backup"), (1, 0), "{name}");
        assert_eq!(place.run(["run", "-n", "backup", "true"]).code, 75);
        script.tell("\n");
        assert_eq!(script.line(), "0", "{name}");
        assert_eq!(place.counts("backup"), (0, 0), "it is free while the script goes on: {name}");
        script.tell("\n");
        let run = script.end();
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{name}");
    }
    assert_eq!(place.files().iter().filter(|file| file.contains("sock")).count(), 0);
}

/// The same lock, and so the same handle.
#[test]
fn sections_inside_a_run_or_a_section_of_their_name_end_alone() {
    let place = Place::new();
    // Two at once in a run: the end of one leaves the other.
    let inner = "a=$($H acquire x) || exit
        (b=$($H acquire x) || exit; $H release $b || exit; echo released)
        (b=$($H acquire x) || exit; echo in)
        while [ $(ls $XDG_RUNTIME_DIR/holdline | wc -l) -gt 1 ]; do sleep 0.01; done
        $H release $a; echo $?; $H release $a; echo $?";
    let script = format!("$H run x -- bash -c '{inner}'");
    let run = shell(&place, "bash", &script).end();
    assert_eq!((run.code, run.out.as_str()), (0, "released\nin\n0\n76\n"), "{run:?}");

    // In a section: the lock is held until its own release.
    let inner = "b=$($H acquire x) || exit; $H release $b; echo $?";
    let script = format!(
        "a=$($H acquire x) || exit; HOLDLINE_HELD=\"$a x\" bash -c '{inner}'; read x
         $H release $a; echo $?; read x"
    );
    let mut script = shell(&place, "bash", &script);
    assert_eq!(script.line(), "0");
    assert_eq!(place.counts("x"), (1, 0));
    script.tell("\n");
    assert_eq!(script.line(), "0", "it was held until now");
    assert_eq!(place.counts("x"), (0, 0));
    script.tell("\n");
    assert_eq!(script.end().code, 0);
}

/// Where a shell calls the program from a subshell.
#[test]
fn the_script_owns_what_a_subshell_acquires_for_it() {
    let place = Place::new();
    let forms = [
        "$($H acquire x 2>>log) || exit",
        "$($H acquire x 2>/dev/null) || exit",
        "$($H acquire x </dev/null) || exit",
        "$($H acquire x 2>&1) || exit",
        "$($H acquire x || echo none) || exit",
        "$( ($H acquire x 2>/dev/null; true) ) || exit",
        "$($H acquire x | tr -d a-f | cat; true) || exit",
        "$($H acquire x)",
    ];
    for name in ["bash", "dash", "sh"] {
        for form in forms {
            let line = format!("cd \"$XDG_RUNTIME_DIR\"; lock={form}; echo in; read x; exit 3");
            let mut script = shell(&place, name, &line);
            assert_eq!(script.line(), "in", "{name}: {form}");
            let pid = i64::from(script.pid().as_raw_nonzero().get());
            assert_eq!(owner(&place), pid, "{name}: {form}");
            script.tell("\n");
            assert_eq!(script.end().code, 3, "{name}: {form}");
            until("the lock is free", || place.counts("x") == (0, 0));
        }
    }
}

/// While a shell starts the programs of a pipeline, it has their pipes open itself.
#[test]
fn a_subshell_that_is_still_starting_a_pipeline_does_not_own_what_is_acquired_in_it() {
    let place = Place::new();
    // As a shell does for $($H acquire x | cat; true), but slowly.
    let script = "
import os, sys, time
answer, printed = os.pipe()
if os.fork() == 0:
    os.dup2(printed, 1)
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(write, 1)
        os.execv(os.environ['H'], ['holdline', 'acquire', 'x'])
    os.close(write)
    until = time.monotonic() + 0.5
    while time.monotonic() < until: pass
    if os.fork() == 0:
        os.dup2(read, 0)
        os.execvp('cat', ['cat'])
    os.close(read)
    os.wait(), os.wait(), os._exit(0)
os.close(printed)
print('in' if len(os.read(answer, 100)) == 33 else 'none', flush=True)
os.wait()
sys.stdin.readline()";
    let mut script = shell(&place, "python3", script);
    assert_eq!(script.line(), "in");
    assert_eq!(owner(&place), i64::from(script.pid().as_raw_nonzero().get()));
    script.tell("\n");
    assert_eq!(script.end().code, 0);
}

/// A subshell whose output is not read by the script around it goes on after `acquire`.
#[test]
fn a_subshell_that_goes_on_owns_its_lock() {
    let place = Place::new();
    let part = "($H acquire x; echo in; read x)";
    for line in [format!("{part} | cat"), format!("exec > >(cat); {part}"), part.to_owned()] {
        let mut script = shell(&place, "bash", &format!("{line}; echo out; read x"));
        assert_eq!(script.line().len(), 32, "{line}");
        assert_eq!(script.line(), "in", "{line}");
        assert_eq!(place.counts("x"), (1, 0), "{line}");
        script.tell("\n");
        assert_eq!(script.line(), "out", "{line}");
        until("the lock is free while the script goes on", || place.counts("x") == (0, 0));
    }
}

/// Libraries that run a program and capture what it prints wait until nothing can print any more.
#[test]
fn a_program_that_captures_all_output_need_not_wait_for_the_end_of_the_lock() {
    let place = Place::new();
    let run = |args: &[&str]| finish(place.command(args).env("XDG_RUNTIME_DIR", place.path("")));
    let acquired = run(&["acquire", "x"]);
    assert_eq!((acquired.code, acquired.err.as_str()), (0, ""), "{acquired:?}");
    assert_eq!(place.counts("x"), (1, 0), "this test owns it");
    assert_eq!(run(&["acquire", "-n", "x"]).code, 75);
    assert_eq!(run(&["release", acquired.out.trim()]).code, 0);

    // By a process in between that waits as well.
    let mut between = Command::new("bash");
    let script = "\"$H\" acquire x --owner $PPID; exit $?";
    between.args(["-c", script]).env("H", HOLDLINE).env("HOLDLINE_STORE", place.url());
    let acquired =
        finish(between.env("HOLDLINE_CONFIG", "").env("XDG_RUNTIME_DIR", place.path("")));
    assert_eq!(run(&["release", acquired.out.trim()]).code, 0, "{acquired:?}");

    // Node.js makes sockets in place of pipes.
    let mut node = Command::new("node");
    let script = "require('child_process').execFile(process.env.H, ['acquire', 'x'], \
                  (error, out) => { console.log(error, out.length); process.stdin.resume(); })";
    node.args(["-e", script]).env("H", HOLDLINE).env("HOLDLINE_STORE", place.url());
    node.env("HOLDLINE_CONFIG", "").env("XDG_RUNTIME_DIR", place.path(""));
    if Command::new("node").arg("--version").output().is_err() {
        return holdline_testkit::missing("node");
    }
    let mut node = Running::start(&mut node);
    assert_eq!(node.line(), "null 33");
    assert_eq!(place.counts("x"), (1, 0));
    node.close_stdin();
    until("the lock is free", || place.counts("x") == (0, 0));
}

/// As in a container.
#[test]
fn a_script_may_be_process_1() {
    let place = Place::new();
    if !rustix::process::geteuid().is_root() {
        return holdline_testkit::missing("the right to make a process namespace (root)");
    }
    let script = "exec unshare --pid --fork --mount-proc bash -c \
        'lock=$($H acquire x) || exit; echo $$; read x; $H release $lock; echo $?'";
    let mut script = shell(&place, "bash", script);
    assert_eq!(script.line(), "1");
    assert_eq!(place.counts("x"), (1, 0));
    script.tell("\n");
    assert_eq!(script.line(), "0");
    assert_eq!(script.end().code, 0);
}

/// There the caller cannot be told from a subshell of it, whose end would end the lock at once.
#[test]
fn with_the_proc_of_another_namespace_the_owner_must_be_named() {
    let place = Place::new();
    if !rustix::process::geteuid().is_root() {
        return holdline_testkit::missing("the right to make a process namespace (root)");
    }
    let script = "exec unshare --pid --fork bash -c \"bash -c '
        \\$H acquire -n x; echo \\$?
        lock=\\$(\\$H acquire -n --owner \\$\\$ x | cat) || exit
        \\$H try -q x; echo \\$?; \\$H release \\$lock; echo \\$?'; exit\"";
    let run = finish(&mut shell_command(&place, "bash", script));
    assert_eq!((run.code, run.out.as_str()), (0, "64\n75\n0\n"), "{run:?}");
    assert!(run.err.contains("--owner"), "{run:?}");
}

#[test]
fn the_end_of_the_script_is_the_end_of_the_lock() {
    let place = Place::new();
    let mut script =
        shell(&place, "bash", "lock=$($H acquire -v x) || exit; echo in; read x; exit 3");
    assert_eq!(script.line(), "in");
    script.signal(Signal::KILL);
    until("the lock is free", || place.counts("x") == (0, 0));

    let mut script = shell(&place, "bash", "lock=$($H acquire x) || exit; echo in; read x; exit 3");
    assert_eq!(script.line(), "in");
    script.tell("\n");
    assert_eq!(script.end().code, 3);
    until("the lock is free", || place.counts("x") == (0, 0));
}

#[test]
fn a_script_that_does_not_get_the_lock_is_told() {
    let place = Place::new();
    let _holder = place.hold(&["--label", "other"], "x");
    for (flags, code) in [("-n", 75), ("-w 100ms", 75), ("-n -E 9", 9), ("--lease 1us", 64)] {
        let line = format!("lock=$($H acquire {flags} x) || exit; echo in");
        let run = shell(&place, "bash", &line).end();
        assert_eq!((run.code, run.out.as_str()), (code, ""), "{flags}: {run:?}");
        assert!(run.err.contains("holdline: "), "{run:?}");
    }
    // A script that ends during the wait leaves no place.
    let script = shell(&place, "bash", "lock=$($H acquire x) || exit; echo in");
    until("it waits", || place.counts("x") == (1, 1));
    script.signal(Signal::KILL);
    until("it does not wait any more", || place.counts("x") == (1, 0));
}

#[test]
fn a_signal_ends_the_wait_of_acquire() {
    let place = Place::new();
    let _holder = place.hold(&[], "x");
    let waiter = place.start(["acquire", "x"]);
    until("it waits", || place.counts("x") == (1, 1));
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.end().code, 128 + 15);
    assert_eq!(place.counts("x"), (1, 0));
}

/// A handle that is printed is held: not one whose holder has ended by the same signal.
#[test]
fn a_signal_that_comes_just_after_the_lock_prints_no_handle() {
    let place = Place::new();
    for _ in 0..20 {
        let mut holder = place.hold(&[], "x");
        let waiter = place.start(["acquire", "x"]);
        until("it waits", || place.counts("x") == (1, 1));
        // It sees the signal and the handle at once.
        waiter.signal(Signal::STOP);
        holder.tell("\n");
        assert_eq!(holder.end().code, 0);
        until("the process in the background holds", || place.counts("x") == (1, 0));
        waiter.signal(Signal::TERM);
        waiter.signal(Signal::CONT);
        let run = waiter.end();
        if run.code != 0 {
            assert_eq!((run.code, run.out.as_str()), (128 + 15, ""), "{run:?}");
            assert_eq!(place.counts("x"), (0, 0));
            return;
        }
        // It saw the handle first, before the thread that has the signal ran.
        assert_eq!(place.run(["release", run.out.trim()]).code, 0, "{run:?}");
    }
    panic!("it never saw the signal in time");
}

/// As a caller has it that wants no zombies; programs that it executes inherit that.
#[test]
fn the_exit_code_is_known_though_the_caller_ignores_the_end_of_its_children() {
    let place = Place::new();
    let _holder = place.hold(&[], "x");
    let script = "import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
                  os.execv(os.environ['H'], ['holdline', 'acquire', '-n', 'x'])";
    let mut python = Command::new("python3");
    python.args(["-c", script]).env("H", HOLDLINE).env("HOLDLINE_STORE", place.url());
    let run = finish(python.env("HOLDLINE_CONFIG", ""));
    assert_eq!(run.code, 75, "{run:?}");
}

#[test]
fn a_holder_that_is_killed_during_the_wait_is_told() {
    let place = Place::new();
    let _holder = place.hold(&[], "x");
    let waiter = place.start(["acquire", "x"]);
    until("it waits", || place.counts("x") == (1, 1));
    let pid = place.status("x")["waiters"][0]["pid"].as_i64().unwrap();
    assert_ne!(pid, i64::from(waiter.pid().as_raw_nonzero().get()), "it waits in the background");
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let run = waiter.end();
    assert_eq!((run.code, run.out.as_str()), (128 + 9, ""), "{run:?}");
    assert!(run.err.contains("was killed by signal 9; nothing is held"), "{run:?}");
}

#[test]
fn a_lost_section_ends_the_script_and_release_says_so() {
    let place = Place::new();
    let break_ = |on_loss: &str, rest: &str| {
        let line = format!(
            "trap 'echo TERM' TERM; lock=$($H acquire --lease 1s --on-loss {on_loss} x) || exit; \
             echo in; {rest}; $H release $lock; echo $?"
        );
        let mut script = shell(&place, "bash", &line);
        assert_eq!(script.line(), "in");
        let id = place.status("x")["holders"][0]["id"].as_str().unwrap().to_owned();
        let run = place.run(["break", "x", &id, "--reason", "test"]);
        assert_eq!(run.code, 0, "{run:?}");
        script
    };
    let mut script =
        break_("term", "while :; do sleep 0.01; [ -e ok ] && break; done & wait; kill $!");
    assert_eq!(script.line(), "TERM");
    assert_eq!(script.line(), "76");
    let run = script.end();
    assert!(run.err.contains("was lost before its release"), "{run:?}");
    assert!(run.err.contains("broken") && run.err.contains("test"), "{run:?}");

    let mut script = break_("continue", "read x");
    until("it is lost", || place.counts("x") == (0, 0));
    script.tell("\n");
    assert_eq!(script.line(), "76");
    assert_eq!(script.end().out, "");
}

/// The folder of the session goes with the session: a detached lock has its socket elsewhere.
#[test]
fn a_detached_lock_outlives_its_caller_and_its_session_but_not_its_time() {
    let place = Place::new();
    let session = place.path("session");
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("XDG_RUNTIME_DIR", &session).env("TMPDIR", place.path(""));
        finish(&mut command)
    };
    std::fs::create_dir(&session).unwrap();
    let acquired = run(&["acquire", "x", "--detach", "1h"]);
    assert_eq!(acquired.code, 0, "{acquired:?}");
    assert_eq!(place.counts("x"), (1, 0));
    std::fs::remove_dir_all(&session).unwrap();
    let released = run(&["release", &acquired.out.trim().to_uppercase()]);
    assert_eq!(released.code, 0, "{released:?}");
    assert_eq!(place.counts("x"), (0, 0));

    let acquired = run(&["acquire", "x", "--detach", "300ms"]);
    assert_eq!(acquired.code, 0, "{acquired:?}");
    until("the time is over", || place.counts("x") == (0, 0));
}

/// What nobody knows of is not held.
#[test]
fn a_handle_that_cannot_be_written_is_released_at_once() {
    let place = Place::new();
    for stdout in ["/dev/full", "&-"] {
        let line = format!("$H acquire x >{stdout}; echo $? >&2");
        let run = shell(&place, "bash", &line).end();
        assert!(run.err.ends_with("\n74\n"), "{run:?}");
        assert_eq!(place.counts("x"), (0, 0), "{stdout}");
    }
}

#[test]
fn a_folder_whose_name_is_too_long_for_a_socket_is_an_error() {
    let place = Place::new();
    let long = place.path(&"x".repeat(100));
    std::fs::create_dir(&long).unwrap();
    let mut command = place.command(["acquire", "x", "--detach", "1h"]);
    let run = finish(command.env("TMPDIR", &long));
    assert_eq!((run.code, run.out.as_str()), (71, ""), "{run:?}");
    assert!(run.err.contains("set XDG_RUNTIME_DIR and TMPDIR to shorter paths"), "{run:?}");
    assert_eq!(place.counts("x"), (0, 0));
}

#[test]
fn a_relative_folder_for_sockets_is_ignored() {
    let place = Place::new();
    for (session, temporary) in [(".", "."), ("", "")] {
        let script = "cd \"$1\"; lock=$($H acquire x) || exit; cd /; exec $H release $lock";
        let mut command = shell_command(&place, "bash", script);
        command.args(["bash".as_ref(), place.path("").as_os_str()]);
        command.env("XDG_RUNTIME_DIR", session).env("TMPDIR", temporary);
        let run = finish(&mut command);
        assert_eq!((run.code, run.err.as_str()), (0, ""));
    }
}

#[test]
fn a_release_does_not_wait_for_ever_for_a_stopped_holder() {
    let place = Place::new();
    let run = |args: &[&str]| finish(place.command(args).env("TMPDIR", place.path("")));
    let acquired = run(&["acquire", "x", "--detach", "1h"]);
    let pid = place.status("x")["holders"][0]["pid"].as_i64().expect("it is held");
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let released = run(&["release", "--connect-timeout", "200ms", acquired.out.trim()]);
    kill_process(pid, Signal::KILL).unwrap();
    assert_eq!(released.code, 69, "{released:?}");
    assert!(released.err.contains("did not answer within 200ms"), "{released:?}");
}

#[test]
fn the_owner_can_be_named() {
    let place = Place::new();
    let mut owner = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = owner.id().to_string();
    let line = format!("$H acquire x --json --owner {pid} 2>/dev/null");
    let run = shell(&place, "bash", &line).end();
    let json: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
    assert_eq!((run.code, &json["name"]), (0, &"x".into()), "{run:?}");
    assert!(json["token"].as_u64().unwrap() > 0);
    assert_eq!(place.counts("x"), (1, 0));
    kill_process(rustix::process::Pid::from_child(&owner), Signal::KILL).unwrap();
    owner.wait().unwrap();
    until("the lock is free", || place.counts("x") == (0, 0));
    let gone = place.run(["acquire", "x", "--owner", &pid]);
    assert_eq!(gone.code, 64, "{gone:?}");
}

#[test]
fn a_handle_that_makes_no_sense_is_refused() {
    let place = Place::new();
    for handle in ["", "x", "../../etc/passwd", "0123"] {
        assert_eq!(place.run(["release", handle]).code, 64, "{handle}");
    }
    let run = place.run(["release", "00000000000000000000000000000000"]);
    assert_eq!(run.code, 76, "{run:?}");
}
