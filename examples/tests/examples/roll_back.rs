//! Work that is rolled back when its lock is lost in the middle.

use crate::support::{Example, Store};
use rusqlite::Connection;
use std::process::Command;

fn items(store: &Store) -> i64 {
    let db = Connection::open(store.folder.path().join("items.db")).expect("it was made");
    db.query_row("SELECT count(*) FROM items", [], |row| row.get(0)).expect("there is a table")
}

fn command(store: &Store, item: &str) -> Command {
    let mut command = store.command(env!("CARGO_BIN_EXE_roll_back"));
    command.env("ITEM_MS", item).env("ITEMS", store.folder.path().join("items.db"));
    command
}

#[test]
fn a_loop_is_rolled_back_and_is_committed_when_nothing_happens() {
    let store = Store::file();
    // So slow that only the loss ends it.
    let mut example = Example::start(command(&store, "3000"));
    example.says("imported 0");
    store.break_lock("import", store.holder("import"));
    example.says("rolled back");
    assert_ne!(example.exit_code(), Some(0));
    assert_eq!(items(&store), 0);

    let mut example = Example::start(command(&store, "1"));
    example.says("10 committed");
    assert_eq!((example.exit_code(), items(&store)), (Some(0), 10));
}

/// The step that a loss interrupts is undone, too: its request may have been sent.
#[test]
fn steps_are_undone_in_the_opposite_order() {
    let store = Store::file();
    let mut command = command(&store, "5000");
    command.arg("steps");
    let mut example = Example::start(command);
    example.says("charge the card");
    store.break_lock("import", store.holder("import"));
    example.says("undone: charge the card");
    example.says("undone: reserve the goods");
    assert!(example.says("was lost").contains("broken by force"));
    assert_ne!(example.exit_code(), Some(0));
}
