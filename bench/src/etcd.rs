//! Against Go's `concurrency.Mutex` on the same etcd, in turns.
//!
//! Go's side is `bench/go`, built when this runs. A mutex of Go is one holder per session, so many
//! goroutines that want one name have a session each, as its documentation shows. What a Go program
//! gains that puts a `sync.Mutex` in front of one session is shown beside it.

use crate::report::{Cell, Report, Table, ratio};
use crate::row::Row;
use crate::stats::{Spread, seconds};
use crate::target::fresh;
use crate::worker::{Worker, args};
use crate::{Common, Failure, runtime};
use holdline::{Client, Mutex};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

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
    let servers = match servers(common) {
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

/// An etcd to measure on. One of ours ends when this is dropped.
struct Server {
    label: String,
    url: String,
    own: Option<(Child, TempDir)>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.own {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn servers(common: &Common) -> Result<Vec<Server>, Failure> {
    let named = common.stores.iter();
    let named: Vec<Server> =
        named.map(|url| Server { label: url.clone(), url: url.clone(), own: None }).collect();
    if !named.is_empty() {
        return Ok(named);
    }
    let mut servers = Vec::new();
    // Where every write waits for the disk, little else counts.
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        servers.push(start("in memory", tempfile::tempdir_in(memory)?)?);
    }
    servers.push(start("on disk", tempfile::tempdir()?)?);
    Ok(servers)
}

fn start(label: &str, folder: TempDir) -> Result<Server, Failure> {
    let port = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let (client, peer) = (format!("http://{}", port()?), format!("http://{}", port()?));
    let child = Command::new("etcd")
        .arg("--data-dir")
        .arg(folder.path())
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|_| "there is no etcd in the path")?;
    let host = client.trim_start_matches("http://").to_owned();
    let server = Server {
        label: label.to_owned(),
        url: format!("etcd://{host}"),
        own: Some((child, folder)),
    };
    let limit = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(&host).is_err() {
        if Instant::now() > limit {
            return Err("etcd does not answer".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(server)
}

impl Server {
    /// Go's program in this role, on this server.
    fn go(&self, program: &Path, role: &str, name: &str, more: &[String]) -> Command {
        let endpoint = self.url.trim_start_matches("etcd://");
        let mut command = Command::new(program);
        command.args(["--endpoint", endpoint, "--role", role, "--name", name]).args(more);
        command
    }
}

fn alone(
    common: &Common,
    server: &Server,
    go: &Path,
    report: &mut Report,
) -> Result<Vec<Cell>, Failure> {
    let time = ("--seconds", common.seconds(1.5).to_string());
    let (name, flags) = (fresh("go"), [time.0.to_owned(), time.1.clone()]);
    let mut theirs = Worker::spawn(&mut server.go(go, "alone", &name, &flags))?;
    let mut ours = Worker::start(&args("alone", &server.url, &fresh("alone"), &[time]))?;
    theirs.ready()?;
    ours.ready()?;
    let mut rounds = Vec::new();
    for round in 0..=common.rounds() {
        let pair = if round % 2 == 0 {
            let first = one(&mut ours)?;
            (first, one(&mut theirs)?)
        } else {
            let first = one(&mut theirs)?;
            (one(&mut ours)?, first)
        };
        rounds.push(pair);
    }
    rounds.remove(0); // to warm up
    let each = |row: &Row| row.seconds / row.locks as f64;
    let cpu = |row: &Row| row.cpu / row.locks as f64;
    let ratios: Vec<f64> = rounds.iter().map(|(ours, go)| each(ours) / each(go)).collect();
    check(report, &server.label, "alone, of Go's time at most", ALONE, &ratios, |a, b| a <= b);
    Ok(vec![
        server.label.as_str().into(),
        Cell::times(rounds.iter().map(|(ours, _)| each(ours))),
        Cell::times(rounds.iter().map(|(_, go)| each(go))),
        Cell::ratios(ratios),
        Cell::times(rounds.iter().map(|(ours, _)| cpu(ours))),
        Cell::times(rounds.iter().map(|(_, go)| cpu(go))),
    ])
}

fn one(worker: &mut Worker) -> Result<Row, Failure> {
    worker.go()?;
    Ok(serde_json::from_str(&worker.line()?)?)
}

fn check(
    report: &mut Report,
    label: &str,
    what: &str,
    limit: f64,
    ratios: &[f64],
    holds: impl Fn(f64, f64) -> bool,
) {
    let median = Spread::of(ratios.iter().copied()).map_or(f64::NAN, |spread| spread.median);
    let what = format!("etcd {label}: {what} {limit}");
    report.check(what, ratio(median), holds(median, limit));
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
    let drained = |in_line: usize, start: &dyn Fn(&str) -> Result<Worker, Failure>| {
        runtime.block_on(drained(&client, crowd, in_line, start))
    };
    let (mut ours, mut theirs, mut local) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..common.rounds() {
        ours.push(drained(crowd.processes, &|name| {
            Worker::start(&args("wait", &server.url, name, &waiters))
        })?);
        theirs.push(drained(crowd.processes * crowd.each, &|name| {
            Worker::spawn(&mut server.go(go, "wait", name, &flags))
        })?);
        local.push(drained(crowd.processes, &|name| {
            Worker::spawn(&mut server.go(go, "wait", name, &behind))
        })?);
    }
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, go)| ours / go).collect();
    let Crowd { processes, each } = crowd;
    let (who, limit) = match processes {
        1 => (format!("{each} of one process"), ONE_PROCESS),
        _ => (format!("{} of {processes} processes", processes * each), SPREAD),
    };
    let what = format!("{who}: times Go's rate at least");
    check(report, &server.label, &what, limit, &ratios, |a, b| a >= b);
    Ok(vec![
        server.label.as_str().into(),
        who.into(),
        Cell::rates(ours),
        Cell::rates(theirs),
        Cell::ratios(ratios),
        Cell::rates(local),
    ])
}

/// Locks a second, from the moment at which the lock is let go for which all of them wait until the
/// last of them is done. `in_line` of them stand in etcd's line; the others behind these, inside
/// their processes.
async fn drained(
    client: &Client,
    crowd: Crowd,
    in_line: usize,
    start: &dyn Fn(&str) -> Result<Worker, Failure>,
) -> Result<f64, Failure> {
    let name = fresh("drain");
    let guard = Mutex::new(client, &name).lock().await?;
    let mut workers =
        (0..crowd.processes).map(|_| start(&name)).collect::<Result<Vec<_>, Failure>>()?;
    workers.iter_mut().try_for_each(Worker::ready)?;
    workers.iter_mut().try_for_each(Worker::go)?;
    while client.inspect(&name).await?.waiters.len() < in_line {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await; // all of them listen by now
    let released = Instant::now();
    guard.unlock().await?;
    let mut locks = 0;
    for worker in &mut workers {
        let row: Row = serde_json::from_str(&worker.line()?)?;
        locks += row.locks;
    }
    Ok(locks as f64 / seconds(released.elapsed()))
}
