//! The bare idiom on Redis, as in other lock libraries, through the same client as this library.

use crate::Failure;
use crate::target::Target;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Deletes the key if it has this value.
const DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('DEL', KEYS[1]) else return 0 end";

/// Writes a number if its version is still this one.
const WRITE: &str = "local version = redis.call('HGET', KEYS[1], 'version') or '0' \
    if version ~= ARGV[1] then return 0 end \
    redis.call('HSET', KEYS[1], 'number', ARGV[2]) \
    redis.call('HINCRBY', KEYS[1], 'version', 1) return 1";

/// One connection, shared by all clones.
#[derive(Clone)]
pub(crate) struct Bare {
    conn: MultiplexedConnection,
    hash: String,
}

impl Bare {
    /// A connection to the server of this store, if it is one Redis server.
    pub(crate) async fn beside(target: &Target) -> Result<Option<Self>, Failure> {
        if !target.is_redis() {
            return Ok(None);
        }
        let info = target.url.as_str().into_connection_info()?;
        let client = Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut conn = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut load = redis::cmd("SCRIPT");
        let hash = load.arg("LOAD").arg(DELETE).query_async(&mut conn).await?;
        Ok(Some(Bare { conn, hash }))
    }

    /// Locks and unlocks.
    pub(crate) async fn pair(&mut self, name: &str) -> Result<(), Failure> {
        let value = format!("{:032x}", fastrand::u128(..));
        let mut set = redis::cmd("SET");
        set.arg(name).arg(&value).arg("NX").arg("PX").arg(10_000);
        let set: Option<String> = set.query_async(&mut self.conn).await?;
        let mut delete = redis::cmd("EVALSHA");
        delete.arg(&self.hash).arg(1).arg(name).arg(&value);
        let deleted: u32 = delete.query_async(&mut self.conn).await?;
        if set.is_none() || deleted != 1 {
            return Err(format!("somebody else uses the key {name}").into());
        }
        Ok(())
    }

    /// Reads a number and its version; zeros if there are none.
    pub(crate) async fn read(&mut self, key: &str) -> Result<(u64, u64), Failure> {
        let mut read = redis::cmd("HMGET");
        let read = read.arg(key).arg("number").arg("version");
        let (number, version): (Option<u64>, Option<u64>) =
            read.query_async(&mut self.conn).await?;
        Ok((number.unwrap_or_default(), version.unwrap_or_default()))
    }

    /// Writes a number.
    pub(crate) async fn write(&mut self, key: &str, number: u64) -> Result<(), Failure> {
        Ok(redis::cmd("HSET")
            .arg(key)
            .arg("number")
            .arg(number)
            .query_async(&mut self.conn)
            .await?)
    }

    /// Writes a number if its version is unchanged, and returns whether it was.
    pub(crate) async fn write_if(
        &mut self,
        key: &str,
        version: u64,
        number: u64,
    ) -> Result<bool, Failure> {
        let script = redis::Script::new(WRITE);
        let mut call = script.key(key);
        Ok(call.arg(version).arg(number).invoke_async(&mut self.conn).await?)
    }

    /// Reads and deletes a number.
    pub(crate) async fn take(&mut self, key: &str) -> Result<u64, Failure> {
        let (number, _) = self.read(key).await?;
        let () = redis::cmd("DEL").arg(key).query_async(&mut self.conn).await?;
        Ok(number)
    }

    /// The time of one request: the median of several. Each comes after a pause, like a release, so
    /// that the wake-up of an idle processor is included.
    pub(crate) async fn round_trip(&mut self) -> Result<f64, Failure> {
        let mut times = Vec::new();
        for _ in 0..101 {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let start = Instant::now();
            let _: String = redis::cmd("PING").query_async(&mut self.conn).await?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// The CPU time that the server has used, in seconds.
    pub(crate) async fn server_cpu(&self) -> Result<f64, Failure> {
        let text: String =
            redis::cmd("INFO").arg("cpu").query_async(&mut self.conn.clone()).await?;
        let part = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            Ok::<f64, Failure>(line.ok_or("no CPU time in INFO")?.trim().parse()?)
        };
        Ok(part("used_cpu_user:")? + part("used_cpu_sys:")?)
    }

    /// Locks and unlocks per second by this many tasks, each on a name of its own, and how many.
    pub(crate) async fn rate(&self, tasks: usize, time: Duration) -> Result<(f64, f64), Failure> {
        let start = Instant::now();
        let mut all = JoinSet::new();
        for task in 0..tasks {
            let (mut bare, name) = (self.clone(), crate::target::fresh(&format!("bare-{task}")));
            all.spawn(async move {
                let mut pairs = 0_u32;
                while start.elapsed() < time {
                    bare.pair(&name).await?;
                    pairs += 1;
                }
                Ok::<_, Failure>(pairs)
            });
        }
        let mut pairs = 0;
        while let Some(task) = all.join_next().await {
            pairs += task??;
        }
        Ok((f64::from(pairs) / start.elapsed().as_secs_f64(), f64::from(pairs)))
    }
}
