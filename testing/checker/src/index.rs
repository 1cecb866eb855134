//! The index of a history, as the rules need it: attempts with all of their events, and faults.

use std::collections::{BTreeMap, HashMap};

use crate::event::{Event, FaultKind, Op, Phase};
use crate::expect::Expect;
use crate::history::History;
use crate::report::{Collector, Rule};

/// A request and its outcome. Either may be missing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Call<'h> {
    pub(crate) invoke: Option<&'h Event>,
    pub(crate) outcome: Option<&'h Event>,
}

impl Call<'_> {
    /// Whether the outcome is known and successful.
    pub(crate) fn ok(&self) -> bool {
        self.outcome.is_some_and(|o| o.ph == Phase::Ok)
    }

    /// Whether the outcome is "not held".
    pub(crate) fn not_held(&self) -> bool {
        self.outcome.is_some_and(Event::is_not_held)
    }

    /// When it was requested, or answered if the request was not recorded.
    pub(crate) fn start(&self) -> Option<u64> {
        self.invoke.or(self.outcome).map(|e| e.t)
    }
}

/// An attempt to acquire, and the life of the grant that it led to.
#[derive(Debug)]
pub(crate) struct Attempt<'h> {
    pub(crate) invoke: &'h Event,
    pub(crate) outcome: Option<&'h Event>,
    pub(crate) enqueue: Call<'h>,
    /// When it last got another place after that.
    pub(crate) requeued: Option<&'h Event>,
    pub(crate) renews: Vec<Call<'h>>,
    pub(crate) claims: Vec<Call<'h>>,
    pub(crate) release: Option<Call<'h>>,
    pub(crate) lost: Option<&'h Event>,
    /// When a fault killed the process.
    pub(crate) killed: Option<u64>,
}

