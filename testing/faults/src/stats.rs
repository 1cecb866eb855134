//! Statistics of a run that the checker does not report: the effects of faults, and the losses.

use crate::{silence, stall_detector};
use holdline_checker::{Event, FaultKind, Op, Phase, Reason, Register};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// The figures.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) grants: usize,
    pub(crate) queued: usize,
    pub(crate) renewals: usize,
    pub(crate) refused: usize,
    pub(crate) gave_up: usize,
    pub(crate) cancelled: usize,
    /// Attempts that ended with an error, because the store could not be asked.
    pub(crate) errors: usize,
    /// The errors that an unavailable store does not explain.
    pub(crate) unexpected: Vec<String>,
    /// Losses of which the holders were notified.
    pub(crate) lost: usize,
    /// Grants of a mutex that began before the previous one was released, if deadlines are ignored.
    pub(crate) overlaps: usize,
    /// Requests to the guarded resource with a stale token.
    pub(crate) stale: usize,
    /// The number of times that a process was starved although nothing had stopped it.
    pub(crate) stalls: usize,
    /// Silences of the store, planned or not.
    pub(crate) silences: usize,
    /// Faults by their name.
    pub(crate) faults: BTreeMap<String, usize>,
    /// Acknowledged appends that are missing at the end.
    pub(crate) missing: BTreeMap<Register, usize>,
}

impl Tally {
    pub(crate) fn of(events: &[Event]) -> Self {
        let mut tally = Tally::default();
        for event in events {
            tally.count(event);
        }
        tally.overlaps = overlaps(events);
        tally.stalls = stall_detector::unplanned(events).len();
        tally.silences = silence::all(events).len();
        for reg in Register::ALL {
            tally.missing.insert(reg, missing(events, reg));
        }
        tally
    }

    fn count(&mut self, event: &Event) {
        let acquire = matches!(event.op, Op::Acquire | Op::TryAcquire);
        let number = match (event.op, event.ph, &event.reason) {
            (_, Phase::Ok, _) if acquire => &mut self.grants,
            (_, _, Some(Reason::Busy)) if acquire => &mut self.refused,
            (_, _, Some(Reason::Timeout)) if acquire => &mut self.gave_up,
            (_, _, Some(Reason::Cancelled)) if acquire => &mut self.cancelled,
            (_, _, Some(Reason::Other(kind))) if acquire => {
                if !["Unavailable", "Unknown"].contains(&kind.as_str()) {
                    self.unexpected.push(kind.clone());
                }
                &mut self.errors
            }
            (Op::Enqueue, ..) => &mut self.queued,
            (Op::Renew, Phase::Ok, _) => &mut self.renewals,
            (Op::Lost, ..) => &mut self.lost,
            (_, Phase::Fail, Some(Reason::Stale)) => &mut self.stale,
            (Op::Fault, Phase::Ok, _) => {
                let Some(kind) = &event.fault else { return };
                self.faults.entry(word(kind)).or_default()
            }
            _ => return,
        };
        *number += 1;
    }

    pub(crate) fn count_of(&self, kind: &FaultKind) -> usize {
        self.faults.get(&word(kind)).copied().unwrap_or(0)
    }

    pub(crate) fn missing(&self, reg: Register) -> usize {
        self.missing.get(&reg).copied().unwrap_or(0)
    }
}

fn word(kind: &FaultKind) -> String {
    serde_json::to_string(kind).unwrap().trim_matches('"').to_owned()
}

/// Counts by `acquire ok` and `release invoke` alone.
fn overlaps(events: &[Event]) -> usize {
    let (mut ends, mut spans) = (HashMap::new(), Vec::new());
    for event in events.iter().filter(|e| e.op == Op::Release && e.ph == Phase::Invoke) {
        ends.insert((&event.process, event.pid, event.n), event.t);
    }
    for event in events.iter().filter(|e| e.ph == Phase::Ok && e.weight == Some(1)) {
        let mutex = event.lock.as_deref().is_some_and(|l| l.ends_with("-m0") || l.ends_with("-m1"));
        let end = ends.get(&(&event.process, event.pid, event.n));
        if let (true, Some(end)) = (mutex, end) {
            spans.push((&event.lock, event.t, *end));
        }
    }
    spans.sort();
    let mut last = HashMap::new();
    let late = spans.iter().filter(|(lock, start, end)| {
        let until = last.entry(*lock).or_insert(0);
        let late = start < until;
        *until = (*until).max(*end);
        late
    });
    late.count()
}

fn missing(events: &[Event], reg: Register) -> usize {
    let here = || events.iter().filter(|e| e.reg == Some(reg) && e.ph == Phase::Ok);
    let dumped = here().filter(|e| e.op == Op::ResourceDump).filter_map(|e| e.uids.as_deref());
    let kept: HashSet<u64> = dumped.flatten().copied().collect();
    let written = here().filter(|e| e.op == Op::Write).filter_map(|e| e.uid);
    written.filter(|uid| !kept.contains(uid)).count()
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { grants, queued, renewals, refused, gave_up, cancelled, errors, .. } = self;
        write!(f, "{grants} grants ({queued} queued), {renewals} renewals, {refused} refused, ")?;
        write!(f, "{gave_up} gave up, {cancelled} cancelled, {errors} errors; faults:")?;
        if self.faults.is_empty() {
            write!(f, " none")?;
        }
        for (kind, count) in &self.faults {
            write!(f, " {count} {kind}")?;
        }
        if self.stalls > 0 {
            write!(f, " and {} stalls of a busy machine", self.stalls)?;
        }
        if self.silences > 0 {
            write!(f, ", {} silences", self.silences)?;
        }
        write!(f, "; {} lost, {} overlaps without deadlines", self.lost, self.overlaps)?;
        write!(f, ", {} stale requests refused; appends missing: ", self.stale)?;
        write!(f, "plain {}, ", self.missing(Register::Plain))?;
        write!(f, "fenced on writes {}, ", self.missing(Register::FencedWrite))?;
        write!(f, "fenced {}", self.missing(Register::FencedReadWrite))
    }
}
