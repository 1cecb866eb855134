//! The role of a client process of an outage run: some waiters, some standbys and an observer, each
//! with a client of its own, which go on until the process's input ends.

use crate::client::{deadline, opened, until_input_ends};
use crate::recording_store::{ATTEMPT, RecordingStore};
use crate::stall_detector::StallDetector;
use crate::workload::AnyGuard;
use fastrand::Rng;
use holdline::{Client, Election, Mutex};
use holdline_checker::{Event, Op, Phase, Reason, Writer};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// The variable with a process's part.
pub(crate) const PART: &str = "HOLDLINE_OUTAGE_PART";
/// The interval at which a holder records its deadline.
const SAMPLE: Duration = Duration::from_millis(50);
/// The interval of an observer's looks.
const LOOK: Duration = Duration::from_millis(200);

/// The parameters of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) url: String,
    pub(super) run: String,
    pub(super) lease_ms: u64,
    pub(super) waiters: Vec<String>,
    pub(super) standbys: Vec<String>,
    pub(super) observers: Vec<String>,
    pub(super) history: PathBuf,
    /// The separate file of observers.
    pub(super) observed: PathBuf,
}

/// The mutex for which the waiters compete.
pub(super) fn mutex(run: &str) -> String {
    format!("{run}-mutex")
}

/// The election in which the standbys are candidates.
pub(super) fn election(run: &str) -> String {
    format!("{run}-election")
}

/// The role of a client process.
pub(crate) fn role(part: &str) {
    let part: Part = serde_json::from_str(part).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(&part));
}

