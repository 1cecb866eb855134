//! Databases that somebody has edited by hand, or whose bytes have changed: an error that says so,
//! and neither a panic nor changed data.

use crate::children::{name, note, together};
use fastrand::Rng;
use holdline::ErrorKind;
use holdline::store::{Enter, Seq, Store, Ticket, TicketId};
use holdline::stores::sqlite::File;
use rusqlite::Connection;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

const RW: u32 = 1 << 30;
const LINES: [(&str, u32, u128); 4] =
    [("deep", RW, 40), ("job", 1, 3), ("one", 1, 1), ("sem", 3, 5)];

fn ticket(id: u128, capacity: u32) -> Ticket {
    let weight = if capacity == RW && id.is_multiple_of(2) { RW } else { 1 };
    Ticket { weight, capacity, ..holdline_testkit::ticket(id, Duration::from_secs(60)) }
}

/// Creates a database with lines of several lengths, all in one file, that no store has open. It is
/// a copy: a store that is closed may remove its places, as a crash would.
fn made(file: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let original = file.with_extension("original");
    let store = File::open(&original).unwrap();
    for (line, capacity, places) in LINES {
        for id in 1..=places {
            let enter = store
                .enter(&name(line), &ticket(id, capacity), &note(), Enter::Queue)
                .await_in(&runtime);
            enter.unwrap();
        }
    }
    let conn = Connection::open(&original).unwrap();
    conn.execute("VACUUM INTO ?1", [file.to_str().unwrap()]).unwrap();
}

trait AwaitIn: Future + Sized {
    fn await_in(self, runtime: &tokio::runtime::Runtime) -> Self::Output {
        let limit = Duration::from_secs(20);
        runtime.block_on(async { tokio::time::timeout(limit, self).await }).expect("it ends")
    }
}

impl<F: Future> AwaitIn for F {}

/// All that is stored, as text.
fn dump(file: &Path) -> String {
    let conn = Connection::open(file).unwrap();
    let mut text = String::new();
    for table in ["meta", "line", "place", "eviction"] {
        let mut rows = conn.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = rows.column_count();
        let mut rows = rows.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            for column in 0..columns {
                write!(text, "{:?} ", row.get_ref(column).unwrap()).unwrap();
            }
            text.push('\n');
        }
    }
    text
}

/// Does everything that a store does, and hands each failure to `failed`.
fn exercise(file: &Path, rng: &mut Rng, mut failed: impl FnMut(&holdline::Error)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = match File::open(file) {
        Ok(store) => store,
        Err(error) => return failed(&error),
    };
    if let Err(error) = store.list("").await_in(&runtime) {
        failed(&error);
    }
    for _ in 0..40 {
        let (line, capacity, places) = LINES[rng.usize(..LINES.len())];
        let (line, ticket) = (name(line), ticket(rng.u128(1..=places + 2), capacity));
        let seq = store.snapshot(&line).await_in(&runtime).ok().and_then(|view| {
            view.places.iter().find(|place| place.id == ticket.id).map(|place| place.seq)
        });
        let how = match rng.u8(..3) {
            0 => Enter::Try,
            1 => Enter::Queue,
            _ => Enter::Keep(seq.unwrap_or(Seq(rng.u64(..)))),
        };
        let outcome = match rng.u8(..7) {
            0 => store.leave(&line, ticket.id).await_in(&runtime).map(|_| ()),
            1 => store.evict(&line, ticket.id, "{}").await_in(&runtime).map(|_| ()),
            2 => store.snapshot(&line).await_in(&runtime).map(|_| ()),
            3 => {
                let watch = store.watch(&line, ticket.id);
                let brief = Duration::from_millis(1);
                runtime
                    .block_on(async { tokio::time::timeout(brief, watch).await })
                    .unwrap_or(Ok(None))
                    .map(|_| ())
            }
            _ => store.enter(&line, &ticket, &note(), how).await_in(&runtime).map(|_| ()),
        };
        if let Err(error) = outcome {
            failed(&error);
        }
    }
}

/// Puts a value that makes no sense, or might, into some field.
fn edit(file: &Path, rng: &mut Rng) -> Option<String> {
    const FIELDS: [(&str, &[&str]); 3] = [
        ("meta", &["last", "cursor"]),
        ("line", &["name", "capacity", "last", "count", "held", "front", "due"]),
        ("place", &["name", "seq", "id", "weight", "expires", "process", "deep", "note"]),
    ];
    const VALUES: [&str; 16] = [
        "0",
        "1",
        "2",
        "-1",
        "7",
        "4294967296",
        "9223372036854775807",
        "9223372036854775806",
        "-9223372036854775808",
        "1e300",
        "0.5",
        "'x'",
        "x'00ff'",
        "zeroblob(16)",
        "NULL",
        "CAST(x'ff' AS TEXT)",
    ];
    let conn = Connection::open(file).unwrap();
    let (table, fields) = rng.choice(FIELDS).unwrap();
    let (field, value) = (rng.choice(fields).unwrap(), rng.choice(VALUES).unwrap());
    let rows: u32 =
        conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
    let key = match table {
        "meta" => "one",
        "line" => "name",
        _ => "name || seq",
    };
    let at = rng.u32(..rows.max(1));
    let what = if rng.u8(..8) == 0 {
        format!("DELETE FROM {table}")
    } else {
        format!("UPDATE {table} SET {field} = {value}")
    };
    let sql = format!("{what} WHERE {key} = (SELECT {key} FROM {table} LIMIT 1 OFFSET {at})");
    conn.execute(&sql, []).is_ok().then_some(sql)
}

