//! The acquisition of a command's lock: the wait, its progress messages, and its outcome.

use crate::caller;
use crate::context::OpenedStore;
use crate::exit::{Exit, Failure};
use crate::held::HeldLock;
use crate::live_line::{self, Part};
use crate::lock_kind::{LockKind, LockOptions, WaitLimit};
use crate::nested::EnclosingLocks;
use crate::participant;
use crate::printer::{Level, Printer};
use crate::signals::{self, Signals};
use crate::{duration, env};
use holdline::{Client, LockInfo, Participant};
use rustix::process::Signal;
use serde_json::json;
use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The interval of the progress messages, and the wait before the first.
const NEWS: Duration = Duration::from_secs(1);
/// The time limit for releasing a place; after it the place expires with its lease.
const SETTLING: Duration = Duration::from_secs(2);
/// The same after the end of a limited wait; also limits the search for the holder.
const BEYOND: Duration = Duration::from_millis(150);
/// The same during an outage of the store.
const AWAY: Duration = Duration::from_millis(20);

/// A request for a lock.
#[derive(Debug)]
pub(crate) struct LockRequest<'a> {
    pub(crate) client: &'a Client,
    pub(crate) opened: &'a OpenedStore,
    /// The name, or several for mutexes that are acquired as one.
    pub(crate) names: &'a BTreeSet<&'a str>,
    pub(crate) lock_kind: &'a LockKind,
    pub(crate) options: &'a LockOptions,
    /// The deadline, if there is one; in the past for a single try.
    pub(crate) deadline: Option<Instant>,
    pub(crate) no_wait: bool,
    pub(crate) busy: Exit,
    pub(crate) printer: Printer,
}

/// What ends a wait early: a signal, or the end of the lock's owner, as the failure that it causes.
pub(crate) struct WaitEnds<'a, O> {
    pub(crate) signals: &'a mut Signals,
    pub(crate) owner_end: Pin<&'a mut O>,
}

impl<O: Future<Output = Failure>> WaitEnds<'_, O> {
    /// Runs `work` until one of them comes.
    pub(crate) async fn unless_come<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            signal = self.signals.next() => Err(interrupted(signal)),
            failure = self.owner_end.as_mut() => Err(failure),
            result = work => result,
        }
    }
}

/// Whether the places that are given up are gone from the store within a short time, in which no
/// signal comes: those that came before were for the command.
pub(crate) async fn settles(client: &Client, signals: &mut Signals) -> bool {
    let settled = async {
        while signals.arrived().await.is_some() {}
        let signalled = async { while !signals::ends_waits(signals.next().await) {} };
        tokio::select! {
            biased;
            () = signalled => false,
            () = client.settle() => true,
        }
    };
    timeout(SETTLING, settled).await.unwrap_or(false)
}

/// The failure that a signal causes before the command runs.
pub(crate) fn interrupted(signal: Signal) -> Failure {
    let message = format!("{} ended the wait; the command was not run", signals::name(signal));
    Failure::new(Exit::signal(signal.as_raw()), "interrupted", message).expected()
}

