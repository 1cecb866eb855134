//! How slow the machine and a store are just now: what a failure may come from that is nobody's
//! fault.
//!
//! Cases let leases run out, and assert that others do not. If the machine, or the server on it,
//! stands still for a good part of a lease, such a case says nothing. It is done again then, when
//! little else runs, and only if that happens again, with longer leases; without a standstill a
//! failure is a failure.

use holdline::store::Async;
use holdline::{Client, Guard, Mutex};
use holdline_conformance::Subject;
use std::sync::{self, Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(20);
/// How often a store is asked something.
const ASK: Duration = Duration::from_millis(100);
/// A standstill for such a part of the lease explains a failure,
const PART: u32 = 8;
/// and one for half as long as the library waits for an answer that comes at the end of a time
/// limit: what is asked here is answered sooner than the slowest answer to a case.
const AT_THE_LIMIT: Duration = Duration::from_millis(25);
/// An answer that came, and was wrong: also one that is not the kernel's, as no lease ends there.
const WRONG: [&str; 4] = ["makes no sense", ", the kernel ", " of seed ", "a place moved"];
/// Two holders, lost updates and tokens out of order. Only a standstill that ends a lease may
/// explain them.
const UNSAFE: [&str; 27] = [
    "two are inside",
    "two hold it",
    "two processes hold it",
    "two lead",
    "two tasks have a key",
    "had two owners",
    "has two owners",
    "got it, too",
    "got it twice",
    "it is not alone",
    "a writer is there",
    "a writer came in",
    "permits were given beside",
    "the rival came",
    "took the rival's lock",
    "updates were lost",
    "came before",
    "came after",
    "comes after",
    "tokens rise",
    "token did not rise",
    "is not before",
    "would fence",
    "not fence",
    "is not fenced",
    "is fenced, too",
    ".token()", // of an assertion without words
];
/// A while in which nothing is slow.
const CALM: Duration = Duration::from_secs(2);
/// So much longer are the leases when a case is done again.
const LONGER: u32 = 4;

/// For an answer about a lock that is not waited for.
const RESPONSE: Duration = Duration::from_secs(8);

/// Something that was due, when, and when it came.
type Span = (Instant, Option<Instant>);

/// Watches the machine, and one store on it.
pub(crate) struct Pace {
    spans: sync::Mutex<Vec<Span>>,
    store: String,
}

impl Pace {
    /// Watches for as long as anybody keeps the answer.
    pub(crate) fn watch(subject: &Arc<dyn Subject>) -> Arc<Self> {
        let pace = Arc::new(Pace { spans: sync::Mutex::default(), store: subject.name() });
        tokio::spawn(watch_renewals(Arc::downgrade(&pace)));
        let machine = Arc::downgrade(&pace);
        std::thread::spawn(move || {
            loop {
                let due = Instant::now() + BEAT;
                std::thread::sleep(BEAT);
                let Some(pace) = machine.upgrade() else { return };
                pace.note((due, Some(Instant::now())));
            }
        });
        let (store, subject) = (Arc::downgrade(&pace), Arc::clone(subject));
        tokio::spawn(async move {
            let client = loop {
                if let Ok(client) = subject.client().await {
                    break client;
                }
            };
            // A lock, because stores may be slower to write than to read.
            let lock = Mutex::new(&client, "conformance, and how fast it is");
            let mut held = None;
            loop {
                let at = {
                    let Some(pace) = store.upgrade() else { return };
                    pace.note((Instant::now(), None))
                };
                // An error is an answer, too; one that comes late is what is looked for.
                held = match held.take() {
                    Some(held) => Guard::unlock(held).await.err().and(None),
                    None => lock.try_lock().await.ok().flatten(),
                };
                let Some(pace) = store.upgrade() else { return };
                pace.spans.lock().unwrap_or_else(PoisonError::into_inner)[at].1 =
                    Some(Instant::now());
                drop(pace);
                tokio::time::sleep(ASK).await;
            }
        });
        pace
    }

    fn note(&self, span: Span) -> usize {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.push(span);
        spans.len() - 1
    }

    /// The longest that anything took to come since then.
    pub(crate) fn slowest(&self, since: Instant) -> Duration {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let took = |(due, came): &Span| {
            let came = came.unwrap_or_else(Instant::now);
            (came >= since).then(|| came.saturating_duration_since(*due))
        };
        spans.iter().filter_map(took).max().unwrap_or_default()
    }

    /// Waits until nothing has been slow for a while; not for ever, if it is always so.
    pub(crate) async fn calm(&self, lease: Duration) {
        let until = Instant::now() + CALM * 10;
        let mut since = Instant::now();
        while since.elapsed() < CALM && Instant::now() < until {
            tokio::time::sleep(ASK).await;
            if self.slowest(since) > explains(lease) {
                since = Instant::now();
            }
        }
    }

    /// Whether that explains this failure, in words.
    pub(crate) fn excuse(&self, why: &str, since: Instant, lease: Duration) -> Option<String> {
        let (slowest, store) = (self.slowest(since), &self.store);
        let least = shortest_for(why, lease)?;
        (slowest > least)
            .then(|| format!("the machine, or {store}, stood still for {slowest:.1?} meanwhile"))
    }
}

/// The shortest standstill that explains this failure; `None` if none does.
fn shortest_for(why: &str, lease: Duration) -> Option<Duration> {
    let says = |words: &[&str]| words.iter().any(|words| why.contains(words));
    if says(&WRONG) {
        return None;
    }
    Some(if says(&UNSAFE) { lease / 2 } else { explains(lease) })
}

/// Watches how late renewals are: this process has one thread for those of all cases, which a storm
/// keeps busy. They are due at each quarter of the lease, less the margin.
async fn watch_renewals(pace: Weak<Pace>) {
    let lease = Duration::from_secs(1);
    let in_time = lease * 3 / 5;
    let Ok(client) = holdline::open("memory:pace").await else { return };
    let lock = Mutex::new(&client, fastrand::u64(..).to_string()).lease(lease);
    let mut held = None;
    loop {
        held = match held.take() {
            Some(held) if Guard::is_valid(&held) => Some(held),
            _ => lock.try_lock().await.ok().flatten(),
        };
        tokio::time::sleep(BEAT).await;
        let Some(pace) = pace.upgrade() else { return };
        let late = in_time.saturating_sub(held.as_ref().map_or(Duration::ZERO, Guard::remaining));
        let now = Instant::now();
        if let Some(due) = now.checked_sub(late).filter(|_| !late.is_zero()) {
            pace.note((due, Some(now)));
        }
    }
}

/// The shortest standstill that explains a failure.
fn explains(lease: Duration) -> Duration {
    (lease / PART).min(AT_THE_LIMIT)
}

/// The same subject, with longer leases.
pub(crate) struct LongerLeases(pub(crate) Arc<dyn Subject>);

impl Subject for LongerLeases {
    fn name(&self) -> String {
        self.0.name()
    }

    fn client(&self) -> Async<'_, Client> {
        Box::pin(async { Ok(self.0.client().await?.response_timeout(RESPONSE)) })
    }

    fn url(&self) -> Option<String> {
        self.0.url()
    }

    fn lease(&self) -> Duration {
        self.0.lease() * LONGER
    }

    fn time_limit(&self) -> Duration {
        self.0.time_limit()
    }

    fn each_place(&self) -> Duration {
        self.0.each_place() * LONGER
    }

    fn notifies(&self) -> bool {
        self.0.notifies()
    }

    fn takes(&self, name: &str) -> bool {
        self.0.takes(name)
    }
}
