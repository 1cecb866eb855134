//! A database that cannot be written for a while: who waits goes on waiting, who asks is told soon.

use crate::children::{ChildProcess, alone, enter, fresh, name, together};
use holdline::store::{Enter, Standing, Store};
use holdline::stores::sqlite::File;
use holdline::{Client, ErrorKind, Mutex, clock};
use holdline_testkit::until;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Says that a test was not run for want of rights. CI must have them only if it runs as root.
pub(crate) fn unprivileged(what: &str) {
    if std::env::var_os("CI").is_some() && !rustix::process::geteuid().is_root() {
        eprintln!("not run: {what}");
        return;
    }
    holdline_testkit::missing(what);
}

/// A disk of half a mebibyte, until it is dropped.
struct SmallDisk {
    folder: tempfile::TempDir,
    filler: Vec<PathBuf>,
}

impl SmallDisk {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = ["-t", "tmpfs", "-o", "size=512k", "tmpfs"];
        if run(Command::new("mount").args(options).arg(folder.path())) {
            return Some(SmallDisk { folder, filler: Vec::new() });
        }
        unprivileged("this user cannot mount a small disk");
        None
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn fill(&mut self) {
        loop {
            let file = self.path().join(format!("filler-{}", self.filler.len()));
            let full = fs::write(&file, [1; 4096]).is_err();
            self.filler.push(file);
            if full {
                return;
            }
        }
    }

