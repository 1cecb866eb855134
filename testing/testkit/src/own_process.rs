//! Tests of process-wide state: limits, memory, the thread that renews.

use std::process::Command;

/// The variable with the test that a process was started for.
const VARIABLE: &str = "HOLDLINE_TEST_ALONE";

/// Runs a test of the calling program in a process of its own, and returns whether this is that
/// process. The other tests of a binary run in threads alongside, so a test that measures or
/// changes process-wide state begins with `if !in_own_process("module::name") { return }`.
///
/// # Panics
///
/// If the test fails there, or there is no test of this name.
pub fn in_own_process(test: &str) -> bool {
    if std::env::var_os(VARIABLE).is_some_and(|name| name == test) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    let output = command.args(["--exact", test, "--nocapture"]).env(VARIABLE, test).output();
    let output = output.expect("this program can be started again");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{text}");
    assert!(output.status.success(), "{test} failed in a process of its own");
    assert!(text.contains("1 passed"), "{test} is not a test of this program");
    false
}
