//! A server that stops for a while: who waits goes on, says so, and gives up only when told.

use super::common::{HOLDLINE, Place, Running, finish, lives, until, usual_signals};
use holdline_testkit::Link;
use holdline_testkit::redis::{Server, private};
use rustix::process::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

/// Longer than five tries in a row take at a server that refuses, by far.
const OUTAGE: Duration = Duration::from_secs(5);

/// The long lease is not the matter here, and outlasts the outage.
const LEASE: [&str; 2] = ["--lease", "60s"];
const READS: [&str; 4] = ["--", "sh", "-c", "echo in; read x"];

/// A Redis of the test's own, without the signals that this process may have been told to ignore.
pub(crate) fn server() -> Option<Server> {
    usual_signals();
    private("program", &[])
}

#[test]
fn a_lock_without_a_token_is_printed_without_one() {
    let place = Place::new();
    let Some(server) = server() else { return };
    let url = format!("redis://127.0.0.1:{}?scheme=string", server.port());
    let start = |args: &[&str]| Running::start(place.command(args).env("HOLDLINE_STORE", &url));
    let mut watch = start(&["watch", "e"]);
    let mut observer = start(&["elect", "e", "--observe"]);
    assert_eq!(observer.line(), "nobody leads");
    let mut leader = start(&["elect", "e", "me"]);
    assert_eq!(leader.line(), "leading \"e\"");
    let led = observer.line();
    assert!(led.starts_with("me\tno token\t"), "{led}");
    let changed = watch.line();
    assert!(changed.contains("  e  no token  id "), "{changed}");
}

/// What is printed is held against the schema.
#[test]
fn a_lock_without_a_token_has_none_in_json() {
    let place = Place::new();
    let Some(server) = server() else { return };
    let url = format!("redis://127.0.0.1:{}?scheme=string", server.port());
    let run = |args: &[&str]| finish(place.command(args).env("HOLDLINE_STORE", &url));
    let got = run(&["run", "-v", "--json", "x", "--", "sh", "-c", "echo $HOLDLINE_TOKEN"]);
    assert_eq!((got.code, got.out.trim()), (0, "0"), "{got:?}");
    assert!(got.err.contains("\"token\":null"), "{got:?}");
    let got = run(&["run", "-v", "x", "--", "true"]);
    assert!(got.err.contains("was acquired") && !got.err.contains("token"), "{got:?}");
    let got = run(&["acquire", "--detach", "60s", "--json", "x"]);
    assert!(got.out.contains("\"token\":null"), "{got:?}");
    let handle: serde_json::Value = serde_json::from_str(&got.out).expect("JSON");
    let id = handle["id"].as_str().expect("an id");
    let got = run(&["break", "--json", "--reason", "stuck", "--yes", "x", id]);
    assert!(got.out.contains("\"token\":null"), "{got:?}");
}

/// No server answers in no time.
#[test]
fn a_wait_of_no_time_is_a_try() {
    let place = Place::new();
    let Some(server) = server() else { return };
    let mut command = place.command(["run", "-w", "0", "x", "--", HOLDLINE, "run", "-w", "0"]);
    command.args(["x", "true"]).env("HOLDLINE_STORE", server.url());
    let run = finish(&mut command);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let script = "unset HOLDLINE_HELD; \"$0\" run -w 0 x true";
    let mut command = place.command(["run", "x", "--", "sh", "-c", script, HOLDLINE]);
    let run = finish(command.env("HOLDLINE_STORE", server.url()));
    assert_eq!(run.code, 75, "{run:?}");
    assert!(run.err.contains("was not acquired: it is held"), "{run:?}");
}

#[test]
fn a_waiter_rides_it_out() {
    let place = Place::new();
    let Some(server) = server() else { return };
    let link = Link::to(("127.0.0.1", server.port())).unwrap();
    let url = format!("redis://{}", link.address());
    let start =
        |args: &[&[&str]]| Running::start(place.command(args.concat()).env("HOLDLINE_STORE", &url));
    let mut holder = start(&[&["run", "x"], &LEASE, &READS]);
    assert_eq!(holder.line(), "in");
    let mut watch = start(&[&["watch", "x"]]);
    assert!(watch.line().contains(" acquired "));
    let mut waiter = start(&[&["run", "-v", "x"], &LEASE, &READS]);
    assert!(watch.line().contains(" waiting "));
    let mut standby = start(&[&["elect", "x", "me"], &LEASE, &["--", "echo", "led"]]);
    assert!(watch.line().contains(" waiting "));
    let mut observer = start(&[&["elect", "--observe", "x"]]);
    assert!(observer.line().contains("token "));
    let impatient = start(&[&["run", "--outage", "1s", "x"], &LEASE, &["--", "true"]]);
    assert!(watch.line().contains(" waiting "));
    link.cut();
    let run = impatient.end();
    assert_eq!(run.code, 69, "{run:?}");
    std::thread::sleep(OUTAGE);
    assert!(waiter.runs() && standby.runs() && watch.runs() && observer.runs() && holder.runs());
    link.mend();
    holder.tell("\n");
    assert_eq!(holder.end().code, 0);
    // Both come in, in whatever order they came back.
    let led = std::thread::spawn(move || (standby.line(), standby.end().code));
    assert_eq!(waiter.line(), "in");
    waiter.tell("\n");
    let run = waiter.end();
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.err.contains(" has not answered for "), "{run:?}");
    assert!(run.err.contains("warning: the store does not answer"), "{run:?}");
    assert!(run.err.contains("info: the store answers again"), "{run:?}");
    assert_eq!(led.join().unwrap(), ("led".to_owned(), 0));
    while observer.line() != "nobody leads" {}
    assert!(watch.runs());
}

