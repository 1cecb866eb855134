//! Watches: all of them in one stream.
//!
//! A watch goes on from the revision after the last one seen, so nothing is missed when the stream
//! breaks and another member takes over. If the history is no longer there (compaction), the
//! callback is told that there is a gap.
//!
//! Where processes take turns, each waits behind the same keys again and again. So a watch over one
//! key is kept for a moment after its end: the next one for that key has missed nothing, and no
//! look is needed to be sure of that (decision 13).

use crate::cluster::Cluster;
use crate::connection::StreamWriter;
use crate::grpc::{Code, Status};
use crate::proto::{self, Event, WatchAnswer, WatchCancel, WatchCreate, WatchOp};
use holdline_base::clock;
use holdline_base::sync::Mutex;
use holdline_kernel::{Backoff, Time};
use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// How long a member may take to open the stream, and to answer the first time.
const OPEN: Duration = Duration::from_secs(2);
/// The longest pause before a watch that is refused is asked for again.
const REFUSED: Duration = Duration::from_secs(30);
/// The time without an answer after which the stream ends if it has no watches.
const IDLE: Duration = Duration::from_secs(30);
/// The time for which a watch is kept after its end,
const LINGER: Duration = Duration::from_secs(1);
/// and the number of watches that are kept at most.
const KEPT: usize = 256;

/// What a watch tells.
#[derive(Debug)]
pub enum News<'a> {
    /// Something happened to a key.
    Event(&'a Event),
    /// Some of what happened is not known.
    Gap,
    /// It begins behind this revision.
    From(i64),
}

/// A callback for news, on the background thread. It must not wait.
pub type Callback = Box<dyn Fn(News<'_>) + Send + Sync>;

struct Entry {
    key: Vec<u8>,
    range_end: Vec<u8>,
    /// The first revision not seen yet; 0 as long as it has not begun.
    next: i64,
    /// None while the watch is kept.
    callback: Option<Arc<Callback>>,
    /// The revision before which something may be missed that it does not remember.
    begun: i64,
    /// Whether the watch is kept for a moment after its end.
    lasting: bool,
    /// Whether it tells of writes, too, and not of deletions alone.
    puts: bool,
    /// The last deletion that it saw, if it is to be kept.
    gone: Option<Event>,
    /// How often it was refused, one time after the other.
    refused: u32,
    /// It was ended and asked for once more: that end is nobody's refusal.
    again: bool,
}

#[derive(Default)]
struct State {
    entries: HashMap<i64, Entry>,
    /// The watches that are kept, by their keys and what they tell, with the time of their end.
    kept: HashMap<(Vec<u8>, bool), (i64, Time)>,
    last: i64,
    /// Watches that were refused, and when each is to be asked for again.
    refused: HashMap<i64, Time>,
    /// Watches that were asked for and not answered, in this order: a refusal names none.
    asked: VecDeque<i64>,
    /// To the stream that is open.
    out: Option<Arc<StreamWriter>>,
}

/// All watches of a client.
pub struct Watcher {
    cluster: Arc<Cluster>,
    state: Mutex<State>,
    /// There is something to watch.
    wanted: Notify,
    /// The stream is not to be trusted any more.
    restart: Notify,
}

/// One watch. It ends when this is dropped.
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
    /// Keeps a watch for a moment, and gives its callback back; nothing if it is not to be kept.
    fn keep(&mut self, id: i64) -> Option<Arc<Callback>> {
        let entry = self.entries.get_mut(&id)?;
        let kind = (entry.key.clone(), entry.puts);
        if !entry.lasting || self.kept.len() >= KEPT || self.kept.contains_key(&kind) {
            return None;
        }
        self.kept.insert(kind, (id, clock::now()));
        entry.callback.take()
    }

    /// Asks for watches on the open stream, in the order in which this is called.
    fn ask(&mut self, ids: impl IntoIterator<Item = i64>) {
        let Some(out) = &self.out else { return };
        for id in ids {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.again = false;
            self.asked.push_back(id);
            out.send(&entry.create(id));
        }
    }

    /// Asks once more for a watch that the member has ended, which still has it by its number.
    fn begin_again(&mut self, id: i64) {
        let Some(out) = &self.out else { return };
        out.send(&cancel(id));
        self.ask([id]);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.again = true;
        }
    }

    /// Notes that a member refuses a watch. At first our login may have run out. Refused again, we
    /// lack the right; as etcd may take nothing more on a stream on which it refused something,
    /// the watch is left out, and asked for less and less often.
    fn refuse(&mut self, id: i64) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(times) = entry.refused.checked_sub(1) {
            let pauses = Backoff::exponential(Duration::from_secs(1), REFUSED);
            self.refused.insert(id, clock::now().after(pauses.pause(times, 0)));
        }
        entry.refused += 1;
    }
}

