//! Kinds of locks, and what a command gets.

use super::common::{Place, finish, lives, until};
use rustix::process::Signal;
use std::time::{Duration, Instant};

#[test]
fn the_command_gets_name_token_store_and_stdin() {
    let place = Place::new();
    let script = "cat; echo \"$HOLDLINE_NAME|$HOLDLINE_TOKEN|$HOLDLINE_STORE\"";
    let mut command = place.command(["run", "the name", "--", "sh", "-c", script]);
    command.env("HOLDLINE_NAME", "old").env("HOLDLINE_TOKEN", "0");
    let mut running = super::common::Running::start(&mut command);
    running.tell("from stdin\n");
    running.close_stdin();
    let run = running.end();
    assert_eq!(run.code, 0, "{run:?}");
    let (first, second) = run.out.split_once('\n').unwrap();
    assert_eq!(first, "from stdin");
    let parts: Vec<&str> = second.trim().split('|').collect();
    assert_eq!((parts[0], parts[2]), ("the name", place.url().as_str()));
    assert!(parts[1].parse::<u64>().unwrap() > 0);
}

#[test]
fn tokens_rise_from_run_to_run() {
    let place = Place::new();
    let mut last = 0;
    for _ in 0..5 {
        let run = place.run(["run", "x", "--", "sh", "-c", "echo $HOLDLINE_TOKEN"]);
        let token: u64 = run.out.trim().parse().unwrap();
        assert!(token > last);
        last = token;
    }
}

#[test]
fn a_flag_is_stronger_than_the_environment() {
    let place = Place::new();
    let other = format!("sqlite:{}", place.path("other.db").display());
    let args = ["run", "--store", &other, "x", "--", "sh", "-c", "echo $HOLDLINE_STORE"];
    assert_eq!(place.run(args).out.trim(), other);
}

#[test]
fn without_a_url_it_is_the_users_own_file() {
    let place = Place::new();
    let mut command = place.command(["run", "x", "--", "sh", "-c", "echo \"<$HOLDLINE_STORE>\""]);
    command.env_remove("HOLDLINE_STORE").env("XDG_STATE_HOME", place.path("state"));
    let run = finish(&mut command);
    let file = place.path("state/holdline/locks.db");
    let url = format!("<sqlite:{}>\n", file.display());
    assert_eq!((run.code, run.out), (0, url), "it is the same for what the command starts");
    assert!(file.exists());
    let mut command = place.command(["status"]);
    command.env_remove("HOLDLINE_STORE").env("XDG_STATE_HOME", place.path("state"));
    let run = finish(&mut command);
    assert!(run.out.contains("/holdline/locks.db (private to this user)"), "{run:?}");
}

#[test]
fn permits_are_counted() {
    let place = Place::new();
    let two = place.hold(&["--permits", "2/3"], "s");
    let one = place.hold(&["--permits", "1/3"], "s");
    assert_eq!(place.run(["run", "-n", "--permits", "1/3", "s", "true"]).code, 75);
    assert_eq!(place.run(["try", "--permits", "1/3", "s"]).code, 75);
    drop(one);
    assert_eq!(place.run(["run", "--permits", "1/3", "s", "true"]).code, 0);
    assert_eq!(place.run(["run", "-n", "--permits", "2/3", "s", "true"]).code, 75);
    let other = place.run(["run", "-n", "--permits", "1/4", "s", "true"]);
    assert_eq!(other.code, 64, "{other:?}");
    for args in [&["try", "s"][..], &["run", "-n", "s", "true"]] {
        let run = place.run(args);
        let told = "lock \"s\" is in use as a semaphore of 3 permits, but was asked for as a mutex";
        assert!(run.code == 64 && run.err.contains(told), "{run:?}");
    }
    drop(two);
}

