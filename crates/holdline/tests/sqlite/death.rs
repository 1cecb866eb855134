//! Processes that die, or stop.

use crate::children::{ChildProcess, alone, enter, fresh, lock, name, numbers, ticket, together};
use holdline::clock;
use holdline::store::{Enter, Standing, Store, Ticket};
use holdline::stores::sqlite::File;
use holdline_kernel::Time;
use holdline_testkit::{in_own_process, panicking_subscriber};
use rustix::process::Signal;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Without asking again and again: the waiter here does not.
#[test]
fn a_killed_holder_is_followed_at_once() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut times = Vec::new();
    let mut waiter = ChildProcess::new(&file);
    for id in 1..=10 {
        let mut holder = ChildProcess::new(&file);
        holder.ask("lock job 999", "held");
        waiter.tell(&format!("await job {id} 1"));
        wait_for(&file, 2);
        let killed = clock::now();
        holder.kill();
        let at = Time(numbers(&waiter.expect("held"))[1]);
        times.push(killed.until(at));
        waiter.ask(&format!("leave job {id}"), "left");
    }
    times.sort();
    println!("killed holder followed after {:?}, at most {:?}", times[5], times[9]);
}

/// Waits until so many stand in the line `job`.
fn wait_for(file: &std::path::Path, places: usize) {
    let store = File::open(file).unwrap();
    let line = name("job");
    let look = async {
        while store.snapshot(&line).await.unwrap().places.len() != places {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Long enough for the last one to begin to watch.
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    runtime().block_on(async {
        tokio::time::timeout(Duration::from_secs(10), look).await.expect("they come in time");
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_killed_waiter_is_stepped_over() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut child_processes: Vec<ChildProcess> = (0..4).map(|_| ChildProcess::new(&file)).collect();
    child_processes[0].ask("lock job 10", "held");
    for (at, child_process) in child_processes.iter_mut().enumerate().skip(1) {
        child_process.tell(&format!("await job 1{at} 1"));
        wait_for(&file, at + 1);
    }
    // The second and the holder die; the third, who watched the second, must get in.
    let mut rest = child_processes.split_off(2);
    let killed = clock::now();
    for child_process in child_processes {
        child_process.kill();
    }
    let at = Time(numbers(&rest[0].expect("held"))[1]);
    println!("holder and first waiter killed: the next held after {:?}", killed.until(at));
    rest[0].ask("leave job 12", "left");
    rest[1].expect("held");
}

#[test]
fn the_first_waiter_watches_all_holders() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let [mut one, mut two, mut three, mut four] = [(); 4].map(|()| ChildProcess::new(&file));
    one.ask("await job 1 2", "held");
    two.ask("await job 2 2", "held");
    three.tell("await job 3 2");
    wait_for(&file, 3);
    // It watches the one before it, who does not die.
    four.tell("await job 4 2");
    wait_for(&file, 4);
    one.ask("leave job 1", "left");
    three.expect("held");
    wait_for(&file, 3);
    let killed = clock::now();
    two.kill();
    let at = Time(numbers(&four.expect("held"))[1]);
    println!("another holder killed: the first waiter held after {:?}", killed.until(at));
}

#[test]
fn a_try_does_not_stop_at_the_dead() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut holder = ChildProcess::new(&file);
    holder.ask("lock job 1", "held");
    let mut other = ChildProcess::new(&file);
    other.ask("enter job 2 60000 try", "waiting");
    holder.kill();
    other.ask("enter job 3 60000 try", "admitted");
}

#[test]
fn the_dead_are_not_shown() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let store = File::open(&file).unwrap();
    let mut holder = ChildProcess::new(&file);
    let mut dead = ChildProcess::new(&file);
    holder.ask("enter led 1 60000 queue", "admitted");
    dead.ask("enter job 2 60000 queue", "admitted");
    dead.ask("enter led 3 60000 queue", "waiting");
    // Behind the dead stands somebody who lives, and does not watch yet.
    holder.ask("enter job 4 60000 queue", "waiting");
    let standing = |line: &str| -> Vec<(u128, bool)> {
        let view = runtime().block_on(store.snapshot(&name(line))).unwrap();
        view.places.iter().map(|place| (place.id.0, place.admitted)).collect()
    };
    let lines = || runtime().block_on(store.list("")).unwrap();
    assert_eq!(standing("job"), [(2, true), (4, false)]);
    assert_eq!(standing("led"), [(1, true), (3, false)]);
    dead.kill();
    assert_eq!(standing("job"), [(4, true)]);
    assert_eq!(standing("led"), [(1, true)]);
    assert_eq!(lines(), [name("job"), name("led")]);
    holder.ask("leave job 4", "left");
    assert_eq!(lines(), [name("led")]);
    holder.kill();
    assert_eq!((standing("led"), lines()), (vec![], vec![]));
}

#[test]
fn a_stopped_holder_loses_its_lock() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut holder = ChildProcess::new(&file);
    let start = clock::now();
    let seq = holder.ask("enter job 1 400 queue", "admitted");
    holder.signal(Signal::STOP);
    let mut next = ChildProcess::new(&file);
    let report = next.ask("lock job 2", "held");
    let at = Time(numbers(&report)[1]);
    println!("stopped holder followed after {:?}", start.until(at));
    assert!(start.until(at) >= Duration::from_millis(400), "it was let in too early");
    holder.signal(Signal::CONT);
    holder.ask(&format!("keep job 1 {seq}"), "lost");
}

