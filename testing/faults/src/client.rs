//! The role of a client process: it runs workloads until its input ends, and records all that they
//! do.

use crate::recording_store::{ATTEMPT, RecordingStore};
use crate::stall_detector::StallDetector;
use crate::workload::{Acquirer, AnyGuard, Behaviour, Times, Way, Workload};
use fastrand::Rng;
use holdline::{Client, clock};
use holdline_checker::resource::{self, Reply};
use holdline_checker::{Event, Op, Phase, Reason, Register, Writer};
use serde::{Deserialize, Serialize};
use std::future::{Future, pending};
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::{sleep, timeout};

/// The variable with a process's role.
pub(crate) const ROLE: &str = "HOLDLINE_FAULT_ROLE";
/// The workloads that one process runs at the same time.
pub(crate) const TASKS: u64 = 2;
/// The interval at which a holder records its deadline.
const SAMPLE: Duration = Duration::from_millis(20);

/// The parameters of a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Role {
    pub(crate) url: String,
    pub(crate) run: String,
    /// Its name in the history, new after each restart.
    pub(crate) process: String,
    /// Different for every process of a run.
    pub(crate) serial: u64,
    pub(crate) seed: u64,
    pub(crate) behaviour: Behaviour,
    /// Whether it must be certain when one of the locks was free.
    pub(crate) certain: bool,
    pub(crate) lease_ms: u64,
    pub(crate) work_ms: u64,
    pub(crate) history: PathBuf,
    pub(crate) resource: PathBuf,
    /// The seconds by which its wall clock is ahead, or behind.
    pub(crate) wall_clock: i64,
    /// The environment variables that set it.
    pub(crate) environment: Vec<(String, String)>,
}

/// The role of a client process.
pub(crate) fn client(role: &str) {
    let role: Role = serde_json::from_str(role).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(role));
}

/// Whether the wall clock of this process is this many seconds ahead of the system's (by which
/// files are dated), or behind.
fn wall_clock_is_off_by(seconds: i64) -> bool {
    let file = tempfile::NamedTempFile::new().unwrap();
    let since_1970 = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let dated = since_1970(file.as_file().metadata().unwrap().modified().unwrap());
    let shown = since_1970(SystemTime::now());
    (shown.cast_signed() - dated.cast_signed() - seconds).abs() <= 30
}

async fn run(role: Role) {
    assert!(wall_clock_is_off_by(role.wall_clock), "{}: its clock is right", role.process);
    let writer = Arc::new(Writer::open(&role.history, &role.run, &role.process).unwrap());
    let _stalls = StallDetector::start(&role.history, &role.run, Some(&role.process));
    let opened = opened(&role.url).await;
    let deceives = role.behaviour == Behaviour::Deceived;
    let recorder = RecordingStore::new(Arc::clone(opened.store()), Arc::clone(&writer), deceives);
    let client = Client::new(Arc::new(recorder));
    let resource = resource::Client::connect(&role.resource).unwrap();
    let stop = until_input_ends();
    let process = ClientProcess { role, writer, client, resource, stop, uids: AtomicU64::new(0) };
    tokio::join!(process.work_through(0), process.work_through(1));
    const { assert!(TASKS == 2) };
    process.client.settle().await;
}

/// A flag that becomes true when the parent process closes the pipe or is gone.
pub(crate) fn until_input_ends() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        seen.store(true, Ordering::Release);
    });
    stop
}

