//! The file store: what is there, whose it is, and what is beside it.

use super::{at_worst, examine, found, look};
use holdline::doctor::Level;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

#[tokio::test]
async fn a_file_that_is_not_there_is_not_made() {
    let folder = TempDir::new().expect("a folder");
    let deep = folder.path().join("deep/locks.db");
    let report = examine(&format!("sqlite:{}", deep.display())).await;
    found(&report, "folder", Level::Problem, "deep is not there");
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}", path.display());
    let report = examine(&url).await;
    found(&report, "file", Level::Advice, "not there");
    at_worst(&report, Level::Advice);
    assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
    drop(holdline::open(&url).await.expect("it is made"));
    let report = examine(&url).await;
    at_worst(&report, Level::Ok);
    found(&report, "lock", Level::Ok, "holdline-doctor");
}

#[tokio::test]
async fn a_file_that_everybody_may_write_is_told() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}", path.display());
    drop(holdline::open(&url).await.expect("it is made"));
    let mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    mode(&path, 0o666);
    found(&examine(&url).await, "rights", Level::Advice, "666");
    mode(folder.path(), 0o777);
    found(&examine(&url).await, "folder", Level::Warning, "everybody");
    let report = examine(&format!("sqlite:{}", folder.path().display())).await;
    found(&report, "file", Level::Problem, "no file");
}

/// A log that nobody could write back for long.
#[tokio::test]
async fn a_long_log_is_told() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}", path.display());
    drop(holdline::open(&url).await.expect("it is made"));
    let log =
        fs::File::options().create(true).append(true).open(folder.path().join("locks.db-wal"));
    log.and_then(|log| log.set_len(80 << 20)).expect("there is room");
    let report = look(&url).await;
    found(&report, "log", Level::Warning, "81920 KB");
}

#[tokio::test]
async fn a_file_that_has_another_name_is_told() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}", path.display());
    drop(holdline::open(&url).await.expect("it is made"));
    fs::hard_link(&path, folder.path().join("other.db")).expect("it is ours");
    found(&look(&url).await, "file", Level::Problem, "hard link");
}
