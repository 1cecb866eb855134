//! Watches, all in one stream, with the member that calls use: each heartbeat of a lease is
//! accompanied by a call, which soon finds out that this member has fallen silent.
//!
//! A watch resumes from the revision after the last one seen, so nothing is missed when the stream
//! breaks and another member takes over. If the history has been compacted away, or the member is
//! behind (it is slow, or was restored from a backup), the callback is told of a gap.
//!
//! Processes that take turns wait behind the same keys again and again. So a watch on one key
//! lingers briefly after its end: the next one for that key has missed nothing, and needs no read
//! to be sure of that (decision 13).

use crate::cluster::Cluster;
use crate::connection::{StreamReader, StreamWriter};
use crate::grpc::{Code, Status};
use crate::proto::{self, Event, WatchAnswer, WatchCancel, WatchCreate, WatchOp};
use futures_util::FutureExt;
use holdline_base::clock;
use holdline_base::sync::{Mutex, contained};
use holdline_kernel::{Backoff, Time};
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// The time limit of a member for opening the stream, and for its first answer.
const OPEN: Duration = Duration::from_secs(2);
/// The longest pause before a refused watch is requested again.
const REFUSED: Duration = Duration::from_secs(30);
/// The shortest time that a stream stays with its member although calls use another one.
const STAY: Duration = Duration::from_millis(500);
/// How long a stream without watches stays open without an answer.
const IDLE: Duration = Duration::from_secs(30);
/// The failures in a row after which a stream counts as silent, and not as moving elsewhere.
const SILENT: u32 = 5;
/// The pause after a panic, so that a recurring one does not keep a processor busy.
const AFTER_PANIC: Duration = Duration::from_millis(100);
/// How long a watch lingers after its end.
const LINGER: Duration = Duration::from_secs(1);
/// The most lingering watches.
const KEPT: usize = 256;

/// The news from a watch.
#[derive(Debug)]
pub enum News<'a> {
    /// An event of a key.
    Event(&'a Event),
    /// Some events are unknown. Earlier ones may be reported again.
    Gap,
    /// The watch begins after this revision.
    From(i64),
    /// Nothing is reported for the moment, because the servers refuse the watch, or have no stream
    /// for it. What is missed is reported later, if that changes.
    Silence,
}

/// A callback for news, run on the background thread. It must not block.
pub type Callback = Box<dyn Fn(News<'_>) + Send + Sync>;

struct Entry {
    key: Vec<u8>,
    range_end: Vec<u8>,
    /// The first revision not seen yet; 0 until the watch has begun.
    next: i64,
    /// `None` while the watch lingers.
    callback: Option<Arc<Callback>>,
    /// The revision before which it may have missed events that it does not remember.
    begun: i64,
    /// Whether the watch may linger after its end.
    lasting: bool,
    /// Whether it reports writes too, and not only deletions.
    puts: bool,
    /// The last deletion that it saw, if it may linger.
    gone: Option<Event>,
    /// The number of consecutive refusals.
    refused: u32,
    /// Whether it was ended and requested again, so that its end is no refusal.
    again: bool,
}

#[derive(Default)]
struct State {
    entries: HashMap<i64, Entry>,
    /// The lingering watches, by their keys and whether they report writes, with the time of their
    /// end.
    kept: HashMap<(Vec<u8>, bool), (i64, Time)>,
    last: i64,
    /// The refused watches, and when each is requested again.
    refused: HashMap<i64, Time>,
    /// The watches requested but not answered, in order: a refusal does not name its watch.
    asked: VecDeque<i64>,
    /// The writer of the open stream.
    out: Option<Arc<StreamWriter>>,
}

/// All watches of a client.
pub struct Watcher {
    cluster: Arc<Cluster>,
    state: Mutex<State>,
    /// Notified when there is something to watch.
    wanted: Notify,
    /// Notified when the stream can no longer be trusted.
    restart: Notify,
}

/// One watch. Dropping this ends it.
#[derive(Debug)]
pub struct Watching {
    watcher: Weak<Watcher>,
    id: i64,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let Some(watcher) = self.watcher.upgrade() else { return };
        let unwanted = watcher.state().keep(self.id);
        let is_kept = unwanted.is_some();
        drop(unwanted); // its callback may hold what must not be dropped under the mutex
        if !is_kept {
            watcher.end(&[self.id]);
        }
    }
}

