//! Fenced SQL: the final contents of the database.

use crate::support::{Example, Store};
use rusqlite::Connection;

#[test]
fn the_stale_write_is_refused_and_the_update_is_kept() {
    let store = Store::file();
    let file = store.folder.path().join("accounts.db");
    let mut command = store.command(env!("CARGO_BIN_EXE_fenced_sql"));
    command.arg(&file);
    let mut example = Example::start(command);
    let newest = token_in(&example.says("the next holder wrote 100 under token"));
    example.says("the slow holder's write is refused");
    assert_eq!(example.exit_code(), Some(0));

    let db = Connection::open(file).expect("the example made it");
    let row = db.query_row("SELECT balance, token FROM accounts WHERE id = 17", [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
    });
    assert_eq!(row.expect("there is such an account"), (100, newest));
}

fn token_in(line: &str) -> i64 {
    let token = line.rsplit(' ').next().and_then(|word| word.parse().ok());
    token.unwrap_or_else(|| panic!("{line:?} ends with a token"))
}
