//! A test that lacks something, as another process sees it: this program, started again.

use std::process::{Command, Output};

/// Runs the test below in a process of its own, with these variables and no others of the kind.
fn run(variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("it runs"));
    command.args(["--exact", "lacks_something", "--ignored", "--nocapture"]);
    command.env_remove("CI").env_remove(holdline_testkit::MISSING_VARIABLE);
    command.envs(variables.iter().copied()).output().expect("it starts")
}

#[test]
#[ignore = "the other tests start it"]
fn lacks_something() {
    holdline_testkit::missing("there is no such-server");
}

#[test]
fn it_fails_where_nobody_takes_notes() {
    let output = run(&[]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("lacks_something was not run: there is no such-server."), "{said}");
}

#[test]
fn it_is_noted_where_notes_are_taken() {
    let file = std::env::temp_dir().join(format!("holdline-missing-{}", std::process::id()));
    let output = run(&[(holdline_testkit::MISSING_VARIABLE, file.to_str().expect("text"))]);
    assert!(output.status.success());
    let notes = std::fs::read_to_string(&file).expect("it was written");
    std::fs::remove_file(&file).expect("it is there");
    assert_eq!(notes, "lacks_something: there is no such-server\n");
}

#[test]
fn under_ci_it_fails_all_the_same() {
    for ci in ["true", "1"] {
        assert!(
            !run(&[("CI", ci), (holdline_testkit::MISSING_VARIABLE, "/dev/null")]).status.success()
        );
    }
}
