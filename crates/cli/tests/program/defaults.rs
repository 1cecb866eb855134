//! Defaults of flags by the environment and by a file.

use super::common::{Place, Run, finish};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// Runs `line` (words) with these variables, and with this file of defaults if it is not empty.
fn run(place: &Place, file: &str, env: &[(&str, &str)], line: &str) -> Run {
    let path = place.path("config.toml");
    std::fs::write(&path, file).unwrap();
    let mut command = place.command(line.split(' '));
    command.env("HOLDLINE_CONFIG", if file.is_empty() { "".as_ref() } else { path.as_os_str() });
    finish(command.envs(env.iter().copied()))
}

#[test]
fn flags_have_defaults_and_the_command_line_is_stronger() {
    let place = Place::new();
    let mut holder = place.hold(&[], "x");
    let file = "no-wait = true\n[run]\nbusy-code = 3\n";
    let busy = |file: &str, env: &[(&str, &str)], line: &str| run(&place, file, env, line).code;
    assert_eq!(busy("", &[("HOLDLINE_NO_WAIT", "true")], "run x true"), 75);
    assert_eq!(busy(file, &[], "run x true"), 3);
    assert_eq!(busy(file, &[("HOLDLINE_BUSY_CODE", "4")], "run x true"), 4, "before the file");
    assert_eq!(busy(file, &[("HOLDLINE_BUSY_CODE", "4")], "run -E 5 x true"), 5, "before both");
    assert_eq!(busy(file, &[], "elect x me"), 75, "the table is for `run` alone");
    let waits = [("HOLDLINE_WAIT", "50ms")];
    assert_eq!(busy("", &waits, "run x true"), 75);
    assert_eq!(busy("", &waits, "run -n x true"), 75, "no flag conflicts with a default");
    let label = run(&place, "label = \"by file\"", &[], "run y --also z -c true");
    assert_eq!(label.code, 0, "{label:?}");
    holder.tell("\n");
    assert_eq!(holder.end().code, 0);
}

#[test]
fn what_contradicts_a_default_and_comes_before_it_replaces_it() {
    let place = Place::new();
    let _reader = place.hold(&["--shared"], "x");
    let code = |file: &str, env: &[(&str, &str)], line: &str| run(&place, file, env, line).code;
    let shared = [("HOLDLINE_SHARED", "true")];
    assert_eq!(code("", &shared, "run -n x true"), 0);
    assert_eq!(code("", &shared, "run -n -x x true"), 75, "the command line");
    assert_eq!(code("", &shared, "try -x x"), 75, "not for `run` alone");
    let exclusive = [("HOLDLINE_EXCLUSIVE", "true")];
    assert_eq!(code("shared = true", &exclusive, "run -n x true"), 75, "the environment");
    assert_eq!(code("shared = true\n[run]\nexclusive = true", &[], "run -n x true"), 75);
    let began = Instant::now();
    assert_eq!(code("no-wait = true", &[], "run -w 300ms -x x true"), 75);
    assert!(began.elapsed() >= Duration::from_millis(300), "it waits");
    let lease = [("HOLDLINE_LEASE", "9s")];
    assert_eq!(code("", &lease, "run --fixed-lease y true"), 0, "a default is enough");
    for on in ["true", "1"] {
        let verbose = run(&place, &format!("verbose = {on}"), &[], "run y true");
        assert!(verbose.err.contains("was acquired"), "{verbose:?}");
    }
    let quiet = run(&place, "quiet = true", &[], "run -v y true");
    assert!(quiet.err.contains("was acquired"), "{quiet:?}");
}

/// A store that cannot be read is not replaced by another one.
#[test]
fn a_default_that_is_no_text_is_refused() {
    let place = Place::new();
    let mut command = place.command(["run", "x", "true"]);
    let run = finish(command.env("HOLDLINE_STORE", OsStr::from_bytes(b"sqlite:\xff.db")));
    assert_eq!(run.code, 64, "{run:?}");
    assert!(run.err.contains("HOLDLINE_STORE: it is not UTF-8"), "{run:?}");
}

/// It is a variable or a secret that is not set; the file of this machine keeps no other out.
#[test]
fn an_empty_store_is_refused_and_keeps_no_verb_without_a_store_from_its_work() {
    let place = Place::new();
    let state = place.path("state.db");
    for (file, env) in [
        ("", ("HOLDLINE_STORE", "")),
        ("store = \"\"", ("HOLDLINE_STATE", state.to_str().unwrap())),
        ("store = \"sqlite:/elsewhere\"", ("HOLDLINE_STORE", "")),
    ] {
        let run = |line: &str| {
            let path = place.path("config.toml");
            std::fs::write(&path, file).unwrap();
            let mut command = place.command(line.split(' '));
            command.env_remove("HOLDLINE_STORE").env("HOLDLINE_CONFIG", &path);
            finish(command.env("HOLDLINE_STATE", &state).env(env.0, env.1))
        };
        for line in ["run x echo ran", "run --no-wait x echo ran", "acquire x", "status", "doctor"]
        {
            let run = run(line);
            assert_eq!((run.code, run.out.as_str()), (64, ""), "{file} {line}: {run:?}");
            let told = run.err.contains("the store's URL is empty") && run.err.lines().count() == 1;
            assert!(told, "{line}: {run:?}");
        }
        assert!(!state.exists());
        let given = format!("--store {} run x true", place.url());
        let elsewhere = format!("doctor --no-lock {}", place.url());
        for (line, code) in [
            (given.as_str(), 0),
            (elsewhere.as_str(), 0),
            ("--help", 0),
            ("schema events", 0),
            ("completions bash", 0),
            ("release 0123456789abcdef0123456789abcdef", 76),
        ] {
            assert_eq!(run(line).code, code, "{file} {line}: {:?}", run(line));
        }
        std::fs::remove_file(place.path("locks.db")).unwrap();
    }
}

