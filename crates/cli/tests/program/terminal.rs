//! At a terminal the command stays in the foreground, and hears from the terminal itself.

use super::common::{HOLDLINE, LONG, Place, lives, until, usual_signals};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// A terminal, with a program that has it as its own.
pub(crate) struct Terminal {
    master: File,
    child: Child,
    bytes: Receiver<u8>,
    seen: String,
}

impl Terminal {
    pub(crate) fn start(place: &Place, args: &[&str]) -> Self {
        Terminal::with(place, &[&[HOLDLINE], args].concat())
    }

    pub(crate) fn with(place: &Place, argv: &[&str]) -> Self {
        usual_signals();
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("there are terminals");
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        resize(&master, 200, 24);
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        // Otherwise Ctrl-C and Ctrl-Z throw away output that is on its way, also what is printed
        // because of them.
        let mut modes = tcgetattr(&slave).unwrap();
        modes.local_modes |= LocalModes::NOFLSH;
        tcsetattr(&slave, OptionalActions::Now, &modes).unwrap();
        let mut command = Command::new("setsid");
        command.arg("--ctty").args(argv);
        command.env("HOLDLINE_STORE", place.url());
        command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap());
        let child = command.stderr(Stdio::from(slave)).spawn().expect("setsid is there");
        let master = File::from(master);
        let mut reader = master.try_clone().unwrap();
        let (send, bytes) = channel();
        std::thread::spawn(move || {
            let mut byte = [0];
            while reader.read_exact(&mut byte).is_ok() && send.send(byte[0]).is_ok() {}
        });
        Terminal { master, child, bytes, seen: String::new() }
    }

    /// Changes its size, as the user does by dragging a window's edge.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        resize(&self.master, columns, rows);
    }

    /// Tells the program itself, not its group.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Reads on until this is there; returns what came before it.
    pub(crate) fn expect(&mut self, text: &str) -> String {
        let start = Instant::now();
        while !self.seen.contains(text) {
            let left = LONG.saturating_sub(start.elapsed());
            match self.bytes.recv_timeout(left) {
                Ok(byte) => self.seen.push(byte.into()),
                Err(error) => panic!("{error}: no {text:?} in {:?}", self.seen),
            }
        }
        let end = self.seen.find(text).unwrap() + text.len();
        let mut read: String = self.seen.drain(..end).collect();
        read.truncate(end - text.len());
        read
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

fn resize(master: impl AsFd, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master, size).unwrap();
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ctrl_c_comes_once_and_the_terminal_can_be_read() {
    let place = Place::new();
    let script = "n=0; trap 'n=$((n + 1))' INT; echo ready; read a; read b; echo \"<$n$b>\"";
    let mut terminal = Terminal::start(&place, &["run", "x", "--", "bash", "-c", script]);
    terminal.expect("ready");
    terminal.write("\x03");
    terminal.expect("^C");
    terminal.write("line\nline\n");
    terminal.expect("<1line>");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn ctrl_c_ends_a_command_that_does_not_catch_it() {
    let place = Place::new();
    let args = ["run", "x", "--", "sh", "-c", "echo ready; exec sleep 600"];
    let mut terminal = Terminal::start(&place, &args);
    terminal.expect("ready");
    terminal.write("\x03");
    assert_eq!(terminal.code(), Some(130));
    assert_eq!(place.counts("x"), (0, 0));
}

#[test]
fn the_wait_is_shown_in_place_and_ctrl_c_ends_it() {
    let place = Place::new();
    let _holder = place.hold(&["--label", "other"], "x");
    let mut terminal = Terminal::start(&place, &["run", "-w", "60s", "x", "--", "echo", "ran"]);
    terminal.expect("\r\x1b[Kholdline: held for ");
    terminal.expect("(other); 1 waits, place 1 in line; giving up in ");
    terminal.expect("waiting for lock \"x\" in sqlite:");
    terminal.expect("\r\x1b[K");
    terminal.write("\x03");
    terminal.expect("signal INT ended the wait");
    assert_eq!(terminal.code(), Some(130));
    assert_eq!(place.counts("x"), (1, 0));
}

#[test]
fn a_loss_ends_all_processes_at_a_terminal_too() {
    let place = Place::new();
    let script = "trap '' TERM; sleep 600 & echo \"<$!>\"; wait; sleep 600";
    let mut terminal = Terminal::start(&place, &["run", "x", "--", "sh", "-c", script]);
    terminal.expect("<");
    terminal.expect(">");
    let id = place.status("x")["holders"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(place.run(["break", "x", &id, "--reason", "test"]).code, 0);
    terminal.expect("was stopped");
    assert_eq!(terminal.code(), Some(76));
}

/// As a shell does for what it runs. A program for the whole screen, or one that reads a password,
/// has no time for it.
#[test]
fn a_command_that_is_killed_does_not_leave_its_modes_to_the_terminal() {
    let place = Place::new();
    let script = "\"$0\" run x -- sh -c \"$1\"; echo \"<$?>\"; stty -a";
    let set = "trap '' TERM; stty raw -echo; echo ready;";
    for (rest, code) in [("exec sleep 600", "<76>"), ("kill -9 $$", "<137>")] {
        let command = format!("{set} {rest}");
        let mut terminal = Terminal::with(&place, &["sh", "-c", script, HOLDLINE, &command]);
        terminal.expect("ready");
        if code == "<76>" {
            let id = place.status("x")["holders"][0]["id"].as_str().unwrap().to_owned();
            assert_eq!(place.run(["break", "x", &id, "--reason", "test"]).code, 0);
        }
        terminal.expect(code);
        let modes = terminal.expect("echoke");
        assert!(modes.contains("isig icanon iexten echo "), "{modes}");
    }
}

/// The modes at the start may be those of the pager, which has restored others since.
#[test]
fn a_command_that_is_killed_in_a_pipe_leaves_the_terminal_to_the_pager() {
    let place = Place::new();
    let script = "stty raw -echo; \"$0\" run x -- sh -c \"$1\" \"$2\" | \
                  { read a; stty sane < /dev/tty; touch \"$2\"; cat; }; stty -a";
    let command = "echo a; until test -e \"$0\"; do sleep .02; done; kill -9 $$";
    let quit = place.path("quit");
    let argv = ["sh", "-c", script, HOLDLINE, command, quit.to_str().unwrap()];
    let mut terminal = Terminal::with(&place, &argv);
    let modes = terminal.expect("echoke");
    assert!(modes.contains("isig icanon iexten echo "), "{modes}");
}

/// The terminal sends no signals to the command then.
#[test]
fn at_a_terminal_of_another_session_signals_are_passed_on() {
    let place = Place::new();
    let script = "trap 'echo got; exit 5' INT; echo \"<$PPID>\"; while :; do sleep .05; done";
    let argv = ["setsid", "--wait", HOLDLINE, "run", "x", "--", "sh", "-c", script];
    let mut terminal = Terminal::with(&place, &argv);
    terminal.expect("<");
    let pid = Pid::from_raw(terminal.expect(">").parse().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    terminal.expect("got");
    assert_eq!(terminal.code(), Some(5));
}

#[test]
fn a_shell_can_stop_it_and_bring_it_back() {
    let place = Place::new();
    let mut shell = Terminal::with(&place, &["bash", "--norc", "--noprofile", "-i"]);
    shell.write("PS1='<$?>'; unset HOLDLINE_HELD\n");
    shell.expect("<0>");
    let run = format!("{HOLDLINE} run --lease 60s x -- sh -c 'echo re''ady; read x; exit 7'\n");
    shell.write(&run);
    shell.expect("ready");
    shell.write("\x1a");
    shell.expect("Stopped");
    shell.expect("<148>");
    assert_eq!(place.counts("x"), (1, 0));
    // Once, on a busy machine, bash was seen to lose the first character here.
    shell.write("  fg\n");
    shell.expect("holdline run");
    shell.write("\n");
    shell.expect("<7>");
    assert_eq!(place.counts("x"), (0, 0));
    shell.write("exit\n");
    assert_eq!(shell.code(), Some(7));
}

/// Breaks the lock of a job that ignores TERM, and waits until it is dead nevertheless.
fn break_and_see_it_die(place: &Place, pid_file: &str) {
    let path = place.path(pid_file);
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    until("the command runs", || read().ends_with('\n'));
    let pid: i32 = read().trim().parse().unwrap();
    assert!(lives(pid));
    let id = place.status("x")["holders"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(place.run(["break", "x", &id, "--reason", "test"]).code, 0);
    until("the command is dead", || !lives(pid));
}

// G21
#[test]
fn a_terminal_that_stops_writers_in_the_background_does_not_stop_it() {
    let place = Place::new();
    let mut shell = Terminal::with(&place, &["bash", "--norc", "--noprofile", "-i"]);
    shell.write("PS1='<$?>'; unset HOLDLINE_HELD; stty tostop\n");
    shell.expect("<0>");
    let pid = place.path("pid");
    let command = format!("trap '' TERM; echo $$ > {}; exec sleep 600", pid.display());
    shell.write(&format!("{HOLDLINE} run -vv x -- sh -c \"{}\" &\n", command.replace('$', "\\$")));
    break_and_see_it_die(&place, "pid");
    // It has ended, although nothing could be written.
    shell.write("wait %1; echo \"<code $?>\"\n");
    shell.expect("<code 76>");
}

// G21
#[test]
fn a_terminal_whose_output_is_stopped_does_not_stop_it() {
    let place = Place::new();
    let script = "trap '' TERM; echo $$ > \"$0\"; exec sleep 600";
    let pid = place.path("pid");
    let args = ["run", "-vv", "x", "--", "sh", "-c", script, pid.to_str().unwrap()];
    let mut terminal = Terminal::start(&place, &args);
    terminal.write("\x13");
    break_and_see_it_die(&place, "pid");
    assert_eq!(terminal.code(), Some(76));
}

#[test]
fn without_a_command_it_is_a_shell_under_the_lock() {
    let place = Place::new();
    let argv = ["env", "SHELL=/bin/sh", HOLDLINE, "run", "x"];
    let mut terminal = Terminal::with(&place, &argv);
    terminal.expect("a shell under lock \"x\"");
    terminal.write("echo \"<$HOLDLINE_NAME>\"\n");
    terminal.expect("<x>");
    assert_eq!(place.counts("x"), (1, 0));
    terminal.write("exit 5\n");
    assert_eq!(terminal.code(), Some(5));
    assert_eq!(place.counts("x"), (0, 0));
}
