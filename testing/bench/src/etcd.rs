//! Against Go's `concurrency.Mutex` on the same etcd, in turns.
//!
//! Go's side is `testing/bench/go`, built when this runs. A mutex of Go is one holder per session,
//! so many
//! goroutines that want one name have a session each, as its documentation shows. What a Go program
//! gains that puts a `sync.Mutex` in front of one session is shown beside it.

use crate::competitor::{Server, cells, check, drained, in_turns, of_theirs, servers};
use crate::report::{Cell, Report, Table};
use crate::target::fresh;
use crate::worker::{Worker, args};
use crate::{Common, Failure, runtime};
use holdline::Client;
use holdline_testkit::etcd::SINGLE;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of Go's time, uncontended: no slower, and this much for noise.
const ALONE: f64 = 1.05;
/// Times Go's rate, when 1,000 of one process wait.
const ONE_PROCESS: f64 = 5.0;
/// Times Go's rate, when 64 wait in 8 processes.
const SPREAD: f64 = 1.3;

pub(crate) fn run(common: &Common, report: &mut Report) -> Result<(), Failure> {
    let folder = tempfile::Builder::new().prefix("holdline-bench-").tempdir()?;
    let go = match build(folder.path()) {
        Ok(go) => go,
        Err(why) => {
            Report::skip("Go's locks", &why);
            return Ok(());
        }
    };
    let servers = match servers(common, || SINGLE.on_free_ports()) {
        Ok(servers) => servers,
        Err(why) => {
            Report::skip("Go's locks", &why.to_string());
            return Ok(());
        }
    };
    let mut table = Table::new(
        "One task that locks and unlocks, with nobody else there",
        &["etcd's data", "ours", "Go's", "ratio", "our CPU", "Go's CPU"],
    );
    for server in &servers {
        table.row(alone(common, server, &go, report)?);
    }
    table.note("CPU: of the client's process, for each lock. etcd's own time is in both.");
    report.table(table);
    let mut table = Table::new(
        "Many wait for one name, and take it once each",
        &["etcd's data", "waiters", "ours", "Go's", "ratio", "Go behind a sync.Mutex"],
    );
    for server in &servers {
        for crowd in [Crowd { processes: 1, each: 1000 }, Crowd { processes: 8, each: 8 }] {
            table.row(drain(common, server, &go, crowd, report)?);
        }
    }
    report.table(table);
    Ok(())
}

/// Go's program, or why there is none.
fn build(folder: &Path) -> Result<PathBuf, String> {
    let program = folder.join("bench-go");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&program).arg(".").current_dir(source);
    match build.status() {
        Err(_) => Err("there is no go in the path; install Go 1.22 or later".to_owned()),
        Ok(status) if !status.success() => Err("go build failed; see above".to_owned()),
        Ok(_) => Ok(program),
    }
}

/// Go's program in this role, on this server.
fn go_as(server: &Server, go: &Path, role: &str, name: &str, more: &[String]) -> Command {
    let endpoint = server.url.trim_start_matches("etcd://");
    let mut command = Command::new(go);
    command.args(["--endpoint", endpoint, "--role", role, "--name", name]).args(more);
    command
}

fn alone(
    common: &Common,
    server: &Server,
    go: &Path,
    report: &mut Report,
) -> Result<Vec<Cell>, Failure> {
    let time = ("--seconds", common.seconds(1.5).to_string());
    let (name, flags) = (fresh("go"), [time.0.to_owned(), time.1.clone()]);
    let theirs = Worker::spawn(&mut go_as(server, go, "alone", &name, &flags))?;
    let ours = Worker::start(&args("alone", &server.url, &fresh("alone"), &[time]))?;
    let rounds = in_turns(common, ours, theirs)?;
    let what = format!("etcd {}: alone, of Go's time at most", server.label);
    check(report, &what, ALONE, &of_theirs(&rounds), |a, b| a <= b);
    Ok(cells(server, &rounds))
}

/// So many processes, with so many waiters each.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    processes: usize,
    each: usize,
}

fn drain(
    common: &Common,
    server: &Server,
    go: &Path,
    crowd: Crowd,
    report: &mut Report,
) -> Result<Vec<Cell>, Failure> {
    let runtime = runtime()?;
    let client = runtime.block_on(holdline::open(&server.url))?;
    let waiters = [("--waiters", crowd.each.to_string())];
    let flags = ["--waiters".to_owned(), crowd.each.to_string()];
    let behind: Vec<String> = flags.iter().cloned().chain(["--local".to_owned()]).collect();
    let rate = |in_line: usize, start: &dyn Fn(&str) -> Result<Worker, Failure>| {
        runtime.block_on(rate(&client, crowd, in_line, start))
    };
    let (mut ours, mut theirs, mut local) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..common.rounds() {
        ours.push(rate(crowd.processes, &|name| {
            Worker::start(&args("wait", &server.url, name, &waiters))
        })?);
        theirs.push(rate(crowd.processes * crowd.each, &|name| {
            Worker::spawn(&mut go_as(server, go, "wait", name, &flags))
        })?);
        local.push(rate(crowd.processes, &|name| {
            Worker::spawn(&mut go_as(server, go, "wait", name, &behind))
        })?);
    }
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, go)| ours / go).collect();
    let Crowd { processes, each } = crowd;
    let (who, limit) = match processes {
        1 => (format!("{each} of one process"), ONE_PROCESS),
        _ => (format!("{} of {processes} processes", processes * each), SPREAD),
    };
    let what = format!("etcd {}: {who}: times Go's rate at least", server.label);
    check(report, &what, limit, &ratios, |a, b| a >= b);
    Ok(vec![
        server.label.as_str().into(),
        who.into(),
        Cell::rates(ours),
        Cell::rates(theirs),
        Cell::ratios(ratios),
        Cell::rates(local),
    ])
}

/// Locks a second of a crowd that is started for it.
async fn rate(
    client: &Client,
    crowd: Crowd,
    in_line: usize,
    start: &dyn Fn(&str) -> Result<Worker, Failure>,
) -> Result<f64, Failure> {
    let name = fresh("drain");
    let mut workers =
        (0..crowd.processes).map(|_| start(&name)).collect::<Result<Vec<_>, Failure>>()?;
    workers.iter_mut().try_for_each(Worker::ready)?;
    Ok(drained(client, &name, &mut workers, in_line).await?.rate)
}
