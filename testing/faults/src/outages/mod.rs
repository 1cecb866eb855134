//! Outage runs: 16 waiters, 8 standbys and 4 observers go through restarts and freezes of their
//! store. All of them must be served after each, in order if the store kept their places, and
//! nothing may be granted twice.

mod clients;
mod order;
mod role;
pub(crate) mod stores;

use crate::breakages::kind;
use crate::client::opened;
use crate::judge::{Folder, in_short, keep, settle_busy_machine};
use crate::run::number;
use crate::stall_detector;
use crate::stats::Tally;
use crate::{Case, cases};
use clients::Clients;
use holdline::store::Capabilities;
use holdline_checker::{
    Event, Expect, FaultKind, Fences, History, Op, Phase, Rule, Unpromised, Writer, check,
};
pub(crate) use role::{PART, role};
use std::thread::Builder;
use std::time::{Duration, Instant};
use stores::{Row, Subject, rows};

pub(crate) const CASES: &[Case] = cases![outages];

/// A lease shorter than the freezes.
const LEASE: Duration = Duration::from_secs(5);

/// How often the store is restarted and frozen, and for how long.
#[derive(Clone, Copy)]
struct Plan {
    rounds: (usize, usize),
    frozen: Duration,
}

impl Plan {
    fn read() -> Self {
        let rounds = number("HOLDLINE_OUTAGE_ROUNDS").map(|rounds| rounds as usize);
        let frozen =
            number("HOLDLINE_OUTAGE_FREEZE").unwrap_or(if rounds.is_some() { 30 } else { 12 });
        Plan {
            rounds: rounds.map_or((2, 1), |all| (all, all)),
            frozen: Duration::from_secs(frozen),
        }
    }
}

/// Runs the stores named in `HOLDLINE_OUTAGE_STORES` (separated by commas), or all of them, in
/// parallel. G24.
fn outages() {
    let chosen = std::env::var("HOLDLINE_OUTAGE_STORES").ok();
    let wanted = |row: &Row| {
        chosen.as_deref().is_none_or(|names| names.split(',').any(|name| name == row.name))
    };
    let rows: Vec<Row> = rows().into_iter().filter(wanted).collect();
    assert!(!rows.is_empty(), "no store is called {chosen:?}");
    let plan = Plan::read();
    let failed: Vec<String> = std::thread::scope(|scope| {
        // By its thread's name a store whose server is missing is noted.
        let thread = |row: &Row| Builder::new().name(format!("outages of {}", row.name));
        let start = |row| thread(row).spawn_scoped(scope, move || one(row, plan)).unwrap();
        let runs: Vec<_> = rows.iter().map(|row| (row, start(row))).collect();
        let failed = |(row, run): (&Row, std::thread::ScopedJoinHandle<'_, ()>)| {
            run.join().is_err().then(|| row.name.to_owned())
        };
        runs.into_iter().filter_map(failed).collect()
    });
    assert!(failed.is_empty(), "outages of {} were not survived, or not run", failed.join(", "));
}

/// One outage.
#[derive(Clone, Copy)]
enum Outage {
    /// The nodes are killed, and started again after this time.
    Restart(Duration),
    /// The nodes are stopped for this time.
    Freeze(Duration),
}

impl Outage {
    fn kind(self) -> FaultKind {
        match self {
            Outage::Restart(_) => FaultKind::StoreRestart,
            Outage::Freeze(_) => kind("freeze"),
        }
    }
}

fn one(row: &Row, plan: Plan) {
    let Some(subject) = (row.open)() else { return };
    let folder = Folder::new();
    let name = format!("outages-{}-{}", row.name, std::process::id());
    let writer = Writer::open(&folder.path().join("history.jsonl"), &name, "injector").unwrap();
    let clients = Clients::start(&folder, &name, &subject.url(), LEASE);
    let stalls =
        stall_detector::StallDetector::start(&folder.path().join("history.jsonl"), &name, None);
    let mut run = OutageRun { row, name, folder, writer, subject, clients, took: Vec::new() };
    run.all_served("at the start");
    for turn in 0..plan.rounds.0.max(plan.rounds.1) {
        if turn < plan.rounds.0 {
            // Sometimes at once, sometimes after some failed tries.
            let down = [300, 2000, 5000][turn % 3];
            run.undergo(turn, Outage::Restart(Duration::from_millis(down)));
        }
        if turn < plan.rounds.1 {
            run.undergo(turn + 1, Outage::Freeze(plan.frozen));
        }
    }
    run.clients.end(&run.name);
    drop(stalls);
    run.check_afterwards();
    run.judge();
}

/// A store, its clients, and the record of their events.
struct OutageRun<'a> {
    row: &'a Row,
    name: String,
    folder: Folder,
    writer: Writer,
    subject: Box<dyn Subject>,
    clients: Clients,
    /// The time after each outage until all were served.
    took: Vec<Duration>,
}

