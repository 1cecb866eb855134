//! What is left behind: nothing.

use crate::children::{ChildProcess, enter, fresh, leave, name, together};
use futures_util::FutureExt;
use holdline::clock;
use holdline::store::{Enter, Seq, Standing, Store, Ticket};
use holdline::stores::sqlite::File;
use holdline_testkit::until;
use rusqlite::Connection;
use std::path::Path;
use std::time::Duration;

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn liveness_locks(folder: &Path) -> Vec<String> {
    files(folder)
        .into_iter()
        .filter(|name| Path::new(name).extension().is_some_and(|end| end == "lock"))
        .collect()
}

#[test]
fn a_clean_end_leaves_only_the_database() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut holder = ChildProcess::new(&file);
    let mut waiter = ChildProcess::new(&file);
    holder.ask("lock job 1", "held");
    waiter.tell("lock job 2");
    let live = folder.path().join("locks.db.live");
    let limit = clock::now().after(Duration::from_secs(10));
    while files(&live).len() < 3 {
        assert!(clock::now() < limit, "two liveness files and a socket: {:?}", files(&live));
        std::thread::sleep(Duration::from_millis(1));
    }
    holder.ask("leave job 1", "left");
    waiter.expect("held");
    waiter.ask("leave job 2", "left");
    holder.end();
    waiter.end();
    assert_eq!(files(&live), Vec::<String>::new());
    let all = files(folder.path());
    assert_eq!(all, ["locks.db", "locks.db-shm", "locks.db-wal", "locks.db.live"]);
}

#[test]
fn what_the_dead_left_is_swept() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let live = folder.path().join("locks.db.live");
    for id in 0..5 {
        let mut child_process = ChildProcess::new(&file);
        child_process.ask(&format!("lock line-{id} {id}"), "held");
        child_process.kill();
    }
    std::fs::write(live.join("00000000000000aa.sock"), "").unwrap();
    std::fs::write(live.join("not ours"), "").unwrap();
    let mut holder = ChildProcess::new(&file);
    holder.ask("lock job 11", "held");
    let mut waiter = ChildProcess::new(&file);
    waiter.tell("lock job 12"); // its machinery starts
    let limit = clock::now().after(Duration::from_secs(10));
    while liveness_locks(&live).len() > 2 || live.join("00000000000000aa.sock").exists() {
        assert!(clock::now() < limit, "left: {:?}", files(&live));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(live.join("not ours").exists());
    holder.ask("leave job 11", "left");
    waiter.expect("held");
    let conn = Connection::open(&file).unwrap();
    let places: u32 = conn.query_row("SELECT count(*) FROM place", [], |row| row.get(0)).unwrap();
    assert_eq!(places, 1);
}

#[tokio::test]
async fn a_store_dropped_with_places_leaves_them_to_be_removed() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let (one, two) = (File::open(&file).unwrap(), File::open(&file).unwrap());
    enter(&one, &name("job"), &fresh(), Enter::Queue).await;
    drop(one);
    let standing = enter(&two, &name("job"), &fresh(), Enter::Try).await;
    assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
}

/// Its thread begins to sweep when a lock is held for long, and may find it dropped.
#[tokio::test]
async fn a_dropped_store_that_clears_its_own_places_away_leaves_nobody_refused() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let (two, job) = (File::open(&file).unwrap(), name("job"));
    for round in 0..300 {
        let (one, ticket) = (File::open(&file).unwrap(), fresh());
        let standing = enter(&one, &job, &ticket, Enter::Queue).await;
        let Standing::Admitted(seq) = standing else { panic!("{standing:?}") };
        enter(&one, &job, &ticket, Enter::Keep(seq)).await;
        drop(one);
        let next = fresh();
        let standing = enter(&two, &job, &next, Enter::Try).await;
        assert!(matches!(standing, Standing::Admitted(_)), "{round}: {standing:?}");
        leave(&two, &job, next.id).await;
    }
}

#[tokio::test]
async fn a_removed_liveness_lock_is_made_again() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let (one, two) = (File::open(&file).unwrap(), File::open(&file).unwrap());
    let (line, ticket) = (name("job"), fresh());
    let Standing::Admitted(seq) = enter(&one, &line, &ticket, Enter::Queue).await else { panic!() };
    std::fs::remove_dir_all(folder.path().join("locks.db.live")).unwrap();
    // It is not taken for dead because its liveness lock is missing.
    let standing = enter(&two, &line, &fresh(), Enter::Try).await;
    assert!(matches!(standing, Standing::Waiting { .. }), "{standing:?}");
    assert_eq!(enter(&one, &line, &ticket, Enter::Keep(seq)).await, Standing::Admitted(seq));
    // If a process sweeps just then, the new one creates a second file; the sweep removes one.
    let live = folder.path().join("locks.db.live");
    until("two locks are left", async || liveness_locks(&live).len() == 2).await;
    drop(one);
    let standing = enter(&two, &line, &fresh(), Enter::Try).await;
    assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
}

