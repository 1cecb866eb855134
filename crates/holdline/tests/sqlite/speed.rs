//! What the file store costs: against bare SQLite, and with many in the line.
//!
//! `cargo test --release --test sqlite speed -- --ignored --nocapture` prints the ratio.

use holdline::Name;
use holdline::store::{Enter, Standing, Store, Ticket};
use holdline::stores::sqlite::File;
use rusqlite::Connection;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn ticket(id: u128, weight: u32, capacity: u32) -> Ticket {
    Ticket { weight, capacity, ..holdline_testkit::ticket(id, Duration::from_secs(600)) }
}

fn note() -> Arc<str> {
    r#"{"host":"build-17","pid":12345,"since":1795202814043}"#.into()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The least that a lock in SQLite can be: one row put there, one row removed.
fn bare(conn: &Connection, rounds: u32) -> f64 {
    let run = |sql: &str| conn.prepare_cached(sql).unwrap().execute([]).unwrap();
    let start = Instant::now();
    for round in 0..rounds {
        run("BEGIN IMMEDIATE");
        conn.prepare_cached(
            "INSERT INTO lock (name, owner, expires) VALUES (?1, ?2, ?3) ON CONFLICT (name) \
             DO UPDATE SET owner = excluded.owner, expires = excluded.expires",
        )
        .unwrap()
        .execute(rusqlite::params!["job", u128::from(round).to_be_bytes(), round])
        .unwrap();
        run("COMMIT");
        run("BEGIN IMMEDIATE");
        conn.prepare_cached("DELETE FROM lock WHERE name = ?1").unwrap().execute(["job"]).unwrap();
        run("COMMIT");
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
}

async fn ours(store: &File, rounds: u32, from: u128) -> f64 {
    let (line, note) = (Name::new("job").unwrap(), note());
    let start = Instant::now();
    for round in 0..rounds {
        let ticket = ticket(from + u128::from(round), 1, 1);
        let standing = store.enter(&line, &ticket, &note, Enter::Queue).await.unwrap();
        assert!(matches!(standing, Standing::Admitted(_)));
        assert!(store.leave(&line, ticket.id).await.unwrap());
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
}

#[tokio::test]
#[ignore = "a benchmark, for release builds"]
async fn uncontended_cost_is_at_most_three_times_bare_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let conn = Connection::open(folder.path().join("bare.db")).unwrap();
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; \
         CREATE TABLE lock (name TEXT PRIMARY KEY, owner BLOB, expires INTEGER) WITHOUT ROWID",
    )
    .unwrap();
    let store = File::open(folder.path().join("ours.db")).unwrap();
    let (mut theirs, mut mine) = (Vec::new(), Vec::new());
    for round in 0..15 {
        theirs.push(bare(&conn, 2000));
        mine.push(ours(&store, 2000, round * 2000).await);
    }
    let (theirs, mine) = (median(theirs), median(mine));
    println!("bare pair {theirs:.1} us, enter and leave {mine:.1} us, ratio {:.2}", mine / theirs);
    assert!(mine <= 3.0 * theirs, "{mine} us is more than three times {theirs} us");
}

#[tokio::test]
#[ignore = "a benchmark, for release builds"]
async fn a_short_life_costs_little() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let (line, note) = (Name::new("job").unwrap(), note());
    let mut steps: [Vec<f64>; 5] = Default::default();
    // Each time all are gone in between, as with a program that runs for a moment.
    for round in 0..1000 {
        let mut last = Instant::now();
        let mut step = |at: usize| {
            let now = Instant::now();
            steps[at].push((now - last).as_secs_f64() * 1e6);
            last = now;
        };
        let store = File::open(&file).unwrap();
        step(0);
        let ticket = ticket(round, 1, 1);
        store.enter(&line, &ticket, &note, Enter::Queue).await.unwrap();
        step(1);
        assert!(store.leave(&line, ticket.id).await.unwrap());
        step(2);
        drop(store);
        step(3);
        let all = steps[..4].iter().map(|step| step.last().unwrap()).sum();
        steps[4].push(all);
    }
    let mean: f64 = steps[4].iter().sum::<f64>() / 1000.0;
    let worst = steps[4].iter().copied().fold(0.0, f64::max);
    let [open, enter, leave, close, all] = steps.map(median);
    println!("open {open:.0} us, enter {enter:.0} us, leave {leave:.0} us, close {close:.0} us");
    println!("in all {all:.0} us; mean {mean:.0} us, worst {worst:.0} us");
    assert!(all < 1500.0, "{all} us");
}

/// Tasks of one process on several threads, each with a lock of its own: how much goes through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a benchmark, for release builds"]
async fn many_tasks_share_one_store() {
    for tasks in [1_u32, 4, 64] {
        let folder = tempfile::tempdir().unwrap();
        let store = File::open(folder.path().join("locks.db")).unwrap();
        let start = Instant::now();
        let each = 20_000 / tasks;
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let store = store.clone();
                tokio::spawn(async move {
                    let (line, note) = (Name::new(format!("job-{task}")).unwrap(), note());
                    for round in 0..each {
                        let ticket = ticket(u128::from(task) << 64 | u128::from(round), 1, 1);
                        store.enter(&line, &ticket, &note, Enter::Queue).await.unwrap();
                        assert!(store.leave(&line, ticket.id).await.unwrap());
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for task in running {
            task.await.unwrap();
        }
        let rate = 20_000.0 / start.elapsed().as_secs_f64();
        let log = std::fs::metadata(folder.path().join("locks.db-wal")).unwrap().len();
        println!("{tasks} tasks: {rate:.0} locks a second; the log has {} KiB", log / 1024);
        assert!(log < 16 << 20, "the log grows without end");
    }
}
