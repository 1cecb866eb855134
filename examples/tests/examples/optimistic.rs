//! Updates without a lock: eight sellers sell the stock, each piece once.

use crate::support::Example;
use holdline_testkit::missing;
use rusqlite::Connection;
use std::process::Command;

/// Checks that everything was sold once. The number of failed attempts depends on the machine.
fn sells_all(mut command: Command, arguments: &[&str]) {
    command.args(arguments);
    let mut example = Example::start(command);
    let said = example.says("sold ");
    let words: Vec<&str> = said.split(' ').collect();
    let ["sold", "100", "in", tries, "tries"] = words[..] else { panic!("it said {said:?}") };
    assert!(tries.parse::<u32>().expect("a number") >= 100, "{said}");
    assert_eq!(example.exit_code(), Some(0));
}

#[test]
fn in_sql_no_update_is_lost() {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let file = folder.path().join("inventory.db");
    let path = file.to_str().expect("a temporary folder has a plain name");
    sells_all(Command::new(env!("CARGO_BIN_EXE_optimistic_sql")), &[path]);
    let db = Connection::open(file).expect("the example made it");
    let row = db.query_row("SELECT stock, version FROM inventory", [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
    });
    assert_eq!(row.expect("there is one"), (0, 100));
}

#[test]
fn on_redis_no_update_is_lost() {
    let Ok(url) = std::env::var("HOLDLINE_TEST_REDIS") else { return missing("Redis") };
    let key = format!("examples-inventory-{}", std::process::id());
    sells_all(Command::new(env!("CARGO_BIN_EXE_optimistic_redis")), &[&url, &key]);
}

#[test]
fn in_etcd_no_update_is_lost() {
    let Ok(url) = std::env::var("HOLDLINE_TEST_ETCD") else { return missing("etcd") };
    let address = url.trim_start_matches("etcd://").split(['/', '?', ',']).next();
    let key = format!("examples-inventory-{}", std::process::id());
    let arguments = [address.expect("a URL has a host"), &key];
    sells_all(Command::new(env!("CARGO_BIN_EXE_optimistic_etcd")), &arguments);
}
