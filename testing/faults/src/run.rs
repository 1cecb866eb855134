//! One fault run, from its plan to the verdict. It is independent of the store, which a URL names.

use crate::client::{Role, TASKS, opened, released};
use crate::inject::{Fault, RunContext};
use crate::judge::{self, Folder, Outcome, judge};
use crate::stall_detector::{self, StallDetector};
use crate::workers::{Member, soon};
use crate::workload::{AnyGuard, Behaviour, locks, longest};
use holdline::store::Capabilities;
use holdline::{Guard, Mutex as HoldMutex, Result, RwLock, Semaphore};
use holdline_checker::resource::{Client as ResourceClient, Server};
use holdline_checker::{Event, Expect, Fences, Handoff, Op, Phase, Writer};
use holdline_testkit::WallClock;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The plan of a run.
#[derive(Clone)]
pub(crate) struct Run {
    /// The name of the run in reports; also the name of the test that replays it.
    pub(crate) title: &'static str,
    pub(crate) url: String,
    /// The URLs of the store, used by clients in turn, if they have different routes to it.
    pub(crate) routes: Vec<String>,
    pub(crate) lease: Duration,
    pub(crate) clients: usize,
    /// Makes the wall clocks of two clients out of three wrong, by minutes.
    pub(crate) clocks: Option<Arc<WallClock>>,
    /// Whether the store reports the tickets of all holders, so that a victim can be chosen.
    pub(crate) names_holders: bool,
    /// The average length of a section.
    pub(crate) work: Duration,
    /// The behaviour of the clients; if it is good, the last of them only tries.
    pub(crate) behaviour: Behaviour,
    /// The faults, each injected again and again; a fault listed twice runs twice at a time.
    pub(crate) faults: Vec<Fault>,
    /// The shortest and the longest pause of a client, in leases.
    pub(crate) pause: (f64, f64),
    /// The longest gap between two faults of one kind, in milliseconds.
    pub(crate) gap_ms: u64,
    /// The minimum grants per second that make a run of well-behaved clients count.
    pub(crate) pace: u64,
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) expect: Expect,
}

impl Run {
    /// A run of eight clients without faults. The time and the seed may be set from outside.
    pub(crate) fn new(title: &'static str, url: String, expect: Expect) -> Self {
        Run {
            title,
            url,
            routes: Vec::new(),
            lease: Duration::from_secs(2),
            clients: 8,
            clocks: None,
            names_holders: true,
            work: Duration::from_millis(10),
            behaviour: Behaviour::Good,
            faults: Vec::new(),
            pause: (0.1, 3.0),
            gap_ms: 400,
            pace: 20,
            time: Duration::from_secs(seconds()),
            seed: number("HOLDLINE_FAULT_SEED").unwrap_or(1),
            expect,
        }
    }

    fn lease_ns(&self) -> u64 {
        u64::try_from(self.lease.as_nanos()).unwrap()
    }

    /// The minimum occurrences of each kind of the fault for the run to prove anything: one in a
    /// few seconds, or its share of that.
    pub(crate) fn least(&self, fault: &Fault) -> usize {
        let seconds = self.time.as_secs() as usize;
        match fault {
            Fault::Store(ways) => (seconds / 16 / ways.len()).max(1),
            _ => seconds / 4,
        }
    }

    /// The minimum number of grants for the run to prove anything.
    pub(crate) fn fewest_grants(&self) -> usize {
        let paced =
            if self.behaviour == Behaviour::Good { self.pace * self.time.as_secs() } else { 0 };
        self.expect.min_acquires.max(paced as usize)
    }

    /// The quiet time at the end, for restarted clients: they must be active again too.
    fn quiet(&self) -> Duration {
        (self.time / 4).min(Duration::from_secs(10))
    }

    /// The checker's expectations with those that follow from the lease and the faults.
    fn fitted(&self, run: &str, capabilities: &Capabilities) -> Expect {
        let mut expect = self.expect.clone();
        for (lock, capacity) in locks(run, capabilities.weighted) {
            expect.capacities.insert(lock, capacity.into());
        }
        expect.calm = self.faults.is_empty();
        expect.resource = true;
        if !capabilities.fencing_tokens {
            expect.fences = Fences::None;
        }
        expect.min_acquires = self.fewest_grants();
        expect.unpromised.push(stall_detector::unpromised());
        // A deadline is recorded a little after each renewal, and clients share two cores.
        expect.loss_slack_ns = self.lease_ns() / 2;
        expect
    }