/// The same: that variable is not the store's, so the lock would be in the file of this machine.
#[test]
fn a_variable_that_is_taken_for_the_stores_is_refused_unless_a_store_is_named() {
    let place = Place::new();
    let state = place.path("state.db");
    let named = format!("--store {} run x true", place.url());
    for (line, code) in [
        ("run x echo ran", 64),
        ("acquire x", 64),
        ("status", 64),
        (named.as_str(), 0),
        ("--help", 0),
        ("completions bash", 0),
    ] {
        let mut command = place.command(line.split(' '));
        command.env_remove("HOLDLINE_STORE").env("HOLDLINE_STATE", &state);
        let run = finish(command.env("HOLDLINE_URL", "redis://10.0.0.5"));
        assert_eq!(run.code, code, "{line}: {run:?}");
        let told = run.err.contains("the store's URL is HOLDLINE_STORE");
        assert_eq!(told, code == 64, "{line}: {run:?}");
        assert!(code == 0 || run.out.is_empty(), "{line}: {run:?}");
    }
    assert!(!state.exists());
    let by_variable = finish(place.command(["run", "x", "true"]).env("HOLDLINE_URL", "redis://x"));
    assert_eq!(by_variable.code, 0, "{by_variable:?}");
}

#[test]
fn a_default_that_makes_no_sense_is_named_with_its_place() {
    let place = Place::new();
    for (file, env, part) in [
        ("", ("HOLDLINE_WAIT", "10x"), "HOLDLINE_WAIT: invalid value '10x'"),
        ("", ("HOLDLINE_JSON", "maybe"), "HOLDLINE_JSON: write true or false"),
        ("wait = \"10x\"", ("A", ""), "config.toml: \"wait\": invalid value"),
        ("wiat = \"10s\"", ("A", ""), "\"wiat\" is no flag that has a default"),
        ("[run]\nobserve = true", ("A", ""), "\"run.observe\" is no flag"),
        ("[ran]\nwait = 1", ("A", ""), "[ran] is a table, but no verb (did you mean [run]?)"),
        ("wait = [1]", ("A", ""), "\"wait\" must be a text, a number, or true"),
        ("wait = 1\n\nstore = redis://:secret@x", ("A", ""), "config.toml: line 3: "),
        ("verbose = \"loud\"", ("A", ""), "\"verbose\": invalid value 'loud'"),
    ] {
        let run = run(&place, file, &[env], "run x -c true");
        assert_eq!(run.code, 64, "{file} {env:?}: {run:?}");
        assert!(run.err.contains(part), "{file} {env:?}: {run:?}");
        assert!(!run.err.contains("secret"), "{run:?}");
    }
    let mut command = place.command(["status"]);
    let run = finish(command.env("HOLDLINE_CONFIG", place.path("none.toml")));
    assert_eq!(run.code, 64, "a file that is named must be there: {run:?}");
    let run = finish(command.env("HOLDLINE_CONFIG", place.path("")));
    let advice = "name another file in HOLDLINE_CONFIG (empty: none)";
    assert!(run.code == 64 && run.err.contains(advice), "{run:?}");
}

/// A file in whatever folder the program is started in is no file of this user.
#[test]
fn a_relative_folder_of_settings_is_ignored() {
    let place = Place::new();
    std::fs::create_dir_all(place.path(".config/holdline")).unwrap();
    std::fs::write(place.path(".config/holdline/config.toml"), "no-such-flag = 1").unwrap();
    for (home, folder) in [("", ""), (".", ""), ("", ".config"), (".", ".config")] {
        let mut command = place.command(["run", "x", "true"]);
        command.env("HOME", home).env("XDG_CONFIG_HOME", folder).env_remove("HOLDLINE_CONFIG");
        let run = finish(command.current_dir(place.path("")));
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{home} {folder}: {run:?}");
    }
    let mut command = place.command(["run", "x", "true"]);
    command.env("HOME", place.path("")).env("XDG_CONFIG_HOME", "").env_remove("HOLDLINE_CONFIG");
    let run = finish(&mut command);
    assert_eq!(run.code, 64, "the user's own is read: {run:?}");
}

#[test]
fn the_file_may_name_the_store() {
    let place = Place::new();
    let file = format!("store = \"sqlite:{}\"", place.path("other.db").display());
    let path = place.path("config.toml");
    std::fs::write(&path, file).unwrap();
    let mut command = place.command(["run", "x", "-c", "echo $HOLDLINE_STORE"]);
    command.env("HOLDLINE_CONFIG", &path).env_remove("HOLDLINE_STORE");
    let run = finish(&mut command);
    assert!(run.out.trim().ends_with("/other.db"), "{run:?}");
    assert!(place.path("other.db").exists());
}
