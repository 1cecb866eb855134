//! The report of a test that lacks something on this machine.
//!
//! A test of the standard harness cannot mark itself as ignored at run time, and one that just
//! returns is shown as `ok`. So it fails, unless `HOLDLINE_TEST_MISSING` names a file: then it is
//! noted there as not run. `cargo xtask test` sets the variable, and shows the notes in its table.
//! If `CI` is set, it always fails.

use std::io::Write;

/// The environment variable with the file for notes on tests that were not run.
pub const VARIABLE: &str = "HOLDLINE_TEST_MISSING";

/// Notes that the calling test is not run, and why; the test should then return.
///
/// # Panics
///
/// If `CI` is set, or there is no file for notes: a test that did not run must not seem to pass.
pub fn missing(what: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false");
    assert!(!ci, "{test} was not run: {what}, which must be there where CI is set");
    let Some(file) = std::env::var_os(VARIABLE) else {
        panic!(
            "{test} was not run: {what}. `cargo xtask servers start` installs servers, and `cargo \
             xtask test` shows such tests as not run; or let {VARIABLE} name a file to note them in"
        );
    };
    eprintln!("{test}: not run: {what}");
    let notes = std::fs::OpenOptions::new().create(true).append(true).open(&file);
    // One write, so that the lines of several processes do not mix.
    let noted = notes.and_then(|mut notes| notes.write_all(format!("{test}: {what}\n").as_bytes()));
    noted.unwrap_or_else(|error| panic!("{} cannot take notes: {error}", file.display()));
}
