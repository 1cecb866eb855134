//! What a process has started and written is gone when it is, however it ends.

use holdline_testkit::{Folder, Node, Probe, Process, Program, Server, free_port, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes this test the process that is killed.
const STARTER: &str = "HOLDLINE_TEST_STARTER";

const SHELL: Program = Program::new("sh", "dash", "");

/// What the starter says about itself, a line each.
const PROCESS: &str = "has process ";
const FOLDER: &str = "has folder ";
const KEPT: &str = "has kept ";
const READY: &str = "has all";

#[test]
fn servers_and_their_data_end_with_a_starter_that_is_killed() {
    if std::env::var_os(STARTER).is_some() {
        start_and_wait();
    }
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "servers_and_their_data_end_with_a_starter_that_is_killed"]);
        command.arg("--nocapture").env(STARTER, "").stdout(Stdio::piped());
        let mut starter = command.spawn().unwrap();
        let lines = BufReader::new(starter.stdout.take().unwrap()).lines().map(Result::unwrap);
        let lines: Vec<String> = lines.take_while(|line| line != READY).collect();
        let all = |what: &str| -> Vec<String> {
            lines.iter().filter_map(|line| line.strip_prefix(what).map(str::to_owned)).collect()
        };
        let processes: Vec<Process> =
            all(PROCESS).iter().map(|text| Process::parse(text).unwrap()).collect();
        let (folders, kept) = (all(FOLDER), all(KEPT));
        assert!(processes.len() == 3 && processes.iter().all(Process::runs), "{lines:?}");
        assert!(folders.len() == 2 && folders.iter().all(|path| Path::new(path).is_dir()));
        kill_process(Pid::from_child(&starter), signal).unwrap();
        assert!(!starter.wait().unwrap().success());
        wait_until("they end", || !processes.iter().any(Process::runs));
        wait_until("their data is gone", || !folders.iter().any(|path| Path::new(path).exists()));
        assert_eq!(kept.len(), 1);
        std::fs::remove_dir(&kept[0]).expect("it was to be kept");
    }
}

/// Starts a server with a process of its own, which stand still, and one that runs; makes a folder
/// that is to be kept; says so, and waits for its end.
fn start_and_wait() -> ! {
    let shell = |script: &str| {
        let no_question = Probe::Custom(|_| Ok(()));
        Node::new("shell", &SHELL, free_port(), no_question).args(["-c", script])
    };
    let [one, two] = ["one", "two"].map(|name| Folder::new(name).unwrap());
    let kept = Folder::new("kept").unwrap().keep();
    let paused = shell("sleep 600 & echo $! >child; wait").with_children();
    let paused = Server::start(paused, one.path()).unwrap();
    let running = Server::start(shell("exec sleep 600"), two.path()).unwrap();
    let pid = || std::fs::read_to_string(paused.dir().join("child")).ok()?.trim().parse().ok();
    let child = holdline_testkit::wait_for("a child", || Process::find(pid()?));
    paused.pause();
    for process in [paused.process().unwrap(), child, running.process().unwrap()] {
        println!("{PROCESS}{process}");
    }
    for folder in [&one, &two] {
        println!("{FOLDER}{}", folder.path().display());
    }
    println!("{KEPT}{}\n{READY}", kept.display());
    loop {
        std::thread::park();
    }
}
