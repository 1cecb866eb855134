//! A server that accepts and never answers: every verb ends in time, and says so.

use super::common::{Place, Run, finish};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// What a busy machine may take for starting and ending a process. Without a bound of their own the
/// verbs took 6.4 to 18.7 s.
const SLACK: Duration = Duration::from_secs(6);

/// One that completes connections, and nothing else.
fn silent() -> (TcpListener, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut urls = Vec::new();
    for (there, url) in [
        (cfg!(feature = "redis"), format!("redis://me:secret@{address}")),
        (cfg!(feature = "etcd"), format!("etcd://{address}")),
        (cfg!(feature = "zookeeper"), format!("zookeeper://{address}")),
        (
            cfg!(feature = "redis"),
            format!("quorum:redis://{address}/0,redis://{address}/1,redis://{address}/2"),
        ),
    ] {
        if there {
            urls.push(url);
        }
    }
    (listener, urls)
}

fn timed(place: &Place, url: &str, args: &[&str]) -> (Run, Duration) {
    let began = Instant::now();
    let run = finish(place.command(args).env("HOLDLINE_STORE", url));
    (run, began.elapsed())
}

/// Whether the message names the server, and not its user, password and options.
fn names_the_server(run: &Run, listener: &TcpListener) -> bool {
    let address = listener.local_addr().unwrap().to_string();
    run.err.contains(&address) && !run.err.contains("secret") && !run.err.contains("***")
}

#[test]
fn what_only_asks_ends_within_its_bound() {
    let place = Place::new();
    let (listener, urls) = silent();
    for url in &urls {
        for args in [
            &["status"][..],
            &["status", "x"],
            &["try", "x"],
            &["break", "x", "000000000000", "--reason", "r"],
            &["run", "-n", "x", "--", "true"],
            &["elect", "-n", "x", "v", "--", "true"],
        ] {
            let bounded =
                [args[..1].to_vec(), vec!["--connect-timeout", "300ms"], args[1..].to_vec()];
            let (run, took) = timed(&place, url, &bounded.concat());
            assert_eq!((run.code, run.out.as_str()), (69, ""), "{url} {args:?}: {run:?}");
            assert!(took < Duration::from_millis(300) + SLACK, "{url} {args:?}: {took:?}");
            assert!(names_the_server(&run, &listener), "{url} {args:?}: {run:?}");
        }
        let (run, took) = timed(&place, url, &["try", "x"]);
        let told = [" did not answer ", "timed out"].iter().any(|why| run.err.contains(why));
        assert!(told && run.err.lines().count() == 1, "{url}: {run:?}");
        assert!(names_the_server(&run, &listener), "{url}: {run:?}");
        assert!(took < Duration::from_millis(1_800) + SLACK, "{url}: {took:?}");
    }
}

#[test]
fn what_waits_ends_within_its_bound() {
    let place = Place::new();
    let (listener, urls) = silent();
    for url in &urls {
        for args in [
            &["run", "-w", "500ms", "x", "--", "true"][..],
            &["run", "--connect-timeout", "500ms", "x", "--", "true"],
            &["elect", "--connect-timeout", "500ms", "x", "v"],
            &["watch", "--connect-timeout", "500ms", "x"],
            &["elect", "--connect-timeout", "500ms", "--observe", "x"],
        ] {
            let (run, took) = timed(&place, url, args);
            assert_eq!((run.code, run.out.as_str()), (69, ""), "{url} {args:?}: {run:?}");
            assert!(run.err.lines().count() == 1, "{url} {args:?}: {run:?}");
            assert!(took < Duration::from_millis(500) + SLACK, "{url} {args:?}: {took:?}");
            let advice =
                if args[1] == "-w" { "time by --wait\n" } else { "by --connect-timeout\n" };
            let is_advised = run.err.ends_with(advice) || !run.err.contains("more time");
            assert!(is_advised, "{url} {args:?}: {run:?}");
            assert!(names_the_server(&run, &listener), "{url} {args:?}: {run:?}");
        }
    }
}

/// A store that refuses is not waited for as one that is silent: that would be 15 s.
#[test]
fn a_store_that_refuses_is_told_at_once() {
    let place = Place::new();
    for (there, url) in [
        (cfg!(feature = "redis"), "redis://127.0.0.1:1"),
        (
            cfg!(feature = "redis"),
            "quorum:redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3",
        ),
        (cfg!(feature = "postgres"), "postgres://127.0.0.1:1/x"),
        (cfg!(feature = "mysql"), "mysql://127.0.0.1:1/x"),
        (cfg!(feature = "etcd"), "etcd://127.0.0.1:1"),
        (cfg!(feature = "zookeeper"), "zookeeper://127.0.0.1:1"),
    ] {
        if !there {
            continue;
        }
        for verb in [&["run", "x", "--", "true"][..], &["watch", "x"], &["status", "--watch"]] {
            let (run, took) = timed(&place, url, verb);
            assert_eq!((run.code, run.out.as_str()), (69, ""), "{url}: {run:?}");
            let soon = took < Duration::from_secs(12);
            assert!(run.err.contains("refused") && soon, "{took:?}: {run:?}");
            assert!(run.err.matches("Input/output error").count() <= 1, "said twice: {run:?}");
        }
    }
}
