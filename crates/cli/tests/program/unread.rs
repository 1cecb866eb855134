//! Nobody reads what the program says, or nobody can: it does its work all the same.

#[cfg(feature = "redis")]
use super::common::lives;
use super::common::{Place, until};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{PipeReader, PipeWriter, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A pipe that takes nothing more, and is not read.
fn full_pipe() -> (PipeReader, PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    for size in [4096, 1] {
        while writer.write(&vec![b'x'; size]).is_ok() {}
    }
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// The ways of not being read.
#[derive(Clone, Copy, Debug)]
enum Unread {
    FullPipe,
    BrokenPipe,
    FullDevice,
}

/// Sets stderr, and returns what must live as long as the command.
fn deafen(command: &mut Command, way: Unread) -> Option<PipeReader> {
    let (reader, writer) = match way {
        Unread::FullPipe => full_pipe(),
        Unread::BrokenPipe => std::io::pipe().unwrap(),
        Unread::FullDevice => {
            let device = std::fs::File::options().write(true).open("/dev/full").unwrap();
            command.stderr(Stdio::from(device));
            return None;
        }
    };
    command.stderr(Stdio::from(writer));
    matches!(way, Unread::FullPipe).then_some(reader)
}

const WAYS: [Unread; 3] = [Unread::FullPipe, Unread::BrokenPipe, Unread::FullDevice];

#[test]
fn every_verb_ends_although_its_words_are_not_read() {
    let place = Place::new();
    let _holder = place.hold(&[], "busy");
    for way in WAYS {
        for (args, code) in [
            (&["run", "-vvv", "x", "--", "true"][..], 0),
            (&["run", "--json", "x", "--", "sh", "-c", "exit 5"], 5),
            (&["run", "-n", "busy", "--", "true"], 75),
            (&["run", "-v", "-w", "1200ms", "busy", "--", "true"], 75),
            (&["run", "x", "--", "/no/such/command"], 127),
            (&["run", "--nonsense"], 64),
            (&["break", "busy", "000000000000", "--reason", "r"], 1),
        ] {
            let mut command = place.command(args);
            let unread = deafen(&mut command, way);
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
            let began = Instant::now();
            while child.try_wait().unwrap().is_none() {
                assert!(began.elapsed() < super::common::LONG, "{way:?} {args:?}: it hangs");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(child.wait().unwrap().code(), Some(code), "{way:?} {args:?}");
            drop(unread);
        }
    }
}

#[test]
fn a_signal_ends_what_prints_although_it_is_not_read() {
    let place = Place::new();
    let _holder = place.hold(&[], "busy");
    let (_unread, writer) = full_pipe();
    let mut command = place.command(["top"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::from(writer)).spawn().unwrap();
    until("it prints", || {
        std::fs::read_to_string(format!("/proc/{}/wchan", child.id()))
            .is_ok_and(|place| place.contains("pipe"))
    });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = child.wait().unwrap();
    assert_eq!(ended.signal(), Some(15), "{ended}");
}

#[test]
fn an_unread_leader_hears_of_its_loss() {
    let place = Place::new();
    let mut command = place.command(["elect", "e", "me"]);
    let (_unread, writer) = full_pipe();
    let mut child = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    let mut child = std::mem::replace(&mut child, &mut Command::new("true")).spawn().unwrap();
    until("it leads", || place.counts("e") == (1, 0));
    let id = place.status("e")["holders"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(place.run(["break", "e", &id, "--reason", "test"]).code, 0);
    until("it ends", || place.counts("e") == (0, 0));
    assert_eq!(child.wait().unwrap().code(), Some(76));
}

/// A hundred times the issue's worst case: stderr is a pipe that nobody reads, or worse, and the
/// server is cut off. When the rival is in, the command must be dead.
// G21
#[cfg(feature = "redis")]
#[test]
fn a_command_is_stopped_before_the_rival_is_in_although_nobody_reads_stderr() {
    use std::io::{BufRead, BufReader};
    const TRIALS: usize = 100;
    const FLAGS: [&[&str]; 5] = [&[], &["-v"], &["--json"], &["-q"], &["-vvv", "--json"]];
    let Some(server) = super::outage::server() else { return };
    let link = holdline_testkit::Link::to(("127.0.0.1", server.port())).unwrap();
    let place = Place::new();
    let linked = format!("redis://{}", link.address());
    let mut victims = Vec::new();
    for trial in 0..TRIALS {
        // Unread to TERM, so that only KILL ends it.
        let script = "trap '' TERM; echo $$; exec sleep 600";
        let name = format!("x{trial}");
        let flags = FLAGS[trial % FLAGS.len()];
        let run = ["run", "--lease", "20s", "--connect-timeout", "60s", &name];
        let mut command = place.command([&run, flags, &["--", "sh", "-c", script]].concat());
        let unread = deafen(&mut command, WAYS[trial % WAYS.len()]);
        command.env("HOLDLINE_STORE", &linked).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let pid: i32 = line.trim().parse().expect("the command was started");
        victims.push((name, child, pid, unread, out));
    }
    let rivals: Vec<_> = victims.iter().map(|(name, _, pid, ..)| (name.clone(), *pid)).collect();
    let overlaps = overlaps(server.url(), &rivals, || link.stall(holdline_testkit::Way::Both));
    assert!(overlaps.is_empty(), "commands lived on beside their rivals: {overlaps:?}");
    for (name, mut child, ..) in victims {
        let began = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < super::common::LONG, "{name}: it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(child.wait().unwrap().code(), Some(76), "{name}");
    }
}

/// Takes all of these locks, and returns those whose process still lived at that moment. `cut` is
/// called when all rivals wait.
#[cfg(feature = "redis")]
fn overlaps(url: &str, rivals: &[(String, i32)], cut: impl FnOnce()) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let client = holdline::open(url).await.expect("the server is there");
        let client = client.response_timeout(super::common::LONG);
        let mut tasks = Vec::new();
        for (name, pid) in rivals.iter().cloned() {
            let lock = holdline::Mutex::new(&client, &name);
            tasks.push(tokio::task::spawn_local(async move {
                let guard = lock.lock().await.expect("it waits for its turn");
                let overlap = lives(pid).then_some(name);
                drop(guard);
                overlap
            }));
        }
        for (name, _) in rivals {
            while client.inspect(name).await.expect("it answers").waiters.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        cut();
        let mut found = Vec::new();
        for task in tasks {
            found.extend(task.await.expect("it does not panic"));
        }
        found
    })
}

/// `run -F` waits for its last messages to be read before the command takes its place. A signal
/// that comes meanwhile ends it; one that comes later ends the command.
#[test]
fn a_signal_before_the_command_takes_the_place_is_not_lost() {
    let place = Place::new();
    let (_unread, writer) = full_pipe();
    let mut command = place.command(["run", "-v", "-F", "x", "--", "sleep", "30"]);
    let mut run = command.stderr(Stdio::from(writer)).spawn().unwrap();
    until("it holds", || place.counts("x") == (1, 0));
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    let ended = run.wait().unwrap();
    assert!(ended.code() == Some(143) || ended.signal() == Some(15), "{ended}");
}
