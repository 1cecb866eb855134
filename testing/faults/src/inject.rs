//! The injection of faults into clients and the store, and its record.
//!
//! A process is stopped before it is killed, and the kill is recorded in between. So nothing that
//! it did is later in the history, and nothing that others do because of its death is earlier.

use crate::judge;
use crate::run::Run;
use crate::workers::Member;
use crate::workload::{Behaviour, locks};
use fastrand::Rng;
use holdline::{Client, LockInfo, Participant};
use holdline_checker::{Event, FaultKind, Op, Phase, Writer};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The name of the fault that breaks a holder's lock by force.
pub(crate) const FORCE: &str = "force_unlock";

/// A fault of the store that affects all clients for a while.
pub(crate) trait Breakage: Send + Sync {
    /// Its name in the history.
    fn kind(&self) -> FaultKind;
    /// The duration of the fault, in leases.
    fn span(&self) -> (f64, f64) {
        (0.1, 1.0)
    }
    /// Breaks the store until the result is dropped.
    fn start(&self) -> Box<dyn std::any::Any>;
}

/// A recurring action, at random moments.
#[derive(Clone)]
pub(crate) enum Fault {
    /// SIGSTOP a client for a while.
    Pause,
    /// SIGKILL a client, and start another a little later.
    Kill,
    /// Break the lock of a current holder.
    Force,
    /// Break the store in one of these ways at a time, equally often.
    Store(Vec<Arc<dyn Breakage>>),
}

impl Fault {
    /// Its name in the history.
    pub(crate) fn kinds(&self) -> Vec<FaultKind> {
        match self {
            Fault::Pause => vec![FaultKind::Pause],
            Fault::Kill => vec![FaultKind::Kill],
            Fault::Force => vec![FaultKind::Other(FORCE.to_owned())],
            Fault::Store(ways) => ways.iter().map(|way| way.kind()).collect(),
        }
    }
}

/// The context of all injectors.
pub(crate) struct RunContext {
    pub(crate) run: Run,
    /// The name of the run, which is the prefix of its locks.
    pub(crate) name: String,
    pub(crate) writer: Writer,
    pub(crate) client: Client,
    pub(crate) runtime: Runtime,
    pub(crate) workers: Vec<Mutex<Member>>,
    pub(crate) serial: AtomicU64,
    /// When no more faults begin; or `latest`, if there have not been enough.
    pub(crate) over: Instant,
    pub(crate) latest: Instant,
}

impl RunContext {
    fn write(&self, event: Event) {
        self.writer.write(event).unwrap();
    }

    fn share_of_lease(&self, rng: &mut Rng, from: f64, to: f64) -> Duration {
        self.run.lease.mul_f64(from + rng.f64() * (to - from))
    }

    /// Injects one kind of fault again and again.
    pub(crate) fn inject_repeatedly(&self, fault: &Fault, seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let mut ways_left = Vec::new();
        let enough = self.run.least(fault) * fault.kinds().len();
        let mut done = 0;
        loop {
            let gap = Duration::from_millis(rng.u64(50..=self.run.gap_ms));
            let next = Instant::now() + gap;
            let more = || done < enough || (matches!(fault, Fault::Pause) && self.few_are_lost());
            if next >= self.latest || (next >= self.over && !more()) {
                return;
            }
            std::thread::sleep(gap);
            let happened = match fault {
                Fault::Pause => self.pause(&mut rng),
                Fault::Kill => self.kill(&mut rng),
                Fault::Force => self.force(&mut rng),
                Fault::Store(ways) => {
                    if ways_left.is_empty() {
                        ways_left = ways.iter().collect();
                        rng.shuffle(&mut ways_left);
                    }
                    let way = ways_left.pop().expect("there is a way to break it");
                    self.break_store(&**way, &mut rng);
                    true
                }
            };
            done += usize::from(happened);
        }
    }

    /// Whether fewer locks were lost so far than the run needs to prove anything: a client cannot
    /// reliably be stopped while it holds one.
    fn few_are_lost(&self) -> bool {
        judge::losses(&self.history()) < self.run.expect.min_expiries
    }

