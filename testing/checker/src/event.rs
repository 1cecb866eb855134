//! One line of a history: what a process did, when, and what came of it.
//!
//! The format is flat JSON, one object per line, so that a history can be read with `grep` and
//! `jq`, and so that clients in other languages can write it too. The README lists the fields.
//! `n` names an attempt to acquire; everything that happens to the grant (renewals, release, loss,
//! samples) carries the same process, pid and `n`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of the format that this crate writes and reads.
pub const VERSION: u32 = 1;

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Wait for a lock.
    Acquire,
    /// Take a lock only if it is free now.
    TryAcquire,
    /// Extend a lease.
    Renew,
    /// Give a lock back.
    Release,
    /// The holder was told that its lock is lost.
    Lost,
    /// The handle was asked whether it is valid: `ok` says yes.
    Claim,
    /// The store acknowledged a place in the queue.
    Enqueue,
    /// The guarded resource raised its mark to a token.
    Open,
    /// The guarded resource was read.
    Read,
    /// The guarded resource was written.
    Write,
    /// What the guarded resource holds at the end.
    ResourceDump,
    /// A fault: `invoke` is the plan, `ok` says that it took effect.
    Fault,
    /// The fault with the same `n` is over.
    Heal,
    /// A fresh client acquires after the last heal.
    Probe,
    /// What the store holds for a lock.
    StoreDump,
}

/// The stage of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// About to be asked; written before the request is sent.
    Invoke,
    /// Done; written after the reply was read.
    Ok,
    /// Certainly not done.
    Fail,
    /// Nobody knows whether it was done, or a plain remark.
    Info,
}

/// Why an operation failed or stayed open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Somebody else holds the lock.
    Busy,
    /// The caller does not hold the lock (any more).
    NotHeld,
    /// The caller's patience ended.
    Timeout,
    /// The caller dropped the attempt.
    Cancelled,
    /// The token is lower than one the resource has seen.
    Stale,
    /// Anything else, in the writer's words.
    #[serde(untagged)]
    Other(String),
}

/// What was broken on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// A process was stopped (`SIGSTOP`) and let go on at the heal.
    Pause,
    /// A process was killed; there is no heal.
    Kill,
    /// A process and the store cannot reach each other.
    Partition,
    /// Messages are late.
    Slow,
    /// A process's wall clock was moved.
    ClientClock,
    /// The store's wall clock was moved.
    StoreClock,
    /// The store lost its data.
    StoreFlush,
    /// The store was restarted.
    StoreRestart,
    /// Another server became the store's primary.
    Failover,
    /// Anything else, in the writer's words.
    #[serde(untagged)]
    Other(String),
}

/// Which register of the guarded resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Register {
    /// Believes every caller.
    Plain,
    /// Checks the token on writes only, which is not enough.
    FencedWrite,
    /// Checks the token on reads and writes.
    FencedReadWrite,
}

impl Register {
    /// All registers.
    pub const ALL: [Self; 3] = [Self::Plain, Self::FencedWrite, Self::FencedReadWrite];
}

/// One event of a history. Only the first six fields are always there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The line in the file that it was read from; 0 if it was not read from a file.
    #[serde(skip)]
    pub line: usize,
    /// The version of the format.
    pub v: u32,
    /// The name of the run.
    #[serde(default)]
    pub run: String,
    /// Nanoseconds of the machine's boot-time clock.
    pub t: u64,
    /// The process, or the task in it, in the test's words.
    #[serde(rename = "p")]
    pub process: String,
    /// The operating system's process id, so that a restarted process is not taken for the old
    /// one.
    #[serde(default)]
    pub pid: u32,
    /// What was done.
    pub op: Op,
    /// The stage of it.
    pub ph: Phase,
    /// The attempt that it belongs to, unique in the process.
    pub n: u64,
    /// Tells calls of one kind apart that overlap, such as two renewals on their way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k: Option<u64>,
    /// The lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// The owner or ticket that the store knows.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "ticket")]
    pub owner: Option<String>,
    /// The lease asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// How much of the lock's capacity is asked for; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// The fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Until when the handle says it is valid, on the clock of `t`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    /// Why it failed or stayed open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultKind>,
    /// The process that the fault was aimed at; absent means the store or everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The register of the guarded resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reg: Option<Register>,
    /// The unique id that was appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u64>,
    /// The last id that the writer had read before it appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    /// The ids found by a dump of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uids: Option<Vec<u64>>,
    /// The owners (holders and waiters) found by a dump of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owners: Option<Vec<String>>,
}

