//! Alternatives to a lock, compared with the lock: an update that carries the version that it read,
//! and one member of a group for each key.

use crate::redis::Bare;
use crate::report::{Cell, Report, Table};
use crate::stats::Waits;
use crate::target::{Target, Targets, fresh};
use crate::uncontended::timed;
use crate::{Common, Failure, runtime};
use holdline::{Backoff, Group, Mutex, Route};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The number of processes, each with its own connections, and of tasks in each.
const PROCESSES: usize = 4;
const TASKS: usize = 4;
/// The pauses between tries of an update.
const PAUSES: Backoff =
    Backoff::exponential(Duration::from_millis(1), Duration::from_millis(50)).jitter(100);

/// The way in which an update is made safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Lock,
    Version,
}

impl Way {
    fn label(self) -> &'static str {
        match self {
            Way::Lock => "lock, read, write, unlock",
            Way::Version => "read, write if the version is the same",
        }
    }
}

/// The result of a round.
#[derive(Default)]
struct Round {
    rate: f64,
    times: Vec<f64>,
    tries: usize,
}

pub(crate) fn run(common: &Common, targets: &Targets, report: &mut Report) -> Result<(), Failure> {
    for target in &targets.list {
        if target.is_redis() {
            updates(common, target, report)?;
        }
        groups(common, target, report)?;
    }
    Ok(())
}

/// Updates of one record, or of a thousand, by 16 tasks of 4 processes.
fn updates(common: &Common, target: &Target, report: &mut Report) -> Result<(), Failure> {
    let runtime = runtime()?;
    let columns = ["records", "work", "way", "updates/s", "P99", "tries"];
    let title = format!("{}: updates with a lock and with a version, 16 tasks", target.label);
    let mut table = Table::new(title, &columns);
    let time = Duration::from_secs_f64(common.seconds(1.0));
    for (records, work) in [(1000, 0), (1000, 2), (1, 0), (1, 2)] {
        let mut rounds = [Vec::new(), Vec::new()];
        for _ in 0..common.rounds() {
            for (way, rounds) in [Way::Lock, Way::Version].into_iter().zip(&mut rounds) {
                let work = Duration::from_millis(work);
                rounds.push(runtime.block_on(round(target, way, records, work, time))?);
            }
        }
        for (way, rounds) in [Way::Lock, Way::Version].into_iter().zip(rounds) {
            let updates: usize = rounds.iter().map(|round| round.times.len()).sum();
            let tries: usize = rounds.iter().map(|round| round.tries).sum();
            table.row([
                format!("{records}").as_str().into(),
                format!("{work} ms").as_str().into(),
                way.label().into(),
                Cell::rates(rounds.iter().map(|round| round.rate)),
                Cell::times(
                    rounds.into_iter().map(|round| Waits::new(round.times).percentile(99.0)),
                ),
                format!("{:.2}", tries as f64 / updates.max(1) as f64).as_str().into(),
            ]);
        }
    }
    table.note("Work is done between reading and writing. P99 is of a whole update, all tries.");
    report.table(table);
    Ok(())
}

async fn round(
    target: &Target,
    way: Way,
    records: u32,
    work: Duration,
    time: Duration,
) -> Result<Round, Failure> {
    let name = fresh("update");
    let mut tasks = JoinSet::new();
    for _ in 0..PROCESSES {
        let bare = Bare::beside(target).await?.ok_or("only Redis is measured")?;
        let client = target.open().await?;
        for _ in 0..TASKS {
            let (mut bare, client, name) = (bare.clone(), client.clone(), name.clone());
            tasks.spawn(async move {
                let (start, mut round) = (Instant::now(), Round::default());
                while start.elapsed() < time {
                    let key = format!("{name}-{}", fastrand::u32(0..records));
                    let begun = Instant::now();
                    round.tries += match way {
                        Way::Lock => {
                            let guard = Mutex::new(&client, &key).lock().await?;
                            let (number, _) = bare.read(&key).await?;
                            pause(work).await;
                            bare.write(&key, number + 1).await?;
                            guard.unlock().await?;
                            1
                        }
                        Way::Version => versioned(&mut bare, &key, work).await?,
                    };
                    round.times.push(begun.elapsed().as_secs_f64());
                }
                Ok::<_, Failure>(round)
            });
        }
    }
    let mut all = Round::default();
    while let Some(round) = tasks.join_next().await {
        let Round { times, tries, .. } = round??;
        all.times.extend(times);
        all.tries += tries;
    }
    all.rate = all.times.len() as f64 / time.as_secs_f64();
    let (mut bare, mut sum) = (Bare::beside(target).await?.ok_or("it was there")?, 0);
    for record in 0..records {
        sum += bare.take(&format!("{name}-{record}")).await?;
    }
    if sum != all.times.len() as u64 {
        return Err(format!("{} updates left {sum}: {way:?} lost some", all.times.len()).into());
    }
    Ok(all)
}

