//! `doctor`: what it prints, and by which code it ends.

use super::common::{Place, finish};
use serde_json::Value;

#[test]
fn a_store_that_is_there_is_looked_at() {
    let place = Place::new();
    let run = place.run(["doctor"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{run:?}");
    assert!(run.out.contains("it is not there") && place.files().is_empty(), "{run:?}");
    let below = format!("sqlite:{}", place.path("no/locks.db").display());
    let run = place.run(["doctor", &below]);
    assert_eq!(run.code, 69, "no lock can be had there: {run:?}");
    let mut default = place.command(["doctor"]);
    default.env_remove("HOLDLINE_STORE").env("XDG_STATE_HOME", place.path("state"));
    let run = finish(&mut default);
    assert!(run.code == 0 && !run.out.contains("folder"), "it makes its folder: {run:?}");
    assert!(place.files().is_empty());
    assert_eq!(place.run(["try", "a"]).code, 0);
    let run = place.run(["doctor", "--lease", "40s"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{run:?}");
    for words in ["ok       lock: \"holdline-doctor\" taken in", "0 problems, 0 warnings"] {
        assert!(run.out.contains(words), "{words}: {run:?}");
    }
    let run = place.run(["doctor", "--lease", "40s", "--no-lock", "--quiet"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(!run.out.contains("ok "), "{run:?}");
}

#[test]
fn machines_read_the_same() {
    let place = Place::new();
    assert_eq!(place.run(["try", "a"]).code, 0);
    let run = place.run(["doctor", "--json", "--lease", "48h", "--round-trips", "3"]);
    assert_eq!((run.code, run.err.as_str()), (78, ""), "{run:?}");
    let report: Value = serde_json::from_str(&run.out).expect("JSON");
    assert_eq!(report["worst"], "problem");
    assert_eq!(report["exit"], 78);
    assert_eq!(report["answers"], true);
    assert_eq!(report["lease_ms"], 172_800_000);
    let findings = report["findings"].as_array().expect("a list");
    let lease = findings.iter().find(|finding| finding["check"] == "lease").expect("it is checked");
    assert_eq!(lease["level"], "problem");
    assert!(lease["found"].as_str().is_some_and(|found| found.contains("cannot be had")));
    assert!(lease["advice"].as_str().is_some_and(|advice| advice.contains("use one from")));
    assert_eq!(lease["server"], Value::Null);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place = Place::new();
    // An empty URL is a variable that is not set: the default store is not the one that was meant.
    for args in [
        &["doctor", "mongodb://secret@h"][..],
        &["doctor", "--round-trips", "0"],
        &["doctor", ""],
        &["doctor", "memory:"],
        &["doctor", "secret@127.0.0.1:6379"],
        &["doctor", "--store", ""],
    ] {
        let run = place.run(args);
        assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
        assert!(!run.err.contains("secret"), "{run:?}");
    }
}

#[test]
#[cfg(feature = "redis")]
fn a_store_that_is_away_is_told_without_its_password() {
    let place = Place::new();
    for json in [
        &["doctor", "redis://me:secret@127.0.0.1:1"][..],
        &[
            "doctor",
            "--json",
            "quorum:redis://:secret@127.0.0.1:1,redis://:secret@127.0.0.1:2,redis://127.0.0.1:3",
        ],
    ] {
        let run = place.run(json);
        assert_eq!((run.code, run.err.as_str()), (69, ""), "{run:?}");
        assert!(run.out.contains("problem") && !run.out.contains("secret"), "{run:?}");
    }
}
