//! `cargo xtask tidy`: checks the rules of the project that a program can check.
//!
//! Most rules read text, line by line, without comments and strings. That is less than a compiler
//! knows, but it is quick, has no dependencies, and its findings are easy to explain.

mod commands;
mod guarantees;
mod links;
mod promises;
mod shape;
mod source;
mod walls;
mod words;

use crate::{Outcome, workspace};
use source::Source;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The folders whose Rust files are read.
const FOLDERS: &[&str] = &["crates/", "testing/", "examples/", "xtask/"];

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    sentence: String,
}

impl Finding {
    /// A finding; lines count from 1.
    fn new(path: &str, line: usize, sentence: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, sentence: sentence.into() }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.sentence)
    }
}

/// `cargo xtask tidy`
pub(crate) fn main() -> Outcome<bool> {
    Ok(print_findings()? == 0)
}

/// Checks everything, prints the findings, and returns their number.
pub(crate) fn print_findings() -> Outcome<usize> {
    let root = workspace::root();
    let paths = paths(&root)?;
    let is_ours = |path: &&String| {
        Path::new(path).extension().is_some_and(|end| end == "rs")
            && FOLDERS.iter().any(|folder| path.starts_with(folder))
    };
    let sources: Vec<Source> = paths
        .iter()
        .filter(is_ours)
        .filter_map(|path| Some(Source::new(path, &std::fs::read_to_string(root.join(path)).ok()?)))
        .collect();
    let guarantees = std::fs::read_to_string(root.join(guarantees::FILE)).ok();
    let mut findings = check(&sources, guarantees.as_deref());
    let documents = documents(&root, &paths);
    links::check(&paths, &documents, &mut findings);
    commands::check(&documents, &commands::Known::here()?, &mut findings);
    findings.extend(outside_the_suite(&sources));
    findings.extend(large_files(&root, &paths));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", sources.len(), findings.len());
    Ok(findings.len())
}

/// The table of the stores that go through the conformance suite.
const SUITE: &str = "crates/holdline/tests/conformance/stores.rs";

/// Checks that every server that can be started has a row in the suite's table.
fn outside_the_suite(sources: &[Source]) -> Vec<Finding> {
    let Some(table) = sources.iter().find(|source| source.path == SUITE) else { return Vec::new() };
    let named = |env: &str| table.lines.iter().any(|line| line.contains(&format!("\"{env}\"")));
    let absent = crate::servers::TOPOLOGIES.iter().filter(|topology| !named(topology.env));
    let sentence = |env| format!("No row is for {env}, so no store is tried there.");
    absent.map(|topology| Finding::new(SUITE, 1, sentence(topology.env))).collect()
}

/// The most bytes of a file. What is larger was built or downloaded, and added by mistake.
const FILE_BYTES: u64 = 256 * 1024;

fn large_files(root: &Path, paths: &[String]) -> Vec<Finding> {
    let large = |path: &&String| {
        std::fs::metadata(root.join(path)).is_ok_and(|file| file.len() > FILE_BYTES)
    };
    let sentence = format!("The file has more than {FILE_BYTES} bytes. Was it added by mistake?");
    paths.iter().filter(large).map(|path| Finding::new(path, 1, &*sentence)).collect()
}

/// The files that the rules about documents read, by path.
fn documents(root: &Path, paths: &[String]) -> BTreeMap<String, String> {
    let is_read = |path: &&String| links::is_document(path) || *path == links::MODULE;
    let read = |path: &String| Some((path.clone(), std::fs::read_to_string(root.join(path)).ok()?));
    paths.iter().filter(is_read).filter_map(read).collect()
}

/// All rules on Rust files.
fn check(sources: &[Source], guarantees: Option<&str>) -> Vec<Finding> {
    let walls = walls::Walls::new(sources);
    let mut findings = Vec::new();
    for source in sources {
        shape::check(source, &mut findings);
        walls.check(source, &mut findings);
        promises::check(source, &mut findings);
        words::check(source, &mut findings);
        words::check_comments(source, &mut findings);
    }
    if let Some(text) = guarantees {
        guarantees::check(text, sources, &mut findings);
    }
    findings
}

/// The files that git tracks, or would track.
fn paths(root: &Path) -> Outcome<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("tidy asks git for the list of files, but git did not start: {e}."))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("tidy asks git for the list of files, but: {}", error.trim()));
    }
    let mut paths: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect();
    // A file in the middle of a merge is listed once per side.
    paths.sort();
    paths.dedup();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: u64| {
            let file = std::fs::File::create(folder.path().join(name)).unwrap();
            file.set_len(bytes).unwrap();
            name.to_owned()
        };
        let paths = [write("fits", FILE_BYTES), write("large", FILE_BYTES + 1)];
        let found = large_files(folder.path(), &paths);
        assert!(found.len() == 1 && found[0].path == "large", "{found:?}");
    }

    #[test]
    fn git_lists_this_very_file() {
        let paths = paths(&workspace::root()).unwrap();
        assert!(paths.iter().any(|path| path == "xtask/src/tidy/mod.rs"));
        assert!(paths.is_sorted());
    }

    #[test]
    fn a_server_without_a_row_of_the_suite_is_found() {
        let rows = std::fs::read_to_string(workspace::root().join(SUITE)).unwrap();
        assert_eq!(outside_the_suite(&[Source::new(SUITE, &rows)]), []);
        let fewer = rows.replace("HOLDLINE_TEST_POSTGRES_POOLED", "");
        let found = outside_the_suite(&[Source::new(SUITE, &fewer)]);
        assert!(found.len() == 1 && found[0].to_string().contains("POSTGRES_POOLED"), "{found:?}");
    }

    #[test]
    fn all_rules_are_applied() {
        let source =
            Source::new("crates/kernel/src/line.rs", "use std::fmt;\n/// Keeps G7.\nfn f() {}\n");
        let sentences: Vec<String> =
            check(&[source], Some("**G1** Something.\n")).iter().map(Finding::to_string).collect();
        let all = sentences.join("\n");
        for wanted in ["line.rs:1: The file does not", "line.rs:1: The kernel", "G7", "G1 is"] {
            assert!(all.contains(wanted), "{wanted} is not in:\n{all}");
        }
    }
}
