//! `holdline top`, at terminals of several kinds and sizes.

use super::common::{HOLDLINE, Place, until};
use super::terminal::Terminal;
use rustix::process::Signal;

/// Taking the terminal, and giving it back.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

#[test]
fn top_shows_locks_and_breaks_one() {
    let place = Place::new();
    let mut holder = place.hold(&["--label", "nightly"], "job/1");
    let waiter = place.start(["run", "--label", "second", "job/1", "--", "sh", "-c", "read x"]);
    until("it waits", || place.counts("job/1") == (1, 1));
    let _other = place.hold(&[], "other");
    let argv = ["env", "TERM=xterm", HOLDLINE, "top", "--prefix", "job/", "--every", "50ms"];
    let mut terminal = Terminal::with(&place, &argv);
    terminal.expect(ENTER);
    terminal.expect("LOCK");
    terminal.expect("job/1");
    terminal.expect("(nightly)");
    terminal.expect("waits");
    terminal.expect("(second)");
    terminal.write("b");
    terminal.expect("away");
    terminal.write("n");
    terminal.expect("nothing");
    assert!(holder.runs());
    terminal.write("b");
    terminal.expect("away");
    terminal.write("y");
    assert_eq!(holder.end().code, 76);
    drop(waiter);
    terminal.write("q");
    terminal.expect(LEAVE);
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let place = Place::new();
    let argv = ["env", "TERM=xterm", HOLDLINE, "top"];
    let mut terminal = Terminal::with(&place, &argv);
    terminal.expect("Nobody");
    terminal.signal(Signal::TERM);
    terminal.expect(LEAVE);
    assert_eq!(terminal.code(), Some(143));
}

#[test]
fn on_a_dumb_terminal_top_prints() {
    let place = Place::new();
    let _holder = place.hold(&["--label", "me"], "x");
    let argv = ["env", "TERM=dumb", HOLDLINE, "top", "--every", "20ms", "--looks", "2"];
    let mut terminal = Terminal::with(&place, &argv);
    for _ in 0..2 {
        terminal.expect("holdline top  20");
        terminal.expect("1 hold, 0 wait");
        terminal.expect("(me)");
    }
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn breaking_a_lock_asks_why_and_can_be_cancelled() {
    let place = Place::new();
    let holder = place.hold(&["--label", "nightly"], "x");
    let mut terminal = Terminal::with(&place, &["env", "TERM=xterm", HOLDLINE, "top"]);
    terminal.expect("(nightly)");
    // With Ctrl-L behind each, so that whole words are printed, not what of them is new.
    terminal.write("b\x0c");
    terminal.expect("away");
    terminal.write("\x03\x0c");
    terminal.expect("nothing");
    assert_eq!(place.counts("x"), (1, 0));
    terminal.write("b\x0c");
    terminal.expect("away");
    terminal.write("r\x0c");
    terminal.expect("told");
    terminal.write("a week old\r\x0c");
    terminal.expect("another");
    terminal.write("y");
    let ended = holder.end();
    assert_eq!(ended.code, 76);
    assert!(ended.err.contains("a week old"), "{}", ended.err);
    terminal.write("q");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn it_is_drawn_again_for_a_key_and_for_a_size() {
    let place = Place::new();
    let _holder = place.hold(&["--label", "me"], "a-lock");
    let mut terminal = Terminal::with(&place, &["env", "TERM=xterm", HOLDLINE, "top"]);
    // It is in both tables; afterwards only what has changed is drawn, and all for the key.
    terminal.expect("(me)");
    terminal.expect("(me)");
    terminal.write("\x0c");
    terminal.expect("(me)");
    terminal.expect("(me)");
    terminal.expect("quit");
    // On so little room there is one table, without who holds.
    terminal.resize(40, 10);
    terminal.expect("a-lock");
    let rest = terminal.expect("quit");
    assert!(!rest.contains("(me)"), "{rest}");
    terminal.write("\t");
    terminal.expect("WHO");
    terminal.expect("pid");
    terminal.resize(15, 4);
    terminal.expect("room:");
    terminal.write("q");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn a_shell_can_stop_top_and_bring_it_back() {
    let place = Place::new();
    let mut shell = Terminal::with(&place, &["bash", "--norc", "--noprofile", "-i"]);
    shell.write("PS1='<$?>'; unset HOLDLINE_HELD\n");
    shell.expect("<0>");
    shell.write(&format!("TERM=xterm {HOLDLINE} top --prefix none\n"));
    shell.expect(ENTER);
    shell.expect("\"none\"");
    shell.write("\x1a");
    shell.expect(LEAVE);
    shell.expect("Stopped");
    shell.expect("<148>");
    // In the background it cannot have the terminal.
    shell.write("bg\n");
    shell.expect("<0>");
    until("it is stopped again", || {
        shell.write("jobs\n");
        shell.expect("<0>").contains("Stopped")
    });
    shell.write("fg\n");
    shell.expect(ENTER);
    shell.expect("\"none\"");
    shell.write("q");
    shell.expect(LEAVE);
    shell.expect("<0>");
    shell.write("exit\n");
    assert_eq!(shell.code(), Some(0));
}
