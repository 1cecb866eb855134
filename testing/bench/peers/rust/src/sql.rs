//! Advisory locks of PostgreSQL by sqlx: a connection for each that waits or holds.

use crate::{Failure, Library};
use sqlx_core::connection::Connection;
use sqlx_postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgConnection};

pub(crate) struct Advisory(String);

impl Advisory {
    pub(crate) fn open(url: &str) -> Result<Self, Failure> {
        Ok(Advisory(url.to_owned()))
    }
}

impl Library for Advisory {
    type Lock = (PgAdvisoryLock, Option<PgConnection>);
    type Held = PgAdvisoryLockGuard<PgConnection>;

    async fn lock(&self, name: &str) -> Result<Self::Lock, Failure> {
        Ok((PgAdvisoryLock::new(name), Some(PgConnection::connect(&self.0).await?)))
    }

    async fn acquire(&self, (lock, conn): &mut Self::Lock) -> Result<Self::Held, Failure> {
        Ok(lock.acquire(conn.take().ok_or("it is held")?).await?)
    }

    async fn release(&self, lock: &mut Self::Lock, held: Self::Held) -> Result<(), Failure> {
        lock.1 = Some(held.release_now().await?);
        Ok(())
    }
}