// G22
#[test]
fn kills_at_any_instant_leave_the_database_whole() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    drop(File::open(&file).unwrap());
    let (mut kills, mut writers) = (0, Vec::new());
    while kills < 100 {
        while writers.len() < 4 {
            let mut writer = ChildProcess::new(&file);
            writer.tell("write 20");
            writers.push(writer);
        }
        std::thread::sleep(Duration::from_micros(fastrand::u64(..30_000)));
        writers.swap_remove(fastrand::usize(..writers.len())).kill();
        kills += 1;
    }
    drop(writers);
    let conn = rusqlite::Connection::open(&file).unwrap();
    let check = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(check("PRAGMA integrity_check"), "ok");
    let wrong = "SELECT count(*) FROM line WHERE count <> \
                 (SELECT count(*) FROM place WHERE place.name = line.name)";
    assert_eq!(conn.query_row(wrong, [], |row| row.get::<_, u32>(0)).unwrap(), 0);
    let store = File::open(&file).unwrap();
    runtime().block_on(async {
        let mut lines = conn.prepare("SELECT name FROM line WHERE count > 0").unwrap();
        let lines = lines.query_map([], |row| row.get::<_, String>(0)).unwrap();
        let lines: Vec<_> = lines.map(|line| name(&line.unwrap())).collect();
        // All who stand there are dead.
        assert_eq!(store.list("line-").await.unwrap(), []);
        println!("{} lines were left to the dead", lines.len());
        assert!(!lines.is_empty());
        for line in lines {
            let ticket = fresh();
            // Far less than the leases of the dead.
            let lock = lock(&store, &line, &ticket);
            tokio::time::timeout(Duration::from_secs(20), lock).await.expect("they are dead");
            assert!(store.leave(&line, ticket.id).await.unwrap());
            assert!(store.snapshot(&line).await.unwrap().places.is_empty());
        }
    });
}

#[test]
fn many_created_and_killed_at_once() {
    let _together = together();
    for _ in 0..10 {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.db");
        let makers: Vec<ChildProcess> =
            (0..4).map(|_| ChildProcess::start(&file, |_| {})).collect();
        std::thread::sleep(Duration::from_micros(fastrand::u64(..20_000)));
        for maker in makers {
            maker.kill();
        }
        let mut users: Vec<ChildProcess> = (0..2).map(|_| ChildProcess::new(&file)).collect();
        users[0].ask("lock job 1", "held");
        users[0].ask("leave job 1", "left");
        users[1].ask("lock job 2", "held");
    }
}

// G23
#[test]
fn a_process_stopped_in_a_write_gives_a_clear_error_in_time() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let store = File::open_url(&format!("sqlite:{}?busy_timeout=300ms", file.display())).unwrap();
    let mut stuck = ChildProcess::new(&file);
    stuck.ask("stick", "stuck");
    stuck.signal(Signal::STOP);
    runtime().block_on(async {
        let (line, ticket) = (name("job"), ticket(1));
        let start = clock::now();
        let note = crate::children::note();
        let error = store.enter(&line, &ticket, &note, Enter::Queue).await.unwrap_err();
        let took = start.until(clock::now());
        assert_eq!(error.kind(), holdline::ErrorKind::Unavailable);
        assert!(error.to_string().contains("stopped in the middle of a write"), "{error}");
        assert!(error.to_string().contains(&*file.to_string_lossy()), "{error}");
        println!("stuck for {took:?}");
        assert!(took >= Duration::from_millis(300), "{took:?}");
        // Looking needs no write lock.
        assert!(store.snapshot(&line).await.unwrap().places.is_empty());
        // An abandoned attempt is over before the departure that follows it.
        let (late, two) = (ticket, Ticket { id: holdline::store::TicketId(2), ..ticket });
        let attempt = store.enter(&line, &two, &note, Enter::Queue);
        assert!(tokio::time::timeout(Duration::from_millis(20), attempt).await.is_err());
        let leave = store.leave(&line, two.id);
        stuck.kill();
        let _ = leave.await;
        assert!(matches!(enter(&store, &line, &late, Enter::Try).await, Standing::Admitted(_)));
        assert_eq!(store.snapshot(&line).await.unwrap().places.len(), 1);
    });
}

/// All waiters of its process depend on that thread.
#[test]
fn a_subscriber_that_panics_does_not_end_the_thread_that_finds_the_dead() {
    static PANICS: AtomicU32 = AtomicU32::new(0);
    if !in_own_process(
        "death::a_subscriber_that_panics_does_not_end_the_thread_that_finds_the_dead",
    ) {
        return;
    }
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        PANICS.fetch_add(1, Ordering::Relaxed);
    }));
    tracing::subscriber::set_global_default(panicking_subscriber()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let two = File::open_url(&format!("sqlite:{}?busy_timeout=1ms", file.display())).unwrap();
    let (one, line, waiter) = (File::open(&file).unwrap(), name("job"), fresh());
    let waits = async || {
        let _ = tokio::time::timeout(Duration::from_millis(200), two.watch(&line, waiter.id)).await;
    };
    runtime().block_on(async {
        enter(&one, &line, &fresh(), Enter::Queue).await;
        let standing = enter(&two, &line, &waiter, Enter::Queue).await;
        let Standing::Waiting { seq: Some(seq), .. } = standing else { panic!("{standing:?}") };
        let writer = rusqlite::Connection::open(&file).unwrap();
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        drop(one); // as if it died: its place cannot be removed now, of which is warned
        let limit = clock::now().after(Duration::from_secs(40)); // its lease is a minute
        while PANICS.load(Ordering::Relaxed) == 0 {
            assert!(clock::now() < limit, "nobody tries to remove its place");
            waits().await;
        }
        writer.execute_batch("ROLLBACK").unwrap();
        while enter(&two, &line, &waiter, Enter::Keep(seq)).await != Standing::Admitted(seq) {
            assert!(clock::now() < limit, "nobody finds out that it is dead");
            waits().await;
        }
    });
}
