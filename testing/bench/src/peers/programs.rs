//! Programs that hold a lock while they run another: `flock`, `etcdctl lock`, `holdline run`.

use crate::report::{Cell, Report, Table};
use crate::startup::{built, timed};
use crate::target::fresh;
use crate::{Common, Failure};
use holdline_testkit::Private;
use std::path::Path;
use std::process::{Command, Stdio};

/// The number of runs of each.
const RUNS: usize = 30;

pub(super) fn run(common: &Common, etcd: &Private, report: &mut Report) -> Result<(), Failure> {
    let program = built()?;
    let folder = tempfile::Builder::new().prefix("holdline-bench-").tempdir()?;
    let (file, name) = (folder.path().join("flock"), fresh("program"));
    let url = etcd.url();
    let endpoint = url.trim_start_matches("etcd://").to_owned();
    let title = format!("Programs: NAME -- true, {RUNS} runs each, in turns");
    let mut table = Table::new(title, &["peer", "ours", "theirs", "ahead"]);
    let sqlite = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut flock = Command::new("flock");
    flock.arg(&file).arg("true");
    let mut etcdctl = Command::new("etcdctl");
    etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &endpoint, "lock", &name, "true"]);
    let pairs = [("flock", sqlite, flock), ("etcdctl lock", url, etcdctl)];
    let runs = if common.quick { RUNS / 3 } else { RUNS };
    for (peer, store, mut theirs) in pairs {
        if theirs.stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            table.row([peer.into(), "missing".into(), Cell::none(), Cell::none()]);
            continue;
        }
        let mut rounds = Vec::new();
        for _ in 0..=runs {
            rounds.push((timed(&mut ours(&program, &store, &name))?, timed(&mut theirs)?));
        }
        let rounds = &rounds[1..];
        table.row([
            peer.into(),
            Cell::times(rounds.iter().map(|(ours, _)| *ours)).short(),
            Cell::times(rounds.iter().map(|(_, theirs)| *theirs)).short(),
            Cell::ratios(rounds.iter().map(|(ours, theirs)| theirs / ours)),
        ]);
    }
    report.table(table);
    Ok(())
}

fn ours(program: &Path, store: &str, name: &str) -> Command {
    let mut command = Command::new(program);
    command.env("HOLDLINE_STORE", store).env_remove("HOLDLINE_NAME");
    command.args(["run", name, "--", "true"]).stdin(Stdio::null());
    command
}
