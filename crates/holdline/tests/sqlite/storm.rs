//! Many who give up: what is left of them in the store, in memory, and in the way of others.

use crate::children::{ChildProcess, alone, name, numbers};
use holdline::store::Store;
use holdline::stores::sqlite::File;
use holdline::{Client, Mutex, clock};
use rustix::process::Signal;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const TASKS: usize = 64;
const LINES: usize = 8;
const LEASE: Duration = Duration::from_secs(4);
/// What a process may have more after a storm than before, in KiB.
const MORE: u64 = 64 * 1024;

/// One storm, in a process of its own; and the memory before it, at most, and after it.
pub(crate) fn run(store: &File, giving_up: Duration, cancelled: usize) -> [u64; 3] {
    let before = memory("VmRSS");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        // Clients of their own, so that no task waits for another inside the process.
        let clients: Vec<_> = (0..TASKS).map(|_| Client::new(Arc::new(store.clone()))).collect();
        let over = clock::now().after(giving_up);
        let tasks: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(at, client)| {
                let mutex = Mutex::new(client, format!("line-{}", at % LINES)).lease(LEASE);
                tokio::spawn(async move {
                    while clock::now() < over {
                        // An error says that the store does not answer, which is an end as well.
                        let _ = mutex.lock_within(Duration::from_millis(1)).await;
                    }
                    for _ in 0..cancelled / TASKS {
                        let brief = Duration::from_micros(fastrand::u64(..400));
                        let _ = tokio::time::timeout(brief, mutex.lock()).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        for client in &clients {
            client.settle().await;
        }
    });
    [before, memory("VmHWM"), memory("VmRSS")]
}

/// A line of this process's status, in KiB.
fn memory(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim_start_matches(':').trim().split(' ').next().unwrap().parse().unwrap()
}

fn places(file: &Path) -> u32 {
    let conn = rusqlite::Connection::open(file).unwrap();
    conn.query_row("SELECT count(*) FROM place", [], |row| row.get(0)).unwrap()
}

/// A storm over locks that somebody holds, or that nobody does.
fn storm(command: &str, held: bool, stuck: Option<Duration>) {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut holder = ChildProcess::new(&file);
    if held {
        for line in 0..LINES {
            holder.ask(&format!("enter line-{line} {} 60000 queue", 900 + line), "admitted");
        }
    }
    let mut stormy = ChildProcess::new(&file);
    let began = clock::now();
    stormy.tell(command);
    if let Some(time) = stuck {
        let mut stopped = ChildProcess::new(&file);
        stopped.ask("stick", "stuck");
        stopped.signal(Signal::STOP);
        std::thread::sleep(time);
        stopped.kill();
    }
    let [before, most, after] = numbers(&stormy.expect("calm"))[..] else { panic!() };
    println!(
        "{command}: settled after {:?}; {} MiB, at most {}, then {}",
        began.until(clock::now()),
        before >> 10,
        most >> 10,
        after >> 10
    );
    // Settled means settled: only the holder's places are there.
    assert_eq!(places(&file), if held { LINES as u32 } else { 0 });
    // Every lock is free again at once, for others and in that process.
    let store = File::open(&file).unwrap();
    for line in 0..LINES {
        if held {
            holder.ask(&format!("leave line-{line} {}", 900 + line), "left");
        }
        stormy.ask(&format!("lock line-{line} {}", 800 + line), "held");
        stormy.ask(&format!("leave line-{line} {}", 800 + line), "left");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let view = runtime.block_on(store.snapshot(&name(&format!("line-{line}")))).unwrap();
        assert!(view.places.is_empty());
    }
    assert!(after < before + MORE, "{} KiB more", after - before);
}

// G6
#[test]
fn abandoned_acquisitions_leave_nothing() {
    storm("storm 10000 0", true, None);
}

#[test]
fn cancelled_acquisitions_leave_nothing() {
    storm("storm 0 50000", false, None);
}

#[test]
fn abandoned_acquisitions_leave_nothing_in_a_stuck_database() {
    storm("storm 3000 0", true, Some(Duration::from_secs(4)));
}
