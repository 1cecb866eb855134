//! Exit codes and messages.

use super::common::{HOLDLINE, Place, Running, finish, until, write_script};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// One sentence for people: a line, from us.
fn is_sentence(err: &str) -> bool {
    err.lines().count() == 1 && err.starts_with("holdline: ") && err.len() > 30
}

#[test]
fn the_commands_own_code_is_passed_on() {
    let place = Place::new();
    for code in [0, 1, 3, 75, 255] {
        let run = place.run(["run", "x", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((run.code, run.err.as_str()), (code, ""));
    }
    for signal in [6, 9, 15] {
        let run = place.run(["run", "x", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!((run.code, run.err.as_str()), (128 + signal, ""));
    }
}

#[test]
fn without_two_dashes_the_command_keeps_its_flags() {
    let place = Place::new();
    let run = place.run(["run", "-v", "x", "-n", "echo", "-n", "--json", "--", "-q"]);
    assert_eq!((run.code, run.out.as_str()), (0, "--json -- -q\n"), "{run:?}");
}

#[test]
fn busy_is_75_or_what_was_asked_for() {
    let place = Place::new();
    let _holder = place.hold(&["--label", "the first"], "x");
    let none = place.run(["run", "-n", "x", "--", "echo", "ran"]);
    assert_eq!((none.code, none.out.as_str()), (75, ""));
    assert!(is_sentence(&none.err) && none.err.contains("the first"), "{none:?}");
    let began = Instant::now();
    let late = place.run(["run", "-w", "300ms", "x", "--", "echo", "ran"]);
    assert_eq!((late.code, late.out.as_str()), (75, ""));
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(is_sentence(&late.err), "{late:?}");
    assert!(!late.err.contains("wait"), "nobody else waited: {late:?}");
    for code in [0, 7, 255] {
        let run = place.run(["run", "-q", "-n", "-E", &code.to_string(), "x", "--", "true"]);
        assert_eq!((run.code, run.err.as_str()), (code, ""));
    }
    assert_eq!(place.run(["run", "-n", "-E", "256", "x", "--", "true"]).code, 64);
    assert_eq!(place.counts("x"), (1, 0));
}

/// A script would go on without the lock: also by a default that was meant for `run`.
#[test]
fn a_verb_whose_code_is_its_answer_has_no_0_for_busy() {
    let place = Place::new();
    let _holder = place.hold(&[], "x");
    for verb in ["acquire", "try"] {
        for args in [&[verb, "x", "-E", "0"][..], &[verb, "x", "--busy-code=0"]] {
            let run = place.run(args);
            assert_eq!((run.code, run.out.as_str()), (64, ""), "{args:?}: {run:?}");
            assert!(run.err.contains("a script would go on without it"), "{run:?}");
        }
        let run = finish(place.command([verb, "x"]).env("HOLDLINE_BUSY_CODE", "0"));
        assert_eq!((run.code, run.out.as_str()), (64, ""), "{verb}: {run:?}");
    }
}

#[test]
fn commands_that_cannot_run_take_no_lock() {
    let place = Place::new();
    let plain = place.path("plain");
    std::fs::write(&plain, "true").unwrap();
    let folder = place.path("");
    let empty = ["plain"];
    for (command, code) in [
        ("no-such-command-anywhere", 127),
        ("./no/such/file", 127),
        (plain.to_str().unwrap(), 126),
        (folder.to_str().unwrap(), 126),
        ("", 127),
    ] {
        let run = place.run(["run", "x", "--", command]);
        assert_eq!(run.code, code, "{command}: {run:?}");
        assert!(is_sentence(&run.err), "{run:?}");
        assert_eq!(place.files(), empty, "the store was not even opened");
    }
}

#[test]
fn a_failed_exec_is_told_apart_and_releases() {
    let place = Place::new();
    for (text, code) in [("#!/no/such/interpreter\n", 127), ("#!/dev/null\n", 126)] {
        let script = place.path("its-script");
        write_script(&script, text);
        for (path, name) in
            [(place.path(""), "its-script"), ("/bin".into(), script.to_str().unwrap())]
        {
            let run = finish(place.command(["run", "x", "--", name]).env("PATH", path));
            assert_eq!(run.code, code, "{run:?}");
            assert!(is_sentence(&run.err), "{run:?}");
            assert_eq!(run.err.contains("the interpreter"), code == 127, "{run:?}");
            assert_eq!(place.counts("x"), (0, 0));
        }
    }
    let mut elsewhere = place.command(["run", "x", "--", "its-script"]);
    let run = finish(elsewhere.env("PATH", "/bin").current_dir(place.path("")));
    assert!(
        run.err.contains("there is no command \"its-script\""),
        "PATH does not lead there: {run:?}"
    );
}

#[test]
fn a_command_that_is_gone_after_the_wait_is_looked_for_again() {
    let place = Place::new();
    let add = |folder: &str| {
        std::fs::create_dir(place.path(folder)).unwrap();
        let script = place.path(folder).join("job");
        write_script(&script, "#!/bin/sh\necho $0\n");
        script
    };
    let (first, second) = (add("first"), add("second"));
    let path = std::env::var("PATH").unwrap();
    let folders = [&first, &second].map(|script| script.parent().unwrap().to_str().unwrap());
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("PATH", format!("{}:{path}", folders.join(":")));
        Running::start(&mut command)
    };
    assert_eq!(run(&["run", "x", "job"]).line(), first.to_str().unwrap());
    let mut holder = place.hold(&[], "x");
    let mut waiter = run(&["run", "x", "job"]);
    until("it waits", || place.counts("x") == (1, 1));
    std::fs::remove_file(&first).unwrap();
    holder.tell("\n");
    assert_eq!(waiter.line(), second.to_str().unwrap());
    assert_eq!(waiter.end().code, 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_is_told_its_name_as_it_was_written() {
    let place = Place::new();
    for flags in [&["run", "x"][..], &["run", "-F", "x"]] {
        let run = place.run([flags, &["--", "cat", "/proc/self/cmdline"]].concat());
        assert_eq!(run.out, "cat\0/proc/self/cmdline\0\n", "{run:?}");
    }
}

#[test]
fn an_unusable_store_is_69() {
    let place = Place::new();
    std::fs::write(place.path("file"), "").unwrap();
    let below = format!("sqlite:{}/x.db", place.path("file").display());
    std::fs::write(place.path("other.db"), "this is no database at all, but a text").unwrap();
    let other = format!("sqlite:{}", place.path("other.db").display());
    for url in ["sqlite:/proc/no/x.db", &below, &other] {
        for args in [&["run", "x", "--", "echo", "ran"][..], &["status"], &["try", "x"]] {
            let run = finish(place.command(args).env("HOLDLINE_STORE", url));
            assert_eq!((run.code, run.out.as_str()), (69, ""), "{url}: {run:?}");
            assert!(is_sentence(&run.err), "{run:?}");
        }
    }
    let mut files = place.files();
    files.sort();
    assert_eq!(files, ["file", "other.db"], "nothing is left behind");
}

#[test]
fn what_makes_no_sense_is_64() {
    let place = Place::new();
    let long = "x".repeat(513);
    for args in [
        &["run", "", "--", "true"][..],
        &["run", &long, "--", "true"],
        &["run", "a\nb", "--", "true"],
        &["status", ""],
        &["try", ""],
        &["watch", "\t"],
        &["break", "", "abcdef", "--reason", "r"],
        &["elect", "", "v"],
        &["run", "x", "--lease", "10s", "--grace", "6s", "--", "true"],
    ] {
        let run = place.run(args);
        assert_eq!((run.code, run.out.as_str()), (64, ""), "{args:?}: {run:?}");
        assert!(is_sentence(&run.err), "{run:?}");
        assert!(place.files().is_empty(), "the store was not even opened");
    }
    for lease in ["1ms", "25h"] {
        let run = place.run(["run", "x", "--lease", lease, "--", "echo", "ran"]);
        assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
        assert!(is_sentence(&run.err), "{run:?}");
        assert_eq!(place.counts("x"), (0, 0));
    }
}

#[test]
fn bad_flags_are_64() {
    let place = Place::new();
    for args in [
        &[][..],
        &["run"],
        &["run", "x"],
        &["run", "x", "--nonsense", "--", "true"],
        &["run", "x", "--lease", "soon", "--", "true"],
        &["run", "x", "--permits", "3/2", "--", "true"],
        &["run", "x", "--shared", "--permits", "1/2", "--", "true"],
        &["run", "x", "-n", "-w", "1s", "--", "true"],
        &["run", "x", "--on-loss", "pray", "--", "true"],
        &["break", "x", "12345", "--reason", "r"],
        &["break", "x", "abcdef"],
        &["elect", "x"],
        &["elect", "x", "--observe", "-w", "1s"],
        &["elect", "x", "--observe", "-n"],
        &["elect", "x", "--observe", "--lease", "1s"],
        &["elect", "x", "--observe", "--label", "l"],
        &["elect", "x", "--observe", "--grace", "1s"],
        &["frobnicate"],
        &["run", "-w", "200000000000000d", "x", "true"],
        &["run", "--min-hold", "200000000000000d", "x", "true"],
        &["run", "--connect-timeout", "200000000000000d", "x", "true"],
        &["acquire", "x", "--detach", "200000000000000d"],
    ] {
        let run = place.run(args);
        assert_eq!((run.code, run.out.as_str()), (64, ""), "{args:?}: {run:?}");
        assert!(!run.err.is_empty());
        assert!(place.files().is_empty());
    }
}

#[test]
fn arguments_that_are_no_text_are_refused() {
    let place = Place::new();
    let odd = OsStr::from_bytes(b"\xff");
    for args in [&["run".as_ref(), odd, "true".as_ref()][..], &["--nonsense".as_ref(), odd]] {
        let run = place.run(args);
        assert_eq!((run.code, run.out.as_str()), (64, ""), "{args:?}: {run:?}");
    }
}

#[test]
fn help_teaches() {
    let place = Place::new();
    let run = place.run(["run", "--help"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let headings = ["Kind of lock:", "Waiting:", "Holding:", "Command:", "General:"];
    let absent: Vec<_> = headings.iter().filter(|heading| !run.out.contains(**heading)).collect();
    assert!(absent.is_empty(), "{absent:?} are not in the help");
    for word in ["Examples:", "Exit codes:", "Environment:", "HOLDLINE_TOKEN", " 75 ", " 76 "] {
        assert!(run.out.contains(word), "{word} is not in the help");
    }
    let brief = place.run(["--help"]);
    assert!(brief.code == 0 && brief.out.contains("Exit codes:"));
    assert_eq!(place.run(["--version"]).code, 0);
}

// G17
#[test]
fn passwords_are_never_shown() {
    let place = Place::new();
    let canary = "CaNaRy77";
    for url in [
        format!("redis://me:{canary}@127.0.0.1:1/0"),
        format!("nosuch://me:{canary}@host"),
        format!("me:{canary}@host"),
        format!("sqlite:/proc/no/x.db?password={canary}"),
        format!("quorum:redis://:{canary}@127.0.0.1:1,redis://:{canary}@127.0.0.1:2"),
    ] {
        for args in [
            &["run", "-v", "-w", "300ms", "x", "--", "true"][..],
            &["run", "--json", "-w", "300ms", "x", "--", "true"],
            &["status"],
            &["--help"],
            &["run", "--help"],
            &["run", "--nonsense"],
        ] {
            let by_env = finish(place.command(args).env("HOLDLINE_STORE", &url));
            let by_flag = place.run([&["--store", &url], args].concat());
            let typo = place.run([&[format!("--stor={url}").as_str()], args].concat());
            let wrong_place = place.run([&["break", "x", &url][..], args].concat());
            for run in [by_env, by_flag, typo, wrong_place] {
                let shown = format!("{run:?}");
                assert!(!shown.contains(canary), "{args:?} {url}: {shown}");
            }
        }
    }
}

#[test]
fn quiet_and_json_say_so_in_their_way() {
    let place = Place::new();
    let run = place.run(["run", "--json", "x", "--", "sh", "-c", "exit 75"]);
    let lines: Vec<serde_json::Value> =
        run.err.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect();
    assert_eq!((run.code, lines[0]["event"].as_str()), (75, Some("acquired")));
    assert!(lines[0]["token"].as_u64().is_some_and(|token| token > 0));
    let end = (lines[1]["event"].as_str(), lines[1]["exit"].as_i64(), lines.len());
    assert_eq!(end, (Some("ended"), Some(75), 2), "the command's own 75");
    let _holder = place.hold(&[], "x");
    for wrong in [&["run", "--json", "x", "--nonsense"][..], &["run", "--json", "x", "-w", "1q"]] {
        let run = place.run(wrong);
        let line: serde_json::Value = serde_json::from_str(run.err.trim()).expect("one JSON line");
        assert_eq!((run.code, line["event"].as_str()), (64, Some("usage")), "{run:?}");
    }
    let by_environment = |json: &str| {
        let mut command = place.command(["run", "--nonsense", "x", "--", "true", "--json"]);
        finish(command.env("HOLDLINE_JSON", json)).err
    };
    assert!(by_environment("yes").starts_with("{\"event\":\"usage\""));
    assert!(by_environment("0").starts_with("error: "), "that --json is the command's");
    let busy = place.run(["run", "--json", "-n", "x", "--", "true"]);
    let line: serde_json::Value = serde_json::from_str(busy.err.trim()).expect("one JSON line");
    assert_eq!((line["event"].as_str(), line["exit"].as_i64()), (Some("busy"), Some(75)));
    let mut closed = Command::new("sh");
    closed.args(["-c", &format!("{HOLDLINE} run -n x -- true 2>&-; echo $?")]);
    let run = finish(closed.env("HOLDLINE_STORE", place.url()));
    assert_eq!(run.out, "75\n", "a closed stderr changes nothing");
}
