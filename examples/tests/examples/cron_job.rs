//! The cron job: it works, ends quietly beside another, and reports a lost lock.

use crate::support::{Example, Store};
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_cron_job");
/// A limit, in milliseconds, that no run reaches.
const NEVER: &str = "600000";

fn run(mut command: Command, arguments: [&str; 3]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.args(arguments).output().expect("it is built");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it writes UTF-8");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn a_run_does_its_work_and_lets_go() {
    let store = Store::file();
    let (code, stdout, stderr) = run(store.command(PROGRAM), [NEVER, "5", "0"]);
    assert_eq!((code, &*stdout, &*stderr), (Some(0), "done: 5 steps\n", ""));
    assert!(store.is_free("cleanup"));
}

#[test]
fn a_run_beside_another_ends_quietly() {
    let store = Store::file();
    let guard = store.client.mutex("cleanup").lock().expect("it is free");
    let (code, stdout, stderr) = run(store.command(PROGRAM), [NEVER, "5", "0"]);
    assert_eq!((code, &*stdout, &*stderr), (Some(0), "", ""));
    guard.unlock().expect("it was held all the time");
}

/// Of hosts whose clocks differ, one does the work, however short it is.
#[test]
fn a_short_run_keeps_others_out_for_the_minimum_time() {
    let store = Store::file();
    let mut command = store.command(PROGRAM);
    command.args([NEVER, "0", NEVER]);
    let first = Example::start(command);
    store.holder("cleanup");
    let (code, stdout, stderr) = run(store.command(PROGRAM), [NEVER, "0", "0"]);
    assert_eq!((code, &*stdout, &*stderr), (Some(0), "", ""));
    drop(first);
}

#[test]
fn a_run_that_takes_too_long_stops_and_says_so() {
    let store = Store::file();
    // The steps alone would take over an hour.
    let (code, stdout, stderr) = run(store.command(PROGRAM), ["300", "200000", "0"]);
    assert_eq!((code, &*stdout), (Some(76), ""), "{stderr}");
    assert!(stderr.contains("was lost"), "{stderr}");
}

#[test]
fn without_a_store_nothing_runs() {
    let store = Store::file();
    let mut command = store.command(PROGRAM);
    command.env("HOLDLINE_STORE", format!("{}/below-a-file", store.url));
    let (code, stdout, stderr) = run(command, [NEVER, "5", "0"]);
    assert_eq!((code, &*stdout), (Some(69), ""), "{stderr}");
    assert!(stderr.contains("below-a-file"), "{stderr}");
}
