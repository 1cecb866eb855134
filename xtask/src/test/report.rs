//! The output of a run of the steps: headings, and the table at the end.

use std::fmt::Write as _;
use std::io::BufRead;
use std::time::Duration;

/// The outcome of a step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It passed.
    Passed,
    /// It passed, but for a part that could not be run, by no fault of the project or the machine.
    PassedBut(String),
    /// It failed, with the reason.
    Failed(String),
    /// It could not be run, with advice. It never counts as passed.
    NotRun(String),
}

impl Verdict {
    /// The verdict for a missing tool that the project can install, as `words` say.
    pub(crate) fn missing(words: String, in_ci: bool) -> Self {
        if in_ci { Verdict::Failed(words) } else { Verdict::NotRun(words) }
    }
}

/// The rows of the final table.
#[derive(Default)]
pub(super) struct Report {
    rows: Vec<(String, Duration, Verdict)>,
}

/// The most tests that a failed step names: the table must stay readable.
const NAMED: usize = 20;

/// The most characters shown of a failed test's output.
const SHOWN: usize = 300;

/// The tests that failed according to a step's output, each with its first words, so that the table
/// alone tells what to look into.
pub(super) fn failures(printed: impl BufRead) -> String {
    let mut text = String::new();
    let mut lines = printed.split(b'\n').map_while(Result::ok);
    let mut named = 0;
    while let Some(line) = lines.next() {
        let line = String::from_utf8_lossy(&line);
        let Some(name) = line.strip_prefix("---- ").and_then(|name| name.strip_suffix(" ----"))
        else {
            continue;
        };
        named += 1;
        if named > NAMED {
            continue;
        }
        let said = lines.by_ref().map(|line| String::from_utf8_lossy(&line).trim().to_owned());
        // The panic's location, and the first line of its message.
        let said: Vec<_> = said.filter(|line| !line.is_empty()).take(2).collect();
        let said: String = said.join(" ").chars().take(SHOWN).collect();
        let _ = write!(text, "\n    {}: {said}", name.trim_end_matches(" stdout"));
    }
    if named > NAMED {
        let _ = write!(text, "\n    and {} more", named - NAMED);
    }
    text
}

/// Announces a step.
pub(super) fn heading(name: &str) {
    println!("\n=== {name} ===");
}

impl Report {
    /// Adds a row, and prints the outcome of the step.
    pub(super) fn add(&mut self, name: &str, took: Duration, verdict: Verdict) {
        self.rows.push((name.to_owned(), took, verdict));
        if let Some(row) = self.rows.last() {
            println!("--- {}", line(row));
        }
    }

    /// Prints the table with the total elapsed time; `true` if nothing failed.
    pub(super) fn print(&self, all: Duration) -> bool {
        print!("{}", self.text(all));
        self.count(|verdict| matches!(verdict, Verdict::Failed(_))) == 0
    }

    fn text(&self, all: Duration) -> String {
        let mut text = String::from("\n=== summary ===\n");
        for row in &self.rows {
            let _ = writeln!(text, "{}", line(row));
        }
        let passed =
            self.count(|verdict| matches!(verdict, Verdict::Passed | Verdict::PassedBut(_)));
        let failed = self.count(|verdict| matches!(verdict, Verdict::Failed(_)));
        let _ = writeln!(text, "{:8}  {:7.1} s  all together", "", all.as_secs_f64());
        let _ = writeln!(text, "{passed} passed, {failed} failed");
        text
    }

    fn count(&self, which: impl Fn(&Verdict) -> bool) -> usize {
        self.rows.iter().filter(|(_, _, verdict)| which(verdict)).count()
    }
}

fn line((name, took, verdict): &(String, Duration, Verdict)) -> String {
    let (word, why) = match verdict {
        Verdict::Passed => ("passed", String::new()),
        Verdict::PassedBut(why) => ("passed", format!(", but: {}", why.trim())),
        Verdict::Failed(why) => ("FAILED", format!(": {}", why.trim())),
        Verdict::NotRun(why) => ("not run", format!(": {}", why.trim())),
    };
    format!("{word:8}  {:7.1} s  {name}{why}", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_the_steps() {
        let mut report = Report::default();
        report.add("one", Duration::from_millis(1500), Verdict::Passed);
        report.add("two", Duration::ZERO, Verdict::NotRun("x is missing".to_owned()));
        let text = report.text(Duration::from_secs(1));
        assert!(
            text.ends_with("\n              1.0 s  all together\n1 passed, 0 failed\n"),
            "{text}"
        );
        assert!(report.print(Duration::ZERO));
        report.add("half", Duration::ZERO, Verdict::PassedBut("x was not asked".to_owned()));
        report.add("three", Duration::ZERO, Verdict::Failed("it broke".to_owned()));
        let text = report.text(Duration::ZERO);
        assert_eq!(text.lines().last(), Some("2 passed, 1 failed"));
        assert!(text.contains("passed        1.5 s  one\n"), "{text}");
        assert!(text.contains("not run       0.0 s  two: x is missing\n"), "{text}");
        assert!(text.contains("passed        0.0 s  half, but: x was not asked\n"), "{text}");
        assert!(text.contains("FAILED        0.0 s  three: it broke\n"), "{text}");
        assert!(!report.print(Duration::ZERO));
    }
    #[test]
    fn failed_tests_are_named_with_their_first_words() {
        let log = "test a::b ... FAILED\n\nfailures:\n\n---- a::b stdout ----\n\n\
            thread 'a::b' (1) panicked at x.rs:1:2:\nleft is not right\nstack backtrace:\n   0: y\n\
            ---- c ----\nno lock\n\n\nfailures:\n    a::b\n    c\n";
        assert_eq!(
            failures(log.as_bytes()),
            "\n    a::b: thread 'a::b' (1) panicked at x.rs:1:2: left is not right\n    c: no lock \
             failures:"
        );
        let many = "---- c ----\nno\nwords\n".repeat(NAMED + 2);
        assert!(failures(many.as_bytes()).ends_with("\n    and 2 more"));
        assert_eq!(failures("test result: ok".as_bytes()), "");
    }
}
