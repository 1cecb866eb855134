//! Answers whose bytes were flipped and cut on the way: no panic, no hang, and no lock that the
//! servers do not have.

use crate::server::{soon, start};
use holdline::store::TicketId;
use holdline::{Client, ErrorKind, Mutex, open};
use holdline_rig::Garble;
use std::time::{Duration, Instant};
use zookeeper_client as zk;

/// Of calls that do not wait for a lock, as they are bounded unless told otherwise.
const ANSWER: Duration = Duration::from_millis(1800);
/// For the machine.
const SLACK: Duration = Duration::from_millis(1500);

/// Does something within its bound.
async fn within<T>(what: &str, bound: Duration, work: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let done = tokio::time::timeout(bound + SLACK, work).await;
    done.unwrap_or_else(|_| panic!("{what}: {:?} and not done", began.elapsed()))
}

/// Whether the servers have a place of this ticket.
async fn is_there(raw: &zk::Client, name: &str, id: TicketId) -> bool {
    let children = raw.list_children(&format!("/{name}")).await.unwrap_or_default();
    let id = format!("{:032x}", id.0);
    children.iter().any(|child| child.replace('-', "").contains(&id))
}

/// Locks, tries and looks for a while. Says how many locks there were.
async fn use_it(client: &Client, raw: &zk::Client, seed: u64) -> usize {
    let (mut dice, mut locked) = (fastrand::Rng::with_seed(seed), 0);
    for _ in 0..30 {
        let name = format!("x{}", dice.u8(..3));
        let time = Duration::from_millis(dice.u64(50..800));
        let lock = Mutex::new(client, &name).lease(Duration::from_millis(1500));
        let got = match dice.u8(..3) {
            0 => within("a try", ANSWER, lock.try_lock()).await,
            _ => within("a lock", time, lock.lock_within(time)).await,
        };
        match got {
            Ok(Some(guard)) => {
                let there = is_there(raw, &name, guard.ticket()).await;
                assert!(there || !guard.is_valid(), "seed {seed}: {name} is held by nobody");
                locked += 1;
                if dice.bool() {
                    let _ = within("an unlock", Duration::from_secs(5), guard.unlock()).await;
                }
            }
            Ok(None) => {}
            Err(error) => assert_ne!(error.kind(), ErrorKind::Invalid, "{error:#}"),
        }
        let _ = within("a look", ANSWER, client.inspect(&name)).await;
    }
    locked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_survived() {
    let Some(servers) = start(1) else { return };
    let host = servers.hosts().remove(0);
    let (raw, other) = (servers.raw().await, servers.client().await);
    let (mut locked, mut faults) = (0, 0);
    for seed in 0..16 {
        let garble = Garble::to(host.as_str(), seed).expect("a port is free");
        let url = format!("zookeeper://{}?session=5", garble.address());
        let client = open(&url).await.expect("a good URL");
        garble.every([300, 800, 2000, 6000][seed as usize % 4]);
        locked += use_it(&client, &raw, seed).await;
        garble.every(0);
        faults += garble.faults();
        // A name that was spoiled in a list may have hidden a place from those who removed it. Such
        // a place goes with its session at the latest.
        drop(client);
        for name in ["x0", "x1", "x2"] {
            let lock = Mutex::new(&other, name).lease(Duration::from_millis(1500));
            let guard = soon("a lock", lock.lock()).await.expect("the server is there");
            assert!(is_there(&raw, name, guard.ticket()).await);
            guard.unlock().await.expect("held");
        }
    }
    println!("{locked} locks and {faults} faults");
    assert!(locked > 50 && faults > 100, "{locked} locks and {faults} faults");
}