impl<'h> Attempt<'h> {
    pub(crate) fn lock(&self) -> &'h str {
        let from_outcome = || self.outcome.and_then(|o| o.lock.as_deref());
        self.invoke.lock.as_deref().or_else(from_outcome).unwrap_or("")
    }

    pub(crate) fn is_try(&self) -> bool {
        self.invoke.op == Op::TryAcquire
    }

    pub(crate) fn weight(&self) -> u64 {
        let from_outcome = self.outcome.and_then(|o| o.weight);
        self.invoke.weight.or(from_outcome).unwrap_or(1)
    }

    pub(crate) fn process(&self) -> &'h str {
        &self.invoke.process
    }

    pub(crate) fn owner(&self) -> Option<&'h str> {
        let from_outcome = || self.outcome.and_then(|o| o.owner.as_deref());
        self.invoke.owner.as_deref().or_else(from_outcome)
    }

    /// The event of the grant, if it was granted.
    pub(crate) fn granted(&self) -> Option<&'h Event> {
        self.outcome.filter(|o| o.ph == Phase::Ok)
    }

    pub(crate) fn fence(&self) -> Option<u64> {
        self.granted().and_then(|o| o.fence)
    }

    /// The lease in nanoseconds; `None` means a session without a lease.
    pub(crate) fn ttl(&self) -> Option<u64> {
        let ms = self.invoke.ttl_ms.or_else(|| self.outcome.and_then(|o| o.ttl_ms));
        ms.map(|ms| ms.saturating_mul(1_000_000))
    }

    fn confirmations(&self) -> impl Iterator<Item = &'h Event> + '_ {
        let calls = self.renews.iter().chain(&self.claims);
        let answers = calls.filter(|c| c.ok()).filter_map(|c| c.outcome);
        let release = self.release.and_then(|r| r.invoke);
        self.granted().into_iter().chain(answers).chain(release).chain(self.lost)
    }

    /// Until when the handle claimed to be valid, by all of its reports.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.confirmations().filter_map(|e| e.deadline).max()
    }

    /// Until when the handle claimed to be valid, by its reports up to `t`.
    pub(crate) fn deadline_by(&self, t: u64) -> Option<u64> {
        self.confirmations().filter(|e| e.t <= t).filter_map(|e| e.deadline).max()
    }

    /// When the holder ended its claim or was told to: by release, loss, or a refused renewal.
    pub(crate) fn told(&self) -> Option<&'h Event> {
        let refused = self.renews.iter().filter(|r| r.not_held()).filter_map(|r| r.outcome);
        let release = self.release.and_then(|r| r.invoke.or(r.outcome));
        release.into_iter().chain(self.lost).chain(refused).min_by_key(|e| e.t)
    }

    /// The time in which the handle claims to hold.
    ///
    /// It is one interval: a handle that claims to be valid has claimed so ever since its grant,
    /// because a lapsed claim must stay lost.
    pub(crate) fn claim(&self) -> Option<(u64, u64)> {
        let start = self.granted()?.t;
        let told = self.told().map_or(u64::MAX, |e| e.t);
        let end =
            told.min(self.deadline().unwrap_or(u64::MAX)).min(self.killed.unwrap_or(u64::MAX));
        (end > start).then_some((start, end))
    }

    /// The time in which a caller that never checks its deadline believes it holds.
    pub(crate) fn full(&self) -> Option<(u64, u64)> {
        let start = self.granted()?.t;
        let end = match self.release.and_then(|r| r.invoke.or(r.outcome)) {
            Some(release) => release.t,
            None => return self.claim(),
        };
        (end > start).then_some((start, end))
    }

    /// Whether the holder learned that it had lost the lock.
    pub(crate) fn was_lost(&self) -> bool {
        let release = self.release.is_some_and(|r| r.not_held());
        self.lost.is_some() || release || self.renews.iter().any(Call::not_held)
    }

    /// The last moment at which the store may still have a place of this attempt.
    pub(crate) fn possible_end(&self, cx: &Cx<'_>) -> u64 {
        let lease = self.ttl().unwrap_or(u64::MAX).saturating_add(cx.expect.late_ns);
        let after_kill = self.killed.map_or(u64::MAX, |k| k.saturating_add(lease));
        let end = match self.outcome {
            None => after_kill,
            Some(o) => match o.ph {
                Phase::Fail | Phase::Invoke => o.t,
                Phase::Info => o.t.saturating_add(cx.leftover(self, o.t, lease)),
                Phase::Ok => self.grant_end(cx, lease),
            },
        };
        end.saturating_add(cx.expect.lock_delay_ns).saturating_add(cx.expect.grace_ns)
    }

    fn grant_end(&self, cx: &Cx<'_>, lease: u64) -> u64 {
        if let Some(outcome) = self.release.and_then(|r| r.outcome)
            && (outcome.ph == Phase::Ok || outcome.is_not_held())
        {
            return outcome.t;
        }
        let asked = self.renews.iter().filter_map(|r| r.outcome.or(r.invoke));
        let seen = self.granted().into_iter().chain(asked).map(|e| e.t).max().unwrap_or(0);
        let hidden = self.told().map(|e| e.t).or(self.killed).unwrap_or(cx.end);
        let last = if cx.expect.renewals_recorded { seen } else { seen.max(hidden) };
        last.saturating_add(lease)
    }
}

/// A fault from its start to its heal.
#[derive(Debug)]
pub(crate) struct Window<'h> {
    pub(crate) kind: &'h FaultKind,
    pub(crate) target: Option<&'h str>,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The scope of a violation: a fault outside of it explains nothing.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    /// The process that it is about, if it is about one.
    pub(crate) process: Option<&'a str>,
    /// From when a fault may have caused it.
    pub(crate) from: u64,
    /// When it was complete.
    pub(crate) to: u64,
}

/// The context of all rules.
#[derive(Debug)]
pub(crate) struct Cx<'h> {
    pub(crate) history: &'h History,
    pub(crate) expect: &'h Expect,
    pub(crate) attempts: Vec<Attempt<'h>>,
    /// The attempts of each lock, in the order of their invocation.
    pub(crate) locks: BTreeMap<&'h str, Vec<usize>>,
    pub(crate) faults: Vec<Window<'h>>,
    /// The time of the last event.
    pub(crate) end: u64,
}

type Key<'h> = (&'h str, u32, u64);

fn key(e: &Event) -> Key<'_> {
    (&e.process, e.pid, e.n)
}

