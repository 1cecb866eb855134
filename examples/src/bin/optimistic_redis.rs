//! An update without a lock, on Redis: a write carries the version that was read, and a script
//! refuses it if another client was faster. `WATCH`, `MULTI` and `EXEC` do the same, but need a
//! connection for each task; a script shares one.
//!
//! `cargo run -p holdline-examples --bin optimistic_redis -- redis://127.0.0.1`

use holdline::Backoff;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, RedisResult, Script};
use std::env;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Sets the stock if its version is still the one that was read.
const WRITE: &str = "
    if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
    redis.call('HSET', KEYS[1], 'stock', ARGV[2])
    redis.call('HINCRBY', KEYS[1], 'version', 1)
    return 1
";

/// Pauses between attempts: random, so that clients that collided do not collide again.
const PAUSES: Backoff =
    Backoff::exponential(Duration::from_millis(1), Duration::from_millis(50)).jitter(100);

/// Sells one, and returns the number of attempts; `None` if there are none left.
async fn sell(db: &mut MultiplexedConnection, key: &str) -> RedisResult<Option<u32>> {
    let script = Script::new(WRITE);
    for tries in 1.. {
        let (stock, version): (u64, u64) = db.hmget(key, &["stock", "version"]).await?;
        if stock == 0 {
            return Ok(None);
        }
        // The slow part goes here. It may be done in vain, so it must have no effects.
        let left = stock - 1;
        let write = script.key(key).arg(version).arg(left).invoke_async(db).await;
        // The reply may be lost although the write was done. If that matters, write a unique id of
        // this sale along with it, and look for it.
        if write? {
            return Ok(Some(tries));
        }
        sleep(PAUSES.pause(tries - 1, fastrand::u64(..))).await;
    }
    unreachable!("it is tried until it succeeds")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::args().nth(1).ok_or("usage: optimistic_redis URL [KEY]")?;
    let key = env::args().nth(2).unwrap_or_else(|| "inventory:s101".to_owned());
    let mut db = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let () = db.hset_multiple(&key, &[("stock", 100), ("version", 0)]).await?;
    let mut sellers = JoinSet::new();
    for _ in 0..8 {
        let (mut db, key) = (db.clone(), key.clone());
        sellers.spawn(async move {
            let (mut sold, mut tries) = (0, 0);
            while let Some(more) = sell(&mut db, &key).await? {
                (sold, tries) = (sold + 1, tries + more);
            }
            RedisResult::Ok((sold, tries))
        });
    }
    let (mut sold, mut tries) = (0, 0);
    while let Some(seller) = sellers.join_next().await {
        let (one, more) = seller??;
        (sold, tries) = (sold + one, tries + more);
    }
    println!("sold {sold} in {tries} tries");
    Ok(())
}
