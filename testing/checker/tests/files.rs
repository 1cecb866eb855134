//! History files, the guarded resource as a process, and the program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use holdline_checker::resource::{Client, Reply, Server};
use holdline_checker::{
    Event, Expect, History, Op, Phase, ReadError, Reason, Register, Rule, Verdict, Writer, check,
};

#[test]
fn a_line_reads_back_as_it_was_written() {
    let event = Event::new(Op::TryAcquire, Phase::Fail, 3).lock("L").ttl_ms(300).weight(2);
    let event = event.reason(Reason::Other("disk full".to_owned())).at(17, "c1");
    let line = serde_json::to_string(&event).unwrap();
    assert_eq!(
        line,
        concat!(
            r#"{"v":1,"run":"","t":17,"p":"c1","pid":0,"op":"try_acquire","ph":"fail","n":3,"#,
            r#""lock":"L","ttl_ms":300,"weight":2,"reason":"disk full"}"#
        )
    );
    assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
}

#[test]
fn a_bad_line_is_named_and_a_torn_one_forgiven() {
    let good = r#"{"v":1,"t":5,"p":"a","op":"lost","ph":"info","n":1}"#;
    let torn = History::parse(format!("{good}\n{{\"v\":1,\"t\":9").as_bytes()).unwrap();
    assert_eq!((torn.events.len(), torn.torn), (1, Some(2)));
    let whole = History::parse(good.as_bytes()).unwrap();
    assert_eq!((whole.events.len(), whole.torn), (1, None));

    let bad = History::parse(format!("{good}\n\nnonsense\n{good}\n").as_bytes());
    assert!(matches!(bad, Err(ReadError::Line { line: 3, .. })), "{bad:?}");
    let newer = good.replace("\"v\":1", "\"v\":2");
    let message = History::parse(newer.as_bytes()).unwrap_err().to_string();
    assert!(message.contains("Line 1") && message.contains("version is 2"), "{message}");
}

#[test]
fn many_writers_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    thread::scope(|scope| {
        for i in 0..4 {
            let path = &path;
            scope.spawn(move || {
                let writer = Writer::open(path, "r", &format!("c{i}")).unwrap();
                for _ in 0..500 {
                    let n = writer.next_n();
                    writer.write(Event::new(Op::Acquire, Phase::Invoke, n).lock("L")).unwrap();
                }
            });
        }
    });
    let history = History::read(&path).unwrap();
    assert_eq!((history.events.len(), history.torn), (2000, None));
    assert!(history.events.is_sorted_by_key(|e| e.t));
    let second = history.events.iter().filter(|e| e.process == "c2").map(|e| e.n);
    assert!(second.eq(1..=500));
}

/// One client reads, a second one with a higher token reads and writes, then the first one writes.
#[test]
fn the_resource_refuses_the_stale_and_shows_what_fencing_writes_alone_loses() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, path) = (folder.path().join("r.sock"), folder.path().join("h.jsonl"));
    let server = Server::bind(&socket).unwrap();
    let history = Writer::open(&path, "r", "resource").unwrap();
    let serving = thread::spawn(move || server.run(&history));
    let (old, new) = (Client::connect(&socket).unwrap(), Client::connect(&socket).unwrap());

    let empty = Reply::Done { last: None, len: 0 };
    let one = |uid| Reply::Done { last: Some(uid), len: 1 };
    for reg in Register::ALL {
        old.open("L", reg, 1).unwrap();
        assert_eq!(old.read("L", reg, 1).unwrap(), empty);
        new.open("L", reg, 2).unwrap();
        assert_eq!(new.read("L", reg, 2).unwrap(), empty);
    }
    let (plain, on_write, on_both) =
        (Register::Plain, Register::FencedWrite, Register::FencedReadWrite);
    let stale = Reply::Stale { highest: 2 };
    // The old holder writes first: only the register that saw the new token being opened minds.
    assert_eq!(old.write("L", plain, 1, None, 10).unwrap(), one(10));
    assert_eq!(old.write("L", on_write, 1, None, 11).unwrap(), one(11));
    assert_eq!(old.write("L", on_both, 1, None, 12).unwrap(), stale);
    for (reg, uid) in [(plain, 20), (on_write, 21), (on_both, 22)] {
        assert_eq!(new.write("L", reg, 2, None, uid).unwrap(), one(uid));
    }
    assert_eq!(old.write("L", on_write, 1, None, 31).unwrap(), stale);
    assert_eq!(old.read("L", on_both, 1).unwrap(), stale);
    old.stop().unwrap();
    serving.join().unwrap().unwrap();

    let history = History::read(&path).unwrap();
    let report = check(&history, &Expect { resource: true, ..Expect::small() });
    assert_eq!(report.rule(Rule::R3).verdict, Verdict::Pass, "{report}");
    let notes = |rule| report.rule(rule).notes.join("\n");
    assert!(notes(Rule::R3).contains("fencing writes only lost 1"), "{report}");
    assert!(notes(Rule::R3Plain).contains("1 appends were lost"), "{report}");
    let calm = check(&history, &Expect { calm: true, ..Expect::small() });
    assert!(calm.failed(Rule::R3Plain), "{calm}");
}

