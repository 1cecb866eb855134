//! The schemes beside each other, and beside Redis; and what notices cost. Not tests of right and
//! wrong, so they run only when asked for, as `speed`:
//! `cargo test --release --features postgres,redis --test postgres compare -- --ignored
//! --nocapture`.

use crate::raw::{Raw, ticket};
use crate::server::{Server, on_disk};
use crate::speed::rate;
use holdline::store::{Enter, Standing};
use holdline::{Client, Mutex, open};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CLIENTS: usize = 16;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);

/// One way to keep locks, and what it took so far.
struct Way {
    name: &'static str,
    clients: Vec<Client>,
    /// The process of its server.
    server: u32,
    /// How long each lock took to get.
    waits: Vec<Duration>,
    /// Locks a second, in each round.
    rates: Vec<f64>,
    /// The server's CPU time for one lock, in microseconds, in each round.
    cpu: Vec<f64>,
}

impl Way {
    async fn new(name: &'static str, url: &str, server: u32) -> Self {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(open(url).await.expect("opens"));
        }
        Way { name, clients, server, waits: Vec::new(), rates: Vec::new(), cpu: Vec::new() }
    }

    /// All clients lock and unlock for a round: a lock each, or one lock.
    async fn round(&mut self, together: bool) {
        let (before, start) = (cpu_time(self.server), Instant::now());
        let mut tasks = tokio::task::JoinSet::new();
        for (at, client) in self.clients.iter().enumerate() {
            let name = if together { "one".to_owned() } else { format!("n{at}") };
            let lock = Mutex::new(client, name);
            tasks.spawn(async move {
                let mut waits = Vec::new();
                while start.elapsed() < ROUND {
                    let asked = Instant::now();
                    let guard = lock.lock().await.expect("works");
                    waits.push(asked.elapsed());
                    guard.unlock().await.expect("it was held");
                }
                waits
            });
        }
        let mut waits: Vec<Duration> = Vec::new();
        while let Some(more) = tasks.join_next().await {
            waits.extend(more.expect("no panic"));
        }
        let locks = waits.len() as f64;
        self.rates.push(locks / start.elapsed().as_secs_f64());
        self.cpu
            .push(cpu_time(self.server).checked_sub(before).unwrap().as_micros() as f64 / locks);
        self.waits.append(&mut waits);
    }

    fn print(&mut self) {
        self.waits.sort();
        let at = |percent: usize| self.waits[(self.waits.len() - 1) * percent / 100];
        let mean = self.waits.iter().sum::<Duration>() / self.waits.len() as u32;
        println!(
            "{:<9} {:>6.0} locks/s, mean {mean:.2?}, P70 {:.2?}, P90 {:.2?}, P99 {:.2?}, server \
             {:.0} us of CPU a lock",
            self.name,
            median(&mut self.rates),
            at(70),
            at(90),
            at(99),
            median(&mut self.cpu)
        );
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The CPU time of a process and its children, those that have ended included.
fn cpu_time(process: u32) -> Duration {
    let children = format!("/proc/{process}/task/{process}/children");
    let children = std::fs::read_to_string(children).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    let ticks = |process: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(4);
        fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>()
    };
    Duration::from_millis(children.chain([process]).map(ticks).sum::<u64>() * 10)
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "measures"]
async fn the_schemes_beside_each_other() {
    let Some(server) = on_disk("schemes", &[]) else { return };
    let Some(redis) = holdline_testkit::redis::private("schemes", &[]) else { return };
    for together in [false, true] {
        let own = server.pid();
        let mut ways = vec![Way::new("Redis", redis.url(), redis.pid()).await];
        for (name, scheme) in [("table", "table"), ("row", "row"), ("advisory", "advisory")] {
            let url = format!("{}&scheme={scheme}&schema=h{together}", server.url());
            ways.push(Way::new(name, &url, own).await);
        }
        for _ in 0..ROUNDS {
            for way in &mut ways {
                way.round(together).await;
            }
        }
        println!("{CLIENTS} clients on {}:", if together { "one lock" } else { "a lock each" });
        ways.iter_mut().for_each(Way::print);
    }
}

/// Each departure admits a ticket, and tells it or not.
async fn handover(raw: Arc<[Raw]>, task: usize) {
    let raw = &raw[task];
    let (mine, next) = (ticket(1, 1), ticket(1, 1));
    raw.hold(&mine).await;
    let standing = raw.enter(&next, Enter::Queue).await.expect("works");
    assert!(matches!(standing, Standing::Waiting { .. }), "{standing:?}");
    assert!(raw.leave(&mine).await);
    assert!(raw.leave(&next).await);
}

async fn each_on_its_own_line(server: &Server, count: usize, options: &str) -> Arc<[Raw]> {
    let mut all = Vec::new();
    for at in 0..count {
        let raw = Raw::named(&(server.url() + options), &format!("n{at}")).await;
        handover([raw.clone()].into(), 0).await;
        all.push(raw);
    }
    all.into()
}

/// What NOTIFY costs: handovers with it and without, in turns. Each pair of rounds has a ratio of
/// its own, since a machine's speed changes; and the server's CPU time tells what else would not.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "measures"]
async fn notices_cost_little() {
    const PAIRS: usize = 11;
    let Some(server) = on_disk("notices", &[]) else { return };
    for tasks in [1, CLIENTS] {
        let told = each_on_its_own_line(&server, tasks, "").await;
        let untold = each_on_its_own_line(&server, tasks, "&listen=off&schema=untold").await;
        let (mut rates, mut ratios) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for pair in 0..PAIRS {
            let (mut pairs, mut cpu) = ([0.0; 2], [0.0; 2]);
            // Each goes first in turn.
            for side in [pair % 2, 1 - pair % 2] {
                let raw = Arc::clone([&told, &untold][side]);
                let before = cpu_time(server.pid());
                let each = move |at| handover(Arc::clone(&raw), at);
                pairs[side] = rate(tasks, ROUND, each).await;
                let took = cpu_time(server.pid()).saturating_sub(before).as_secs_f64();
                cpu[side] = took / ROUND.as_secs_f64() / pairs[side];
                rates[side].push(pairs[side]);
            }
            ratios[0].push(pairs[0] / pairs[1]);
            ratios[1].push(cpu[0] / cpu[1]);
        }
        let [with, without] = &mut rates;
        let [rate, cpu] = &mut ratios;
        println!(
            "{tasks} clients: {:.0} handovers/s with notices, {:.0} without: ratio {:.3} \
             ({:.3} .. {:.3}); of the server's CPU time {:.3}",
            median(with),
            median(without),
            median(rate),
            rate[0],
            rate[PAIRS - 1],
            median(cpu)
        );
    }
}