#[test]
fn fields_that_make_no_sense_are_an_error() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.db");
    made(&whole);
    let (mut edits, mut refusals) = (0, 0);
    for seed in 0..400 {
        let mut rng = Rng::with_seed(seed);
        let file = folder.path().join(format!("{seed}.db"));
        fs::copy(&whole, &file).unwrap();
        let mut sql: Vec<String> = Vec::new();
        for _ in 0..rng.u8(1..=3) {
            sql.extend(edit(&file, &mut rng));
        }
        edits += sql.len();
        let sane = |error: &holdline::Error| {
            // A plausible capacity or weight is not to be told from one that is right.
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Mismatch | ErrorKind::Invalid)
        };
        exercise(&file, &mut rng, |error| {
            assert!(sane(error), "{seed} {sql:?}: {error:#}");
            refusals += 1;
        });
    }
    println!("{edits} edits, {refusals} refusals");
    assert!(edits > 400 && refusals > 400);
}

/// An operation that fails leaves what is stored as it was.
#[test]
fn what_makes_no_sense_is_left_as_it_is() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.db");
    made(&whole);
    let wrong = [
        "UPDATE line SET count = 0 WHERE name = 'job'; UPDATE line SET held = 1 WHERE name = 'job'",
        "UPDATE line SET held = 0",
        "UPDATE line SET count = 17",
        "UPDATE line SET capacity = -1",
        "UPDATE line SET due = 'soon'",
        "UPDATE line SET last = 1",
        "UPDATE place SET weight = 0",
        "UPDATE place SET weight = 4294967295",
        "UPDATE place SET id = x'01'",
        "UPDATE place SET process = 'me'",
        "UPDATE place SET expires = -5",
        "UPDATE place SET seq = 9223372036854775807 WHERE id = x'00000000000000000000000000000003'",
        "DELETE FROM meta",
        "DROP TABLE place",
    ];
    for (at, sql) in wrong.iter().enumerate() {
        let file = folder.path().join(format!("{at}.db"));
        fs::copy(&whole, &file).unwrap();
        Connection::open(&file).unwrap().execute_batch(sql).unwrap();
        let before = if sql.contains("DROP") { String::new() } else { dump(&file) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = match File::open(&file) {
            Err(error) => error,
            Ok(store) => {
                let looked = store.snapshot(&name("job")).await_in(&runtime);
                let left = looked.is_ok().then(|| {
                    store.leave(&name("job"), TicketId(1)).await_in(&runtime).expect_err(sql)
                });
                left.unwrap_or_else(|| looked.unwrap_err())
            }
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{sql}: {error:#}");
        assert!(error.to_string().contains(&*file.to_string_lossy()), "{error}");
        if !before.is_empty() {
            assert_eq!(dump(&file), before, "{sql}");
        }
    }
}

#[test]
fn changed_bytes_are_an_error() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.db");
    made(&whole);
    let whole = fs::read(&whole).unwrap();
    let mut refusals = 0;
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let file = folder.path().join(format!("{seed}.db"));
        let mut bytes = whole.clone();
        if rng.u8(..4) == 0 {
            bytes.truncate(rng.usize(1..bytes.len()));
        } else {
            for _ in 0..rng.u8(1..=4) {
                let at = rng.usize(..bytes.len());
                bytes[at] ^= rng.u8(1..);
            }
        }
        fs::write(&file, &bytes).unwrap();
        exercise(&file, &mut rng, |error| {
            let sane = matches!(
                error.kind(),
                ErrorKind::Corrupt | ErrorKind::Mismatch | ErrorKind::Invalid
            );
            assert!(sane, "{seed}: {error:#}");
            refusals += 1;
        });
    }
    println!("{refusals} refusals");
    assert!(refusals > 300);
}

/// SQLite itself only says that it cannot open such a file.
#[test]
fn a_path_that_is_too_long_is_refused_as_such() {
    let place = tempfile::tempdir().unwrap();
    let mut folder = place.path().canonicalize().unwrap();
    while folder.as_os_str().len() < 400 {
        folder.push("f".repeat(60));
    }
    fs::create_dir_all(&folder).unwrap();
    let name = |length: usize| "n".repeat(length - folder.as_os_str().len() - 1);
    File::open(folder.join(name(504))).expect("SQLite takes it");
    let error = File::open(folder.join(name(505))).expect_err("SQLite refuses it");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("505 bytes"), "{error}");
}
