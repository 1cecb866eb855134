//! The tables in a page of the documentation.

use crate::Failure;
use crate::machine;
use crate::report::Report;
use std::path::Path;

/// The markers around the tables.
const MARKS: [&str; 2] = ["<!-- tables -->\n", "<!-- end -->"];

/// Replaces the tables of a page with those of this run.
pub(super) fn write(page: &Path, report: &Report) -> Result<(), Failure> {
    let text = std::fs::read_to_string(page)
        .map_err(|error| format!("cannot read {}: {error}", page.display()))?;
    let marks = text
        .split_once(MARKS[0])
        .and_then(|(before, rest)| rest.split_once(MARKS[1]).map(|(_, after)| (before, after)));
    let Some((before, after)) = marks else {
        return Err(format!("{} has no marks for tables", page.display()).into());
    };
    let about = machine::about();
    let about = about.as_object().into_iter().flatten().filter_map(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (value != "null").then(|| format!("{name}: {value}"))
    });
    let about: Vec<String> = about.collect();
    let tables: Vec<String> =
        report.tables().map(|table| format!("### {}", table.text())).collect();
    let date = machine::output("date", &["-u", "+%Y-%m-%d"]).unwrap_or_default();
    let run = format!("Measured {date}; {}.", about.join("; "));
    let [start, end] = MARKS;
    std::fs::write(page, format!("{before}{start}\n{run}\n\n{}\n{end}{after}", tables.join("\n")))
        .map_err(|error| format!("cannot write {}: {error}", page.display()))?;
    Ok(())
}