    /// Whether there were fewer grants so far than the run needs to prove anything, or a client has
    /// not had its share.
    pub(crate) fn few_grants(&self) -> bool {
        let history = std::fs::read_to_string(self.history()).unwrap();
        let granted = |line: &&str| line.contains(r#"acquire","ph":"ok""#);
        let name = |line: &str| line.split(r#""p":""#).nth(1)?.split('"').next().map(str::to_owned);
        let mut shares: HashMap<String, usize> = HashMap::new();
        for name in history.lines().filter(granted).filter_map(name) {
            *shares.entry(name).or_default() += 1;
        }
        let all: usize = shares.values().sum();
        let percent = self.run.expect.min_share_percent as usize;
        let short = |member: &Mutex<Member>| {
            let member = member.lock().unwrap_or_else(PoisonError::into_inner);
            shares.get(member.name()).copied().unwrap_or(0) * 100 < all * percent
        };
        all < self.run.fewest_grants() || self.workers.iter().any(short)
    }

    fn fault(n: u64, ph: Phase, kind: &FaultKind, target: &str) -> Event {
        Event::new(Op::Fault, ph, n).fault(kind.clone()).target(target)
    }

    fn pause(&self, rng: &mut Rng) -> bool {
        let time = self.share_of_lease(rng, self.run.pause.0, self.run.pause.1);
        let at = self.victim(rng);
        let Ok(member) = self.workers[at].try_lock() else { return false };
        let (n, kind) = (self.writer.next_n(), FaultKind::Pause);
        self.write(Self::fault(n, Phase::Invoke, &kind, member.name()));
        member.stop();
        self.write(Self::fault(n, Phase::Ok, &kind, member.name()));
        std::thread::sleep(time);
        member.go_on();
        self.write(Event::new(Op::Heal, Phase::Ok, n).target(member.name()));
        true
    }

    fn kill(&self, rng: &mut Rng) -> bool {
        let time = Duration::from_millis(rng.u64(..500));
        let at = self.victim(rng);
        let Ok(mut member) = self.workers[at].try_lock() else { return false };
        let (n, kind) = (self.writer.next_n(), FaultKind::Kill);
        self.write(Self::fault(n, Phase::Invoke, &kind, member.name()));
        member.stop();
        self.write(Self::fault(n, Phase::Ok, &kind, member.name()));
        member.kill();
        std::thread::sleep(time);
        member.replace(self.serial.fetch_add(1, Ordering::Relaxed));
        true
    }

    /// Breaks a holder's lock by force. A holder that is gone before that is no victim.
    fn force(&self, rng: &mut Rng) -> bool {
        let Some((lock, participant)) = self.holder(rng) else { return false };
        let Some(target) = participant.note.label.as_deref() else { return false };
        let (n, kind) = (self.writer.next_n(), FaultKind::Other(FORCE.to_owned()));
        let owner = participant.id.0.to_string();
        let event = |ph| Self::fault(n, ph, &kind, target).lock(&lock).owner(&owner);
        self.write(event(Phase::Info));
        let asked = self.client.force_unlock(&lock, participant.id, "fault run");
        match self.runtime.block_on(asked) {
            Ok(Some(token)) => {
                self.write(event(Phase::Invoke));
                self.write(event(Phase::Ok).fence(token));
                self.write(Event::new(Op::Heal, Phase::Ok, n).target(target));
                true
            }
            Ok(None) => false,
            // It may have been broken: the answer or the request was lost.
            Err(error) => {
                assert!(error.retryable(), "{error:?}");
                self.write(event(Phase::Fail));
                false
            }
        }
    }

    fn break_store(&self, breakage: &dyn Breakage, rng: &mut Rng) {
        let (n, kind) = (self.writer.next_n(), breakage.kind());
        let event = |ph| Event::new(Op::Fault, ph, n).fault(kind.clone());
        self.write(event(Phase::Invoke));
        // From here on it may have effects.
        self.write(event(Phase::Ok));
        let broken = breakage.start();
        let (least, most) = breakage.span();
        std::thread::sleep(self.share_of_lease(rng, least, most));
        drop(broken);
        self.write(Event::new(Op::Heal, Phase::Ok, n));
    }

    /// Chooses a victim: half of the time one that holds something; among clients that ignore
    /// losses, which are there to do harm, always a holder.
    fn victim(&self, rng: &mut Rng) -> usize {
        let any = rng.usize(..self.workers.len());
        if !self.run.names_holders || (self.run.behaviour != Behaviour::IgnoresLosses && rng.bool())
        {
            return any;
        }
        let label = self.holder(rng).and_then(|(_, participant)| participant.note.label);
        // Names are c0, c1, ..., and c1.9 after a restart.
        let at = label.and_then(|l| l.trim_start_matches('c').split('.').next()?.parse().ok());
        at.unwrap_or(any)
    }

    /// A current holder of a lock.
    fn holder(&self, rng: &mut Rng) -> Option<(String, Participant)> {
        let mut all = locks(&self.name, self.client.capabilities().weighted);
        rng.shuffle(&mut all);
        for (lock, _) in all {
            let mut holders = self.look(&lock)?.holders;
            if !holders.is_empty() {
                return Some((lock, holders.swap_remove(rng.usize(..holders.len()))));
            }
        }
        None
    }

    /// Reads the lock's state from the store, and records it.
    pub(crate) fn look(&self, lock: &str) -> Option<LockInfo> {
        let event = |n, ph| Event::new(Op::StoreDump, ph, n).lock(lock);
        let n = self.writer.next_n();
        self.write(event(n, Phase::Invoke));
        match self.runtime.block_on(self.client.inspect(lock)) {
            Ok(info) => {
                let all = info.holders.iter().chain(&info.waiters);
                let owners: Vec<String> =
                    all.map(|participant| participant.id.0.to_string()).collect();
                self.write(event(n, Phase::Ok).owners(owners));
                Some(info)
            }
            Err(error) => {
                assert!(error.retryable(), "{error:?}");
                self.write(event(n, Phase::Info));
                None
            }
        }
    }
}