    /// Runs for as long as the environment says, or for this many seconds. A long run consists of
    /// rounds on the same servers, which are judged one by one.
    pub(crate) fn rounds(self, short: u64) {
        let time = number("HOLDLINE_FAULT_SECONDS").unwrap_or(short);
        let rounds = time.div_ceil(ROUND).max(1);
        let time = Duration::from_secs(time.div_ceil(rounds));
        for seed in (self.seed..).take(rounds as usize) {
            Run { time, seed, ..self.clone() }.go().must_be_ok();
        }
    }

    /// Runs once.
    pub(crate) fn go(self) -> Outcome {
        let folder = Folder::new();
        let name = format!("{}-{}-{}", self.title, self.seed, std::process::id());
        let history = folder.path().join("history.jsonl");
        let socket = folder.path().join("resource");
        let server = Server::bind(&socket).unwrap();
        let writer = Writer::open(&history, &name, "resource").unwrap();
        let serving = std::thread::spawn(move || server.run(&writer).unwrap());
        let context = self.prepare(name, &folder, &socket);
        context.play();
        ResourceClient::connect(&socket).unwrap().stop().unwrap();
        serving.join().unwrap();
        let expect = context.run.fitted(&context.name, &context.client.capabilities());
        judge(&context.run, folder, &expect)
    }

    fn prepare(self, name: String, folder: &Folder, socket: &Path) -> RunContext {
        let history = folder.path().join("history.jsonl");
        let writer = Writer::open(&history, &name, "injector").unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let client = runtime.block_on(opened(&self.url));
        let behaviour = |at| match self.behaviour {
            Behaviour::Good if at + 1 == self.clients => Behaviour::TryOnly,
            behaviour => behaviour,
        };
        let wall_clock = |at: usize| match (&self.clocks, at % 3) {
            (Some(_), 0) => -CLOCK_ERROR,
            (Some(_), 1) => CLOCK_ERROR,
            _ => 0,
        };
        let environment = |at| match &self.clocks {
            Some(clocks) => clocks.environment(&format!("c{at}"), wall_clock(at)),
            None => Vec::new(),
        };
        let role = |at: usize| Role {
            url: self.routes.get(at % self.routes.len().max(1)).unwrap_or(&self.url).clone(),
            run: name.clone(),
            process: format!("c{at}"),
            serial: at as u64,
            seed: self.seed.wrapping_mul(1000).wrapping_add(at as u64),
            behaviour: behaviour(at),
            certain: self.expect.handoff.is_some(),
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap(),
            work_ms: u64::try_from(self.work.as_millis()).unwrap(),
            history: history.clone(),
            resource: socket.to_owned(),
            wall_clock: wall_clock(at),
            environment: environment(at),
        };
        let workers = (0..self.clients).map(|at| Mutex::new(Member::start(role(at)))).collect();
        let serial = AtomicU64::new(self.clients as u64);
        let over = Instant::now() + self.time.saturating_sub(self.quiet());
        // On a busy machine everything takes longer, even the faults: the run goes on until there
        // was enough of everything.
        let latest = over + ENOUGH;
        RunContext { run: self, name, writer, client, runtime, workers, serial, over, latest }
    }
}

impl RunContext {
    /// Runs the clients and the faults, and checks the locks after the last fault.
    fn play(&self) {
        let stalls = StallDetector::start(&self.history(), &self.name, None);
        let end = Instant::now() + self.run.time;
        std::thread::scope(|scope| {
            for (seed, fault) in (self.run.seed << 8..).zip(&self.run.faults) {
                scope.spawn(move || self.inject_repeatedly(fault, seed));
            }
        });
        let end = end.max(Instant::now() + self.run.quiet());
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        while (self.few_grants() || self.few_handoffs()) && Instant::now() < self.latest {
            std::thread::sleep(Duration::from_millis(200));
        }
        self.wind_up();
        drop(stalls);
        let probe = Writer::open(&self.history(), &self.name, "probe").unwrap();
        self.runtime.block_on(self.probe(&probe));
        self.dump();
    }

    /// Whether too few hand-offs were measured so far to judge their speed: none is measured for a
    /// second after one of the processes got no time.
    fn few_handoffs(&self) -> bool {
        let expect = self.run.fitted(&self.name, &self.client.capabilities());
        expect.handoff.is_some() && judge::handoffs(&self.history(), &expect) < HANDOFFS
    }