    fn empty(&mut self) {
        for file in self.filler.drain(..) {
            fs::remove_file(file).unwrap();
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The store's threads may have the file open for a moment longer.
        let limit = clock::now().after(Duration::from_secs(10));
        while !run(Command::new("umount").arg(self.path())) && clock::now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn run(command: &mut Command) -> bool {
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[tokio::test]
async fn a_full_disk_is_an_outage() {
    let _together = together();
    let Some(mut disk) = SmallDisk::new() else { return };
    let store = File::open(disk.path().join("locks.db")).unwrap();
    let line = name("job");
    let first = fresh();
    enter(&store, &line, &first, Enter::Queue).await;
    disk.fill();
    let note: Arc<str> = "x".repeat(4000).into();
    let mut failed = None;
    for _ in 0..200 {
        if let Err(error) = store.enter(&line, &fresh(), &note, Enter::Queue).await {
            failed = Some(error);
            break;
        }
    }
    let error = failed.expect("the disk is full");
    // Somebody may make room.
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    assert!(error.to_string().contains("is full"), "{error}");
    // Looking needs no room.
    assert!(store.snapshot(&line).await.unwrap().places[0].id == first.id);
    // With room again it goes on where it was.
    disk.empty();
    assert!(store.leave(&line, first.id).await.unwrap());
    drop(store);
}

/// Somebody is stopped in the middle of a write, and goes on, or dies, much later.
fn stuck(file: &Path) -> ChildProcess {
    let mut stuck = ChildProcess::new(file);
    stuck.ask("stick", "stuck");
    stuck.signal(Signal::STOP);
    stuck
}

/// G24.
#[tokio::test]
async fn waiters_ride_out_a_stuck_database() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let client = Client::new(Arc::new(File::open(&file).unwrap()));
    let waiting = Client::new(Arc::new(File::open(&file).unwrap()));
    let lease = Duration::from_secs(1);
    let guard = Mutex::new(&client, "job").lease(lease).lock().await.unwrap();
    let waiters: Vec<_> = (0..4)
        .map(|at| {
            let client =
                if at == 0 { waiting.clone() } else { Client::new(waiting.store().clone()) };
            tokio::spawn(async move {
                let guard = Mutex::new(&client, "job").lease(lease).lock().await.unwrap();
                let token = guard.token();
                guard.unlock().await.unwrap();
                token
            })
        })
        .collect();
    while client.inspect("job").await.unwrap().waiters.len() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let stuck = stuck(&file);
    // It is lost before the lease is over.
    tokio::time::timeout(LIMIT, guard.lost()).await.expect("it cannot be renewed");
    let error = Mutex::new(&client, "other").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    // Looking needs no turn to write, also while this process waits for its own.
    client.inspect("job").await.unwrap();
    waiting.inspect("job").await.unwrap();
    while waiting.unavailable_for().is_none_or(|away| away < 4 * lease) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    stuck.kill();
    let mut tokens = vec![guard.token()];
    for waiter in waiters {
        tokens.push(tokio::time::timeout(LIMIT, waiter).await.expect("in time").unwrap());
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert!(tokens.len() == 5 && tokens[0] == guard.token(), "{tokens:?}");
}

/// An answer comes within the bound for answers, which is shorter than any lease here. G25.
#[tokio::test]
async fn a_stuck_database_is_told_of_in_time() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    drop(File::open(&file).unwrap());
    let stuck = stuck(&file);
    let start = clock::now();
    let store = File::open(&file).unwrap();
    let client = Client::new(Arc::new(store.clone()));
    let error = Mutex::new(&client, "job").try_lock().await.unwrap_err();
    println!("told after {:?}: {error}", start.until(clock::now()));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    assert!(error.to_string().contains(&*file.to_string_lossy()), "{error}");
    // The store itself knows more, before the driver's time for an answer is over.
    let start = clock::now();
    let note = crate::children::note();
    let error = store.enter(&name("job"), &fresh(), &note, Enter::Try).await.unwrap_err();
    let took = start.until(clock::now());
    println!("told after {took:?}: {error}");
    assert!(error.to_string().contains("stopped in the middle of a write"), "{error}");
    // Twice what it takes on a machine that does nothing else.
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(client.inspect("job").await.unwrap().holders.is_empty());
    drop(stuck);
}

/// A file system that can be frozen, which makes those hang that write to it, until it is dropped.
struct Freezable {
    mounted: std::path::PathBuf,
    /// What the image is in.
    _folder: tempfile::TempDir,
}

impl Freezable {
    /// Mounted at this folder.
    fn new(at: &Path) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
        let made = run(Command::new("mkfs.ext4").arg("-q").arg(&image))
            && run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(at));
        if !made {
            unprivileged("this user cannot make and mount a file system");
            return None;
        }
        Some(Freezable { mounted: at.to_owned(), _folder: folder })
    }

    fn freeze(&self) {
        assert!(run(Command::new("fsfreeze").arg("-f").arg(&self.mounted)));
    }

    fn thaw(&self) -> bool {
        run(Command::new("fsfreeze").arg("-u").arg(&self.mounted))
    }
}

impl Drop for Freezable {
    fn drop(&mut self) {
        self.thaw();
        let limit = clock::now().after(Duration::from_secs(10));
        while !run(Command::new("umount").arg(&self.mounted)) && clock::now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Holds a lock in this file and one in memory while the file system hangs.
fn keeps_other_locks(disk: &Freezable, file: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lease = Duration::from_secs(1);
        let hung = Client::new(Arc::new(File::open(file).unwrap()));
        let other = holdline::open("memory:").await.unwrap();
        let lost = Mutex::new(&hung, "job").lease(lease).lock().await.unwrap();
        let kept = Mutex::new(&other, "job").lease(lease).lock().await.unwrap();
        disk.freeze();
        let told = tokio::time::timeout(LIMIT, lost.lost()).await;
        tokio::time::sleep(3 * lease).await;
        let renewed = kept.is_valid();
        assert!(disk.thaw());
        told.expect("it cannot be renewed");
        assert!(renewed, "the renewer hangs");
        kept.unlock().await.unwrap();
        drop(lost);
        hung.settle().await;
    });
}

// G14
#[test]
fn a_disk_that_hangs_keeps_nobody_from_renewing_other_locks() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Freezable::new(folder.path()) else { return };
    keeps_other_locks(&disk, &folder.path().join("locks.db"));
}

/// The first renewal of a process starts what it is told by, which is beside the database. G14.
#[test]
fn a_disk_that_hangs_after_a_renewal_keeps_nobody_from_renewing_other_locks() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let live = folder.path().join("locks.db.live");
    fs::create_dir(&live).unwrap();
    let Some(disk) = Freezable::new(&live) else { return };
    keeps_other_locks(&disk, &file);
}

#[tokio::test]
async fn a_log_that_was_removed_in_use_is_named() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let one = File::open(&file).unwrap();
    enter(&one, &name("job"), &fresh(), Enter::Queue).await;
    fs::remove_file(folder.path().join("locks.db-wal")).unwrap();
    let error = File::open(&file).expect_err("what it says is not there");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("-wal was removed; end all programs"), "{error}");
    drop(one);
    let mut next = None;
    until("the one that used it is closed", async || {
        next = File::open(&file).ok();
        next.is_some()
    })
    .await;
    let standing = enter(&next.unwrap(), &name("job"), &fresh(), Enter::Try).await;
    assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
}
