//! Acquire and release by one task without competitors, compared with the bare idiom.

use crate::redis;
use crate::report::{Cell, Limit, Report, Table};
use crate::stats::Spread;
use crate::target::{Target, Targets, fresh};
use crate::{Common, Failure, runtime};
use holdline::Mutex;
use rusqlite::{Connection, params};
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

/// The highest accepted ratio of a lock to the bare idiom, on the file store and on Redis.
const LIMIT: f64 = 3.0;
const LIMIT_REDIS: f64 = 1.3;

pub(crate) fn run(common: &Common, targets: &Targets, report: &mut Report) -> Result<(), Failure> {
    let columns = ["store", "acquire + release", "bare idiom", "ratio"];
    let mut table = Table::new("Uncontended: one task, one name", &columns);
    for target in &targets.list {
        let rounds = measure(common, target, targets.folder.path())?;
        let limit = if target.is_redis() { LIMIT_REDIS } else { LIMIT };
        let ours: Vec<f64> = rounds.iter().map(|round| round.0).collect();
        let theirs: Vec<f64> = rounds.iter().filter_map(|round| round.1).collect();
        let ratios: Vec<f64> =
            rounds.iter().filter_map(|(ours, theirs)| Some(ours / (*theirs)?)).collect();
        if let Some(spread) = Spread::of(ratios.iter().copied()) {
            let what = format!("{}: uncontended, cost / the bare idiom's", target.label);
            report.ratio(what, spread.median, Limit::AtMost(limit));
        }
        let label = target.label.as_str().into();
        table.row([label, Cell::times(ours), Cell::times(theirs), Cell::ratios(ratios)]);
    }
    if targets.list.iter().any(|target| target.file().is_some()) {
        table.note(format!("The bare idiom on SQLite: {BARE}"));
    }
    if targets.list.iter().any(Target::is_redis) {
        table.note(
            "The bare idiom on Redis: SET NX PX, compare-and-delete; through the same client.",
        );
    }
    report.table(table);
    Ok(())
}

const BARE: &str = "BEGIN IMMEDIATE, upsert, COMMIT; BEGIN IMMEDIATE, delete, COMMIT; through \
                    the same client, prepared, with the same WAL and synchronous = NORMAL.";

/// Seconds for one acquisition and release, and for the same with the bare idiom, in turns.
fn measure(
    common: &Common,
    target: &Target,
    folder: &Path,
) -> Result<Vec<(f64, Option<f64>)>, Failure> {
    let runtime = runtime()?;
    let bare = Bare::beside(target, folder)?;
    let bare_redis = runtime.block_on(redis::Bare::beside(target))?;
    let name = fresh("bare");
    let client = runtime.block_on(target.open())?;
    let lock = Mutex::new(&client, fresh("uncontended"));
    let budget = Duration::from_secs_f64(common.seconds(0.4));
    let pair = async || -> Result<(), Failure> {
        lock.lock().await?.unlock().await?;
        Ok(())
    };
    runtime.block_on(timed(budget / 4, pair))?; // warm up
    let mut rounds = Vec::new();
    for round in 0..common.rounds() {
        let theirs = |first: bool| match (&bare, &bare_redis) {
            _ if first != (round % 2 == 1) => Ok(None),
            (Some(bare), _) => bare.timed(budget).map(Some),
            (_, Some(bare)) => {
                let pair = async || bare.clone().pair(&name).await;
                runtime.block_on(timed(budget, pair)).map(Some)
            }
            (None, None) => Ok(None),
        };
        let before = theirs(true)?;
        let ours = runtime.block_on(timed(budget, pair))?;
        rounds.push((ours, before.or(theirs(false)?)));
    }
    Ok(rounds)
}

/// Seconds per call, measured for this long.
pub(crate) async fn timed<F: Future<Output = Result<(), Failure>>>(
    budget: Duration,
    mut work: impl FnMut() -> F,
) -> Result<f64, Failure> {
    let (start, mut calls) = (Instant::now(), 0_u32);
    while start.elapsed() < budget || calls == 0 {
        work().await?;
        calls += 1;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(calls))
}

/// The handwritten idiom: one row per lock, inserted and deleted.
struct Bare(Connection);

impl Bare {
    /// The idiom on the same kind of store, if there is one for it.
    fn beside(target: &Target, folder: &Path) -> Result<Option<Self>, Failure> {
        let Some(file) = target.file() else { return Ok(None) };
        // On the same disk, if its folder exists.
        let beside = file.parent().filter(|parent| parent.is_dir()).unwrap_or(folder);
        let conn = Connection::open(beside.join(fresh("bare") + ".db"))?;
        conn.pragma_update(None, "journal_mode", "WAL")?;
        conn.pragma_update(None, "synchronous", "NORMAL")?;
        conn.execute_batch(
            "CREATE TABLE lock (name TEXT PRIMARY KEY, owner BLOB NOT NULL, \
             expires INTEGER NOT NULL) WITHOUT ROWID",
        )?;
        Ok(Some(Bare(conn)))
    }

    fn timed(&self, budget: Duration) -> Result<f64, Failure> {
        let (start, mut calls) = (Instant::now(), 0_u32);
        while start.elapsed() < budget || calls == 0 {
            self.pair(calls)?;
            calls += 1;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(calls))
    }

    fn pair(&self, call: u32) -> rusqlite::Result<()> {
        let (name, owner) = ("bare", u128::from(call).to_be_bytes());
        self.step("BEGIN IMMEDIATE")?;
        self.0
            .prepare_cached(
                "INSERT INTO lock VALUES (?1, ?2, ?3) ON CONFLICT (name) \
                 DO UPDATE SET owner = excluded.owner, expires = excluded.expires",
            )?
            .execute(params![name, owner, i64::from(call)])?;
        self.step("COMMIT")?;
        self.step("BEGIN IMMEDIATE")?;
        self.0
            .prepare_cached("DELETE FROM lock WHERE name = ?1 AND owner = ?2")?
            .execute(params![name, owner])?;
        self.step("COMMIT")
    }

    fn step(&self, sql: &str) -> rusqlite::Result<()> {
        self.0.prepare_cached(sql)?.execute([]).map(drop)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        if let Some(path) = self.0.path() {
            for end in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{path}{end}"));
            }
        }
    }
}
