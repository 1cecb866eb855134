//! Checks that GUARANTEES.md and the code name the same promises.
//!
//! A line that begins with `**G12**`, after any list, table or heading mark, makes the promise.
//! Tests and sources cite it as `G12`.

use super::Finding;
use super::source::{Source, is_name};
use std::collections::{BTreeMap, BTreeSet};

/// The page of promises.
pub(super) const FILE: &str = "GUARANTEES.md";

/// Every promise is made once and cited, and only promises are cited. This program's own tests
/// invent numbers, so it is excluded.
pub(super) fn check(page: &str, sources: &[Source], findings: &mut Vec<Finding>) {
    let mut promised: BTreeMap<u32, usize> = BTreeMap::new();
    for (number, line) in (1..).zip(page.lines()) {
        let Some(promise) = promise(line) else { continue };
        if let Some(first) = promised.get(&promise) {
            let sentence = format!("G{promise} is promised a second time; first on line {first}.");
            findings.push(Finding::new(FILE, number, sentence));
        } else {
            promised.insert(promise, number);
        }
    }
    let mut cited = BTreeSet::new();
    for source in sources.iter().filter(|source| !source.path.starts_with("xtask/")) {
        for (number, line) in (1..).zip(&source.lines) {
            for citation in citations(line) {
                cited.insert(citation);
                if !promised.contains_key(&citation) {
                    let sentence = format!("{FILE} makes no promise G{citation}.");
                    findings.push(Finding::new(&source.path, number, sentence));
                }
            }
        }
    }
    for (promise, number) in promised.iter().filter(|(promise, _)| !cited.contains(promise)) {
        let sentence = format!("The promise G{promise} is cited by no test and no source file.");
        findings.push(Finding::new(FILE, *number, sentence));
    }
}

/// The number of the promise that a line makes.
fn promise(line: &str) -> Option<u32> {
    let line = line.trim_start_matches([' ', '#', '-', '*', '|', '+', '>']);
    let (number, _) = line.strip_prefix('G')?.split_once("**")?;
    number.parse().ok()
}

/// All promises cited in a line.
fn citations(line: &str) -> Vec<u32> {
    let starts = line.match_indices('G').filter(|(at, _)| !line[..*at].ends_with(is_name));
    starts
        .filter_map(|(at, _)| {
            let rest = &line[at + 1..];
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let ends = !rest[digits..].starts_with(is_name);
            ends.then(|| rest[..digits].parse().ok()).flatten()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_begin_a_line() {
        for line in ["**G12** Text.", "## **G12** Text", "- **G12**: x", "| **G12** | x |"] {
            assert_eq!(promise(line), Some(12), "{line}");
        }
        for line in ["See **G12**.", "G12 is not bold", "**Good**", "**G**", ""] {
            assert_eq!(promise(line), None, "{line}");
        }
    }

    #[test]
    fn citations_are_whole_words() {
        assert_eq!(citations("// Keeps G1, G23 (and G4)."), [1, 23, 4]);
        assert_eq!(citations("AG1 G1a G_1 G xG2 GB G"), [0; 0]);
    }

    #[test]
    fn page_and_code_are_compared_both_ways() {
        let source = |path: &str, text: &str| Source::new(path, text);
        let sources = [
            source("crates/a/tests/a.rs", "//! G1\n// G3\n"),
            source("xtask/src/a.rs", "// G2 G9\n"),
        ];
        let mut findings = Vec::new();
        check("**G1** a\n**G2** b\n\n**G1** c\n", &sources, &mut findings);
        let all: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert_eq!(
            all,
            [
                "GUARANTEES.md:4: G1 is promised a second time; first on line 1.",
                "crates/a/tests/a.rs:2: GUARANTEES.md makes no promise G3.",
                "GUARANTEES.md:2: The promise G2 is cited by no test and no source file.",
            ]
        );
    }
}