/// Opens the store, with retries: there may be a fault just now, or the machine may be busy. A
/// store that does not open within [`OPENING`] fails the run.
pub(crate) async fn opened(url: &str) -> Client {
    let began = Instant::now();
    loop {
        match holdline::open(url).await {
            Ok(client) => return client,
            Err(error) => assert!(error.retryable() && began.elapsed() < OPENING, "{error:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// A time longer than any fault.
const OPENING: Duration = Duration::from_secs(120);

struct ClientProcess {
    role: Role,
    writer: Arc<Writer>,
    client: Client,
    resource: resource::Client,
    stop: Arc<AtomicBool>,
    uids: AtomicU64,
}

/// One attempt, and the common fields of its events.
struct Attempt {
    n: u64,
    op: Op,
    name: String,
    weight: u64,
    ttl: u64,
}

impl Attempt {
    fn event(&self, ph: Phase) -> Event {
        let event = Event::new(self.op, ph, self.n).lock(&self.name);
        event.weight(self.weight).ttl_ms(self.ttl)
    }

    fn about(&self, op: Op, ph: Phase) -> Event {
        Event::new(op, ph, self.n).lock(&self.name)
    }
}

/// The time until which the lock is certainly held: never later than the guard's own deadline, even
/// if this process is stopped in the middle.
pub(crate) fn deadline(guard: &AnyGuard) -> Option<u64> {
    let now = clock::now();
    let left = guard.remaining();
    (!left.is_zero()).then(|| now.after(left).0)
}

/// Unlocks the lock, and makes the release event from the result.
pub(crate) async fn released(guard: AnyGuard, answer: impl Fn(Phase) -> Event) -> Event {
    match guard.unlock().await {
        Ok(()) => answer(Phase::Ok),
        Err(error) if error.is_lost() => answer(Phase::Fail).reason(Reason::NotHeld),
        Err(error) => answer(Phase::Info).reason(Reason::Other(format!("{:?}", error.kind()))),
    }
}

impl ClientProcess {
    fn write(&self, event: Event) {
        self.writer.write(event).unwrap();
    }

    async fn work_through(&self, task: u64) {
        let mut rng = Rng::with_seed(self.role.seed.wrapping_mul(TASKS).wrapping_add(task));
        let weights = self.client.capabilities().weighted;
        let [work, lease] = [self.role.work_ms, self.role.lease_ms].map(Duration::from_millis);
        let times = Times { work, lease };
        while !self.stop.load(Ordering::Acquire) {
            let workload = Workload::random(&mut rng, self.role.behaviour, weights, &times);
            let workload = if self.role.certain { workload.certain() } else { workload };
            self.attempt(&workload).await;
            sleep(workload.rest).await;
        }
    }

    async fn attempt(&self, workload: &Workload) {
        let op = if matches!(workload.way, Way::Try) { Op::TryAcquire } else { Op::Acquire };
        let name = workload.kind.name(&self.role.run);
        let (n, ttl) = (self.writer.next_n(), self.role.lease_ms);
        let attempt = Attempt { n, op, name, weight: workload.kind.weight().into(), ttl };
        self.write(attempt.event(Phase::Invoke));
        let label = &self.role.process;
        let unfair = self.role.behaviour == Behaviour::IgnoresLosses;
        let lease = Duration::from_millis(ttl);
        let acquirer = Acquirer { client: &self.client, label, lease, unfair };
        let asked = ATTEMPT.scope(n, acquirer.take(workload.kind, &attempt.name, workload.way));
        let answer = match workload.way {
            Way::Cancel(after) => timeout(after, asked).await,
            _ => Ok(asked.await),
        };
        let open = |why| attempt.event(Phase::Info).reason(why);
        self.write(match answer {
            Ok(Ok(Some(guard))) => return self.hold(&attempt, workload, guard).await,
            Ok(Ok(None)) if op == Op::TryAcquire => attempt.event(Phase::Fail).reason(Reason::Busy),
            Ok(Ok(None)) => open(Reason::Timeout),
            Ok(Err(error)) => {
                if !error.retryable() {
                    eprintln!("{label}, attempt {n}: {error:?}");
                }
                open(Reason::Other(format!("{:?}", error.kind())))
            }
            Err(_) => open(Reason::Cancelled),
        });
    }

    async fn hold(&self, attempt: &Attempt, workload: &Workload, guard: AnyGuard) {
        let until = deadline(&guard).unwrap_or(clock::now().0);
        let owner = guard.ticket().0.to_string();
        let granted = attempt.event(Phase::Ok).owner(&owner).deadline(until);
        self.write(if self.client.capabilities().fencing_tokens {
            granted.fence(guard.token())
        } else {
            granted
        });
        let work = self.section(&attempt.name, workload, guard.token());
        let samples = self.samples(attempt, &guard);
        let told = || self.write(attempt.about(Op::Lost, Phase::Ok));
        if self.role.behaviour == Behaviour::IgnoresLosses {
            let hear = async {
                guard.lost().await;
                told();
                pending::<()>().await;
            };
            first(work, first(hear, samples)).await;
        } else {
            let work = async {
                if guard.protect(work).await.is_err() {
                    told();
                }
            };
            first(work, samples).await;
        }
        self.release(attempt, workload, guard).await;
    }

    /// Records the deadline of the lock, again and again.
    async fn samples(&self, attempt: &Attempt, guard: &AnyGuard) {
        loop {
            sleep(SAMPLE).await;
            let k = self.writer.next_n();
            self.write(attempt.about(Op::Claim, Phase::Invoke).k(k));
            let answer = match deadline(guard) {
                Some(until) => attempt.about(Op::Claim, Phase::Ok).deadline(until),
                None => attempt.about(Op::Claim, Phase::Fail).reason(Reason::NotHeld),
            };
            self.write(answer.k(k));
        }
    }

    async fn release(&self, attempt: &Attempt, workload: &Workload, guard: AnyGuard) {
        let mut asked = attempt.about(Op::Release, Phase::Invoke);
        asked.deadline = deadline(&guard);
        self.write(asked);
        let answer = |ph| attempt.about(Op::Release, ph);
        if workload.drop {
            drop(guard);
            return self.write(answer(Phase::Info).reason(Reason::Other("dropped".to_owned())));
        }
        self.write(released(guard, answer).await);
    }

    /// Reads all registers, works a little, and writes them back with one id more each.
    async fn section(&self, lock: &str, workload: &Workload, token: u64) {
        if !workload.kind.alone() {
            return sleep(workload.work).await;
        }
        let bases = self.read_all(lock, token);
        sleep(workload.work).await;
        for (reg, base) in bases {
            let uid = self.role.serial << 32 | self.uids.fetch_add(1, Ordering::Relaxed);
            // A refusal is fine too: the resource records both in the history.
            let _: Reply = self.resource.write(lock, reg, token, base, uid).unwrap();
        }
    }

    /// The last id of each readable register.
    fn read_all(&self, lock: &str, token: u64) -> Vec<(Register, Option<u64>)> {
        if !self.client.capabilities().fencing_tokens {
            return self.read(lock, Register::Plain, token).into_iter().collect();
        }
        let fenced = Register::FencedReadWrite;
        let _: Reply = self.resource.open(lock, fenced, token).unwrap();
        let read = |reg| self.read(lock, reg, token);
        Register::ALL.into_iter().filter_map(read).collect()
    }

    fn read(&self, lock: &str, reg: Register, token: u64) -> Option<(Register, Option<u64>)> {
        match self.resource.read(lock, reg, token).unwrap() {
            Reply::Done { last, .. } => Some((reg, last)),
            Reply::Stale { .. } => None,
        }
    }
}

/// Runs both until the first is done.
async fn first<T>(work: impl Future<Output = T>, beside: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        output = work => output,
        output = beside => output,
    }
}
