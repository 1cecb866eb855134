//! Comparisons of the schemes with each other and with Redis; and the cost of notices. Not tests of
//! correctness, so they run only on request, like `speed`:
//! `cargo test --release --features postgres,redis --test postgres compare -- --ignored
//! --nocapture`.

use crate::raw::{Raw, ticket};
use crate::server::{Server, on_disk};
use crate::speed::rate;
use holdline::store::{Enter, Standing};
use std::sync::Arc;

#[path = "../shared/ways.rs"]
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "Redis is one of the ways"))]
mod ways;
use ways::{CLIENTS, ROUND, cpu_time, median};
#[cfg(feature = "redis")]
use ways::{Way, measure};

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
        measure(ways, together).await;
    }
}

/// Each departure admits a ticket, with or without a notice.
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

/// The cost of NOTIFY: handovers with it and without, in turns. Each pair of rounds has its own
/// ratio, because a machine's speed changes; the server's CPU time shows what the ratio does not.
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
            // They take turns to go first.
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
