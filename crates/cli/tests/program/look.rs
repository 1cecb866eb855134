//! Looking at locks: `status`, `try`, `watch`, and what else prints.

use super::common::{Place, until};

#[test]
fn status_shows_holders_and_waiters() {
    let place = Place::new();
    let run = place.run(["status"]);
    let nobody = format!("no lock is held or waited for in {}\n", place.url());
    assert_eq!((run.code, run.out), (0, nobody));
    let mut holder = place.hold(&["--label", "of \x1b[31mmine"], "x");
    let mut waiter = place.start(["run", "--label", "next", "x", "--", "echo", "in"]);
    until("it waits", || place.counts("x") == (1, 1));
    let status = place.status("x");
    let (held, waits) = (&status["holders"][0], &status["waiters"][0]);
    assert_eq!(
        (held["label"].as_str(), waits["label"].as_str()),
        (Some("of \x1b[31mmine"), Some("next"))
    );
    assert_eq!(held["pid"].as_i64(), Some(holder.pid().as_raw_nonzero().get().into()));
    assert_eq!(held["id"].as_str().map(str::len), Some(32));
    assert!(held["since"].as_str() < held["until"].as_str());
    let table = place.run(["status"]).out;
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].starts_with("NAME  STATE  ID") && rows.len() == 3, "{table}");
    assert!(
        rows[1].starts_with("x     holds  ") && rows[2].starts_with("x     waits  "),
        "{table}"
    );
    assert!(!table.contains('\x1b'), "a label cannot drive the terminal");
    holder.tell("\n");
    assert_eq!(waiter.line(), "in");
    assert_eq!((holder.end().code, waiter.end().code), (0, 0));
    assert_eq!(place.counts("x"), (0, 0));
}

#[test]
fn try_says_and_takes_nothing() {
    let place = Place::new();
    let free = place.run(["try", "x"]);
    assert_eq!((free.code, free.out.as_str()), (0, "\"x\" is free\n"));
    let _holder = place.hold(&["--label", "me"], "x");
    let taken = place.run(["try", "x"]);
    assert!(taken.code == 75 && taken.out.contains("(me)"), "{taken:?}");
    let quiet = place.run(["try", "-q", "-E", "3", "x"]);
    assert_eq!((quiet.code, quiet.out.as_str(), quiet.err.as_str()), (3, "", ""));
    let json: serde_json::Value =
        serde_json::from_str(&place.run(["try", "--json", "x"]).out).unwrap();
    assert_eq!(json["free"], false);
    assert_eq!(place.counts("x"), (1, 0));
}

#[test]
fn watch_tells_each_change() {
    let place = Place::new();
    let mut watch = place.start(["watch", "--json", "--every", "20ms", "x"]);
    let mut next = || {
        let line: serde_json::Value = serde_json::from_str(&watch.line()).expect("JSON");
        (line["event"].as_str().unwrap().to_owned(), line["participant"]["label"].clone())
    };
    let mut holder = place.hold(&["--label", "one"], "x");
    assert_eq!(next(), ("acquired".to_owned(), "one".into()));
    let mut waiter =
        place.start(["run", "--label", "two", "x", "--", "sh", "-c", "echo in; read x"]);
    assert_eq!(next(), ("waiting".to_owned(), "two".into()));
    holder.tell("\n");
    assert_eq!(waiter.line(), "in");
    assert_eq!(next(), ("released".to_owned(), "one".into()));
    assert_eq!(next(), ("acquired".to_owned(), "two".into()));
    waiter.tell("\n");
    assert_eq!(next(), ("released".to_owned(), "two".into()));
}

#[test]
fn watch_follows_all_locks_that_begin_so() {
    let place = Place::new();
    let _other = place.hold(&[], "other");
    let mut watch = place.start(["watch", "--json", "--every", "20ms", "--prefix", "job/"]);
    let mut next = || {
        let line: serde_json::Value = serde_json::from_str(&watch.line()).expect("JSON");
        format!("{} {}", line["event"], line["name"]).replace('"', "")
    };
    let mut one = place.hold(&[], "job/1");
    assert_eq!(next(), "acquired job/1");
    let mut two = place.hold(&[], "job/2");
    assert_eq!(next(), "acquired job/2");
    one.tell("\n");
    assert_eq!(next(), "released job/1");
    two.tell("\n");
    assert_eq!(next(), "released job/2");
    assert_eq!(place.run(["watch", "x", "--prefix", "y"]).code, 64);
}

