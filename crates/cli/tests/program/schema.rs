//! `schema` and `sweep`: what stores in databases need.

use super::common::Place;
#[cfg(all(feature = "postgres", feature = "mysql"))]
use super::common::usual_signals;
#[cfg(all(feature = "postgres", feature = "mysql"))]
use holdline_testkit::{mysql, postgres};

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

/// MariaDB's URLs and name are MySQL's, and PostgreSQL's long ones its short ones.
#[test]
#[cfg(all(feature = "postgres", feature = "mysql"))]
fn a_database_has_two_names() {
    let place = Place::new();
    let (printed, other) = (place.run(["schema", "mysql"]), place.run(["schema", "mariadb"]));
    assert!(printed.code == 0 && printed.out == other.out, "{other:?}");
    for (kind, url) in [
        ("mysql", "mariadb://me:secret@127.0.0.1:1/x"),
        ("mariadb", "mysql://me:secret@127.0.0.1:1/x"),
        ("postgres", "postgresql://me:secret@127.0.0.1:1/x"),
        ("postgresql", "postgres://me:secret@127.0.0.1:1/x"),
    ] {
        // Nothing listens there; but it was tried.
        let run = place.run(["schema", kind, "--install", url]);
        assert_eq!((run.code, run.out.as_str()), (69, ""), "{run:?}");
        assert!(!run.err.contains("secret"), "{run:?}");
    }
    for (kind, url) in [("mysql", "postgres://h/x"), ("mariadb", "postgresql://h/x")] {
        let run = place.run(["schema", kind, "--install", url]);
        assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
    }
}

/// A database in which nothing was installed is a store that cannot be used yet, of whatever kind
/// it is.
#[test]
#[cfg(all(feature = "postgres", feature = "mysql"))]
fn tables_that_are_not_there_are_a_store_that_cannot_be_used() {
    usual_signals();
    let servers = [postgres::start("tables"), mysql::start("tables", mysql::mariadb)];
    let place = Place::new();
    for server in servers.iter().flatten() {
        for scheme in ["table", "shedlock"] {
            // A busy machine may take its time.
            let url = format!("{}?scheme={scheme}&timeout=30s", server.url());
            for verb in [&["run", "x", "--", "echo", "ran"][..], &["try", "x"], &["status"]] {
                let patient = ["--store", &url, "--connect-timeout", "30s"];
                let run = place.run([&patient, verb].concat());
                assert_eq!((run.code, run.out.as_str()), (69, ""), "{run:?}");
                assert!(run.err.contains("install=yes"), "{run:?}");
            }
        }
    }
}

#[test]
fn only_databases_have_a_schema() {
    let place = Place::new();
    let run = place.run(["schema", "mongodb"]);
    assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
    let run = place.run(["sweep"]);
    assert_eq!((run.code, run.out.as_str()), (64, ""), "{run:?}");
    assert!(run.err.contains("only databases have a schema, and need sweeping"), "{run:?}");
}