impl Watcher {
    /// Watches in this cluster. A task must [`run`](Self::run) it.
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

    /// Watches a key, or all keys up to an end, from a revision on; or from now (0), which is told.
    /// etcd lets watches of the past wait for up to 100 ms, but not those that begin now.
    pub fn watch(
        self: &Arc<Self>,
        key: &[u8],
        range_end: Vec<u8>,
        from: i64,
        callback: Callback,
    ) -> Watching {
        self.begin((key, range_end), from, callback, (false, true))
    }

    /// Watches for the deletion of a key, and with `puts` for writes: by a watch that was kept, or
    /// else as [`Watcher::watch`] does. The callback is told what was missed since the revision
    /// `seen`, or that something was.
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

    /// Ends what was kept long enough. To be called now and then, every second or so.
    pub fn tidy(&self) {
        let now = clock::now();
        let kept = |state: &mut State| -> Vec<i64> {
            let old = state.kept.extract_if(|_, (_, since)| since.until(now) >= LINGER);
            old.map(|(_, (id, _))| id).collect()
        };
        let old = kept(&mut self.state());
        self.end(&old);
    }

    /// Ends all watches, and the stream; to be called before the watcher is dropped. Watches that
    /// are kept would keep the stream otherwise, and with it the connection.
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
        // A stream that is opened from now on begins it by itself.
        state.ask([id]);
        drop(state);
        self.wanted.notify_one();
        Watching { watcher: Arc::downgrade(self), id }
    }

    /// Begins anew with the member that is chosen now.
    pub fn restart(&self) {
        self.restart.notify_one();
    }

    /// Keeps the stream going while there is something to watch, until the watcher is dropped.
    ///
    /// # Cancel safety
    ///
    /// Nothing is told any more once the future is dropped; another may be run.
    pub async fn run(watcher: Weak<Watcher>) {
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
            if status.code == Code::Unauthenticated {
                this.cluster.forget_token();
            } else {
                this.cluster.avoid(member);
            }
            let lasted = began.until(clock::now());
            failures = if lasted > Duration::from_secs(5) { 0 } else { failures + 1 };
            let backoff =
                Backoff::exponential(Duration::from_millis(20), Duration::from_secs(1)).jitter(50);
            clock::pause(backoff.pause(failures, fastrand::u64(..))).await;
        }
    }

    /// One stream, until it breaks, is not trusted any more, or has nothing to do.
    async fn listen(&self, member: usize) -> Result<(), Status> {
        let late = || Status::late("the watch stream did not open in time");
        let open = pin!(self.cluster.stream(proto::WATCH, member));
        let open = clock::timeout(OPEN, open);
        let (out, mut answers) = open.await.unwrap_or_else(|| Err(late()))?;
        // It answers nothing until it has something to answer.
        let mut answered = {
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
        loop {
            let limit = if answered { self.ask_again() } else { OPEN };
            tokio::select! {
                answer = answers.message() => match answer? {
                    Some(answer) => self.take(&answer)?,
                    None => return Err(Status::unavailable("the watch stream ended")),
                },
                () = self.restart.notified() => return Ok(()),
                () = clock::pause(limit) => {
                    if !answered {
                        return Err(late());
                    }
                    if self.state().entries.is_empty() {
                        return Ok(());
                    }
                }
            }
            answered = true;
        }
    }

    /// Asks for the watches that were refused, and whose pause is over. Returns how long the stream
    /// can be left alone.
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

    /// Passes an answer on.
    fn take(&self, answer: &WatchAnswer) -> Result<(), Status> {
        let asked = if answer.created { self.state().asked.pop_front() } else { None };
        if answer.canceled && answer.compact_revision == 0 {
            // The member's fault, or our login's, and not the history's. Those that we ended
            // ourselves are not in the table any more.
            let mut state = self.state();
            let entry = state.entries.get(&answer.watch_id);
            let ours = answer.watch_id < 0 || entry.is_some_and(|entry| !entry.again);
            if !ours {
                return Ok(());
            }
            let id = if answer.watch_id < 0 { asked } else { Some(answer.watch_id) };
            if let Some(id) = id {
                state.refuse(id);
            }
            return Err(Status::new(Code::Unauthenticated, &*answer.cancel_reason));
        }
        let mut state = self.state();
        let Some(entry) = state.entries.get_mut(&answer.watch_id) else { return Ok(()) };
        entry.refused = 0;
        entry.again &= !answer.created;
        if let Some(last) = answer.events.iter().map(Event::revision).max() {
            entry.next = entry.next.max(last + 1);
        }
        if entry.lasting {
            let gone = answer.events.iter().rfind(|event| event.kind == proto::DELETED);
            entry.gone = gone.cloned().or(entry.gone.take());
            let puts = answer.events.iter().filter(|event| event.kind != proto::DELETED);
            entry.begun = puts.map(Event::revision).fold(entry.begun, i64::max);
        }
        entry.next = entry.next.max(answer.compact_revision);
        entry.begun = entry.begun.max(answer.compact_revision);
        let begins = (answer.created && entry.next == 0).then(|| {
            let at = answer.header.unwrap_or_default().revision;
            entry.next = at + 1;
            entry.begun = at;
            at
        });
        let callback = entry.callback.clone();
        if answer.canceled {
            state.begin_again(answer.watch_id);
        }
        drop(state);
        let Some(callback) = callback else { return Ok(()) };
        if let Some(at) = begins {
            callback(News::From(at));
        }
        if answer.canceled {
            callback(News::Gap);
        }
        answer.events.iter().for_each(|event| callback(News::Event(event)));
        Ok(())
    }
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
        let header = Some(Header { revision: at, raft_term: 1 });
        WatchAnswer { header, watch_id, created: events.is_empty(), events, ..<_>::default() }
    }

    fn event(kind: i32, revision: i64) -> Event {
        let kv = KeyValue { key: b"x".to_vec(), mod_revision: revision, ..<_>::default() };
        Event { kind, kv: Some(kv) }
    }

    /// A watch that is kept, and used again, says what was missed by a look of before: a deletion
    /// itself, and of writes that there were some.
    #[test]
    fn what_a_kept_watch_has_seen_is_not_missed() {
        let servers = Servers { hosts: vec!["host:1".to_owned()], ..<_>::default() };
        let cluster = Cluster::new(servers, None, "etcd").expect("a good host");
        let watcher = Watcher::new(Arc::new(cluster));
        let told = Arc::<Mutex<Vec<String>>>::default();
        let watch = |seen, puts| {
            let told = Arc::clone(&told);
            let note = move |news: News<'_>| {
                told.lock().push(match news {
                    News::Event(event) => format!("{} at {}", event.kind, event.revision()),
                    News::Gap => "gap".to_owned(),
                    News::From(at) => format!("from {at}"),
                });
            };
            watcher.watch_out((b"x", puts), seen, 0, Box::new(note))
        };
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
}
