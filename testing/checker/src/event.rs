//! One line of a history: the action of a process, its time, and its outcome.
//!
//! The format is flat JSON, one object per line, so that a history can be read with `grep` and
//! `jq`, and so that clients in other languages can write it too. The README lists the fields. `n`
//! names an attempt to acquire; all events of its grant (renewals, release, loss, samples) carry
//! the same process, pid and `n`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of the format that this crate reads and writes.
pub const VERSION: u32 = 1;

/// The kind of action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Wait for a lock.
    Acquire,
    /// Take a lock only if it is free now.
    TryAcquire,
    /// Extend a lease.
    Renew,
    /// Release a lock.
    Release,
    /// The holder was notified of the loss of its lock.
    Lost,
    /// The handle was asked whether it is valid; `ok` means yes.
    Claim,
    /// The store acknowledged a place in the queue.
    Enqueue,
    /// The guarded resource raised its mark to a token.
    Open,
    /// The guarded resource was read.
    Read,
    /// The guarded resource was written.
    Write,
    /// The final contents of the guarded resource.
    ResourceDump,
    /// A fault: `invoke` is the plan, `ok` means that it took effect.
    Fault,
    /// The end of the fault with the same `n`.
    Heal,
    /// A fresh client acquires after the last heal.
    Probe,
    /// The contents of the store for a lock.
    StoreDump,
}

/// The stage of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// About to be requested; written before the request is sent.
    Invoke,
    /// Done; written after the reply was read.
    Ok,
    /// Certainly not done.
    Fail,
    /// Unknown outcome, or a plain remark.
    Info,
}

/// Why an operation failed or has an unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Another client holds the lock.
    Busy,
    /// The caller does not hold the lock, or no longer does.
    NotHeld,
    /// The caller's time limit passed.
    Timeout,
    /// The caller dropped the attempt.
    Cancelled,
    /// The token is lower than one that the resource has seen.
    Stale,
    /// Anything else, in the writer's words.
    #[serde(untagged)]
    Other(String),
}

/// The kind of a fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// A process was stopped (`SIGSTOP`) and continued at the heal.
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

/// The registers of the guarded resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Register {
    /// Accepts every caller.
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

/// One event of a history. Only the first six fields are always present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The line of the file; 0 if it was not read from a file.
    #[serde(skip)]
    pub line: usize,
    /// The version of the format.
    pub v: u32,
    /// The name of the run.
    #[serde(default)]
    pub run: String,
    /// The time: nanoseconds of the machine's boot-time clock.
    pub t: u64,
    /// The process, or the task in it, by the test's name for it.
    #[serde(rename = "p")]
    pub process: String,
    /// The operating system's process id, so that a restarted process is not mistaken for the old
    /// one.
    #[serde(default)]
    pub pid: u32,
    /// What was done.
    pub op: Op,
    /// The stage of it.
    pub ph: Phase,
    /// The attempt that it belongs to; unique in the process.
    pub n: u64,
    /// Distinguishes overlapping calls of one kind, such as two renewals in transit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k: Option<u64>,
    /// The lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// The owner or ticket known to the store.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "ticket")]
    pub owner: Option<String>,
    /// The requested lease; of another place of a waiter, how long the store may have heard nothing
    /// from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The requested share of the lock's capacity; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// The fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Until when the handle claims to be valid, on the clock of `t`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    /// Why it failed or has an unknown outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultKind>,
    /// The target process of the fault; absent for the store or all processes.
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
    /// The ids in a dump of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uids: Option<Vec<u64>>,
    /// The owners (holders and waiters) in a dump of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owners: Option<Vec<String>>,
}

/// Defines the setters of optional fields.
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
    /// Creates an event of attempt `n`. The writer fills in run, process, pid and time.
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
        /// Sets the number that distinguishes overlapping calls.
        k: u64;
        /// Sets the lock.
        lock: &str;
        /// Sets the owner or ticket known to the store.
        owner: &str;
        /// Sets the requested lease.
        ttl_ms: u64;
        /// Sets the requested weight.
        weight: u64;
        /// Sets the fencing token.
        fence: u64;
        /// Sets the time until which the handle claims to be valid.
        deadline: u64;
        /// Sets the reason.
        reason: Reason;
        /// Sets the fault.
        fault: FaultKind;
        /// Sets the target process of the fault.
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

/// The JSON name of a value, without quotes.
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