impl OutageRun<'_> {
    fn all_served(&mut self, when: &str) {
        let began = Instant::now();
        let url = self.subject.url();
        self.clients.all_served(&format!("{}, {when}", self.name), &url);
        self.took.push(began.elapsed());
    }

    /// One node and more than half of them in turn; the leader first, if there is one.
    fn victims(&self, turn: usize) -> Vec<usize> {
        let all = self.subject.nodes();
        let first = if all > 1 { self.subject.leader() } else { 0 };
        let count = match (all, turn % 2) {
            (_, 0) => 1,
            // All of a cluster of three; of a quorum, as many as necessary.
            (3, _) => 3,
            (all, _) => all / 2 + 1,
        };
        (0..count).map(|at| (first + at) % all).collect()
    }

    fn undergo(&mut self, turn: usize, outage: Outage) {
        let (n, victims) = (self.writer.next_n(), self.victims(turn));
        // A client that holds for a while has just begun to.
        self.clients.served_now(["w0", "s0"][turn % 2]);
        let event = |ph| Event::new(Op::Fault, ph, n).fault(outage.kind());
        self.writer.write(event(Phase::Invoke)).unwrap();
        self.writer.write(event(Phase::Ok)).unwrap();
        match outage {
            Outage::Restart(down) => {
                self.subject.kill(&victims);
                std::thread::sleep(down);
                self.subject.start(&victims);
            }
            Outage::Freeze(time) => {
                self.subject.stop(&victims);
                std::thread::sleep(time);
                self.subject.go_on(&victims);
            }
        }
        self.writer.write(Event::new(Op::Heal, Phase::Ok, n)).unwrap();
        self.all_served(&format!("after {:?} of nodes {victims:?}", outage.kind()));
    }

    /// Checks that a fresh client gets each lock, and that the store is empty when everything left
    /// behind must have expired.
    fn check_afterwards(&self) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let client = runtime.block_on(opened(&self.subject.url()));
        let locks = [role::mutex(&self.name), role::election(&self.name)];
        for lock in &locks {
            let n = self.writer.next_n();
            let event = |op, ph| Event::new(op, ph, n).lock(lock);
            self.writer.write(event(Op::Probe, Phase::Invoke).weight(1)).unwrap();
            let mutex = holdline::Mutex::new(&client, lock).lease(LEASE);
            let guard = runtime.block_on(mutex.lock_within(Duration::from_secs(60))).unwrap();
            let guard = guard.unwrap_or_else(|| panic!("{}: nobody gets {lock}", self.name));
            let fences = client.capabilities().fencing_tokens;
            let granted = event(Op::Probe, Phase::Ok);
            let granted = if fences { granted.fence(guard.token()) } else { granted };
            self.writer.write(granted).unwrap();
            self.writer.write(event(Op::Release, Phase::Invoke)).unwrap();
            runtime.block_on(guard.unlock()).unwrap();
            self.writer.write(event(Op::Release, Phase::Ok)).unwrap();
        }
        std::thread::sleep(LEASE + self.row.late);
        for lock in &locks {
            let event = |ph| Event::new(Op::StoreDump, ph, 0).lock(lock);
            self.writer.write(event(Phase::Invoke)).unwrap();
            let info = runtime.block_on(client.inspect(lock)).unwrap();
            let all = info.holders.iter().chain(&info.waiters);
            let owners: Vec<String> = all.map(|participant| participant.id.0.to_string()).collect();
            self.writer.write(event(Phase::Ok).owners(owners)).unwrap();
        }
    }

    fn expect(&self, capabilities: &Capabilities) -> Expect {
        let mut expect = Expect { fifo: capabilities.fair_queue, ..self.row.expect() };
        if !capabilities.fencing_tokens {
            expect.fences = Fences::None;
        }
        if !capabilities.survives_restart {
            expect.unpromised.push(Unpromised::to_all(FaultKind::StoreRestart, [Rule::R4]));
        }
        expect.unpromised.push(stall_detector::unpromised());
        // On a busy machine a server may answer nothing for so long, without any fault.
        expect.silence_ns = Some(order::WAIT_LEASE * 1_000_000);
        expect.loss_slack_ns = u64::try_from(LEASE.as_nanos()).unwrap() / 2;
        expect
    }

    fn judge(self) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let capabilities = runtime.block_on(opened(&self.subject.url())).capabilities();
        let expect = self.expect(&capabilities);
        let path = self.folder.path().join("history.jsonl");
        let mut history = History::read(&path).unwrap();
        let tally = Tally::of(&history.events);
        let order = capabilities.fair_queue.then(|| order::kept(&history.events));
        settle_busy_machine(&mut history);
        keep(&self.folder.path().join("judged.jsonl"), &history, &expect);
        let report = check(&history, &expect);
        let took: Vec<u128> = self.took.iter().map(Duration::as_millis).collect();
        let kept = order.as_ref().map_or("no places".to_owned(), ToString::to_string);
        println!(
            "outages of {}: {tally}; {kept}; ms until all were served: {took:?} [{}]",
            self.row.name,
            in_short(&report)
        );
        let unexpected = self.clients.unexpected();
        assert!(
            unexpected.is_empty(),
            "{}: {} reported an outage: {unexpected:#?}",
            self.name,
            unexpected.len()
        );
        if let Some(order) = order {
            assert!(order.broken.is_empty(), "{}: {:#?}", self.name, order.broken);
        }
        assert!(report.ok(), "{}:\n{report}", self.name);
    }
}
