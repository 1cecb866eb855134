//! A lock that is lost in the middle of the work: stop, and undo what was begun. A loop runs in one
//! transaction, which is not committed; steps that share no transaction have an undo each.
//!
//! `cargo run -p holdline-examples --bin roll_back`, and in another terminal, while it runs,
//! `holdline break import ID --reason TEXT`, with the ID that `holdline status` shows.
//! `roll_back steps` does the same with steps.
//!
//! Environment: `HOLDLINE_STORE`; default: the file store. `ITEM_MS`: the time for one item.

use holdline::{Error, Guard, Mutex, open};
use rusqlite::Connection;
use std::env;
use std::time::Duration;
use tokio::time::sleep;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A loop in a transaction. `protect` would stop it too, at the next `await`; a loop that computes
/// for long without one checks in between.
async fn import(guard: &Guard, db: &mut Connection, item: Duration) -> Outcome<u32> {
    let transaction = db.transaction()?;
    let mut imported = 0;
    for number in 0..10 {
        if !guard.is_valid() {
            // Dropping the transaction rolls it back.
            return Err("the lock was lost: rolled back".into());
        }
        transaction.execute("INSERT INTO items VALUES (?1)", [number])?;
        imported += 1;
        println!("imported {number}");
        sleep(item).await;
    }
    // The last check. Between this and the commit a process can still be stopped for longer than
    // the margin: work that must not be done twice writes the token, too; see `fenced_sql`.
    guard.protect(async {}).await?;
    transaction.commit()?;
    Ok(imported)
}

/// The steps begun so far, which must be undone in reverse order.
#[derive(Default)]
struct Begun(Vec<&'static str>);

impl Begun {
    /// A step is noted before it is done: a loss may drop it when its request has been sent.
    async fn step(&mut self, name: &'static str, time: Duration) {
        self.0.push(name);
        println!("{name}...");
        sleep(time).await;
    }

    /// Undoing is itself work that others may see: it must be harmless when done twice, or when the
    /// step was not done after all, and touch only the results of this run.
    fn undo(self) {
        self.0.iter().rev().for_each(|name| println!("undone: {name}"));
    }
}

/// Steps in several systems. Each begins only while the lock is held.
async fn order(guard: &Guard, item: Duration) -> Result<(), Error> {
    let mut begun = Begun::default();
    let work = async {
        begun.step("reserve the goods", item).await;
        begun.step("charge the card", item).await;
        begun.step("tell the warehouse", item).await;
    };
    let outcome = guard.protect(work).await;
    if outcome.is_err() {
        begun.undo();
    }
    outcome
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let client = match env::var("HOLDLINE_STORE") {
        Err(env::VarError::NotPresent) => holdline::open_default()?,
        url => open(&url?).await?,
    };
    let item = Duration::from_millis(env::var("ITEM_MS").map_or(Ok(500), |text| text.parse())?);
    let guard = Mutex::new(&client, "import").label("roll_back").lock().await?;
    let outcome = if env::args().nth(1).as_deref() == Some("steps") {
        order(&guard, item).await.map_err(Into::into)
    } else {
        let mut db = Connection::open(env::var("ITEMS").unwrap_or(":memory:".to_owned()))?;
        db.execute_batch("CREATE TABLE IF NOT EXISTS items (number INTEGER)")?;
        import(&guard, &mut db, item).await.map(|imported| println!("{imported} committed"))
    };
    if let Err(error) = &outcome {
        println!("{error}");
    }
    let released = guard.unlock().await;
    client.settle().await; // if the store has not confirmed it
    outcome?;
    match released {
        Err(lost) if lost.is_lost() => Err(lost.into()),
        _ => Ok(()), // an error of another kind says nothing about the work, which is done
    }
}