/// The liveness lock that a process took before is not in the new folder, or is a copy, which is
/// free.
#[tokio::test]
async fn a_folder_that_is_replaced_has_the_liveness_locks_of_those_who_go_on() {
    let _together = together();
    for is_copied in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let (folder, moved) = (place.path().join("state"), place.path().join("moved"));
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("locks.db");
        let one = File::open(&file).unwrap();
        let (line, ticket) = (name("job"), fresh());
        enter(&one, &line, &ticket, Enter::Queue).await;
        leave(&one, &line, ticket.id).await;
        std::fs::rename(&folder, &moved).unwrap();
        let new: &[&std::ffi::OsStr] = if is_copied {
            &["cp".as_ref(), "-r".as_ref(), moved.as_ref(), folder.as_ref()]
        } else {
            &["mkdir".as_ref(), folder.as_ref()]
        };
        assert!(std::process::Command::new(new[0]).args(&new[1..]).status().unwrap().success());
        let two = File::open(&file).unwrap();
        let standing = enter(&one, &line, &fresh(), Enter::Queue).await;
        assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
        let standing = enter(&two, &line, &fresh(), Enter::Try).await;
        assert!(matches!(standing, Standing::Waiting { .. }), "taken for dead: {standing:?}");
        drop(one);
        let standing = enter(&two, &line, &fresh(), Enter::Try).await;
        assert!(matches!(standing, Standing::Admitted(_)), "not known as dead: {standing:?}");
    }
}

/// The copy of its liveness lock is free.
#[tokio::test]
async fn a_holder_whose_folder_is_replaced_by_a_copy_is_not_taken_for_dead() {
    let _together = together();
    let place = tempfile::tempdir().unwrap();
    let (folder, moved) = (place.path().join("state"), place.path().join("moved"));
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("locks.db");
    let one = File::open(&file).unwrap();
    let (line, ticket) = (name("job"), fresh());
    let Standing::Admitted(seq) = enter(&one, &line, &ticket, Enter::Queue).await else { panic!() };
    std::fs::rename(&folder, &moved).unwrap();
    let copied = std::process::Command::new("cp").arg("-r").args([&moved, &folder]).status();
    assert!(copied.unwrap().success());
    let two = File::open(&file).unwrap();
    let is_held = async || {
        let standing = enter(&two, &line, &fresh(), Enter::Try).await;
        assert!(matches!(standing, Standing::Waiting { .. }), "taken for dead: {standing:?}");
        let seen = two.snapshot(&line).await.unwrap();
        assert_eq!(seen.places.iter().map(|place| place.seq).collect::<Vec<_>>(), [seq]);
    };
    is_held().await;
    assert_eq!(enter(&one, &line, &ticket, Enter::Keep(seq)).await, Standing::Admitted(seq));
    is_held().await;
    drop(one);
    let standing = enter(&two, &line, &fresh(), Enter::Try).await;
    assert!(matches!(standing, Standing::Admitted(_)), "not known as dead: {standing:?}");
}

/// Those who wait have the first one open, and go on checking it.
#[tokio::test]
async fn a_process_that_takes_another_liveness_lock_keeps_the_first_for_its_other_locks() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let stores = [(); 4].map(|()| File::open(&file).unwrap());
    let [waiter, holder, second, third] = stores;
    let lines = ["held", "second", "third"].map(name);
    for (store, line) in [&holder, &second, &third].into_iter().zip(&lines) {
        let standing = enter(store, line, &fresh(), Enter::Queue).await;
        assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
    }
    let (renewed, ticket) = (name("renewed"), fresh());
    let standing = enter(&holder, &renewed, &ticket, Enter::Queue).await;
    let Standing::Admitted(seq) = standing else { panic!("{standing:?}") };
    let mut waits = Vec::new();
    for line in &lines {
        let ticket = fresh();
        enter(&waiter, line, &ticket, Enter::Queue).await;
        let mut wait = Box::pin(waiter.watch(line, ticket.id));
        assert!((&mut wait).now_or_never().is_none()); // begins to watch its holder
        waits.push(wait);
    }
    let live = folder.path().join("locks.db.live");
    for lock in liveness_locks(&live) {
        std::fs::remove_file(live.join(lock)).unwrap();
    }
    let standing = enter(&holder, &renewed, &ticket, Enter::Keep(seq)).await;
    assert_eq!(standing, Standing::Admitted(seq));
    // Each end is noticed by another check than the one before.
    for (store, at) in [(second, 1), (third, 2)] {
        drop(store);
        waits[at].as_mut().await.unwrap();
    }
    assert!((&mut waits[0]).now_or_never().is_none(), "its holder is taken for dead");
}