impl<'h> Cx<'h> {
    pub(crate) fn new(history: &'h History, expect: &'h Expect) -> Self {
        let end = history.events.last().map_or(0, |e| e.t);
        let faults = windows(history);
        let mut cx =
            Self { history, expect, attempts: Vec::new(), locks: BTreeMap::new(), faults, end };
        let mut by_key: HashMap<Key<'h>, usize> = HashMap::new();
        for event in &history.events {
            cx.take(&mut by_key, event);
        }
        for (i, attempt) in cx.attempts.iter_mut().enumerate() {
            let kills = cx.faults.iter().filter(|w| *w.kind == FaultKind::Kill);
            let mut mine = kills.filter(|w| w.target == Some(&attempt.invoke.process));
            attempt.killed = mine.find(|w| w.start >= attempt.invoke.t).map(|w| w.start);
            cx.locks.entry(attempt.lock()).or_default().push(i);
        }
        cx
    }

    fn take(&mut self, by_key: &mut HashMap<Key<'h>, usize>, event: &'h Event) {
        let id = key(event);
        if matches!(event.op, Op::Acquire | Op::TryAcquire | Op::Probe) {
            let known = by_key.get(&id).map(|i| &mut self.attempts[*i]);
            let open = |a: &&mut Attempt<'h>| event.ph != Phase::Invoke && a.outcome.is_none();
            if let Some(attempt) = known.filter(open) {
                attempt.outcome = Some(event);
            } else {
                by_key.insert(id, self.attempts.len());
                self.attempts.push(start(event));
            }
            return;
        }
        let Some(attempt) = by_key.get(&id).map(|i| &mut self.attempts[*i]) else { return };
        match event.op {
            // Before the grant, a ticket of the attempt was confirmed again, and perhaps given up
            // for another one: that is no renewal of the final grant.
            Op::Renew if attempt.invoke.ph == Phase::Invoke && attempt.outcome.is_none() => {}
            Op::Renew => pair(&mut attempt.renews, event),
            Op::Claim => pair(&mut attempt.claims, event),
            Op::Release => {
                let call = attempt.release.get_or_insert_default();
                if event.ph == Phase::Invoke {
                    // A second release does not make the claim longer.
                    call.invoke.get_or_insert(event);
                } else {
                    call.outcome.get_or_insert(event);
                }
            }
            Op::Enqueue if event.ph == Phase::Invoke => attempt.enqueue.invoke = Some(event),
            // The first acknowledgement counts; later ones are repetitions.
            Op::Enqueue if attempt.enqueue.outcome.is_some() => attempt.requeued = Some(event),
            Op::Enqueue => attempt.enqueue.outcome = Some(event),
            Op::Lost => _ = attempt.lost.get_or_insert(event),
            _ => {}
        }
    }

