//! All benchmarks in a quick form: enough to check every requirement.

use crate::report::Report;
use crate::target::Targets;
use crate::{Common, Failure, handoff, kernel, processes, renewals, startup, tasks, uncontended};

pub(crate) fn run(
    common: &Common,
    targets: &Targets,
    options: &startup::Options,
    report: &mut Report,
) -> Result<(), Failure> {
    let common = Common { quick: true, rounds: common.rounds.min(3), ..common.clone() };
    kernel::run(&common, report);
    uncontended::run(&common, targets, report)?;
    tasks::run(&common, targets, report)?;
    processes::run(&common, targets, report)?;
    handoff::run(&common, targets, report)?;
    startup::run(&common, targets, options, report)?;
    renewals::run(&common, targets, &renewals::Options::default(), report)
}
