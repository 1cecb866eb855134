//! The write-ahead log of the database stays short.

use crate::children::{fresh, name, note, together};
use holdline::store::{Enter, Store};
use holdline::stores::sqlite::File;

#[tokio::test]
async fn the_log_is_emptied_now_and_then() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let store = File::open(folder.path().join("locks.db")).unwrap();
    let (line, note) = (name("job"), note());
    let log = || std::fs::metadata(folder.path().join("locks.db-wal")).unwrap().len();
    // Each operation writes two pages of 1 KiB or more.
    for _ in 0..1500 {
        let ticket = fresh();
        store.enter(&line, &ticket, &note, Enter::Queue).await.unwrap();
        assert!(store.leave(&line, ticket.id).await.unwrap());
    }
    assert!((1000 * 1024..1100 * 1100).contains(&log()), "{} bytes", log());
}