impl LockRequest<'_> {
    /// Acquires the lock; fails if that takes too long, or if one of `ends` comes first. After a
    /// failure no place is left in the line.
    pub(crate) async fn acquire(
        &self,
        mut ends: WaitEnds<'_, impl Future<Output = Failure>>,
    ) -> Result<HeldLock, Failure> {
        let result = ends.unless_come(self.acquire_with_progress()).await;
        if result.is_err() {
            // An unreachable store cannot be told; the place expires with its lease.
            let away = self.client.unavailable_for().is_some();
            let limit = if away { AWAY } else { SETTLING.min(self.rest()) };
            let _ = timeout(limit, self.client.settle()).await;
        }
        result
    }

    /// The time left for the steps after the wait.
    fn rest(&self) -> Duration {
        let end = if self.no_wait { Some(self.opened.until) } else { self.deadline };
        end.map_or(Duration::MAX, |end| {
            (end + BEYOND).saturating_duration_since(Instant::now()).max(BEYOND)
        })
    }

    async fn acquire_with_progress(&self) -> Result<HeldLock, Failure> {
        let wait_limit = match self.deadline {
            _ if self.no_wait => WaitLimit::None,
            Some(deadline) => WaitLimit::Within(deadline.saturating_duration_since(Instant::now())),
            None => WaitLimit::Endless,
        };
        let taken = self.lock_kind.acquire(self.client, self.names, self.options, wait_limit);
        let mut progress = WaitProgress { request: self, shown: false, last: None };
        let taken = tokio::select! {
            biased;
            taken = taken => taken,
            failure = self.opened.no_answer() => return Err(failure),
            () = progress.tell() => unreachable!("progress never ends"),
            () = self.warn_of_itself() => unreachable!("it never ends"),
        };
        drop(progress);
        match taken? {
            Some(hold) => Ok(hold),
            None => Err(self.busy().await),
        }
    }

    /// Warns, once, of a wait for a lock that a holdline around this one holds. Never ends.
    async fn warn_of_itself(&self) {
        sleep(NEWS).await;
        let around = caller::holdlines_above();
        if !around.is_empty()
            && let Ok(info) = self.first_held().await
            && let Some(why) = info
                .holders
                .iter()
                .find_map(|holder| self.waits_for_itself(holder, info.name.as_str(), &around))
        {
            tracing::warn!("lock \"{}\" is held by the holdline around this one, {why}", info.name);
        }
        pending::<()>().await;
    }

    /// What to do if this holder is one of the programs around this one, and keeps us out.
    fn waits_for_itself(&self, holder: &Participant, name: &str, around: &[u32]) -> Option<String> {
        let (weight, capacity) = self.lock_kind.numbers();
        if holder.weight.saturating_add(weight) <= capacity {
            return None;
        }
        if is_here(holder) && around.contains(&holder.note.pid) {
            return Some(format!(
                "which it waits for in vain: {} is missing in the environment; let it through \
                 (sudo and env -i remove it), or use another name",
                env::HELD
            ));
        }
        (holder.note.pid == 0 && EnclosingLocks::read().lists(name)).then(|| {
            "it seems, which it waits for in vain: this store does not tell who holds a lock; use \
             another name"
                .to_owned()
        })
    }

    /// The failure that names the holder.
    async fn busy(&self) -> Failure {
        let look = timeout(NEWS.min(self.rest()), self.first_held()).await;
        let mut info = look.ok().and_then(Result::ok);
        if let Some(info) = &mut info {
            // Our own place may still exist.
            info.waiters.retain(|waiter| !is_us(waiter));
        }
        let holder = info.as_ref().and_then(|info| self.in_use(info));
        let message = format!(
            "{} in {} was not acquired{}: {}",
            title(self.names),
            self.client.address(),
            if self.no_wait { "" } else { " in time" },
            holder.unwrap_or_else(|| "others were before us".to_owned()),
        );
        let of = |participants: &[Participant]| -> Vec<_> {
            participants.iter().map(participant::json).collect()
        };
        let fields = json!({
            "name": info.as_ref().map_or_else(
                || self.names.first().copied().unwrap_or_default(),
                |info| info.name.as_str(),
            ),
            "store": self.client.address(),
            "holders": info.as_ref().map(|info| of(&info.holders)),
            "waiting": info.as_ref().map(|info| info.waiters.len()),
        });
        Failure::new(self.busy, "busy", message).expected().with(fields)
    }

    /// The lock to report: of several, the first that another client holds.
    async fn first_held(&self) -> holdline::Result<LockInfo> {
        let mut names = self.names.iter();
        loop {
            let name = names.next().expect("a request has a name");
            let info = self.client.inspect(name).await?;
            if names.len() == 0 || info.holders.iter().any(|holder| !is_us(holder)) {
                return Ok(info);
            }
        }
    }

    /// "it is held by ...", if so; names the lock if there are several.
    fn in_use(&self, info: &LockInfo) -> Option<String> {
        match self.names.len() {
            1 => participant::in_use(info, "it"),
            _ => participant::in_use(info, &format!("\"{}\"", info.name)),
        }
    }
}

/// The progress messages of a wait: the holder of the lock, and our place.
struct WaitProgress<'a> {
    request: &'a LockRequest<'a>,
    shown: bool,
    last: Option<String>,
}