/// As on a full disk. It is not said to be free, nor to answer again after each look.
#[test]
fn a_store_that_can_only_be_read_is_said_to_be_away() {
    let place = Place::new();
    assert_eq!(place.run(["run", "x", "true"]).code, 0);
    let conn = rusqlite::Connection::open(place.path("locks.db")).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let run = place.run(["run", "--json", "--outage", "4s", "x", "true"]);
    assert_eq!(run.code, 69, "{run:?}");
    assert!(run.err.contains("\"error\":\"it can be read, but not changed\""), "{run:?}");
    assert_eq!(run.err.matches("\"warning: the store does not answer").count(), 1, "{run:?}");
}

#[test]
fn warnings_are_sentences_or_events_or_nothing() {
    let place = Place::new();
    let Some(server) = server() else { return };
    for (flags, log, said) in [
        (&[][..], "", &["holdline: warning: "][..]),
        (&["-q"], "", &[]),
        (&["-q"], "warn", &["holdline: warning: "]),
        (&["-vv"], "", &["holdline: warning: "]),
        (&[], "off", &[]),
        (&["--json"], "", &["\"event\":\"log\"", "\"level\":\"warn\""]),
    ] {
        let run = ["run", "--lease", "1s", "--on-loss", "continue", "x"];
        let mut command = place.command([&run[..], flags, &READS].concat());
        command.env("HOLDLINE_STORE", server.url()).env("HOLDLINE_LOG", log);
        let mut running = Running::start(&mut command);
        assert_eq!(running.line(), "in");
        server.pause();
        // Longer than the lease, so that a renewal has failed for certain.
        std::thread::sleep(Duration::from_secs(2));
        server.resume();
        running.tell("\n");
        let run = running.end();
        assert_eq!(run.code, 76, "{run:?}");
        assert!(said.iter().all(|word| run.err.contains(word)), "{flags:?} {log:?}: {run:?}");
        assert!(!said.is_empty() || !run.err.contains("warning"), "{flags:?} {log:?}: {run:?}");
    }
}

/// The program ends then, so nothing is retried.
#[test]
fn a_release_without_an_answer_is_told() {
    let place = Place::new();
    let Some(server) = server() else { return };
    // With a short lease the time for the release is over before the store's own.
    let flags = [&LEASE[..], &["--lease", "60s", "--json"], &["--lease", "4s"]];
    for (name, flags) in ["x", "y", "z"].into_iter().zip(flags) {
        let mut command = place.command([&["run", name], flags, &READS].concat());
        let mut running = Running::start(command.env("HOLDLINE_STORE", server.url()));
        assert_eq!(running.line(), "in");
        server.pause();
        running.tell("\n");
        let run = running.end();
        server.resume();
        assert_eq!(run.code, 0, "{run:?}");
        let told = run.err.contains("the release of lock") && run.err.contains("not confirmed");
        assert!(told && !run.err.contains("background"), "{run:?}");
    }
}

/// The holder has the same stderr as `release`, here a file.
#[test]
fn release_tells_once_that_it_was_not_confirmed() {
    let place = Place::new();
    let Some(server) = server() else { return };
    let script = "exec 2>\"$1\"; lock=$(\"$0\" acquire --lease 60s x) || exit 9; echo in; read x; \
                  \"$0\" release \"$lock\"";
    let stderr = place.path("stderr");
    let mut shell = Command::new("sh");
    shell.args(["-c", script, HOLDLINE]).arg(&stderr).env("HOLDLINE_CONFIG", "");
    let mut running = Running::start(shell.env("HOLDLINE_STORE", server.url()));
    assert_eq!(running.line(), "in");
    server.pause();
    running.tell("\n");
    let run = running.end();
    server.resume();
    let said = std::fs::read_to_string(&stderr).expect("it is there");
    assert_eq!((run.code, said.matches("was not confirmed").count()), (0, 1), "{run:?} {said}");
}