/// Writes the setters of optional fields.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $kind:ty;)*) => {
        $($(#[$doc])* #[must_use]
        pub fn $name(mut self, value: $kind) -> Self {
            self.$name = Some(value.into());
            self
        })*
    };
}

impl Event {
    /// An event about attempt `n`. The writer fills in run, process, pid and time.
    pub fn new(op: Op, ph: Phase, n: u64) -> Self {
        Self {
            line: 0,
            v: VERSION,
            run: String::new(),
            t: 0,
            process: String::new(),
            pid: 0,
            op,
            ph,
            n,
            k: None,
            lock: None,
            owner: None,
            ttl_ms: None,
            weight: None,
            fence: None,
            deadline: None,
            reason: None,
            fault: None,
            target: None,
            reg: None,
            uid: None,
            base: None,
            uids: None,
            owners: None,
        }
    }

    /// Sets the time and the process, for histories that are not written by a [`crate::Writer`].
    pub fn at(mut self, t: u64, process: &str) -> Self {
        self.t = t;
        process.clone_into(&mut self.process);
        self
    }

    setters! {
        /// Sets the number that tells overlapping calls apart.
        k: u64;
        /// Sets the lock.
        lock: &str;
        /// Sets the owner or ticket that the store knows.
        owner: &str;
        /// Sets the lease asked for.
        ttl_ms: u64;
        /// Sets the weight asked for.
        weight: u64;
        /// Sets the fencing token.
        fence: u64;
        /// Sets the time until which the handle says it is valid.
        deadline: u64;
        /// Sets the reason.
        reason: Reason;
        /// Sets the fault.
        fault: FaultKind;
        /// Sets the process that the fault is aimed at.
        target: &str;
        /// Sets the register.
        reg: Register;
        /// Sets the id that was appended.
        uid: u64;
        /// Sets the last id that the writer had read.
        base: u64;
        /// Sets the ids found in the resource.
        uids: Vec<u64>;
        /// Sets the owners found in the store.
        owners: Vec<String>;
    }

    /// The weight, 1 if none was given.
    pub fn weight_or_one(&self) -> u64 {
        self.weight.unwrap_or(1)
    }

    /// Whether it failed because the caller did not hold the lock.
    pub fn is_not_held(&self) -> bool {
        self.ph == Phase::Fail && self.reason == Some(Reason::NotHeld)
    }
}

/// The name that a value has in JSON, without quotes.
pub(crate) fn word<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default().trim_matches('"').to_owned()
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        write!(f, "{} ms {} #{}", millis(self.t), self.process, self.n)?;
        write!(f, " {} {}", word(&self.op), word(&self.ph))?;
        let mut field = |name: &str, value: Option<String>| match value {
            Some(value) => write!(f, " {name}={value}"),
            None => Ok(()),
        };
        field("lock", self.lock.clone())?;
        field("owner", self.owner.clone())?;
        field("weight", self.weight.map(|w| w.to_string()))?;
        field("fence", self.fence.map(|w| w.to_string()))?;
        field("deadline", self.deadline.map(|d| format!("{} ms", millis(d))))?;
        field("reason", self.reason.as_ref().map(word))?;
        field("fault", self.fault.as_ref().map(word))?;
        field("target", self.target.clone())?;
        field("reg", self.reg.as_ref().map(word))?;
        field("uid", self.uid.map(|u| u.to_string()))?;
        field("base", self.base.map(|u| u.to_string()))?;
        field("owners", self.owners.as_ref().map(|o| o.join(",")))
    }
}

/// Nanoseconds as milliseconds with three decimals, without rounding through a float.
pub(crate) fn millis(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000_000, ns / 1_000 % 1_000)
}
