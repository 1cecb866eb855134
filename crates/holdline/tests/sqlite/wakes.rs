//! Notices from one process to another.

use crate::children::{ChildProcess, alone, numbers};
use holdline::store::{Store, TicketId};
use holdline::stores::sqlite::File;
use holdline::{Name, clock};
use holdline_kernel::Time;
use std::time::Duration;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn wait_for(store: &File, line: &Name, places: usize) {
    let limit = clock::now().after(Duration::from_secs(10));
    while runtime().block_on(store.snapshot(line)).unwrap().places.len() != places {
        assert!(clock::now() < limit, "nobody came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Hands the lock to and fro, by notices alone, and says how long each hand-over took. Nearly
/// always the notice proves the admission, and the waiter need not ask.
fn hand_over(file: &std::path::Path, rounds: u64) -> Vec<Duration> {
    let store = File::open(file).unwrap();
    let line = Name::new("job").unwrap();
    let mut pair = [ChildProcess::new(file), ChildProcess::new(file)];
    pair[0].ask("lock job 1", "held");
    let (mut times, mut told) = (Vec::new(), 0);
    for id in 2..2 + rounds {
        let (leaver, waiter) = ((id % 2) as usize, ((id + 1) % 2) as usize);
        pair[waiter].tell(&format!("await job {id} 1"));
        wait_for(&store, &line, 2);
        // Long enough for it to fall asleep; not a matter of right or wrong.
        std::thread::sleep(Duration::from_millis(2));
        let left = Time(numbers(&pair[leaver].ask(&format!("leave job {}", id - 1), "left"))[0]);
        let held = numbers(&pair[waiter].expect("held"));
        times.push(left.until(Time(held[1])));
        told += held[2];
    }
    assert!(told > rounds / 2, "{told} of {rounds} were told by their notice");
    times.sort();
    times
}

#[test]
fn a_departure_wakes_the_next_process_directly() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let times = hand_over(&folder.path().join("locks.db"), 101);
    println!("hand-over: median {:?}, slowest {:?}", times[50], times[100]);
}

#[test]
fn a_path_too_long_for_a_socket_works_as_well() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("long".repeat(50)).join("long".repeat(20));
    std::fs::create_dir_all(&long).unwrap();
    let times = hand_over(&long.join("locks.db"), 11);
    println!("hand-over: median {:?}", times[5]);
}

#[test]
fn an_eviction_alarms_the_victims_process() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut victim = ChildProcess::new(&file);
    let seq = victim.ask("enter job 7 60000 queue", "admitted");
    // From its first renewal on it can be told.
    victim.ask(&format!("keep job 7 {seq}"), "admitted");
    let store = File::open(&file).unwrap();
    let line = Name::new("job").unwrap();
    let token = runtime().block_on(store.evict(&line, TicketId(7), "a test")).unwrap();
    let after = clock::now();
    assert!(token.unwrap().0 > seq.parse().unwrap());
    let loss_hint = numbers(&victim.expect("loss_hint"));
    assert_eq!(loss_hint[0], 7);
    println!("evicted and told after {:?}", after.until(Time(loss_hint[1])));
    victim.ask(&format!("keep job 7 {seq}"), "lost");
    assert_eq!(runtime().block_on(store.evict(&line, TicketId(7), "again")).unwrap(), None);
}

#[test]
fn a_waiting_process_costs_next_to_nothing() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut holder = ChildProcess::new(&file);
    holder.ask("lock job 1", "held");
    let mut waiter = ChildProcess::new(&file);
    waiter.tell("lock job 2");
    let store = File::open(&file).unwrap();
    wait_for(&store, &Name::new("job").unwrap(), 2);
    let Some(before) = wakes(waiter.pid()) else {
        holdline_testkit::missing("the system does not say how often a process was woken");
        return;
    };
    let start = clock::now();
    std::thread::sleep(Duration::from_secs(3));
    let woken = wakes(waiter.pid()).unwrap() - before;
    let time = start.until(clock::now()).as_secs_f64();
    println!("a waiting process is woken {:.1} times a second", f64::from(woken) / time);
    // Each takes some 0.1 ms. The benchmark `startup` measures the time.
    let ticks = time / 0.05;
    assert!(f64::from(woken) < ticks + 10.0, "{woken} times in {time} s");
    holder.ask("leave job 1", "left");
    waiter.expect("held");
}

/// How often the threads of a process went to sleep.
fn wakes(pid: u32) -> Option<u32> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let text = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        sum += line.trim().parse::<u32>().ok()?;
    }
    Some(sum)
}