#[test]
fn break_wants_a_participant_that_is_there() {
    let place = Place::new();
    let _holder = place.hold(&[], "x");
    let nobody = place.run(["break", "x", "000000000000", "--reason", "r"]);
    assert_eq!((nobody.code, nobody.out.as_str()), (1, ""), "{nobody:?}");
    assert!(nobody.err.contains("has no holder"), "{nobody:?}");
    let json = place.status("x");
    let id = json["holders"][0]["id"].as_str().unwrap();
    let wrong_name = place.run(["break", "y", id, "--reason", "r"]);
    assert_eq!(wrong_name.code, 1);
    assert_eq!(place.counts("x"), (1, 0), "nobody's lock is broken by accident");
}

#[test]
fn the_wait_is_explained() {
    let place = Place::new();
    let _holder = place.hold(&["--label", "big job"], "x");
    // It is explained after a second, and a look at the lock.
    let run = place.run(["run", "-v", "-w", "6s", "x", "--", "true"]);
    assert_eq!(run.code, 75);
    let first = run.err.lines().next().unwrap_or_default();
    assert!(first.contains("waiting for lock \"x\"") && first.contains("big job"), "{run:?}");
    assert!(first.contains("place 1 in line"), "{run:?}");
    let silent = place.run(["run", "-q", "-w", "1500ms", "x", "--", "true"]);
    assert_eq!((silent.code, silent.err.as_str()), (75, ""));
}

/// No look would come in time.
#[test]
#[cfg(target_os = "linux")]
fn watch_status_and_top_listen() {
    let place = Place::new();
    let mut watch = place.start(["watch", "--every", "1h"]);
    let mut status = place.start(["status", "--watch", "--every", "1h", "x"]);
    let mut top = place.start(["top", "--every", "1h"]);
    let mut holder = place.hold(&["--label", "me"], "x");
    assert!(watch.line().contains("acquired"));
    while !status.line().contains("me") {}
    while !top.line().contains("1 hold") {}
    holder.tell("\n");
    assert_eq!(holder.end().code, 0);
    assert!(watch.line().contains("released"));
    while !status.line().contains("neither held") {}
    while !top.line().contains("0 hold") {}
    // A process that is killed writes nothing: the kernel tells that its files are closed.
    let holder = place.hold(&[], "y");
    assert!(watch.line().contains("acquired"));
    drop(holder); // by SIGKILL
    assert!(watch.line().contains("released"));
}

#[test]
fn completions_and_manual_pages_are_printed() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let run = place.run(["completions", shell]);
        assert!(run.code == 0 && run.out.contains("holdline"), "{shell}");
    }
    let page = place.run(["man"]);
    assert!(page.code == 0 && page.out.contains(".TH holdline"), "{page:?}");
    let page = place.run(["man", "run"]);
    assert!(page.out.contains(".SH SYNOPSIS\nholdline run [OPTIONS] <NAME> [COMMAND]...\n"));
    assert_eq!(place.run(["help", "run"]).out, place.run(["run", "--help"]).out);
    assert!(page.code == 0 && page.out.contains("min\\-hold"), "{page:?}");
    assert_eq!(place.run(["man", "nothing"]).code, 64);
}