impl State {
    /// Makes a watch linger, and returns its callback; `None` if it may not linger.
    fn keep(&mut self, id: i64) -> Option<Arc<Callback>> {
        let entry = self.entries.get_mut(&id)?;
        let kind = (entry.key.clone(), entry.puts);
        if !entry.lasting || self.kept.len() >= KEPT || self.kept.contains_key(&kind) {
            return None;
        }
        self.kept.insert(kind, (id, clock::now()));
        entry.callback.take()
    }

    /// Requests watches on the open stream, in the order of calls.
    fn ask(&mut self, ids: impl IntoIterator<Item = i64>) {
        let Some(out) = &self.out else { return };
        for id in ids {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.again = false;
            self.asked.push_back(id);
            out.send(&entry.create(id));
        }
    }

    /// Requests a watch again that the member has ended but still has under its id.
    fn begin_again(&mut self, id: i64) {
        let Some(out) = &self.out else { return };
        out.send(&cancel(id));
        self.ask([id]);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.again = true;
        }
    }

    /// Records that a member refuses a watch. The first time, our login may have expired. If
    /// refused again, we lack permission; etcd may then accept nothing more on that stream, so the
    /// watch is left out, and requested less and less often. Returns its callback, to be told.
    fn refuse(&mut self, id: i64) -> Option<Arc<Callback>> {
        let entry = self.entries.get_mut(&id)?;
        entry.refused += 1;
        let times = entry.refused.checked_sub(2)?;
        let pauses = Backoff::exponential(Duration::from_secs(1), REFUSED);
        self.refused.insert(id, clock::now().after(pauses.pause(times, 0)));
        entry.callback.clone()
    }
}

