//! Crashes of the holder's process, and of a cluster's leader: how long is no client admitted?

use crate::cell::{Cell, Scenario};
use crate::contend::nanos;
use crate::error::{Error, Result};
use crate::figures::Values;
use crate::run::Host;
use crate::target::Target;
use crate::timer;
use crate::worker::{Order, Worker};
use holdline::{Client, Mutex};
use std::time::Duration;

/// How long to wait for the next holder, besides some leases.
const PATIENCE: Duration = Duration::from_secs(180);
/// The undisturbed time before the leader is killed.
const BEFORE: Duration = Duration::from_millis(500);

/// Runs one round. Returns the time until the next client holds.
pub(crate) async fn round(
    host: &Host,
    target: &mut Target,
    cell: &Cell,
    url: &str,
    name: &str,
) -> Result<Values> {
    let client = holdline::open(url).await?;
    let recovery = match cell.scenario {
        Scenario::Leader => leader(target, cell, &client, name).await?,
        _ => holder(host, cell, &client, url, name).await?,
    };
    Ok(Values::from([("recovery", recovery as f64 / 1e9)]))
}

/// Kills a process that holds the lock, while this one waits for it.
async fn holder(host: &Host, cell: &Cell, client: &Client, url: &str, name: &str) -> Result<u64> {
    let (url, name_of) = (url.to_owned(), name.to_owned());
    let order = Order::Hold { url, name: name_of, lease: cell.lease, mode: cell.mode };
    let mut worker = Worker::start(host, &order).await?;
    worker.ready().await?;
    let lock = cell.mode.mutex(Mutex::new(client, name).lease(cell.lease));
    let waiter = tokio::spawn(async move {
        let guard = lock.lock().await?;
        let at = timer::now();
        guard.unlock().await?;
        Ok::<_, holdline::Error>(at)
    });
    // It must wait before the holder is killed; in a store without places that cannot be seen.
    let pause = Duration::from_millis(fastrand::u64(300..700));
    timer::until(timer::now() + nanos(pause)).await;
    let killed = timer::now();
    worker.kill().await?;
    let granted = tokio::time::timeout(PATIENCE + cell.lease * 3, waiter).await;
    let granted = granted.map_err(|_| Error::failed("nobody was let in after the crash"))?;
    let granted = granted.map_err(|error| Error::failed(error.to_string()))??;
    Ok(granted.saturating_sub(killed))
}

/// Kills the leader, while a client locks and unlocks all the time.
async fn leader(target: &mut Target, cell: &Cell, client: &Client, name: &str) -> Result<u64> {
    let lock = cell.mode.mutex(Mutex::new(client, name).lease(cell.lease));
    let start = timer::now();
    while timer::now() < start + nanos(BEFORE) {
        lock.lock().await?.unlock().await?;
    }
    let leader = target.leader().ok_or_else(|| Error::failed("the cluster has no leader"))?;
    let servers = target.servers.as_mut().ok_or_else(|| Error::failed("there are no servers"))?;
    let killed = timer::now();
    servers.kill(leader);
    let end = killed + nanos(PATIENCE);
    let granted = loop {
        let asked = timer::now();
        // A lock may be lost meanwhile, or its release stay unanswered; the next one counts.
        let taken = tokio::time::timeout(PATIENCE, lock.lock()).await;
        if let Ok(Ok(guard)) = taken {
            let granted = timer::now();
            let _ = guard.unlock().await;
            if asked >= killed {
                break granted;
            }
        }
        if timer::now() > end {
            return Err(Error::failed("nobody was let in after the crash"));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let scheme = target.scheme();
    let servers = target.servers.as_mut().ok_or_else(|| Error::failed("there are no servers"))?;
    tokio::task::block_in_place(|| servers.restart(leader, &scheme))?;
    target.refresh();
    Ok(granted - killed)
}
