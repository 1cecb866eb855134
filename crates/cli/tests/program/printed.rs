//! What is printed, and where that fails.

use super::common::{HOLDLINE, Place, Run, Running, finish};
use super::users;
use std::process::Command;

/// Runs a shell script in which `$0` is the program.
fn shell(place: &Place, script: &str) -> Run {
    let mut command = Command::new("bash");
    command.args(["-c", script, HOLDLINE]).env("HOLDLINE_STORE", place.url());
    finish(&mut command)
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let place = Place::new();
    let mut holder = place.hold(&[], "x");
    for verb in ["status", "status --json x", "try x", "watch x", "elect x --observe", "--help"] {
        let run = shell(&place, &format!("\"$0\" {verb} > /dev/full; echo $?"));
        assert_eq!(run.out, "74\n", "{verb}: {run:?}");
        assert!(run.err.contains("could not be written to stdout"), "{verb}: {run:?}");
    }
    for verb in ["status", "status --json x", "man", "completions bash"] {
        let run = shell(&place, &format!("(\"$0\" {verb} >&-; echo $? >&2)"));
        assert!(run.err.ends_with("\n74\n"), "{verb}: {run:?}");
        // A reader that has seen enough is none.
        let run = shell(&place, &format!("\"$0\" {verb} | true; echo ${{PIPESTATUS[0]}}"));
        assert_eq!((run.out.as_str(), run.err.as_str()), ("0\n", ""), "{verb}");
        let run = shell(&place, &format!("\"$0\" {verb} > /dev/null; echo $?"));
        assert_eq!((run.out.as_str(), run.err.as_str()), ("0\n", ""), "{verb}");
    }
    // So do Python's `subprocess.DEVNULL` and Node.js's "ignore" start a program.
    for verb in ["--version", "run --help", "doctor"] {
        let run = shell(&place, &format!("\"$0\" {verb} 1<> /dev/null; echo $? >&2"));
        assert_eq!(run.err, "0\n", "{verb}: {run:?}");
    }
    let run = shell(&place, "(\"$0\" try x >&-; echo $? >&2)");
    assert_eq!(run.err, "75\n", "the code is the answer");
    holder.tell("\n");
    assert_eq!(holder.end().code, 0);
}

/// Though nothing changes that they would print, and then notice it.
#[test]
fn what_prints_changes_ends_with_its_reader() {
    let place = Place::new();
    let _leader = place.hold(&[], "x");
    for verb in ["watch x", "status --watch --every 1h", "top --every 1h", "elect x --observe"] {
        let run = shell(&place, &format!("\"$0\" {verb} | head -c 1; echo ${{PIPESTATUS[0]}}"));
        assert_eq!(run.err, "", "{verb}: {run:?}");
        assert!(run.out.len() == 3 && run.out.ends_with("0\n"), "{verb}: {run:?}");
    }
}

/// What looks like a password, too.
#[test]
fn words_of_others_do_not_change_events() {
    let place = Place::new();
    let words = "deploy:web@prod pass=\"";
    let holder = place.hold(&["--label", words], words);
    let run = place.run(["run", "--json", "-n", words, "true"]);
    assert_eq!(run.code, 75, "{run:?}");
    let event: serde_json::Value = serde_json::from_str(run.err.trim()).expect("it is JSON");
    assert_eq!(event["holders"][0]["label"], words, "{run:?}");
    drop(holder);
}

#[test]
fn words_of_others_cannot_hide_or_turn_what_is_shown() {
    let place = Place::new();
    let words = "a\u{202e}b\u{200b}c\u{2066}d\u{feff}e\u{1b}[2J";
    let name = "n\u{202e}\u{200d}";
    let holder = place.hold(&["--label", words], name);
    let hidden = |text: &str| text.chars().any(|c| words[1..].contains(c) && !c.is_ascii_graphic());
    for args in
        [&["status"][..], &["try", name], &["status", "--json"], &["run", "-n", name, "true"]]
    {
        let run = place.run(args);
        assert!(!hidden(&run.out) && !hidden(&run.err), "{args:?}: {run:?}");
        assert!(!run.out.is_empty() || !run.err.is_empty());
    }
    for args in [&["run", "x", "--\u{202e}b\u{9b}2J"][..], &["\u{202e}"]] {
        let run = place.run(args);
        assert!(run.code == 64 && run.err.contains("202e"), "{args:?}: {run:?}");
        assert!(!hidden(&run.err) && !run.err.contains('\u{9b}'), "{args:?}: {run:?}");
    }
    let json = place.status(name);
    assert_eq!((&json["name"], &json["holders"][0]["label"]), (&name.into(), &words.into()));
    drop(holder);
}

