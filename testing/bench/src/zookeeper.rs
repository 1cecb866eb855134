//! Against Curator's `InterProcessMutex` on the same ZooKeeper, in turns.
//!
//! Curator's side is `testing/bench/java`, built when this runs. Its programs are started once and
//! stay,
//! and warm up before they are measured: a Java program is slow until it has been compiled. Each
//! thread that waits in Curator stands in ZooKeeper's line by itself; of ours, one task of each
//! process.

use crate::competitor::{Server, cells, check, drained, in_turns, of_theirs, servers};
use crate::report::{Cell, Report, Table};
use crate::target::fresh;
use crate::worker::{Worker, args};
use crate::{Common, Failure, runtime};
use holdline_testkit::zookeeper::{Settings, deployment};
use holdline_testkit::{Deployment, free_port};
use std::path::Path;
use std::process::{Command, Stdio};

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
    let (curator, servers) =
        match build(folder.path()).and_then(|it| Ok((it, servers(common, ours)?))) {
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

/// One with room, and with the tick that ZooKeeper's own example has.
fn ours() -> Deployment {
    let java = ["-Xms512m", "-Xmx512m"].map(str::to_owned).to_vec();
    let settings = Settings { java, lines: "tickTime=2000\n".to_owned() };
    deployment(&[free_port(), free_port(), free_port()], &settings)
}

impl Curator {
    /// The program in this role, on this server.
    fn on(&self, server: &Server, role: &str, name: &str, round: [f64; 2]) -> Command {
        let mut command = Command::new("java");
        let host = server.url.rsplit("//").next().unwrap_or_default();
        let [seconds, warm] = round.map(|seconds| seconds.to_string());
        command.args(["-Xmx256m", "-cp", &self.0, "Bench", host, role, name, &seconds]);
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
    let mut theirs = curator.on(server, "alone", &fresh("curator"), [time, WARM[0]]);
    let theirs = Worker::spawn(&mut theirs)?;
    let flags = [("--seconds", time.to_string())];
    let ours = Worker::start(&args("alone", &server.url, &fresh("alone"), &flags))?;
    let rounds = in_turns(common, ours, theirs)?;
    let what = format!("zookeeper {}: alone, of Curator's time at most", server.label);
    check(report, &what, ALONE, &of_theirs(&rounds), |a, b| a <= b);
    Ok(cells(server, &rounds))
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
    let start = || Worker::spawn(&mut curator.on(server, "wait", &name, [0.0, WARM[1]]));
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
    let what = format!(
        "zookeeper {}: {} of {PROCESSES} processes, times Curator's rate at least",
        server.label,
        PROCESSES * EACH
    );
    check(report, &what, SPREAD, &ratios, |a, b| a >= b);
    Ok(vec![
        server.label.as_str().into(),
        Cell::rates(rounds.iter().map(|(ours, _)| ours.rate)),
        Cell::rates(rounds.iter().map(|(_, it)| it.rate)),
        Cell::ratios(ratios),
        Cell::times(rounds.iter().map(|(ours, _)| ours.cpu)),
        Cell::times(rounds.iter().map(|(_, it)| it.cpu)),
    ])
}