impl Watcher {
    /// Creates a watcher in this cluster. A task must [`run`](Self::run) it.
    pub fn new(cluster: Arc<Cluster>) -> Arc<Self> {
        Arc::new(Watcher {
            cluster,
            state: Mutex::default(),
            wanted: Notify::new(),
            restart: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Watches a key, or all keys up to an end, from a revision on; or from now (0), and then the
    /// beginning is reported. etcd delays watches of the past by up to 100 ms, but not those that
    /// begin now.
    pub fn watch(
        self: &Arc<Self>,
        key: &[u8],
        range_end: Vec<u8>,
        from: i64,
        callback: Callback,
    ) -> Watching {
        self.begin((key, range_end), from, callback, (false, true))
    }

    /// Watches for the deletion of a key, and with `puts` for writes: by a lingering watch, or else
    /// as [`Watcher::watch`] does. The callback gets the events missed since the revision `seen`,
    /// or the news that there were some.
    pub fn watch_out(
        self: &Arc<Self>,
        (key, puts): (&[u8], bool),
        seen: i64,
        from: i64,
        callback: Callback,
    ) -> Watching {
        let mut state = self.state();
        let Some((id, _)) = state.kept.remove(&(key.to_vec(), puts)) else {
            drop(state);
            return self.begin((key, Vec::new()), from, callback, (true, puts));
        };
        let callback = Arc::new(callback);
        let mut missed = (0, None);
        if let Some(entry) = state.entries.get_mut(&id) {
            entry.callback = Some(Arc::clone(&callback));
            missed = (entry.begun, entry.gone.clone());
        }
        drop(state);
        let watching = Watching { watcher: Arc::downgrade(self), id };
        if missed.0 > seen {
            callback(News::From(missed.0));
        }
        if let Some(gone) = missed.1.filter(|gone| gone.revision() > seen) {
            callback(News::Event(&gone));
        }
        watching
    }

    /// Ends watches that have lingered long enough. Call it about every second until it returns
    /// `true`: then no watch lingers.
    pub fn tidy(&self) -> bool {
        let now = clock::now();
        let (old, none_left) = {
            let mut state = self.state();
            let old = state.kept.extract_if(|_, (_, since)| since.until(now) >= LINGER);
            let old: Vec<_> = old.map(|(_, (id, _))| id).collect();
            (old, state.kept.is_empty())
        };
        self.end(&old);
        none_left
    }

    /// Ends all watches, and the stream. Call it before dropping the watcher: lingering watches
    /// would otherwise keep the stream, and with it the connection.
    pub fn close(&self) {
        let ended = {
            let mut state = self.state();
            state.kept.clear();
            std::mem::take(&mut state.entries)
        };
        drop(ended); // their callbacks may hold what must not be dropped under the mutex
        self.restart.notify_one();
        self.wanted.notify_one();
    }

    /// Ends watches.
    fn end(&self, ids: &[i64]) {
        let (ended, out) = {
            let mut state = self.state();
            let ended: Vec<_> = ids.iter().filter_map(|id| state.entries.remove(id)).collect();
            state.refused.retain(|id, _| !ids.contains(id));
            (ended, state.out.clone())
        };
        drop(ended); // their callbacks may hold what must not be dropped under the mutex
        for watch_id in ids {
            if let Some(out) = &out {
                out.send(&cancel(*watch_id));
            }
        }
    }

    fn begin(
        self: &Arc<Self>,
        (key, range_end): (&[u8], Vec<u8>),
        from: i64,
        callback: Callback,
        (lasting, puts): (bool, bool),
    ) -> Watching {
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        let entry = Entry {
            key: key.to_vec(),
            range_end,
            next: from,
            callback: Some(Arc::new(callback)),
            begun: from - 1,
            lasting,
            puts,
            gone: None,
            refused: 0,
            again: false,
        };
        state.entries.insert(id, entry);
        // A stream that is opened from now on requests it by itself.
        state.ask([id]);
        drop(state);
        self.wanted.notify_one();
        Watching { watcher: Arc::downgrade(self), id }
    }

    /// Restarts the stream with the member that is now chosen.
    pub fn restart(&self) {
        self.restart.notify_one();
    }

    /// Runs the stream while there is something to watch, until the watcher is dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no more news are reported; another may be run.
    pub async fn run(watcher: Weak<Watcher>) {
        // A panic, say of a subscriber, must not end all watches for good, unknown to their users.
        while AssertUnwindSafe(Watcher::attend_all(&watcher)).catch_unwind().await.is_err() {
            let Some(this) = watcher.upgrade() else { return };
            this.state().out = None;
            for callback in this.callbacks() {
                contained(|| callback(News::Gap));
            }
            drop(this);
            clock::pause(AFTER_PANIC).await;
        }
    }

    /// Runs the stream until the watcher is dropped.
    async fn attend_all(watcher: &Weak<Watcher>) {
        let mut failures = 0;
        loop {
            let Some(this) = watcher.upgrade() else { return };
            if this.state().entries.is_empty() {
                // The watcher may be dropped meanwhile.
                let wait = this.wanted.notified();
                let _ = clock::timeout(Duration::from_secs(1), wait).await;
                continue;
            }
            let (member, began) = (this.cluster.chosen(), clock::now());
            let broke = this.listen(member).await;
            this.state().out = None;
            let Err(status) = broke else { continue };
            tracing::debug!(%status, "the watch stream broke");
            if status.code != Code::Unauthenticated {
                this.cluster.avoid(member);
            }
            let lasted = began.until(clock::now());
            failures = if lasted > Duration::from_secs(5) { 0 } else { failures + 1 };
            if failures >= SILENT {
                let callbacks = this.callbacks();
                tell_silence(callbacks);
            }
            let backoff =
                Backoff::exponential(Duration::from_millis(20), Duration::from_secs(1)).jitter(50);
            clock::pause(backoff.pause(failures, fastrand::u64(..))).await;
        }
    }

    fn callbacks(&self) -> Vec<Arc<Callback>> {
        self.state().entries.values().filter_map(|entry| entry.callback.clone()).collect()
    }

    /// Runs one stream until it breaks, can no longer be trusted, or has nothing to do.
    async fn listen(&self, member: usize) -> Result<(), Status> {
        let late = || Status::late("the watch stream did not open in time");
        let open = pin!(self.cluster.stream(proto::WATCH, member));
        let open = clock::timeout(OPEN, open);
        let (out, answers, token) = open.await.unwrap_or_else(|| Err(late()))?;
        // The server sends nothing until it has an answer.
        let answered = {
            let mut state = self.state();
            state.out = Some(Arc::new(out));
            state.asked.clear();
            let State { entries, refused, .. } = &*state;
            let all = entries.keys().copied().filter(|id| !refused.contains_key(id));
            let all: Vec<_> = all.collect();
            let none = all.is_empty();
            state.ask(all);
            none
        };
        let over = self.attend(answers, answered, member).await;
        if over.as_ref().is_err_and(|status| status.code == Code::Unauthenticated) {
            self.cluster.forget(token.as_ref());
        }
        over
    }

    /// Handles the answers of a stream, of which the first must come soon unless nothing was asked.
    async fn attend(
        &self,
        mut answers: StreamReader,
        mut answered: bool,
        member: usize,
    ) -> Result<(), Status> {
        let mut turned = pin!(async {
            clock::pause(STAY).await;
            self.cluster.turned(member).await;
        });
        loop {
            let limit = if answered { self.ask_again() } else { OPEN };
            tokio::select! {
                answer = answers.message() => match answer? {
                    Some(answer) => self.take(&answer)?,
                    None => return Err(Status::unavailable("the watch stream ended")),
                },
                () = self.restart.notified() => return Ok(()),
                () = &mut turned => return Ok(()),
                () = clock::pause(limit) => {
                    if !answered {
                        return Err(Status::late("the watch stream did not answer in time"));
                    }
                    if self.state().entries.is_empty() {
                        return Ok(());
                    }
                }
            }
            answered = true;
        }
    }

    /// Requests the refused watches whose pause is over. Returns how long the stream can be left
    /// alone.
    fn ask_again(&self) -> Duration {
        let (now, mut state) = (clock::now(), self.state());
        if state.refused.is_empty() {
            return IDLE;
        }
        let due = state.refused.extract_if(|_, again| *again <= now);
        let due: Vec<_> = due.map(|(id, _)| id).collect();
        state.ask(due);
        let next = state.refused.values().map(|again| now.until(*again)).min();
        next.map_or(IDLE, |next| next.min(IDLE))
    }

    /// Handles an answer.
    fn take(&self, answer: &WatchAnswer) -> Result<(), Status> {
        let asked = if answer.created { self.state().asked.pop_front() } else { None };
        if answer.canceled && answer.compact_revision == 0 {
            // The fault of the member, or of our login, but not of the history. Watches that we
            // ended ourselves are no longer in the table.
            let mut state = self.state();
            let entry = state.entries.get(&answer.watch_id);
            let ours = answer.watch_id < 0 || entry.is_some_and(|entry| !entry.again);
            if !ours {
                return Ok(());
            }
            let id = if answer.watch_id < 0 { asked } else { Some(answer.watch_id) };
            let callback = id.and_then(|id| state.refuse(id));
            drop(state);
            tell_silence(callback);
            return Err(Status::new(Code::Unauthenticated, &*answer.cancel_reason));
        }
        let mut state = self.state();
        let Some(entry) = state.entries.get_mut(&answer.watch_id) else { return Ok(()) };
        entry.refused = 0;
        entry.again &= !answer.created;
        if let Some(last) = answer.events.iter().map(Event::revision).max() {
            entry.next = entry.next.max(last.saturating_add(1));
        }
        if entry.lasting {
            let gone = answer.events.iter().rfind(|event| event.kind == proto::DELETED);
            entry.gone = gone.cloned().or(entry.gone.take());
            let puts = answer.events.iter().filter(|event| event.kind != proto::DELETED);
            entry.begun = puts.map(Event::revision).fold(entry.begun, i64::max);
        }
        entry.next = entry.next.max(answer.compact_revision);
        entry.begun = entry.begun.max(answer.compact_revision);
        let at = answer.header.unwrap_or_default().revision;
        let begins = answer.created && entry.next == 0;
        // The member would report nothing until it gets there. It may be slow; but if it has lost
        // data, that takes long.
        let ahead = answer.created && at > 0 && at < entry.next - 1;
        if begins || ahead {
            entry.next = at.saturating_add(1);
        }
        if begins {
            entry.begun = at;
        }
        let callback = entry.callback.clone();
        let gap = answer.canceled || ahead;
        if gap {
            state.begin_again(answer.watch_id);
        }
        drop(state);
        let Some(callback) = callback else { return Ok(()) };
        contained(|| {
            if begins {
                callback(News::From(at));
            }
            if gap {
                callback(News::Gap);
            }
            answer.events.iter().for_each(|event| callback(News::Event(event)));
        });
        Ok(())
    }
}

fn tell_silence(callbacks: impl IntoIterator<Item = Arc<Callback>>) {
    callbacks.into_iter().for_each(|callback| contained(|| callback(News::Silence)));
}

/// The request to end a watch.
fn cancel(watch_id: i64) -> proto::Watch {
    proto::Watch { op: Some(WatchOp::Cancel(WatchCancel { watch_id })) }
}

impl Entry {
    fn create(&self, id: i64) -> proto::Watch {
        proto::Watch {
            op: Some(WatchOp::Create(WatchCreate {
                key: self.key.clone(),
                range_end: self.range_end.clone(),
                start_revision: self.next,
                filters: if self.puts { Vec::new() } else { vec![proto::NO_PUT] },
                watch_id: id,
            })),
        }
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher")
            .field("watches", &self.state().entries.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Header, KeyValue};
    use holdline_base::servers::Servers;

    fn answer(watch_id: i64, events: Vec<Event>, at: i64) -> WatchAnswer {
        let header = Some(Header { revision: at, ..<_>::default() });
        WatchAnswer { header, watch_id, created: events.is_empty(), events, ..<_>::default() }
    }

    fn event(kind: i32, revision: i64) -> Event {
        let kv = KeyValue { key: b"x".to_vec(), mod_revision: revision, ..<_>::default() };
        Event { kind, kv: Some(kv) }
    }

    fn watcher() -> Arc<Watcher> {
        let servers = Servers { hosts: vec!["host:1".to_owned()], ..<_>::default() };
        let cluster = Cluster::new(servers, None, "etcd").expect("a good host");
        Watcher::new(Arc::new(cluster))
    }

    /// Writes the news down.
    fn note(told: &Arc<Mutex<Vec<String>>>) -> Callback {
        let told = Arc::clone(told);
        Box::new(move |news| {
            told.lock().push(match news {
                News::Event(event) => format!("{} at {}", event.kind, event.revision()),
                News::Gap => "gap".to_owned(),
                News::From(at) => format!("from {at}"),
                News::Silence => "silence".to_owned(),
            });
        })
    }

    /// A lingering watch that is reused reports what an earlier look has missed: a deletion itself,
    /// and that there were writes.
    #[test]
    fn what_a_kept_watch_has_seen_is_not_missed() {
        let (watcher, told) = (watcher(), Arc::default());
        let watch = |seen, puts| watcher.watch_out((b"x", puts), seen, 0, note(&told));
        let new = || std::mem::take(&mut *told.lock());
        let first = watch(5, true);
        watcher.take(&answer(first.id, Vec::new(), 6)).expect("no refusal");
        assert_eq!(new(), ["from 6"]);
        let id = first.id;
        drop(first);
        watcher.take(&answer(id, vec![event(0, 8)], 8)).expect("no refusal");
        assert_eq!(watch(8, true).id, id);
        assert_eq!(new(), [""; 0], "the look was not before that");
        assert_eq!(watch(7, true).id, id);
        assert_eq!(new(), ["from 8"]);
        watcher.take(&answer(id, vec![event(proto::DELETED, 9)], 9)).expect("no refusal");
        assert_eq!(watch(8, true).id, id);
        assert_eq!(new(), [format!("{} at 9", proto::DELETED)]);
        assert_ne!(watch(9, false).id, id, "that one tells less");
    }

    #[test]
    fn a_watch_lingers_for_a_while() {
        let watcher = watcher();
        assert!(watcher.tidy(), "there is none");
        drop(watcher.watch_out((b"x", true), 5, 0, note(&Arc::default())));
        assert!(!watcher.tidy() && watcher.state().entries.len() == 1);
        watcher.state().kept.values_mut().for_each(|(_, since)| *since = Time(0));
        assert!(watcher.tidy() && watcher.state().entries.is_empty());
    }

    #[test]
    fn a_refused_watch_that_ends_leaves_nothing() {
        let watcher = watcher();
        let told = Arc::default();
        let watch = watcher.watch(b"x", Vec::new(), 0, note(&told));
        let refusal = WatchAnswer { canceled: true, ..answer(watch.id, Vec::new(), 5) };
        for refused in [0, 1] {
            watcher.take(&refusal).expect_err("it is refused");
            assert_eq!(watcher.state().refused.len(), refused, "the first time, at once");
            assert_eq!(told.lock().len(), refused, "that nothing is reported");
        }
        drop(watch);
        let state = watcher.state();
        assert!(state.entries.is_empty() && state.refused.is_empty());
    }

    /// All watches depend on the task that runs it.
    #[test]
    fn a_callback_that_panics_ends_no_other_watch() {
        let (watcher, told) = (watcher(), Arc::default());
        let panics = watcher.watch(b"x", Vec::new(), 1, Box::new(|_| panic!("as it should")));
        let watch = watcher.watch(b"x", Vec::new(), 1, note(&told));
        for id in [panics.id, watch.id] {
            watcher.take(&answer(id, vec![event(0, 8)], 8)).expect("no refusal");
        }
        assert_eq!(*told.lock(), ["0 at 8"]);
    }

    /// A subscriber of a program, with a bug.
    struct Panics;

    impl tracing::Subscriber for Panics {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            panic!("as it should");
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    /// Or nobody would be told of what is removed by force, ever.
    #[tokio::test]
    async fn a_panic_is_a_gap_and_the_watches_go_on() {
        let _panics = tracing::subscriber::set_default(Panics);
        let (watcher, told) = (watcher(), Arc::<Mutex<Vec<String>>>::default());
        let _watch = watcher.watch(b"x", Vec::new(), 0, note(&told));
        let twice = async {
            while told.lock().len() < 2 {
                clock::pause(Duration::from_millis(10)).await;
            }
        };
        let run = Watcher::run(Arc::downgrade(&watcher));
        tokio::select! {
            twice = clock::timeout(Duration::from_secs(60), twice) => twice.expect("it goes on"),
            () = run => panic!("it is still there"),
        }
        assert_eq!(told.lock()[..2], ["gap", "gap"]);
    }

    #[tokio::test]
    async fn a_watch_for_which_there_is_no_stream_is_told_that() {
        let (watcher, told) = (watcher(), Arc::default());
        let _watch = watcher.watch(b"x", Vec::new(), 0, note(&told));
        let silence = async {
            while told.lock().is_empty() {
                clock::pause(Duration::from_millis(10)).await;
            }
        };
        let run = Watcher::run(Arc::downgrade(&watcher));
        tokio::select! {
            told = clock::timeout(Duration::from_secs(60), silence) => told.expect("it is told"),
            () = run => panic!("it is still there"),
        }
        assert_eq!(told.lock()[0], "silence");
    }

    /// As after a restore from a backup: the member would otherwise be silent until it gets there.
    #[test]
    fn a_member_that_is_behind_a_watch_is_asked_for_what_comes_next() {
        let (watcher, told) = (watcher(), Arc::default());
        let watch = watcher.watch(b"x", Vec::new(), 9, note(&told));
        let next = || watcher.state().entries[&watch.id].next;
        let new = || std::mem::take(&mut *told.lock());
        watcher.take(&answer(watch.id, Vec::new(), 8)).expect("no refusal");
        assert_eq!((new(), next()), (Vec::new(), 9), "nothing is missed");
        watcher.take(&answer(watch.id, vec![event(0, 20)], 20)).expect("no refusal");
        assert_eq!((new(), next()), (vec!["0 at 20".to_owned()], 21));
        watcher.take(&answer(watch.id, Vec::new(), 5)).expect("no refusal");
        assert_eq!((new(), next()), (vec!["gap".to_owned()], 6));
    }
}
