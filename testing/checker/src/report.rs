//! The verdicts of all rules, as data and as a table.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::event::Event;

/// How many violations of a rule are kept; the rest are only counted.
const KEPT: usize = 10;

/// A rule of the checker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Rule {
    /// The run was large and lively enough to prove anything.
    R0,
    /// The held weight never exceeds the capacity.
    R1,
    /// Fences are distinct and rise in the order of the grants.
    R2,
    /// A fenced resource refuses stale tokens and loses nothing.
    R3,
    /// A plain resource loses nothing while nothing is broken.
    R3Plain,
    /// Only the owner releases and renews.
    R4,
    /// A holder is notified of its loss before a rival is admitted.
    R5,
    /// A refusal has a reason.
    R6,
    /// After the last heal every lock can be acquired, and no place is left over.
    R7,
    /// A free lock reaches the next waiter in time.
    R8,
    /// Waiters are served in order.
    R9,
    /// A deadline counts from before the request was sent.
    R11,
    /// A live holder that no fault touches keeps its lock.
    R12,
}

impl Rule {
    /// All rules in the order of the report.
    pub const ALL: [Self; 13] = [
        Self::R0,
        Self::R1,
        Self::R2,
        Self::R3,
        Self::R3Plain,
        Self::R4,
        Self::R5,
        Self::R6,
        Self::R7,
        Self::R8,
        Self::R9,
        Self::R11,
        Self::R12,
    ];

    /// The short name of the rule.
    pub fn name(self) -> &'static str {
        match self {
            Self::R0 => "R0",
            Self::R1 => "R1",
            Self::R2 => "R2",
            Self::R3 => "R3",
            Self::R3Plain => "R3'",
            Self::R4 => "R4",
            Self::R5 => "R5",
            Self::R6 => "R6",
            Self::R7 => "R7",
            Self::R8 => "R8",
            Self::R9 => "R9",
            Self::R11 => "R11",
            Self::R12 => "R12",
        }
    }

    /// The rule's subject, in two or three words.
    pub fn title(self) -> &'static str {
        match self {
            Self::R0 => "enough happened",
            Self::R1 => "exclusive claims",
            Self::R2 => "rising fences",
            Self::R3 => "fenced resource",
            Self::R3Plain => "plain resource",
            Self::R4 => "owner only",
            Self::R5 => "loss is told",
            Self::R6 => "refusals justified",
            Self::R7 => "alive after heal",
            Self::R8 => "hand-off in time",
            Self::R9 => "first come first served",
            Self::R11 => "honest deadlines",
            Self::R12 => "leases kept",
        }
    }
}

/// The verdict of a rule on a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Checked, and nothing was found.
    Pass,
    /// Violated.
    Fail,
    /// The rule applies, but the history does not allow a verdict. Not a pass.
    Inconclusive(String),
    /// The store does not promise it, or the history has nothing of the kind.
    NotApplicable(String),
}

/// One violation, with the events that prove it.
#[derive(Debug, Clone)]
pub struct Finding {
    /// What happened.
    pub what: String,
    /// The events that show it.
    pub events: Vec<Event>,
}

/// The report of one rule.
#[derive(Debug, Clone)]
pub struct RuleReport {
    /// The rule.
    pub rule: Rule,
    /// Its verdict.
    pub verdict: Verdict,
    /// How many items it checked.
    pub checked: usize,
    /// How many violations it found.
    pub failures: usize,
    /// The first violations.
    pub findings: Vec<Finding>,
    /// Remarks: counts, excused violations.
    pub notes: Vec<String>,
}

/// The reports of all rules.
#[derive(Debug, Clone)]
pub struct Report {
    /// One entry per rule, in the order of [`Rule::ALL`].
    pub rules: Vec<RuleReport>,
}

impl Report {
    /// Whether the run proves what it should: no rule failed, and none is inconclusive.
    pub fn ok(&self) -> bool {
        self.rules.iter().all(|r| matches!(r.verdict, Verdict::Pass | Verdict::NotApplicable(_)))
    }

    /// The report of a rule.
    pub fn rule(&self, rule: Rule) -> &RuleReport {
        let found = self.rules.iter().find(|r| r.rule == rule);
        found.expect("a report has an entry for every rule")
    }