/// Some stores without semaphores have read-write locks, so each refusal names one of both. `try`
/// refuses what `run` refuses.
#[test]
fn a_store_with_mutexes_only_says_so() {
    let place = Place::new();
    let nodes = ["a", "b", "c"].map(|name| format!("sqlite:{}", place.path(name).display()));
    let url = format!("quorum:{}", nodes.join(","));
    for (kind, flags) in [
        ("semaphores and groups", &["--permits", "1/2"][..]),
        ("read-write locks", &["--shared"]),
        ("read-write locks", &["--exclusive"]),
    ] {
        for args in [[&["run"], flags, &["x", "true"]].concat(), [&["try"], flags, &["x"]].concat()]
        {
            let run = place.run([&["--store", url.as_str()], &*args].concat());
            let told = run.err.contains(&format!("does not promise {kind}; choose another store"));
            assert!(run.code == 64 && told && run.out.is_empty(), "{run:?}");
        }
    }
}

#[test]
fn readers_share_and_writers_do_not() {
    let place = Place::new();
    let one = place.hold(&["--shared"], "t");
    let two = place.hold(&["--shared"], "t");
    assert_eq!(place.counts("t"), (2, 0));
    assert_eq!(place.run(["run", "-n", "--exclusive", "t", "true"]).code, 75);
    let other = place.run(["run", "-n", "t", "true"]);
    assert_eq!(other.code, 64, "a mutex is something else");
    assert!(other.err.contains("is in use as a read-write lock"), "what it is: {other:?}");
    drop((one, two));
    let mut writer = place.hold(&["--exclusive"], "t");
    assert_eq!(place.run(["run", "-n", "--shared", "t", "true"]).code, 75);
    writer.tell("\n");
    assert_eq!(writer.end().code, 0);
    assert_eq!(place.run(["run", "-n", "--shared", "t", "true"]).code, 0);
}

#[test]
fn a_lock_can_be_held_longer_than_the_command_runs() {
    let place = Place::new();
    let began = Instant::now();
    let args = ["run", "--min-hold", "700ms", "x", "--", "sh", "-c", "echo in; exit 4"];
    let mut running = place.start(args);
    assert_eq!(running.line(), "in");
    assert_eq!(place.run(["run", "-n", "x", "true"]).code, 75);
    let run = running.end();
    assert_eq!(run.code, 4);
    assert!(began.elapsed() >= Duration::from_millis(700));
    assert_eq!(place.run(["run", "-n", "x", "true"]).code, 0);
}

#[test]
fn the_size_of_the_terminal_does_not_end_the_least_time() {
    let place = Place::new();
    let began = Instant::now();
    let least = Duration::from_secs(2);
    let mut running = place.start(["run", "--min-hold", "2s", "x", "--", "sh", "-c", "echo $$"]);
    let pid: i32 = running.line().parse().unwrap();
    until("the command ended", || !lives(pid));
    running.signal(Signal::WINCH);
    running.signal(Signal::CONT);
    assert_eq!(running.end().code, 0);
    assert!(began.elapsed() >= least);
    let mut running = place.start(["run", "--min-hold", "1h", "x", "--", "sh", "-c", "echo $$"]);
    let pid: i32 = running.line().parse().unwrap();
    until("the command ended", || !lives(pid));
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, 0);
}

#[test]
fn an_election_has_one_leader_and_a_value() {
    let place = Place::new();
    let mut leader = place.start(["elect", "e", "here:80"]);
    assert!(leader.line().starts_with("leading \"e\" with token "));
    assert_eq!(place.status("e")["holders"][0]["value"], "here:80");
    let mut observer = place.start(["elect", "e", "--observe"]);
    assert!(observer.line().starts_with("here:80\ttoken "));
    let mut second = place.start(["elect", "e", "there:80", "--", "sh", "-c", "echo led; read x"]);
    super::common::until("the second candidate waits", || place.counts("e") == (1, 1));
    leader.signal(rustix::process::Signal::TERM);
    assert_eq!(leader.end().code, 0);
    assert_eq!(second.line(), "led");
    assert!(observer.line().starts_with("there:80\ttoken "));
    second.close_stdin();
    assert_eq!(second.end().code, 1, "the code of `read` at the end of its input");
    assert_eq!(observer.line(), "nobody leads");
    assert_eq!(place.run(["elect", "-n", "e", "v", "--", "true"]).code, 0);
}