    /// Lets the clients finish. If one cannot, the lines show what it waits for.
    fn wind_up(&self) {
        let members =
            || self.workers.iter().map(|m| m.lock().unwrap_or_else(PoisonError::into_inner));
        members().for_each(|mut member| member.dismiss());
        // At worst all have just begun their longest sections, one after another.
        let tasks = self.workers.len() as u32 * TASKS as u32;
        let work = longest(self.run.work, self.run.lease) * tasks;
        let stuck = members()
            .find_map(|mut member| (!member.ended(work)).then(|| member.name().to_owned()));
        if let Some(stuck) = stuck {
            let names = locks(&self.name, self.client.capabilities().weighted);
            let lines: Vec<_> = names.iter().map(|(lock, _)| self.look(lock)).collect();
            panic!("{stuck} does not end: {lines:#?}");
        }
    }

    pub(crate) fn history(&self) -> std::path::PathBuf {
        let role = self.workers[0].lock().unwrap_or_else(PoisonError::into_inner);
        role.history().to_owned()
    }

    /// A fresh client takes every lock.
    async fn probe(&self, writer: &Writer) {
        let client = opened(&self.run.url).await;
        for (lock, capacity) in locks(&self.name, client.capabilities().weighted) {
            let event = Event::new(Op::Probe, Phase::Invoke, writer.next_n()).lock(&lock);
            let n = event.n;
            let lease_ms = u64::try_from(self.probe_lease().as_millis()).unwrap();
            writer.write(event.weight(capacity.into()).ttl_ms(lease_ms)).unwrap();
            match self.whole(&client, &lock, capacity).await.unwrap() {
                Some(guard) => {
                    let granted = Event::new(Op::Probe, Phase::Ok, n).lock(&lock);
                    let fenced = client.capabilities().fencing_tokens;
                    let granted = if fenced { granted.fence(guard.token()) } else { granted };
                    writer.write(granted).unwrap();
                    let release = |phase| Event::new(Op::Release, phase, n).lock(&lock);
                    writer.write(release(Phase::Invoke)).unwrap();
                    // On a busy machine it may not be confirmed in time.
                    writer.write(released(AnyGuard::Plain(guard), release).await).unwrap();
                }
                None => _ = writer.write(Event::new(Op::Probe, Phase::Info, n)).unwrap(),
            }
        }
    }

    /// Takes the whole capacity of a lock, whatever its recipe.
    async fn whole(
        &self,
        client: &holdline::Client,
        lock: &str,
        capacity: u32,
    ) -> Result<Option<Guard>> {
        let (lease, wait) = (self.probe_lease(), Duration::from_secs(20));
        match capacity {
            1 => HoldMutex::new(client, lock).lease(lease).lock_within(wait).await,
            crate::workload::ALL => {
                let Some(writer) =
                    RwLock::new(client, lock).lease(lease).write_within(wait).await?
                else {
                    return Ok(None);
                };
                Ok(Some(writer.downgrade().await.map_err(|(_, error)| error)?))
            }
            all => Semaphore::new(client, lock, all).lease(lease).acquire_within(all, wait).await,
        }
    }

    /// The lease of the fresh client: some stores do not support that of the run.
    fn probe_lease(&self) -> Duration {
        self.run.lease.max(Duration::from_secs(1))
    }

    /// Waits until everything left behind must have expired, and records what is still there.
    fn dump(&self) {
        let expect = &self.run.expect;
        let late = Duration::from_nanos(expect.late_ns + expect.grace_ns + expect.lock_delay_ns);
        std::thread::sleep(self.probe_lease() + late + Duration::from_millis(100));
        for (lock, _) in locks(&self.name, self.client.capabilities().weighted) {
            assert!(soon(|| self.look(&lock).is_some()), "the store is well again");
        }
    }
}

/// The bound that distinguishes woken waiters from those that poll once a second, even on a busy
/// machine. `bench` measures their speed.
pub(crate) const WOKEN: Handoff = Handoff { bound_ns: 500_000_000, percent: 80 };

/// The number of hand-offs needed to judge their speed.
const HANDOFFS: usize = 10;

/// The time in which a run on any machine has shown enough to be judged.
const ENOUGH: Duration = Duration::from_secs(600);

/// The error of a wrong wall clock, in seconds.
const CLOCK_ERROR: i64 = 600;

/// The longest round of a long run, in seconds.
const ROUND: u64 = 60;

/// The length of runs, unless they say otherwise.
pub(crate) fn seconds() -> u64 {
    number("HOLDLINE_FAULT_SECONDS").unwrap_or(8)
}

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is \"{text}\", which is no number")))
}