    /// Whether a rule failed.
    pub fn failed(&self, rule: Rule) -> bool {
        self.rule(rule).verdict == Verdict::Fail
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rule  {:<24} {:>8} {:>9}  verdict", "about", "checked", "violated")?;
        for r in &self.rules {
            let verdict = match &r.verdict {
                Verdict::Pass => "pass".to_owned(),
                Verdict::Fail => "FAIL".to_owned(),
                Verdict::Inconclusive(why) => format!("INCONCLUSIVE: {why}"),
                Verdict::NotApplicable(why) => format!("not applicable: {why}"),
            };
            let (name, title) = (r.rule.name(), r.rule.title());
            writeln!(f, "{name:<5} {title:<24} {:>8} {:>9}  {verdict}", r.checked, r.failures)?;
            for note in &r.notes {
                writeln!(f, "      note: {note}")?;
            }
        }
        for r in self.rules.iter().filter(|r| !r.findings.is_empty()) {
            writeln!(f, "\n{} {}: {} violations", r.rule.name(), r.rule.title(), r.failures)?;
            for finding in &r.findings {
                writeln!(f, "  {}", finding.what)?;
                for event in &finding.events {
                    writeln!(f, "    {event}")?;
                }
            }
            if r.failures > r.findings.len() {
                writeln!(f, "  ... and {} more", r.failures - r.findings.len())?;
            }
        }
        let word = if self.ok() { "OK" } else { "NOT OK" };
        write!(f, "\nresult: {word}")
    }
}

/// Collects the findings of a rule.
#[derive(Debug)]
pub(crate) struct Collector {
    report: RuleReport,
    excused: usize,
    open: Vec<String>,
    absent: Option<String>,
}

impl Collector {
    pub(crate) fn new(rule: Rule) -> Self {
        let verdict = Verdict::Pass;
        let (findings, notes) = (Vec::new(), Vec::new());
        let report = RuleReport { rule, verdict, checked: 0, failures: 0, findings, notes };
        Self { report, excused: 0, open: Vec::new(), absent: None }
    }

    /// The report of a rule that the store does not promise.
    pub(crate) fn not_applicable(rule: Rule, why: &str) -> RuleReport {
        let mut collector = Self::new(rule);
        collector.absent = Some(why.to_owned());
        collector.done()
    }

    pub(crate) fn rule(&self) -> Rule {
        self.report.rule
    }

    pub(crate) fn checked(&mut self, count: usize) {
        self.report.checked += count;
    }

    pub(crate) fn excuse(&mut self) {
        self.excused += 1;
    }

    pub(crate) fn fail(&mut self, what: String, events: &[&Event]) {
        self.report.failures += 1;
        if self.report.findings.len() < KEPT {
            let events = events.iter().map(|e| (*e).clone()).collect();
            self.report.findings.push(Finding { what, events });
        }
    }

    pub(crate) fn note(&mut self, note: String) {
        self.report.notes.push(note);
    }

    /// Records a reason why the rule cannot judge.
    pub(crate) fn inconclusive(&mut self, why: impl Into<String>) {
        self.open.push(why.into());
    }

    /// Records why there may be nothing to judge.
    pub(crate) fn absent(&mut self, why: &str) {
        self.absent = Some(why.to_owned());
    }

    pub(crate) fn done(mut self) -> RuleReport {
        if self.excused > 0 {
            self.report.notes.push(format!(
                "{} violations under faults for which the store promises nothing",
                self.excused
            ));
        }
        self.report.verdict = if self.report.failures > 0 {
            Verdict::Fail
        } else if !self.open.is_empty() {
            Verdict::Inconclusive(shortened(&self.open))
        } else if self.report.checked == 0 {
            let why = self.absent.unwrap_or_else(|| "nothing of the kind happened".to_owned());
            Verdict::NotApplicable(why)
        } else {
            Verdict::Pass
        };
        self.report
    }
}

/// The first few reasons; the same one for fifty clients is of no use.
fn shortened(reasons: &[String]) -> String {
    let text = reasons.iter().take(3).cloned().collect::<Vec<_>>().join("; ");
    match reasons.len().saturating_sub(3) {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}
