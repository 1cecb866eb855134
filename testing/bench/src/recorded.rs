//! The ratios to the bare idioms, compared with recorded ones: whether a change made them worse.
//!
//! A ratio of two figures measured in turns is nearly the same on another machine or under other
//! load. `ratios.json` has the medians of a run on a quiet machine.

use crate::report::{Limit, Report};
use crate::target::Targets;
use crate::{Common, Failure, tasks, uncontended};
use clap::Args;
use serde_json::{Map, Value};
use std::path::Path;

/// A ratio may be worse than the recorded one by this factor.
const TOLERANCE: f64 = 1.25;

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Records the ratios of this run instead of comparing with them.
    #[arg(long)]
    record: bool,
}

pub(crate) fn run(
    common: &Common,
    targets: &Targets,
    options: &Options,
    report: &mut Report,
) -> Result<(), Failure> {
    uncontended::run(common, targets, report)?;
    for target in &targets.list {
        tasks::beside_bare(common, target, report)?;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ratios.json");
    let mut recorded = read(&path)?;
    if options.record {
        for (what, ratio, _) in report.ratios() {
            recorded.insert(what.clone(), Value::from((ratio * 1000.0).round() / 1000.0));
        }
        let text = serde_json::to_string_pretty(&recorded)? + "\n";
        return std::fs::write(&path, text).map_err(|error| cannot("write", &path, &error).into());
    }
    for (what, ratio, limit) in report.ratios().to_vec() {
        let Some(before) = recorded.get(&what).and_then(Value::as_f64) else {
            report.unchecked(what, "nothing is recorded: check --record");
            continue;
        };
        report.ratio(format!("{what}, as recorded"), ratio, worst(limit, before));
    }
    Ok(())
}

/// The limit for a ratio with this recorded value.
fn worst(limit: Limit, before: f64) -> Limit {
    match limit {
        Limit::AtMost(_) => Limit::AtMost(before * TOLERANCE),
        Limit::AtLeast(_) => Limit::AtLeast(before / TOLERANCE),
    }
}

fn read(path: &Path) -> Result<Map<String, Value>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(serde_json::from_str(&text)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Map::new()),
        Err(error) => Err(cannot("read", path, &error).into()),
    }
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_worse_does_not_hold() {
        assert!(worst(Limit::AtMost(3.0), 1.2).holds(1.4));
        assert!(!worst(Limit::AtMost(3.0), 1.2).holds(1.6));
        assert!(worst(Limit::AtLeast(0.8), 1.0).holds(0.9));
        assert!(!worst(Limit::AtLeast(0.8), 1.0).holds(0.7));
    }
}