#[test]
fn manual_pages_have_footers_and_whole_tables() {
    let place = Place::new();
    std::fs::create_dir(place.path("man1")).unwrap();
    let folder = place.path("man1");
    let run = place.run(["man", "--dir", folder.to_str().unwrap()]);
    assert_eq!((run.code, run.out.as_str()), (0, ""), "{run:?}");
    let names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path()).collect();
    let help = place.run(["--help"]).out;
    let verbs = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
    let verbs = verbs.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    assert_eq!(names.len(), verbs.count() + 1, "{names:?}");
    for name in &names {
        let text = std::fs::read_to_string(name).unwrap();
        let title = name.file_stem().unwrap().to_str().unwrap();
        let source = format!("\"holdline {}\"", env!("CARGO_PKG_VERSION"));
        let footer = text.lines().find(|line| line.starts_with(".TH ")).unwrap();
        assert!(footer.contains(title) && footer.contains(&source), "{footer}");
    }
    let source = std::fs::read_to_string(folder.join("holdline-run.1")).unwrap();
    assert!(source.contains(".SH EXIT CODES\n.nf\n") && source.contains(".SH HOLDING"), "{source}");
    // With groff, what is shown is looked at too.
    let mut viewer = std::process::Command::new("man");
    viewer.arg("-l").arg(folder.join("holdline-run.1"));
    if let Ok(page) = viewer.env("MANWIDTH", "100").env("LC_ALL", "C.UTF-8").output() {
        let page = String::from_utf8_lossy(&page.stdout).into_owned();
        let line = page.lines().find(|line| line.trim_start().starts_with("75 "));
        assert!(line.is_some_and(|line| line.trim_end().ends_with("another)")), "{page}");
    }
    let nowhere = place.run(["man", "--dir", place.path("none").to_str().unwrap()]);
    assert_eq!(nowhere.code, 74, "{nowhere:?}");
}

#[test]
fn status_looks_again_and_again() {
    let place = Place::new();
    let mut holder = place.hold(&["--label", "me"], "job/1");
    let _other = place.hold(&[], "other");
    let mut status = place.start(["status", "--watch", "--every", "20ms", "--prefix", "job/"]);
    let mut next = |part: &str| while !status.line().contains(part) {};
    next("me");
    holder.tell("\n");
    assert_eq!(holder.end().code, 0);
    next("no lock is held or waited for");
    let mut json = place.start(["status", "--watch", "--every", "20ms", "--json", "other"]);
    for _ in 0..2 {
        let line: serde_json::Value = serde_json::from_str(&json.line()).expect("JSON");
        assert_eq!(line["name"], "other");
    }
    assert_eq!(place.run(["status", "--watch", "--every", "0s"]).code, 64);
}

#[test]
fn top_counts_twenty_processes() {
    let place = Place::new();
    let mut holder = place.hold(&[], "x");
    let script = "echo in; read x";
    let waiters: Vec<_> =
        (0..20).map(|_| place.start(["run", "x", "--", "sh", "-c", script])).collect();
    until("all wait", || place.counts("x") == (1, 20));
    let mut top = place.start(["top", "--every", "20ms"]);
    let mut next = |part: &str| while !top.line().contains(part) {};
    next("1 hold, 20 wait");
    next("waiting 20/20");
    next("20 waits");
    holder.tell("\n");
    assert_eq!(holder.end().code, 0);
    next("waiting 19/20");
    let others = waiters.len();
    drop(waiters);
    next("free");
    assert_eq!(others, 20);
    let nowhere = place.run(["top", "--json"]);
    assert_eq!(nowhere.code, 64, "{nowhere:?}");
    let ended = place.run(["top", "--every", "20ms", "--looks", "3"]);
    assert_eq!((ended.code, ended.out.matches("holdline top").count()), (0, 3), "{ended:?}");
}

#[test]
fn a_watched_status_is_not_printed_for_renewals() {
    let place = Place::new();
    let _holder = place.hold(&["--renew-every", "50ms"], "x");
    let mut watch = place.start(["status", "--watch", "--every", "120s", "--json", "x"]);
    let who = |line: &str| {
        let status: serde_json::Value = serde_json::from_str(line).expect("it is JSON");
        ["holders", "waiters"].map(|key| status[key].as_array().expect("it is a list").len())
    };
    assert_eq!(who(&watch.line()), [1, 0]);
    let until = || place.status("x")["holders"][0]["until"].clone();
    for _ in 0..3 {
        let before = until();
        super::common::until("it is renewed, and again", || until() != before);
    }
    let _waiter = place.start(["run", "x", "true"]);
    assert_eq!(who(&watch.line()), [1, 1], "this is the next that is printed");
}