#[cfg(target_os = "linux")]
#[test]
fn without_descriptors_it_says_what_is_missing() {
    let place = Place::new();
    let mut lacking = 0;
    for most in 4..40 {
        let run = shell(&place, &format!("ulimit -n {most}; \"$0\" run -n x -- true; echo $?"));
        if run.out != "0\n" {
            lacking += 1;
            assert_eq!(run.out, "71\n", "{most}: {run:?}");
            assert!(run.err.contains("ulimit -n"), "{most}: {run:?}");
            assert_eq!(run.err.lines().count(), 1, "{most}: {run:?}");
        }
    }
    assert!((12..30).contains(&lacking), "{lacking}");
    assert_eq!(place.counts("x"), (0, 0));
}

/// A lock that nothing could renew is not taken. G14.
#[cfg(target_os = "linux")]
#[test]
fn without_threads_it_says_what_is_missing_or_renews() {
    if !users::may_change_user() {
        return;
    }
    let (place, program) = users::place();
    // Users of nothing else, who may start a process or thread less each.
    let first = 20_000 + std::process::id() % 4_000 * 10;
    let limits = 1..=6;
    let runs: Vec<_> = limits
        .map(|most| {
            let home = place.path(&format!("home-{most}"));
            std::fs::create_dir(&home).unwrap();
            std::os::unix::fs::chown(&home, Some(first + most), None).unwrap();
            let url = format!("sqlite:{}/locks.db", home.display());
            let args = ["run", "--lease", "3s", "x", "--", "sleep", "4"];
            with_threads(most, &place, &program, first + most, &url, &args)
        })
        .collect();
    let runs: Vec<_> = runs.into_iter().map(Running::end).collect();
    for run in &runs {
        assert!(run.code == 0 || run.code == 71, "{runs:#?}");
        assert_eq!(run.code == 71, run.err.contains("(ulimit -u"), "{runs:#?}");
    }
    assert!(runs[0].code == 71 && runs[5].code == 0, "{runs:#?}");
    assert!(runs[0].err.contains("memory"), "{runs:#?}");
}

/// The threads that stores need are started before they connect, so no server is asked.
#[cfg(target_os = "linux")]
#[test]
fn without_threads_every_store_says_what_is_missing() {
    if !users::may_change_user() {
        return;
    }
    let (place, program) = users::place();
    let user = 60_000 + std::process::id() % 4_000;
    for url in [
        "postgres://127.0.0.1:1/x",
        "mysql://127.0.0.1:1/x",
        "etcd://127.0.0.1:1",
        "zookeeper://127.0.0.1:1/x",
    ] {
        let args = ["run", "-n", "x", "--", "true"];
        let run = with_threads(1, &place, &program, user, url, &args).end();
        assert_eq!(run.code, 71, "{url}: {run:?}");
        assert!(run.err.contains("(ulimit -u"), "{url}: {run:?}");
    }
}

/// Starts the program as a user of nothing else, with so many processes and threads at most.
#[cfg(target_os = "linux")]
fn with_threads(
    most: u32,
    place: &Place,
    program: &std::path::Path,
    user: u32,
    url: &str,
    args: &[&str],
) -> Running {
    let limit = format!("ulimit -u {most}; exec \"$0\" \"$@\"");
    let shell = [&["-c", &limit, program.to_str().unwrap()], args].concat();
    Running::start(&mut users::user(place, "bash".as_ref(), user, "", url, &shell))
}

#[test]
fn the_readmes_first_command_works() {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let line = readme.lines().find_map(|line| line.strip_prefix("cargo run --release -- "));
    let place = Place::new();
    let run = shell(&place, &format!("\"$0\" {}", line.expect("README names it")));
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert!(!run.out.is_empty(), "it shows something");
}

/// What stands below the flags is not wrapped by a terminal of 80 columns.
#[test]
fn the_tables_of_the_help_fit_a_narrow_terminal() {
    let place = Place::new();
    for verb in ["", "run", "acquire", "doctor", "status", "elect"] {
        let run = place.run([verb, "--help"].into_iter().filter(|word| !word.is_empty()));
        let below = run.out.lines().skip_while(|line| *line != "Examples:");
        let long: Vec<&str> = below.filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{verb}: {long:#?}");
    }
    let run = place.run(["--help"]);
    assert!(run.out.contains("\n  HOLDLINE_CONFIG a file of defaults, instead of "), "{run:?}");
    assert!(run.out.contains("\n                  "), "{run:?}");
}