/// Makes one update, and returns the number of tries.
async fn versioned(bare: &mut Bare, key: &str, work: Duration) -> Result<usize, Failure> {
    for tries in 0.. {
        let (number, version) = bare.read(key).await?;
        pause(work).await;
        if bare.write_if(key, version, number + 1).await? {
            return Ok(tries as usize + 1);
        }
        tokio::time::sleep(PAUSES.pause(tries, fastrand::u64(..))).await;
    }
    Err("it is tried until it succeeds".into())
}

async fn pause(work: Duration) {
    if !work.is_zero() {
        tokio::time::sleep(work).await;
    }
}

/// Requests for keys: to the members that own them, and under locks in the store.
fn groups(common: &Common, target: &Target, report: &mut Report) -> Result<(), Failure> {
    let runtime = runtime()?;
    let client = runtime.block_on(target.open())?;
    let group = Group::new(&client, fresh("group")).stale_after(Duration::from_secs(1));
    let member = Arc::new(runtime.block_on(group.join("a:1"))?);
    let other = runtime.block_on(group.join("b:1"))?;
    let key = runtime.block_on(async {
        let members = group.members().await?;
        let mine = (0..1000).map(|n| format!("key-{n}")).find(|k| members.owner(k) == Some("a:1"));
        mine.ok_or_else(|| Failure::from("no key is a member's"))
    })?;
    let lock = Mutex::new(&client, fresh("lock"));
    let budget = Duration::from_secs_f64(common.seconds(0.5));
    let routed = async || match member.route(&key).await? {
        Route::Mine(owned) => {
            drop(owned);
            Ok(())
        }
        Route::Other(_) => Err("the key has moved".into()),
    };
    let locked = async || -> Result<(), Failure> {
        lock.lock().await?.unlock().await?;
        Ok(())
    };
    let (mut routes, mut locks, mut many) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..common.rounds() {
        routes.push(runtime.block_on(timed(budget, routed))?);
        locks.push(runtime.block_on(timed(budget, locked))?);
        let (member, key, lock) = (Arc::clone(&member), key.clone(), lock.clone());
        many[0].push(runtime.block_on(rate(budget, move || {
            let (member, key) = (Arc::clone(&member), key.clone());
            async move { Ok(matches!(member.route(&key).await?, Route::Mine(_))) }
        }))?);
        many[1].push(runtime.block_on(rate(budget, move || {
            let lock = lock.clone();
            async move { Ok(lock.lock().await?.unlock().await.is_ok()) }
        }))?);
    }
    let title = format!("{}: one owner for each key, beside a lock", target.label);
    let mut table = Table::new(title, &["way", "one task: a request", "64 tasks, one key"]);
    let [routed, locked] = many;
    table.row(["the owner's local lock".into(), Cell::times(routes), Cell::rates(routed)]);
    table.row(["a lock in the store".into(), Cell::times(locks), Cell::rates(locked)]);
    report.table(table);
    runtime.block_on(async {
        other.leave().await?;
        drop(member);
        client.settle().await;
        Ok(())
    })
}

/// Requests per second by 64 tasks.
async fn rate<F>(
    time: Duration,
    work: impl Fn() -> F + Clone + Send + 'static,
) -> Result<f64, Failure>
where
    F: Future<Output = holdline::Result<bool>> + Send,
{
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for _ in 0..64 {
        let work = work.clone();
        tasks.spawn(async move {
            let mut done = 0_u32;
            while start.elapsed() < time {
                done += u32::from(work().await?);
            }
            holdline::Result::<u32>::Ok(done)
        });
    }
    let mut done = 0;
    while let Some(task) = tasks.join_next().await {
        done += task??;
    }
    Ok(f64::from(done) / start.elapsed().as_secs_f64())
}
