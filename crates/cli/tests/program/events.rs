//! What `--json` prints, held against the schema that the program prints.

use super::common::{HOLDLINE, Place, until};
use jsonschema::Validator;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::OnceLock;

fn schema() -> &'static Validator {
    static SCHEMA: OnceLock<Validator> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let out = Command::new(HOLDLINE).args(["schema", "events"]).output().unwrap();
        let schema = serde_json::from_slice(&out.stdout).expect("it is JSON");
        jsonschema::draft202012::meta::validate(&schema).expect("it is a JSON Schema");
        jsonschema::draft202012::new(&schema).expect("it can be used")
    })
}

/// Checks every line that is JSON: those of commands are not.
pub(crate) fn check_lines(text: &str) {
    for line in text.lines().filter(|line| line.starts_with(['{', '['])) {
        let value: Value = serde_json::from_str(line).expect("a line is JSON");
        // The schema itself is printed too.
        if value.get("$schema").is_none()
            && let Err(error) = schema().validate(&value)
        {
            panic!("{error}: {line}");
        }
    }
}

fn events(err: &str) -> BTreeSet<String> {
    let lines = err.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.map(|line| line["event"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_schema_refuses_what_is_not_said() {
    let time = "2026-01-01T00:00:00.000Z";
    let event = |event: &str, key: &str, value: Value| {
        let mut line = serde_json::json!({ "event": event, "time": time, "message": "m" });
        line[key] = value;
        line
    };
    assert!(schema().is_valid(&event("ended", "exit", 3.into())));
    for wrong in [
        event("ended", "exit", "3".into()),
        event("ended", "code", 3.into()),
        event("nonsense", "exit", 3.into()),
        event("log", "level", "loud".into()),
    ] {
        assert!(!schema().is_valid(&wrong), "{wrong}");
    }
    let place = Place::new();
    assert_eq!(place.run(["schema", "events", "--schema", "x"]).code, 64);
}

#[test]
fn runs_and_waits_are_told_by_the_schema() {
    let place = Place::new();
    let mut seen = BTreeSet::new();
    let mut holder =
        place.start(["run", "--json", "x", "--", "sh", "-c", "echo in; read x; exit 3"]);
    assert_eq!(holder.line(), "in");
    // The wait is told of after a second, and a look at the lock.
    let busy = place.run(["run", "--json", "-w", "6s", "x", "true"]);
    let last: Value = serde_json::from_str(busy.err.lines().last().unwrap()).unwrap();
    assert_eq!((busy.code, &last["event"], &last["exit"]), (75, &"busy".into(), &75.into()));
    assert_eq!(last["holders"].as_array().map(Vec::len), Some(1));
    seen.append(&mut events(&busy.err));
    let waiter = place.start(["run", "--json", "x", "true"]);
    until("it waits", || place.counts("x") == (1, 1));
    waiter.signal(Signal::TERM);
    seen.append(&mut events(&waiter.end().err));
    holder.tell("\n");
    seen.append(&mut events(&holder.end().err));
    for args in [&["run", "--json", "x", "no-such"][..], &["run", "--json", "a\nb", "true"]] {
        seen.append(&mut events(&place.run(args).err));
    }
    let inner = format!("exec {HOLDLINE} run --json x true");
    seen.append(&mut events(&place.run(["run", "x", "--json", "-c", &inner]).err));
    let all =
        ["acquired", "busy", "command", "ended", "inherited", "interrupted", "usage", "waiting"];
    assert_eq!(seen.iter().collect::<Vec<_>>(), all);
}

#[test]
fn losses_elections_and_breaks_are_told_by_the_schema() {
    let place = Place::new();
    let mut leader = place.start(["elect", "--json", "e", "here"]);
    let line: Value = serde_json::from_str(&leader.line()).unwrap();
    assert_eq!((&line["name"], &line["value"]), (&"e".into(), &"here".into()));
    let mut observer = place.start(["elect", "--json", "e", "--observe"]);
    let line: Value = serde_json::from_str(&observer.line()).unwrap();
    assert_eq!(line["leader"]["value"], "here");
    let id = place.status("e")["holders"][0]["id"].as_str().unwrap().to_owned();
    let broken = place.run(["break", "--json", "e", &id, "--reason", "test"]);
    assert_eq!(broken.code, 0, "{broken:?}");
    let end = leader.end();
    let last: Value = serde_json::from_str(end.err.lines().last().unwrap()).unwrap();
    assert_eq!((end.code, &last["cause"], &last["reason"]), (76, &"broken".into(), &"test".into()));
    let line: Value = serde_json::from_str(&observer.line()).unwrap();
    assert_eq!(line["leader"], Value::Null);

    let flags = ["--json", "--on-loss", "continue"];
    let mut going_on = place.hold(&flags, "x");
    let id = place.status("x")["holders"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(place.run(["break", "--json", "x", &id, "--reason", "r"]).code, 0);
    let again = place.run(["break", "--json", "x", &id, "--reason", "r"]);
    assert_eq!(events(&again.err), BTreeSet::from(["unbroken".to_owned()]));
    going_on.tell("\n");
    let end = going_on.end();
    assert_eq!((end.code, events(&end.err).contains("lost")), (76, true), "{end:?}");
    assert_eq!(place.run(["status", "--json", "-v"]).code, 0);
    assert_eq!(place.run(["try", "--json", "x"]).code, 0);
}