async fn run(part: &Part) {
    let stop = until_input_ends();
    let _stalls = StallDetector::start(&part.history, &part.run, None);
    let mut tasks = tokio::task::JoinSet::new();
    for name in part.waiters.iter().chain(&part.standbys) {
        let leads = part.standbys.contains(name);
        let contender = Contender::new(part, name, leads, &stop).await;
        tasks.spawn(async move { contender.go_on().await });
    }
    for name in &part.observers {
        tasks.spawn(observe(part.clone(), name.clone(), Arc::clone(&stop)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// Waits until the store was reached once: only then are its outages waited out.
async fn reached(client: &Client) {
    while client.inspect("anything").await.is_err() {}
}

/// A client that acquires the mutex, or leads, again and again.
struct Contender {
    writer: Arc<Writer>,
    client: Client,
    lock: String,
    name: String,
    leads: bool,
    lease: Duration,
    stop: Arc<AtomicBool>,
}

impl Contender {
    async fn new(part: &Part, name: &str, leads: bool, stop: &Arc<AtomicBool>) -> Self {
        let writer = Arc::new(Writer::open(&part.history, &part.run, name).unwrap());
        let opened = opened(&part.url).await;
        let recorder = RecordingStore::new(Arc::clone(opened.store()), Arc::clone(&writer), false);
        let client = Client::new(Arc::new(recorder));
        reached(&client).await;
        let lock = if leads { election(&part.run) } else { mutex(&part.run) };
        let lease = Duration::from_millis(part.lease_ms);
        let (name, stop) = (name.to_owned(), Arc::clone(stop));
        Contender { writer, client, lock, name, leads, lease, stop }
    }

    fn write(&self, event: Event) {
        self.writer.write(event.lock(&self.lock)).unwrap();
    }

    async fn go_on(&self) {
        let mut rng = Rng::with_seed(self.name.bytes().map(u64::from).sum());
        while !self.stop.load(Ordering::Acquire) {
            let n = self.writer.next_n();
            let ttl = u64::try_from(self.lease.as_millis()).unwrap();
            let event = |ph| Event::new(Op::Acquire, ph, n).weight(1).ttl_ms(ttl);
            self.write(event(Phase::Invoke));
            match ATTEMPT.scope(n, self.acquire()).await {
                Ok(guard) => {
                    let granted = event(Phase::Ok).owner(&guard.ticket().0.to_string());
                    let granted = granted.deadline(deadline(&guard).unwrap_or(0));
                    let fenced = self.client.capabilities().fencing_tokens;
                    self.write(if fenced { granted.fence(guard.token()) } else { granted });
                    let began = tokio::time::Instant::now();
                    self.hold(n, guard, &mut rng).await;
                    if !self.client.capabilities().fair_queue {
                        // Without an order, it would have the lock again before others ask.
                        let held = began.elapsed();
                        sleep(held + Duration::from_millis(rng.u64(..1000))).await;
                    }
                }
                // An outage must be waited out, not reported as an error.
                Err(error) => {
                    self.write(event(Phase::Info).reason(Reason::Other(format!("{error:#}"))));
                    sleep(Duration::from_millis(200)).await;
                }
            }
        }
        self.client.settle().await;
    }

    async fn acquire(&self) -> holdline::Result<AnyGuard> {
        if !self.leads {
            let mutex = Mutex::new(&self.client, &self.lock).lease(self.lease);
            return mutex.label(&self.name).lock().await.map(AnyGuard::Plain);
        }
        let election = Election::new(&self.client, &self.lock).lease(self.lease);
        election.label(&self.name).campaign(&self.name).await.map(AnyGuard::Leader)
    }

    /// Holds for a moment. The first waiter and the first standby hold for longer: if their lock is
    /// not renewed, until it is or they have lost it.
    async fn hold(&self, n: u64, guard: AnyGuard, rng: &mut Rng) {
        let long = self.name.ends_with('0') && self.name.len() == 2;
        let time = Duration::from_millis(if long { 3000 } else { rng.u64(5..40) });
        let about = |op, ph| Event::new(op, ph, n);
        let over = tokio::time::Instant::now() + time;
        let work = async {
            while tokio::time::Instant::now() < over
                || (long && guard.remaining() < self.lease.mul_f64(0.65))
            {
                sleep(SAMPLE.min(time)).await;
                let k = self.writer.next_n();
                self.write(about(Op::Claim, Phase::Invoke).k(k));
                self.write(match deadline(&guard) {
                    Some(until) => about(Op::Claim, Phase::Ok).deadline(until).k(k),
                    None => about(Op::Claim, Phase::Fail).reason(Reason::NotHeld).k(k),
                });
            }
        };
        if guard.protect(work).await.is_err() {
            self.write(about(Op::Lost, Phase::Ok));
        }
        let mut asked = about(Op::Release, Phase::Invoke);
        asked.deadline = deadline(&guard);
        self.write(asked);
        let answer = |ph| about(Op::Release, ph);
        self.write(match guard.unlock().await {
            Ok(()) => answer(Phase::Ok),
            Err(error) if error.is_lost() => answer(Phase::Fail).reason(Reason::NotHeld),
            Err(error) => answer(Phase::Info).reason(Reason::Other(format!("{:?}", error.kind()))),
        });
    }
}

/// Records each change of leader that it sees.
async fn observe(part: Part, name: String, stop: Arc<AtomicBool>) {
    let writer = Writer::open(&part.observed, &part.run, &name).unwrap();
    let client = opened(&part.url).await;
    reached(&client).await;
    let mut observer = Election::new(&client, election(&part.run)).observe().every(LOOK);
    while !stop.load(Ordering::Acquire) {
        // The last call may wait for a change that never comes.
        let Ok(seen) = tokio::time::timeout(LOOK * 5, observer.next()).await else { continue };
        let event = |ph| Event::new(Op::Acquire, ph, writer.next_n());
        let event = match seen {
            Ok(Some(leader)) => event(Phase::Ok).fence(leader.token).owner(&leader.value),
            Ok(None) => continue,
            Err(error) => event(Phase::Fail).reason(Reason::Other(format!("{error:#}"))),
        };
        writer.write(event).unwrap();
    }
}
