//! Findings: facts about a store that matter to its locks, with advice.

use crate::error::Error;
use std::fmt;

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing, or worth changing; locks are as safe as they can be on such a store.
    Advice,
    /// A likely failure (a crash, full memory, a slow disk) loses locks, or blocks every client.
    Warning,
    /// Locks cannot be acquired, or two clients can hold the same one.
    Problem,
}

impl Level {
    /// The level as a word: `ok`, `advice`, `warning` or `problem`.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Advice => "advice",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The finding of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// The server or file that it is about, without secrets; `None` for the store as a whole.
    pub server: Option<String>,
    /// The check: a word such as `persistence`, the same in all versions.
    pub check: &'static str,
    /// The observation.
    pub found: String,
    /// What to do about it; `None` if nothing needs to be done.
    pub advice: Option<String>,
}

/// The check whether a server can be asked.
const REACHABLE: &str = "reachable";

/// The clock difference, in microseconds, above which advice is given.
#[allow(dead_code, reason = "not all stores have a clock")]
const CLOCK_OFF: u64 = 1_000_000;

/// Collects the findings about one store.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The server that further findings are about.
    server: Option<String>,
    pub(crate) list: Vec<Finding>,
    /// How far each server's clock is ahead of ours, in microseconds.
    pub(crate) clocks: Vec<(String, i64)>,
}

/// Defines one method per level for findings that come with advice.
macro_rules! with_advice {
    ($($name:ident $level:ident)*) => {
        $(pub(crate) fn $name(
            &mut self,
            check: &'static str,
            found: impl Into<String>,
            advice: impl Into<String>,
        ) {
            self.push(Level::$level, check, found.into(), Some(advice.into()));
        })*
    };
}

#[allow(dead_code, reason = "each store uses a part of it")]
impl Findings {
    with_advice!(advice Advice warning Warning problem Problem);

    /// Makes further findings be about this server.
    pub(crate) fn about(&mut self, server: impl Into<String>) {
        self.server = Some(server.into());
    }

    /// Makes further findings be about the store as a whole.
    pub(crate) fn about_all(&mut self) {
        self.server = None;
    }

    pub(crate) fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.push(Level::Ok, check, found.into(), None);
    }

    /// Adds a problem whose message also says what to do.
    pub(crate) fn error(&mut self, check: &'static str, error: &Error) {
        self.push(Level::Problem, check, format!("{error:#}"), None);
    }

    /// Adds a finding about one of `named` servers that could not be asked. Of one that does not
    /// answer, `advice` says what to do, if there are others; of all else, the error does.
    pub(crate) fn unreachable(&mut self, error: &Error, named: usize, advice: &str) {
        if error.retryable() && named > 1 {
            self.warning(REACHABLE, format!("{error:#}"), advice);
        } else {
            self.error(REACHABLE, error);
        }
    }

    /// Whether no server could be asked, and a problem says why.
    pub(crate) fn says_why_nothing_was_asked(&self) -> bool {
        self.list.iter().all(|finding| finding.check == REACHABLE)
            && self.list.iter().any(|finding| finding.level == Level::Problem)
    }

    /// Makes problems of these checks warnings.
    pub(crate) fn soften(&mut self, checks: &[&str]) {
        let those = self.list.iter_mut().filter(|finding| checks.contains(&finding.check));
        for finding in those.filter(|finding| finding.level == Level::Problem) {
            finding.level = Level::Warning;
            let advice = "bring it back; meanwhile a majority of the nodes is enough";
            finding.advice.get_or_insert_with(|| advice.to_owned());
        }
    }

    /// Adds a finding about a server's clock, which is this many microseconds ahead of ours.
    pub(crate) fn clock(&mut self, server: String, ahead: i64) {
        let found = format!("{:+.3} s from ours", ahead as f64 / 1e6);
        if ahead.unsigned_abs() > CLOCK_OFF {
            let advice = "leases do not depend on the difference, but somebody may set the clock, \
                          and tokens may fall after a fail-over; keep clocks together (NTP)";
            self.advice("clock", found, advice);
        } else {
            self.ok("clock", found);
        }
        self.clocks.push((server, ahead));
    }

    /// Adds a finding about members of which a majority must run: the URL names `named` of `all`,
    /// and `answer` of those answer.
    pub(crate) fn majority(
        &mut self,
        check: &'static str,
        found: String,
        all: usize,
        named: usize,
        answer: usize,
    ) {
        let needed = all / 2 + 1;
        if answer < needed.min(named) {
            self.problem(check, found, format!("{needed} are needed; start the others"));
        } else if answer < named {
            let advice = format!("start the others: {} more may fail", answer - needed);
            self.warning(check, found, advice);
        } else if named < all {
            let advice = format!("name all {all}, so that any of them may fail");
            self.advice(check, found, advice);
        } else if all.is_multiple_of(2) {
            let advice = format!("an even number survives no more failures than {}", all - 1);
            self.advice(check, found, advice);
        } else {
            self.ok(check, found);
        }
    }

    /// Adds a finding about a setting that the server does not reveal, with advice.
    pub(crate) fn hidden(&mut self, check: &'static str, why: &str, advice: &str) {
        self.push(Level::Advice, check, format!("not known: {why}"), Some(advice.to_owned()));
    }

    pub(crate) fn push(
        &mut self,
        level: Level,
        check: &'static str,
        found: String,
        advice: Option<String>,
    ) {
        let server = self.server.clone();
        self.list.push(Finding { level, server, check, found, advice });
    }

    /// Takes over the findings about a part of the store. `server` replaces missing server names.
    pub(crate) fn take(&mut self, part: Findings, server: &str) {
        let named = part.list.into_iter().map(|finding| Finding {
            server: finding.server.or_else(|| Some(server.to_owned())),
            ..finding
        });
        self.list.extend(named);
        self.clocks.extend(part.clocks);
    }
}
