//! The bare idiom, and libraries that are made of it.

use crate::{Failure, LEASE, Library};
use distributed_lock_core::error::LockError;
use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisDistributedLock, RedisLockHandle, RedisLockProvider};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, Script};
use rslock::{LockGuard, LockManager};
use std::time::Duration;

/// Deletes the key if it has this value.
const DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('DEL', KEYS[1]) else return 0 end";
/// How often a lock that somebody has is asked for again.
const POLL: Duration = Duration::from_millis(50);

/// `SET NX PX` and a script that compares and deletes: what there is to beat. One connection.
pub(crate) struct Bare {
    conn: MultiplexedConnection,
    delete: Script,
}

impl Bare {
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        let settings = TcpSettings::default().set_nodelay(true);
        let client = Client::open(url.into_connection_info()?.set_tcp_settings(settings))?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let conn = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Bare { conn, delete: Script::new(DELETE) })
    }
}

impl Library for Bare {
    type Lock = (String, MultiplexedConnection);
    type Held = String;

    async fn lock(&self, name: &str) -> Result<Self::Lock, Failure> {
        Ok((name.to_owned(), self.conn.clone()))
    }

    async fn acquire(&self, (name, conn): &mut Self::Lock) -> Result<String, Failure> {
        let value = format!("{:032x}", fastrand::u128(..));
        let lease = LEASE.as_millis() as u64;
        loop {
            let mut set = redis::cmd("SET");
            set.arg(&*name).arg(&value).arg("NX").arg("PX").arg(lease);
            let set: Option<String> = set.query_async(conn).await?;
            if set.is_some() {
                return Ok(value);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn release(&self, lock: &mut Self::Lock, value: String) -> Result<(), Failure> {
        let (name, conn) = lock;
        let deleted: u32 = self.delete.key(&*name).arg(value).invoke_async(conn).await?;
        if deleted == 1 { Ok(()) } else { Err(format!("{name} was lost").into()) }
    }
}

/// `rslock`, which asks again after up to 200 ms.
pub(crate) struct Rslock(LockManager);

impl Rslock {
    pub(crate) fn open(url: &str) -> Self {
        Rslock(LockManager::new(vec![url]))
    }
}

impl Library for Rslock {
    type Lock = String;
    type Held = LockGuard;

    async fn lock(&self, name: &str) -> Result<String, Failure> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, name: &mut String) -> Result<LockGuard, Failure> {
        Ok(self.0.acquire(name.as_str(), LEASE).await?)
    }

    async fn release(&self, _: &mut String, held: LockGuard) -> Result<(), Failure> {
        held.release().await;
        Ok(())
    }
}

/// `distributed-lock`, which renews.
pub(crate) struct Distributed(RedisLockProvider);

impl Distributed {
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        // Its defaults for the last two fit its own expiry of 30 s.
        let builder = RedisLockProvider::builder().url(url).expiry(LEASE);
        let builder = builder.min_validity(LEASE * 9 / 10).extension_cadence(LEASE / 3);
        Ok(Distributed(builder.build().await?))
    }
}

impl Library for Distributed {
    type Lock = RedisDistributedLock;
    type Held = RedisLockHandle;

    async fn lock(&self, name: &str) -> Result<RedisDistributedLock, Failure> {
        Ok(self.0.create_lock(name))
    }

    async fn acquire(&self, lock: &mut RedisDistributedLock) -> Result<RedisLockHandle, Failure> {
        // A lock has one id for all of its acquisitions, so each has a lock of its own.
        *lock = self.0.create_lock(lock.name());
        loop {
            // It asks once, and calls that a timeout.
            match lock.acquire(None).await {
                Err(LockError::Timeout(_)) => tokio::time::sleep(POLL).await,
                acquired => return Ok(acquired?),
            }
        }
    }

    async fn release(
        &self,
        _: &mut RedisDistributedLock,
        held: RedisLockHandle,
    ) -> Result<(), Failure> {
        Ok(held.release().await?)
    }
}