/// A run, by this script, that has said that a paused server does not answer its release.
fn releases_unanswered(server: &Server, script: &str, name: &str) -> Running {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, HOLDLINE, name]).env("HOLDLINE_CONFIG", "");
    let mut running = Running::start(shell.env("HOLDLINE_STORE", server.url()));
    assert_eq!(running.line(), "in");
    server.pause();
    running.tell("\n");
    let warning = running.line();
    assert!(warning.contains("the store does not answer"), "{warning}");
    running
}

/// Others would wait until the lease is over. A busy machine may take too long once.
#[test]
fn a_release_without_an_answer_is_tried_again_before_the_end() {
    let place = Place::new();
    let Some(server) = server() else { return };
    let script = "\"$0\" run --lease 60s \"$1\" -- sh -c 'echo in; read x' 2>&1";
    for name in ["x", "y", "z"] {
        let running = releases_unanswered(&server, script, name);
        server.resume();
        let run = running.end();
        assert_eq!(run.code, 0, "{run:?}");
        if run.out.contains("not confirmed") {
            continue;
        }
        let mut status = place.command(["status", name]);
        let status = finish(status.env("HOLDLINE_STORE", server.url()));
        assert!(status.out.contains("neither held nor waited for"), "{status:?}");
        return;
    }
    panic!("no release is tried again");
}

/// A signal ends the wait for that release, which is two seconds long. A busy machine may take too
/// long once.
#[test]
fn a_signal_ends_the_wait_for_a_release_that_is_not_answered() {
    let Some(server) = server() else { return };
    let script = "exec \"$0\" run --lease 60s \"$1\" -- sh -c 'echo in; read x' 2>&1";
    for name in ["x", "y", "z"] {
        let mut running = releases_unanswered(&server, script, name);
        let began = Instant::now();
        while running.runs() {
            running.signal(Signal::TERM); // the first may come before the wait
            std::thread::sleep(Duration::from_millis(10));
        }
        let took = began.elapsed();
        server.resume();
        let run = running.end();
        if run.code == 0 && took < Duration::from_millis(1500) {
            assert!(run.out.contains("was not confirmed"), "{run:?}");
            return;
        }
    }
    panic!("no wait was ended");
}

/// Its place would keep others waiting until it lapses. A busy machine may take too long once.
#[test]
fn an_acquire_whose_owner_ends_leaves_the_line() {
    let place = Place::new();
    let Some(server) = server() else { return };
    let start =
        |args: &[&str]| Running::start(place.command(args).env("HOLDLINE_STORE", server.url()));
    let waiter = || {
        let mut command = place.command(["status", "--json", "x"]);
        let status = finish(command.env("HOLDLINE_STORE", server.url()));
        let status: serde_json::Value = serde_json::from_str(&status.out).expect("JSON");
        status["waiters"][0]["pid"].as_i64().map(|pid| i32::try_from(pid).expect("it is a pid"))
    };
    let mut holder = start(&[&["run", "x"], &LEASE[..], &READS].concat());
    assert_eq!(holder.line(), "in");
    let mut left = 0;
    for _ in 0..6 {
        let mut owner = Command::new("sleep").arg("600").spawn().expect("there is sleep");
        let acquire = start(&["acquire", "x", "--owner", &owner.id().to_string()]);
        until("it waits", || waiter().is_some());
        let waiting = waiter().expect("it waits");
        owner.kill().expect("it is our child");
        owner.wait().expect("it is our child");
        until("the background process has ended", || !lives(waiting));
        left += u32::from(waiter().is_none());
        let ended = acquire.end();
        assert!(ended.code == 129 && ended.err.contains("its owner has ended"), "{ended:?}");
        until("its place is gone", || waiter().is_none());
    }
    assert!(left >= 5, "{left} of 6 left the line");
}

/// The library's crates for the protocols of servers warn, too.
#[test]
fn what_a_client_of_a_server_warns_of_is_printed() {
    let place = Place::new();
    usual_signals();
    let Some(server) = private("program", &["--maxmemory-policy", "allkeys-lru"]) else { return };
    for (log, warns) in [("", true), ("warn", true), ("off", false)] {
        let mut command = place.command(["run", "x", "--", "true"]);
        command.env("HOLDLINE_STORE", server.url()).env("HOLDLINE_LOG", log);
        let run = finish(&mut command);
        assert_eq!(run.code, 0, "{run:?}");
        let said = run.err.contains("warning: ") && run.err.contains("allkeys-lru");
        assert_eq!(said, warns, "{log:?}: {run:?}");
    }
}
