//! `schema` and `sweep`: what stores in databases need.

use super::common::Place;

#[test]
#[cfg(feature = "postgres")]
fn the_statements_are_printed() {
    let place = Place::new();
    let run = place.run(["schema", "postgres"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert!(run.out.contains("CREATE TABLE IF NOT EXISTS \"holdline\".line"), "{}", run.out);
    let run = place.run(["schema", "postgres", "--schema", "team"]);
    assert!(run.out.contains("\"team\".line") && !run.out.contains("\"holdline\""), "{}", run.out);
    let run = place.run(["schema", "postgres", "--schema", ""]);
    assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
    let run = place.run(["schema", "postgres", "--install", "redis://secret@h"]);
    assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
    assert!(!run.err.contains("secret"), "{run:?}");
    // Nothing listens there.
    let run = place.run(["schema", "postgres", "--install", "postgres://me:secret@127.0.0.1:1/x"]);
    assert_eq!((run.code, run.out.as_str()), (69, ""), "{run:?}");
    assert!(!run.err.contains("secret"), "{run:?}");
}

#[test]
fn only_databases_have_a_schema() {
    let place = Place::new();
    let run = place.run(["schema", "mongodb"]);
    assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
    let run = place.run(["sweep"]);
    assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
    assert!(run.err.contains("only databases have a schema"), "{run:?}");
}
