//! Files that are not what they should be: each gives one clear error, and is left as it was.

use crate::children::{ChildProcess, enter, fresh, name, together};
use holdline::ErrorKind;
use holdline::store::{Enter, Standing, Store};
use holdline::stores::sqlite::File;
use rusqlite::Connection;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;

/// Opening fails so, with a sentence that names the file and says this.
fn refused(file: &Path, kind: ErrorKind, says: &str) {
    let error = File::open(file).unwrap_err();
    assert_eq!(error.kind(), kind, "{error:#}");
    let text = error.to_string();
    assert!(text.contains(says), "{text}");
    assert!(text.contains(&*file.to_string_lossy()), "{text}");
}

/// A closed database of ours, all in one file.
fn made(file: &Path) {
    drop(File::open(file).unwrap());
    let conn = Connection::open(file).unwrap();
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
}

#[test]
fn another_programs_database_is_left_alone() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bookmarks.db");
    let conn = Connection::open(&file).unwrap();
    conn.execute_batch("CREATE TABLE mark (url TEXT)").unwrap();
    drop(conn);
    let before = fs::read(&file).unwrap();
    refused(&file, ErrorKind::Corrupt, "belongs to another program");
    assert_eq!(fs::read(&file).unwrap(), before);
    let marked = folder.path().join("marked.db");
    Connection::open(&marked).unwrap().pragma_update(None, "application_id", 7).unwrap();
    refused(&marked, ErrorKind::Corrupt, "belongs to another program");
}

#[test]
fn garbage_is_refused() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    fs::write(&file, "These are my notes. ".repeat(1000)).unwrap();
    refused(&file, ErrorKind::Corrupt, "is not a database");
    assert!(fs::read_to_string(&file).unwrap().starts_with("These are my notes."));
}

#[test]
fn a_truncated_database_is_refused() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    made(&file);
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    refused(&file, ErrorKind::Corrupt, "is damaged");
}

#[test]
fn another_version_is_refused() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    made(&file);
    for (version, part) in [(1, "has version 1"), (3, "has version 3")] {
        Connection::open(&file).unwrap().pragma_update(None, "user_version", version).unwrap();
        refused(&file, ErrorKind::Corrupt, part);
    }
}

#[test]
fn a_folder_and_a_missing_device_are_refused() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    refused(folder.path(), ErrorKind::Invalid, "is not a file");
    refused(Path::new("/dev/null"), ErrorKind::Invalid, "is not a file");
    refused(Path::new("/proc/nothing/locks.db"), ErrorKind::Denied, "could not make");
}

#[test]
fn what_is_empty_or_half_made_is_made_whole() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.db");
    fs::write(&empty, "").unwrap();
    drop(File::open(&empty).unwrap());
    // Killed after the change of mode, and before the tables.
    let half = folder.path().join("half.db");
    Connection::open(&half).unwrap().pragma_update(None, "journal_mode", "WAL").unwrap();
    drop(File::open(&half).unwrap());
    drop(File::open(&half).unwrap());
}

/// Starts a process that may not write there although this one may.
fn as_nobody(file: &Path) -> ChildProcess {
    ChildProcess::start(file, |command| {
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
    })
}

#[test]
fn a_folder_or_file_without_permission_is_refused() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    mode(folder.path(), 0o555).unwrap();
    let new = folder.path().join("locks.db");
    let error = as_nobody(&new).expect("error");
    assert!(error.starts_with("Denied could not make"), "{error}");
    assert!(error.contains(&*new.to_string_lossy()), "{error}");
    mode(folder.path(), 0o755).unwrap();
    made(&new);
    mode(&new, 0o444).unwrap();
    let error = as_nobody(&new).expect("error");
    assert!(error.starts_with("Denied "), "{error}");
    assert!(error.contains(&*new.to_string_lossy()), "{error}");
}

#[tokio::test]
async fn a_file_that_is_replaced_is_opened_anew() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let store = File::open(&file).unwrap();
    let (line, old) = (name("job"), fresh());
    let Standing::Admitted(seq) = enter(&store, &line, &old, Enter::Queue).await else { panic!() };
    for ending in ["", "-wal", "-shm"] {
        fs::remove_file(folder.path().join(format!("locks.db{ending}"))).unwrap();
    }
    let other = File::open(&file).unwrap();
    let new = fresh();
    assert!(matches!(enter(&other, &line, &new, Enter::Try).await, Standing::Admitted(_)));
    assert_eq!(enter(&store, &line, &old, Enter::Keep(seq)).await, Standing::Lost);
    assert!(matches!(
        enter(&store, &line, &old, Enter::Try).await,
        Standing::Waiting { seq: None, .. }
    ));
}

/// Under each name the file would have a log and liveness locks of its own.
#[tokio::test]
async fn a_file_with_two_names_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("locks.db"), folder.path().join("link.db"));
    let one = File::open(&file).unwrap();
    let standing = enter(&one, &name("job"), &fresh(), Enter::Queue).await;
    assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
    std::fs::hard_link(&file, &link).unwrap();
    if let Ok(two) = File::open(&link) {
        let standing = enter(&two, &name("job"), &fresh(), Enter::Try).await;
        panic!("opened by its other name: {standing:?}");
    }
    for path in [&file, &link] {
        refused(path, ErrorKind::Unsupported, "hard link");
    }
    std::fs::remove_file(&link).unwrap();
    let two = File::open(&file).unwrap();
    let standing = enter(&two, &name("job"), &fresh(), Enter::Try).await;
    assert!(matches!(standing, Standing::Waiting { .. }), "{standing:?}");
}

#[test]
fn files_are_for_this_user_only() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a/b/locks.db");
    let missing = File::open(&file).expect_err("a path whose folder is missing is a mistake");
    assert!(missing.to_string().contains("there is no folder"), "{missing}");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let store = File::open(&file).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(enter(&store, &name("job"), &fresh(), Enter::Queue));
    let mode = |ending: &str| {
        fs::metadata(folder.path().join(format!("a/b{ending}"))).unwrap().mode() & 0o777
    };
    assert_eq!(mode("/locks.db.live"), 0o700);
    for ending in ["", "-wal", "-shm"] {
        assert_eq!(mode(&format!("/locks.db{ending}")), 0o600, "{ending}");
    }
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let other = File::open(&link).unwrap();
    assert_eq!(runtime.block_on(other.list("")).unwrap().len(), 1);
    assert_eq!(other.address(), format!("sqlite:{}", link.display()));
}

/// With few file descriptors left, each failure says so, and what worked goes on.
#[test]
fn a_lack_of_descriptors_is_named() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    made(&file);
    let mut starved = ChildProcess::new(folder.path().join("other.db"));
    let (mut refusals, mut successes) = (0, 0);
    for spare in 0..16 {
        starved.tell(&format!("starve {spare} {}", file.display()));
        loop {
            let report = starved.report();
            if report == "fed" {
                break;
            }
            if report == "worked" {
                successes += 1;
                continue;
            }
            assert!(report.starts_with("Unavailable "), "{spare} spare: {report}");
            assert!(report.contains("file descriptors"), "{spare} spare: {report}");
            refusals += 1;
        }
    }
    println!("{refusals} refusals, {successes} successes");
    assert!(refusals > 3 && successes > 16);
}