/// Starts the resource as a process, and a client of it.
fn process(folder: &Path) -> (Child, Client, PathBuf) {
    let (socket, path) = (folder.join("r.sock"), folder.join("h.jsonl"));
    let mut server = Command::new(env!("CARGO_BIN_EXE_holdline-resource"))
        .args([&socket, &path])
        .spawn()
        .unwrap();
    // The socket is there when the server is ready; a client that comes too early is refused.
    loop {
        match Client::connect(&socket) {
            Ok(client) => return (server, client, path),
            Err(error) => {
                assert!(server.try_wait().unwrap().is_none(), "the server ended: {error}");
                thread::yield_now();
            }
        }
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, client, path) = process(folder.path());
    for uid in 1..=50 {
        client.write("L", Register::FencedReadWrite, uid, None, uid).unwrap();
    }
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(client.read("L", Register::Plain, 0).is_err());
    let history = History::read(&path).unwrap();
    assert_eq!((history.events.len(), history.torn), (50, None));
    // Without the dump nobody can say whether something was lost.
    let report = check(&history, &Expect::small());
    assert!(matches!(report.rule(Rule::R3).verdict, Verdict::Inconclusive(_)), "{report}");
}

#[test]
fn the_resource_dumps_long_lists_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, client, path) = process(folder.path());
    for uid in 1..=400_u64 {
        let base = (uid > 1).then(|| uid - 1);
        let reply = client.write("L", Register::FencedReadWrite, uid, base, uid).unwrap();
        assert_eq!(reply, Reply::Done { last: Some(uid), len: uid });
    }
    client.stop().unwrap();
    assert!(server.wait().unwrap().success());
    let history = History::read(&path).unwrap();
    let dumped: Vec<u64> = history.events.iter().filter_map(|e| e.uids.clone()).flatten().collect();
    assert!(dumped.into_iter().eq(1..=400));
    let longest = std::fs::read_to_string(&path).unwrap().lines().map(str::len).max();
    assert!(longest < Some(4096), "{longest:?}");
}

#[test]
fn the_program_says_how_it_went_by_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h.jsonl");
    let run = |args: &[&str]| {
        let program =
            Command::new(env!("CARGO_BIN_EXE_holdline-check")).arg(&path).args(args).output();
        let output = program.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let write = |text: &str| {
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    };
    let grant = |p: &str, from: u64, to: u64, fence: u64| {
        format!(
            r#"{{"v":1,"t":{from},"p":"{p}","op":"acquire","ph":"invoke","n":1,"lock":"L"}}
{{"v":1,"t":{},"p":"{p}","op":"acquire","ph":"ok","n":1,"fence":{fence}}}
{{"v":1,"t":{to},"p":"{p}","op":"release","ph":"invoke","n":1}}
{{"v":1,"t":{},"p":"{p}","op":"release","ph":"ok","n":1}}
"#,
            from + 1,
            to + 1
        )
    };
    write(&[grant("a", 0, 10, 1), grant("b", 5, 30, 2)].concat());
    let small = ["--min-acquires", "2", "--min-contention", "0"];
    let (code, text) = run(&small);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("R1    exclusive claims") && text.contains("line 2: "), "{text}");
    let (code, text) = run(&[&small[..], &["--capacity", "L=2"]].concat());
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = run(&["--capacity", "L=2"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("INCONCLUSIVE: 2 grants, fewer than 300"), "{text}");

    let (code, text) = run(&["--print-expect", "--fifo", "--handoff", "5"]);
    assert_eq!(code, Some(0), "{text}");
    let expect: Expect = serde_json::from_str(&text).unwrap();
    assert!(expect.fifo && expect.handoff.is_some_and(|h| h.bound_ns == 5_000_000));

    write("what\n");
    let (code, text) = run(&[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("Line 1 of the history"), "{text}");
}
