//! Ways to keep locks beside each other: a part of the binaries of stores. Not tests of right and
//! wrong.

use holdline::{Client, Mutex, open};
use std::time::{Duration, Instant};

pub(crate) const CLIENTS: usize = 16;
const ROUNDS: usize = 5;
pub(crate) const ROUND: Duration = Duration::from_secs(2);

/// One way to keep locks, and what it took so far.
pub(crate) struct Way {
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
    pub(crate) async fn new(name: &'static str, url: &str, server: u32) -> Self {
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
            "{:<15} {:>6.0} locks/s, mean {mean:.2?}, P70 {:.2?}, P90 {:.2?}, P99 {:.2?}, server \
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

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The CPU time of a process and its children, those that have ended included.
pub(crate) fn cpu_time(process: u32) -> Duration {
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

/// Measures them in turns, and prints what they took.
pub(crate) async fn measure(mut ways: Vec<Way>, together: bool) {
    for _ in 0..ROUNDS {
        for way in &mut ways {
            way.round(together).await;
        }
    }
    println!("{CLIENTS} clients on {}:", if together { "one lock" } else { "a lock each" });
    ways.iter_mut().for_each(Way::print);
}
