//! Against Curator's `InterProcessMutex` on the same ZooKeeper, in turns.
//!
//! Curator's side is `bench/java`, built when this runs. Its programs are started once and stay,
//! and warm up before they are measured: a Java program is slow until it has been compiled. Each
//! thread that waits in Curator stands in ZooKeeper's line by itself; of ours, one task of each
//! process.

use crate::report::{Cell, Report, Table, ratio};
use crate::row::Row;
use crate::stats::{Spread, seconds};
use crate::target::fresh;
use crate::worker::{Worker, args};
use crate::{Common, Failure, runtime};
use holdline::{Client, Mutex};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Of Curator's time, alone: no slower, and this much for noise.
const ALONE: f64 = 1.05;
/// Times Curator's rate, when 64 wait in 8 processes: the same.
const SPREAD: f64 = 0.95;
/// The processes of the crowd, and the waiters of each.
const PROCESSES: usize = 8;
const EACH: usize = 8;
/// How long Curator warms up alone, and how long each of many does.
const WARM: [f64; 2] = [10.0, 20.0];

pub(crate) fn run(common: &Common, report: &mut Report) -> Result<(), Failure> {
    let folder = tempfile::Builder::new().prefix("holdline-bench-").tempdir()?;
    let (curator, servers) = match build(folder.path()).and_then(|it| Ok((it, servers(common)?))) {
        Ok(both) => both,
        Err(why) => {
            Report::skip("Curator's locks", &why.to_string());
            return Ok(());
        }
    };
    let mut table = Table::new(
        "One task that locks and unlocks, with nobody else there",
        &["ZooKeeper's data", "ours", "Curator's", "ratio", "our CPU", "Curator's CPU"],
    );
    for server in &servers {
        table.row(alone(common, server, &curator, report)?);
    }
    table.note("CPU: of the client's process, for each lock. ZooKeeper's own time is in both.");
    report.table(table);
    let title = format!("{} of {PROCESSES} processes wait, and lock once each", PROCESSES * EACH);
    let mut table = Table::new(
        title,
        &["ZooKeeper's data", "ours", "Curator's", "ratio", "our CPU", "Curator's CPU"],
    );
    for server in &servers {
        table.row(crowd(common, server, &curator, report)?);
    }
    table.note("CPU: of the clients' processes, for each lock, with their entering the line.");
    report.table(table);
    Ok(())
}

/// Curator's program: its class path.
struct Curator(String);

/// Gets Curator by Maven, and compiles the program; or says what is missing.
fn build(folder: &Path) -> Result<Curator, Failure> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("java");
    std::fs::copy(source.join("pom.xml"), folder.join("pom.xml"))?;
    let (lib, classes) = (folder.join("lib"), folder.join("classes"));
    let mut fetch = Command::new("mvn");
    fetch.args(["-q", "-B", "-C", "dependency:copy-dependencies"]).current_dir(folder);
    fetch.arg(format!("-DoutputDirectory={}", lib.display()));
    must(&mut fetch, "mvn", "maven")?;
    let jars = format!("{}/*", lib.display());
    let mut compile = Command::new("javac");
    compile.arg("-d").arg(&classes).args(["-cp", &jars]).arg(source.join("Bench.java"));
    must(&mut compile, "javac", "default-jdk-headless")?;
    Ok(Curator(format!("{}:{jars}", classes.display())))
}

fn must(command: &mut Command, tool: &str, package: &str) -> Result<(), Failure> {
    // Its colours and its progress are of no use here.
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    match status {
        Err(_) => Err(format!("there is no {tool} in the path; apt-get install {package}").into()),
        Ok(status) if !status.success() => Err(format!("{tool} failed; see above").into()),
        Ok(_) => Ok(()),
    }
}

/// A ZooKeeper to measure on. One of ours ends when this is dropped.
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

/// Of an unpacked release, or Debian's.
fn class_path() -> Option<String> {
    let home = std::env::var_os("ZOOKEEPER_HOME").map(|home| PathBuf::from(home).join("lib"));
    if let Some(jars) = home.filter(|jars| jars.is_dir()) {
        return Some(format!("{}/*", jars.display()));
    }
    let jars = Path::new("/usr/share/java");
    let all = ["zookeeper.jar", "slf4j-simple.jar"].map(|jar| jars.join(jar));
    let there = all.iter().all(|jar| jar.is_file());
    there.then(|| all.map(|jar| jar.display().to_string()).join(":"))
}

