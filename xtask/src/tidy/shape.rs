//! The shape of files: short enough to take in at a glance.

use super::Finding;
use super::source::Source;

const COLUMNS: usize = 100;
const FILE_LINES: usize = 600;
const TEST_FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 70;

/// Lines, files and functions are short, and every file states its purpose.
pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    let path = &source.path;
    for (number, line) in (1..).zip(&source.lines) {
        let columns = line.chars().count();
        if columns > COLUMNS {
            let sentence = format!("The line has {columns} columns; {COLUMNS} is the most.");
            findings.push(Finding::new(path, number, sentence));
        }
    }
    let (length, most, what) = if source.is_test() {
        (source.lines.len(), TEST_FILE_LINES, "The file of tests")
    } else {
        (source.tests_from, FILE_LINES, "The file, not counting the tests at its end,")
    };
    if length > most {
        let sentence = format!("{what} has {length} lines; {most} is the most. Divide it.");
        findings.push(Finding::new(path, most + 1, sentence));
    }
    if !has_module_doc(source) {
        let sentence = "The file does not begin with a `//!` comment that says what it is for.";
        findings.push(Finding::new(path, 1, sentence));
    }
    for (number, length) in functions(source) {
        if length > FUNCTION_LINES {
            let sentence = format!(
                "The function has {length} lines; {FUNCTION_LINES} is the most. Divide it."
            );
            findings.push(Finding::new(path, number, sentence));
        }
    }
}

/// Attributes and a `#!` line may come before the comment.
fn has_module_doc(source: &Source) -> bool {
    let skipped = |line: &&String| line.trim().is_empty() || line.starts_with("#!");
    source.lines.iter().find(|line| !skipped(line)).is_some_and(|line| line.starts_with("//!"))
}

/// Every function's first line (from 1) and length. rustfmt ends a function with a brace at the
/// indentation of its first line; functions where that is not so are skipped.
fn functions(source: &Source) -> Vec<(usize, usize)> {
    let code = &source.code;
    let mut found = Vec::new();
    for (first, line) in code.iter().enumerate() {
        if !begins_function(line) {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let Some(opens) = (first..code.len()).find(|at| {
            let text = code[*at].trim_end();
            text.ends_with(['{', '}', ';'])
        }) else {
            continue;
        };
        if !code[opens].trim_end().ends_with('{') {
            continue;
        }
        let end = format!("{}}}", " ".repeat(indent));
        let last = (opens + 1..code.len()).find(|at| code[*at].trim_end() == end);
        found.extend(last.map(|last| (first + 1, last - first + 1)));
    }
    found
}

fn begins_function(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| {
        matches!(*word, "pub" | "async" | "const" | "unsafe" | "extern" | "default")
            || word.starts_with("pub(")
    });
    words.next() == Some("fn")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(&Source::new(path, text), &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_good_file_has_no_findings() {
        assert!(found("a.rs", "//! Why.\n\nfn f() {\n    g();\n}\n").is_empty());
        assert!(found("a.rs", "#![allow(x)]\n\n//! Why.\n").is_empty());
    }

    #[test]
    fn long_lines_are_counted_in_characters() {
        let fits = format!("//! {}\n", "é".repeat(96));
        assert!(found("a.rs", &fits).is_empty());
        let too_long = format!("//! Why.\n// {}\n", "x".repeat(98));
        let wanted = "a.rs:2: The line has 101 columns; 100 is the most.";
        assert_eq!(found("a.rs", &too_long), [wanted]);
    }

    #[test]
    fn a_file_says_what_it_is_for() {
        for text in ["", "fn f() {}\n", "// Why.\n", "/// Why.\nfn f() {}\n"] {
            assert_eq!(found("a.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn long_files_are_found_but_tests_do_not_count() {
        let tests = "#[cfg(test)]\nmod tests {\n}\n";
        let file = |lines: usize| format!("//! Why.\n{}{tests}", "\n".repeat(lines - 1));
        assert!(found("crates/a/src/a.rs", &file(600)).is_empty());
        let long = found("crates/a/src/a.rs", &file(601));
        assert_eq!(long.len(), 1);
        assert!(long[0].starts_with("crates/a/src/a.rs:601: The file, not counting"), "{long:?}");
        assert!(found("crates/a/tests/a.rs", &file(597)).is_empty());
        assert_eq!(found("crates/a/tests/a.rs", &file(598)).len(), 1);
    }

    #[test]
    fn long_functions_are_found() {
        let function = |body: usize| {
            let body = "        g(\"}\n    }\");\n".repeat(body / 2);
            let head = "    pub(crate) async fn f(\n        x: u8,\n    ) {\n";
            format!("//! Why.\nimpl A {{\n{head}{body}    }}\n}}\n")
        };
        // Three lines of head, one of tail.
        assert!(found("a.rs", &function(66)).is_empty());
        let long = found("a.rs", &function(68));
        assert_eq!(long, ["a.rs:3: The function has 72 lines; 70 is the most. Divide it."]);
    }

    #[test]
    fn declarations_and_short_functions_are_passed_over() {
        let rest = "x;\n".repeat(80);
        let text = format!("//! Why.\ntrait T {{\n    fn a(&self);\n    fn b() {{}}\n{rest}}}\n");
        assert!(found("a.rs", &text).is_empty());
    }
}