    /// The granted attempts of a lock, in the order of their grants.
    pub(crate) fn grants(&self, lock: &str) -> Vec<&Attempt<'h>> {
        let mut grants: Vec<_> = self.of(lock).filter(|a| a.granted().is_some()).collect();
        grants.sort_by_key(|a| a.granted().map(|e| e.t));
        grants
    }

    /// The attempts of a lock.
    pub(crate) fn of(&self, lock: &str) -> impl Iterator<Item = &Attempt<'h>> {
        self.locks.get(lock).into_iter().flatten().map(|i| &self.attempts[*i])
    }

    /// Whether a fault that could affect the process was in effect in this time.
    pub(crate) fn faulty(&self, process: &str, from: u64, to: u64) -> bool {
        let settle = self.expect.settle_ns;
        let mut mine = self.faults.iter().filter(|w| w.target.is_none_or(|t| t == process));
        mine.any(|w| w.start <= to && w.end.saturating_add(settle) >= from)
    }

    /// Whether any fault was in effect in this time.
    pub(crate) fn any_fault(&self, from: u64, to: u64) -> bool {
        let settle = self.expect.settle_ns;
        self.faults.iter().any(|w| w.start <= to && w.end.saturating_add(settle) >= from)
    }

    /// The processes that a fault killed.
    pub(crate) fn killed(&self) -> impl Iterator<Item = &'h str> {
        self.faults.iter().filter(|w| *w.kind == FaultKind::Kill).filter_map(|w| w.target)
    }

    /// The fault that keeps one process from acting at an instant, if any.
    pub(crate) fn stopped(&self, process: &str, at: u64) -> Option<&Window<'h>> {
        self.faults.iter().find(|w| {
            let covers = match w.kind {
                FaultKind::Pause => w.end >= at,
                FaultKind::Kill => true,
                _ => false,
            };
            covers && w.target == Some(process) && w.start <= at
        })
    }

    /// How long a place that its client gave up at `t` may remain.
    fn leftover(&self, attempt: &Attempt<'_>, t: u64, lease: u64) -> u64 {
        match self.expect.cleanup_ns {
            Some(bound) if !self.faulty(attempt.process(), t, t.saturating_add(bound)) => bound,
            _ => lease,
        }
    }

    /// Whether a fault excuses the store from the rule, in this scope.
    pub(crate) fn excuses(&self, rule: Rule, scope: &Scope<'_>) -> bool {
        let settle = self.expect.settle_ns;
        let felt =
            |w: &&Window<'_>| w.start <= scope.to && w.end.saturating_add(settle) >= scope.from;
        let of_it = |w: &Window<'_>| match (w.target, scope.process) {
            (Some(target), Some(process)) => target == process,
            _ => true,
        };
        self.expect.unpromised.iter().filter(|u| u.rules.contains(&rule)).any(|u| {
            let mut felt = self.faults.iter().filter(|w| *w.kind == u.fault).filter(felt);
            felt.any(|w| !u.of_target || of_it(w))
        })
    }

    /// Records a violation that the events show, from the first to the last of them; or excuses it
    /// if the store promises nothing under a fault at that time.
    pub(crate) fn fail(&self, collector: &mut Collector, what: String, events: &[&Event]) {
        let from = events.iter().map(|e| e.t).min().unwrap_or(0);
        let to = events.iter().map(|e| e.t).max().unwrap_or(0);
        self.fail_in(&Scope { process: None, from, to }, collector, what, events);
    }

    /// The same for a violation whose scope is smaller than what its events show.
    pub(crate) fn fail_in(
        &self,
        scope: &Scope<'_>,
        collector: &mut Collector,
        what: String,
        events: &[&Event],
    ) {
        if self.excuses(collector.rule(), scope) {
            collector.excuse();
        } else {
            collector.fail(what, events);
        }
    }
}

fn start(event: &Event) -> Attempt<'_> {
    Attempt {
        invoke: event,
        // A history without invocations still has grants.
        outcome: (event.ph != Phase::Invoke).then_some(event),
        enqueue: Call::default(),
        requeued: None,
        renews: Vec::new(),
        claims: Vec::new(),
        release: None,
        lost: None,
        killed: None,
    }
}

/// Adds an event to a list of calls: an outcome belongs to the newest open call with the same `k`.
fn pair<'h>(calls: &mut Vec<Call<'h>>, event: &'h Event) {
    let open = |c: &&mut Call<'h>| {
        c.outcome.is_none() && c.invoke.is_some_and(|invoke| invoke.k == event.k)
    };
    if event.ph == Phase::Invoke {
        calls.push(Call { invoke: Some(event), outcome: None });
    } else if let Some(call) = calls.iter_mut().rev().find(open) {
        call.outcome = Some(event);
    } else {
        calls.push(Call { invoke: None, outcome: Some(event) });
    }
}

fn windows(history: &History) -> Vec<Window<'_>> {
    let mut windows: Vec<Window<'_>> = Vec::new();
    let mut open: HashMap<Key<'_>, usize> = HashMap::new();
    for event in &history.events {
        if event.op == Op::Fault && event.ph == Phase::Ok {
            let Some(kind) = &event.fault else { continue };
            open.insert(key(event), windows.len());
            let target = event.target.as_deref();
            // The target of a kill is gone for good, but no other process is affected for long.
            let end = if *kind == FaultKind::Kill { event.t } else { u64::MAX };
            windows.push(Window { kind, target, start: event.t, end });
        } else if event.op == Op::Heal
            && let Some(i) = open.remove(&key(event))
        {
            windows[i].end = event.t;
        }
    }
    windows
}