impl WaitProgress<'_> {
    async fn tell(&mut self) {
        let printer = self.request.printer;
        if !printer.is_live() && !printer.prints(Level::Verbosely) {
            pending::<()>().await;
        }
        let client = self.request.client;
        loop {
            sleep(NEWS).await;
            // The acquisition itself reports an unreachable store.
            match self.request.first_held().await {
                Ok(_) if client.unavailable_for().is_some() => {
                    self.show_outage("it can be read, but not changed");
                }
                Ok(info) => self.show(&info),
                Err(error) => self.show_outage(&format!("{error:#}")),
            }
        }
    }

    /// Shows how long the store has been unreachable.
    fn show_outage(&mut self, error: &str) {
        let LockRequest { client, names, printer, .. } = self.request;
        let Some(away) = client.unavailable_for() else { return };
        let line = format!(
            "waiting for {}: {} has not answered for {}",
            title(names),
            client.address(),
            duration::show(away)
        );
        if printer.is_live() {
            let away = format!("the store has not answered for {}", duration::show(away));
            let lock = format!("{} in {}", title(names), client.address());
            let lock = Part { head: "waiting for ".to_owned(), text: lock };
            self.show_live(&[Part::whole(away), lock]);
        } else if self.last.as_deref() != Some("away") {
            let fields = json!({
                "name": names.first(),
                "unavailable_for": away.as_secs_f64(),
                "error": error,
            });
            printer.say(Level::Verbosely, "unavailable", &line, fields);
            self.last = Some("away".to_owned());
        }
    }

    fn show_live(&mut self, parts: &[Part]) {
        let end = self.request.deadline;
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let mut parts = parts.to_vec();
        if let Some(left) = left {
            let left = format!("giving up in {}", duration::show(left));
            parts.insert(parts.len().min(2), Part::whole(left));
        }
        Printer::live(|width| live_line::fit("holdline: ", &parts, width));
        self.shown = true;
    }

    fn show(&mut self, info: &LockInfo) {
        let LockRequest { client, names, printer, .. } = self.request;
        let place = place(info);
        let waiting = participant::waiting(info.waiters.len()).unwrap_or_default();
        let waiting = match place {
            Some(place) => format!("{waiting}, place {place} in line"),
            None => waiting,
        };
        let lock = format!("{} in {}", title(names), client.address());
        if printer.is_live() {
            let holder = match info.holders.first() {
                Some(first) => Part { head: held_for(first), text: participant::who(first) },
                None => Part::whole("nobody holds it".to_owned()),
            };
            let of = (names.len() > 1).then(|| Part::whole(format!("\"{}\"", info.name)));
            let rest = [Part::whole(waiting), Part { head: "waiting for ".into(), text: lock }];
            self.show_live(&[holder].into_iter().chain(rest).chain(of).collect::<Vec<_>>());
            return;
        }
        let first = info.holders.first();
        let key = format!("{:?}", first.map(|participant| participant.id));
        if self.last.as_ref() != Some(&key) {
            let holder = self.request.in_use(info).unwrap_or_else(|| "it is free".to_owned());
            let place = place.map(|place| format!(", place {place} in line")).unwrap_or_default();
            let line = format!("waiting for {lock}: {holder}{place}");
            let fields = json!({
                "name": info.name.as_str(),
                "store": client.address(),
                "holders": info.holders.iter().map(participant::json).collect::<Vec<_>>(),
                "waiting": info.waiters.len(),
                "place": self::place(info),
            });
            printer.say(Level::Verbosely, "waiting", &line, fields);
            self.last = Some(key);
        }
    }
}

/// "held for 3m by ".
fn held_for(holder: &Participant) -> String {
    let age = participant::age(holder).map(|age| format!(" for {}", duration::show(age)));
    format!("held{} by ", age.unwrap_or_default())
}

impl Drop for WaitProgress<'_> {
    fn drop(&mut self) {
        if self.shown {
            Printer::live(|_| String::new());
        }
    }
}

/// The lock, or several as one, for messages.
pub(crate) fn title(names: &BTreeSet<&str>) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    match names.as_slice() {
        [name] => format!("lock {name}"),
        names => format!("the set of locks {}", names.join(", ")),
    }
}

/// Our place in the line, counted from 1.
fn place(info: &LockInfo) -> Option<usize> {
    info.waiters.iter().position(is_us).map(|at| at + 1)
}

fn is_us(participant: &Participant) -> bool {
    participant.note.pid == std::process::id() && is_here(participant)
}

/// Whether it is on this host.
fn is_here(participant: &Participant) -> bool {
    let uname = rustix::system::uname();
    participant.note.host == uname.nodename().to_string_lossy()
}
