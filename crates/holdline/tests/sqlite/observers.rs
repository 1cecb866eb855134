//! Observers, and the thread that tells them.

use crate::children::{fresh, name, note};
use holdline::store::{Enter, Lines, Store};
use holdline::stores::sqlite::File;
use holdline_testkit::{in_own_process, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;
use tokio::time::timeout;

/// A time that no wait here takes, unless what it waits for never comes.
const LONG: Duration = Duration::from_secs(20);

/// The threads of this process that tell observers.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("comm")));
    names.flatten().filter(|name| name.starts_with("holdline-obser")).count()
}

#[tokio::test]
async fn the_thread_ends_with_the_last_observer() {
    if !in_own_process("observers::the_thread_ends_with_the_last_observer") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = File::open(folder.path().join("locks.db")).unwrap();
    for _ in 0..3 {
        let two = [(); 2].map(|()| store.subscribe(&Lines::Named(name("job"))));
        until("it runs", async || threads() == 1).await;
        drop(two);
        until("it ends", async || threads() == 0).await;
    }
}

#[tokio::test]
async fn observers_are_told_again_after_a_shortage() {
    if !in_own_process("observers::observers_are_told_again_after_a_shortage") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = File::open(folder.path().join("locks.db")).unwrap();
    let (line, ticket) = (name("job"), fresh());
    store.enter(&line, &ticket, &note(), Enter::Queue).await.unwrap();
    store.leave(&line, ticket.id).await.unwrap();
    let told = store.subscribe(&Lines::Named(line.clone()));
    // Once for the beginning; later changes are told one by one, and then again.
    timeout(LONG, told.changed()).await.expect("it is told");
    let limit = getrlimit(Resource::Nofile);
    for _ in 0..3 {
        // `poll` of two files fails below this limit.
        setrlimit(Resource::Nofile, Rlimit { current: Some(1), ..limit }).unwrap();
        let entered = store.enter(&line, &ticket, &note(), Enter::Queue).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        setrlimit(Resource::Nofile, limit).unwrap();
        entered.unwrap();
        // Also what came in between.
        while timeout(Duration::from_millis(500), told.changed()).await.is_ok() {}
        assert!(store.leave(&line, ticket.id).await.unwrap());
        timeout(LONG, told.changed()).await.expect("it is told");
    }
}