fn start(label: &str, folder: TempDir) -> Result<Server, Failure> {
    let jars = class_path().ok_or(
        "there is no ZooKeeper on this machine; apt-get install zookeeper, or set ZOOKEEPER_HOME",
    )?;
    let host = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let settings = format!(
        "tickTime=2000\ndataDir={}\nclientPortAddress=127.0.0.1\nclientPort={}\n\
         maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n",
        folder.path().display(),
        host.port()
    );
    let file = folder.path().join("zoo.cfg");
    std::fs::write(&file, settings)?;
    let child = Command::new("java")
        .args(["-Xms512m", "-Xmx512m", "-cp", &jars])
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|_| "there is no java in the path; apt-get install default-jdk-headless")?;
    let server = Server {
        label: label.to_owned(),
        url: format!("zookeeper://{host}"),
        own: Some((child, folder)),
    };
    let limit = Instant::now() + Duration::from_secs(40);
    while !serves(&host.to_string()) {
        if Instant::now() > limit {
            return Err("ZooKeeper does not answer".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(server)
}

fn serves(host: &str) -> bool {
    let mut text = String::new();
    let asked = TcpStream::connect(host).and_then(|mut stream| {
        stream.write_all(b"srvr")?;
        stream.read_to_string(&mut text)
    });
    asked.is_ok() && text.contains("Mode: ")
}

impl Server {
    /// Curator's program in this role, on this server.
    fn curator(&self, program: &Curator, role: &str, name: &str, round: [f64; 2]) -> Command {
        let mut command = Command::new("java");
        let host = self.url.rsplit("//").next().unwrap_or_default();
        let [seconds, warm] = round.map(|seconds| seconds.to_string());
        command.args(["-Xmx256m", "-cp", &program.0, "Bench", host, role, name, &seconds]);
        command.args([&EACH.to_string(), &warm]);
        command
    }
}

fn alone(
    common: &Common,
    server: &Server,
    curator: &Curator,
    report: &mut Report,
) -> Result<Vec<Cell>, Failure> {
    let time = common.seconds(3.0);
    let mut theirs =
        Worker::spawn(&mut server.curator(curator, "alone", &fresh("curator"), [time, WARM[0]]))?;
    theirs.ready()?;
    let flags = [("--seconds", time.to_string())];
    let mut ours = Worker::start(&args("alone", &server.url, &fresh("alone"), &flags))?;
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
    let ratios: Vec<f64> = rounds.iter().map(|(ours, it)| each(ours) / each(it)).collect();
    check(report, server, "alone, of Curator's time at most", ALONE, &ratios, |a, b| a <= b);
    Ok(vec![
        server.label.as_str().into(),
        Cell::times(rounds.iter().map(|(ours, _)| each(ours))),
        Cell::times(rounds.iter().map(|(_, it)| each(it))),
        Cell::ratios(ratios),
        Cell::times(rounds.iter().map(|(ours, _)| ours.cpu / ours.locks as f64)),
        Cell::times(rounds.iter().map(|(_, it)| it.cpu / it.locks as f64)),
    ])
}

fn one(worker: &mut Worker) -> Result<Row, Failure> {
    worker.go()?;
    Ok(serde_json::from_str(&worker.line()?)?)
}

fn check(
    report: &mut Report,
    server: &Server,
    what: &str,
    limit: f64,
    ratios: &[f64],
    holds: impl Fn(f64, f64) -> bool,
) {
    let median = Spread::of(ratios.iter().copied()).map_or(f64::NAN, |spread| spread.median);
    let what = format!("zookeeper {}: {what} {limit}", server.label);
    report.check(what, ratio(median), holds(median, limit));
}

fn crowd(
    common: &Common,
    server: &Server,
    curator: &Curator,
    report: &mut Report,
) -> Result<Vec<Cell>, Failure> {
    let runtime = runtime()?;
    let client = runtime.block_on(holdline::open(&server.url))?;
    let name = fresh("curator");
    let start = || Worker::spawn(&mut server.curator(curator, "wait", &name, [0.0, WARM[1]]));
    let mut theirs = (0..PROCESSES).map(|_| start()).collect::<Result<Vec<_>, Failure>>()?;
    theirs.iter_mut().try_for_each(Worker::ready)?;
    let waiters = [("--waiters", EACH.to_string())];
    let mut rounds = Vec::new();
    for round in 0..=common.rounds() {
        let own = fresh("drain");
        let start = || Worker::start(&args("wait", &server.url, &own, &waiters));
        let mut ours = (0..PROCESSES).map(|_| start()).collect::<Result<Vec<_>, Failure>>()?;
        ours.iter_mut().try_for_each(Worker::ready)?;
        let ours = runtime.block_on(drained(&client, &own, &mut ours, PROCESSES))?;
        let name = format!("{name}-{round}");
        let all = PROCESSES * EACH;
        rounds.push((ours, runtime.block_on(drained(&client, &name, &mut theirs, all))?));
    }
    rounds.remove(0); // to warm up
    let ratios: Vec<f64> = rounds.iter().map(|(ours, it)| ours.rate / it.rate).collect();
    let what = format!("{} of {PROCESSES} processes, times Curator's rate", PROCESSES * EACH);
    check(report, server, &format!("{what} at least"), SPREAD, &ratios, |a, b| a >= b);
    Ok(vec![
        server.label.as_str().into(),
        Cell::rates(rounds.iter().map(|(ours, _)| ours.rate)),
        Cell::rates(rounds.iter().map(|(_, it)| it.rate)),
        Cell::ratios(ratios),
        Cell::times(rounds.iter().map(|(ours, _)| ours.cpu)),
        Cell::times(rounds.iter().map(|(_, it)| it.cpu)),
    ])
}

/// How fast a crowd was.
struct Drained {
    /// Locks a second.
    rate: f64,
    /// Seconds of CPU time for each lock.
    cpu: f64,
}

/// From the moment at which the lock is let go for which all of them wait until the last of them is
/// done. `in_line` of them stand in ZooKeeper's line; the others behind these, in their processes.
async fn drained(
    client: &Client,
    name: &str,
    workers: &mut [Worker],
    in_line: usize,
) -> Result<Drained, Failure> {
    let guard = Mutex::new(client, name).lock().await?;
    workers.iter_mut().try_for_each(Worker::go)?;
    while client.inspect(name).await?.waiters.len() < in_line {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await; // all of them listen by now
    let released = Instant::now();
    guard.unlock().await?;
    let (mut locks, mut cpu) = (0, 0.0);
    for worker in workers {
        let row: Row = serde_json::from_str(&worker.line()?)?;
        locks += row.locks;
        cpu += row.cpu;
    }
    let rate = locks as f64 / seconds(released.elapsed());
    Ok(Drained { rate, cpu: cpu / locks as f64 })
}
