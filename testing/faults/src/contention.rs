//! Contention: 8 processes with 8 tasks each compete for one lock all the time. Only one may hold
//! at a time, tokens must rise, and if the store queues, all must have the same share.

use crate::client::{deadline, opened, released, until_input_ends};
use crate::judge::{Folder, in_short, keep};
use crate::run::number;
use crate::workers::{process, soon};
use crate::workload::AnyGuard;
use holdline::{Client, Mutex, clock};
use holdline_checker::{Event, Expect, Fences, History, Op, Phase, Writer, check};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The variable with a process's part.
pub(crate) const PART: &str = "HOLDLINE_CONTENTION_PART";
const PROCESSES: usize = 8;
const TASKS: usize = 8;
/// A lease longer than anything here takes.
const LEASE: Duration = Duration::from_secs(30);
/// The number of grants of each task that are needed to compare shares.
const ENOUGH: usize = 20;
/// A time in which every machine reaches that number.
const LIMIT: Duration = Duration::from_secs(300);

/// The parameters of a process.
#[derive(Serialize, Deserialize)]
struct Part {
    url: String,
    run: String,
    process: usize,
    history: PathBuf,
}

/// The grants of each task while all tasks took part.
struct Shares(BTreeMap<String, usize>);

impl Shares {
    fn of(history: &History) -> Self {
        let granted = |e: &&Event| e.op == Op::Acquire && e.ph == Phase::Ok;
        let mut times: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for event in history.events.iter().filter(granted) {
            times.entry(&event.process).or_default().push(event.t);
        }
        let all = times.len() == PROCESSES * TASKS;
        let from = times.values().filter_map(|times| times.first()).max().filter(|_| all);
        let to = times.values().filter_map(|times| times.last()).min();
        let within = |t: &&u64| from.is_some_and(|from| from <= *t) && Some(*t) <= to;
        let count = |times: &Vec<u64>| times.iter().filter(within).count();
        Shares(times.iter().map(|(name, times)| ((*name).to_owned(), count(times))).collect())
    }

    fn least(&self) -> usize {
        self.0.values().min().copied().unwrap_or(0)
    }

    fn most(&self) -> usize {
        self.0.values().max().copied().unwrap_or(0)
    }
}

/// Lets the tasks compete on the store at this URL, for 5 s or `HOLDLINE_CONTENTION_SECONDS`, or
/// longer if shares cannot be compared yet.
pub(crate) fn contend(title: &str, url: &str) {
    let seconds = number("HOLDLINE_CONTENTION_SECONDS").unwrap_or(5);
    let (folder, run) = (Folder::new(), format!("{title}-{}", std::process::id()));
    let history = folder.path().join("history.jsonl");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let capabilities = runtime.block_on(opened(url)).capabilities();
    let part =
        |process| Part { url: url.to_owned(), run: run.clone(), process, history: history.clone() };
    let started = |at| Process(process(PART, &serde_json::to_string(&part(at)).unwrap()));
    let (began, processes): (_, Vec<_>) = (Instant::now(), (0..PROCESSES).map(started).collect());
    std::thread::sleep(Duration::from_secs(seconds));
    let fair = capabilities.fair_queue;
    let enough = || !fair || Shares::of(&read(&history)).least() >= ENOUGH;
    while !enough() && began.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_secs(1));
    }
    let took = began.elapsed();
    for mut process in processes {
        drop(process.0.stdin.take());
        assert!(
            soon(|| process.0.try_wait().unwrap().is_some()),
            "{title}: a process does not end"
        );
        assert!(process.0.wait().unwrap().success(), "{title}: a process failed");
    }
    let history = read(&history);
    let fences = if capabilities.fencing_tokens { Fences::Strict } else { Fences::None };
    // Without an order, a task may get nothing for a while.
    let expect = Expect { fences, min_share_percent: 0, ..Expect::default() };
    keep(&folder.path().join("judged.jsonl"), &history, &expect);
    let (report, shares) = (check(&history, &expect), Shares::of(&history));
    println!(
        "{title}, {took:.0?}: {} grants, shares of tasks from {} to {} ({:.2}) [{}]",
        history.events.iter().filter(|e| e.op == Op::Acquire && e.ph == Phase::Ok).count(),
        shares.least(),
        shares.most(),
        shares.most() as f64 / shares.least() as f64,
        in_short(&report)
    );
    assert!(report.ok(), "{title}:\n{report}");
    if fair {
        assert!(shares.least() >= ENOUGH, "{title}: too few grants: {:?}", shares.0);
        assert!(shares.most() * 2 < shares.least() * 3, "{title}: unequal: {:?}", shares.0);
    }
}

fn read(history: &Path) -> History {
    if history.exists() { History::read(history).unwrap() } else { History::new(Vec::new()) }
}

/// A process, killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The role of a client process.
pub(crate) fn part(part: &str) {
    let part: Part = serde_json::from_str(part).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, stop) = (opened(&part.url).await, until_input_ends());
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let name = format!("p{}.{task}", part.process);
            let writer = Writer::open(&part.history, &part.run, &name).unwrap();
            tasks.spawn(go_on(client.clone(), part.run.clone(), writer, Arc::clone(&stop)));
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        client.settle().await;
    });
}

/// Locks and unlocks, again and again.
async fn go_on(client: Client, lock: String, writer: Writer, stop: Arc<AtomicBool>) {
    let mutex = Mutex::new(&client, &lock).lease(LEASE);
    let ttl = u64::try_from(LEASE.as_millis()).unwrap();
    while !stop.load(Ordering::Acquire) {
        let n = writer.next_n();
        let event = |op, ph| Event::new(op, ph, n).lock(&lock);
        let asked = |ph| event(Op::Acquire, ph).weight(1).ttl_ms(ttl);
        writer.write(asked(Phase::Invoke)).unwrap();
        let guard = AnyGuard::Plain(mutex.lock().await.unwrap());
        let granted = asked(Phase::Ok).owner(&guard.ticket().0.to_string());
        // On a busy machine the lease may have expired by now.
        let granted = granted.deadline(deadline(&guard).unwrap_or(clock::now().0));
        let fenced = client.capabilities().fencing_tokens;
        writer.write(if fenced { granted.fence(guard.token()) } else { granted }).unwrap();
        tokio::task::yield_now().await;
        writer.write(event(Op::Release, Phase::Invoke)).unwrap();
        writer.write(released(guard, |ph| event(Op::Release, ph)).await).unwrap();
    }
}