/// A liveness lock's file exists for an instant before it is locked. A sweep then takes it for that
/// of a dead process.
#[test]
fn a_holder_that_comes_while_others_sweep_is_not_removed() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    File::open(&file).unwrap();
    let come_and_go = |number: u64| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for round in 0..300 {
            let store = File::open(&file).unwrap();
            let (line, holder) = (name(&format!("{number}-{round}")), fresh());
            let standing = runtime.block_on(enter(&store, &line, &holder, Enter::Queue));
            assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
            // A waiter sweeps.
            runtime.block_on(enter(&store, &line, &fresh(), Enter::Queue));
            std::thread::yield_now();
            let left = runtime.block_on(leave(&store, &line, holder.id));
            assert!(left, "it was buried");
        }
    };
    std::thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || come_and_go(number));
        }
    });
}

#[tokio::test]
async fn lines_long_idle_are_forgotten_and_tokens_go_on() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let store = File::open(&file).unwrap();
    let conn = Connection::open(&file).unwrap();
    let none = i64::MAX;
    // Used last when the clock was an hour and a second behind; but its tokens were ahead of that.
    let past = i64::try_from(clock::wall_micros()).unwrap() - 3_601_000_000;
    for old in 0..500 {
        conn.execute(
            "INSERT INTO line VALUES (?1, 1, ?2, 0, 0, ?3, ?3)",
            rusqlite::params![format!("old-{old}"), past + old, none],
        )
        .unwrap();
    }
    // One that has been held since then is no idle one.
    let (held, holder) = (name("held"), Ticket { lease: Duration::from_secs(3600), ..fresh() });
    enter(&store, &held, &holder, Enter::Queue).await;
    for sql in ["UPDATE line SET last = ?1 WHERE name = 'held'", "UPDATE place SET seq = ?1"] {
        assert_eq!(conn.execute(sql, [past + 1000]).unwrap(), 1);
    }
    let count = || -> u32 {
        conn.query_row("SELECT count(*) FROM line WHERE name LIKE 'old-%'", [], |row| row.get(0))
            .unwrap()
    };
    let mut rounds = 0;
    while count() > 0 {
        let (line, ticket) = (name(&format!("new-{rounds}")), fresh());
        enter(&store, &line, &ticket, Enter::Queue).await;
        store.leave(&line, ticket.id).await.unwrap();
        rounds += 1;
        assert!(rounds < 5000, "{} are left", count());
    }
    println!("500 idle lines were forgotten after {rounds} new ones");
    let last: i64 = conn.query_row("SELECT last FROM meta", [], |row| row.get(0)).unwrap();
    assert_eq!(last, past + 499);
    let token = Seq((past + 1000).unsigned_abs());
    let kept = enter(&store, &held, &holder, Enter::Keep(token)).await;
    assert_eq!(kept, Standing::Admitted(token));
    assert!(matches!(enter(&store, &held, &fresh(), Enter::Try).await, Standing::Waiting { .. }));
    // Were the wall clock behind, a forgotten line's tokens would go on from there.
    let ahead = i64::try_from(clock::wall_micros()).unwrap() + 1_000_000_000;
    conn.execute("UPDATE meta SET last = ?1", [ahead]).unwrap();
    let standing = enter(&store, &name("old-1"), &fresh(), Enter::Queue).await;
    let Standing::Admitted(seq) = standing else { panic!("{standing:?}") };
    assert!(seq.0 > ahead.unsigned_abs());
}

#[tokio::test]
async fn a_restart_of_the_machine_frees_all_and_keeps_the_tokens() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let (line, ticket) = (name("job"), fresh());
    let store = File::open(&file).unwrap();
    let Standing::Admitted(old) = enter(&store, &line, &ticket, Enter::Queue).await else {
        panic!()
    };
    enter(&store, &line, &fresh(), Enter::Queue).await;
    drop(store);
    let ahead = i64::try_from(clock::wall_micros()).unwrap() + 1_000_000_000;
    let conn = Connection::open(&file).unwrap();
    conn.execute_batch("UPDATE meta SET boot = 'another run'").unwrap();
    conn.execute("UPDATE line SET last = ?1", [ahead]).unwrap();
    let store = File::open(&file).unwrap();
    assert!(store.snapshot(&line).await.unwrap().places.is_empty());
    assert_eq!(enter(&store, &line, &ticket, Enter::Keep(old)).await, Standing::Lost);
    let standing = enter(&store, &line, &fresh(), Enter::Queue).await;
    let Standing::Admitted(new) = standing else { panic!("{standing:?}") };
    assert!(new.0 > ahead.unsigned_abs());
    let other = File::open(&file).unwrap();
    assert_eq!(other.snapshot(&line).await.unwrap().places.len(), 1, "it is done only once");
}
