//! sqlx's advisory locks of PostgreSQL: those of its `PgAdvisoryLock`, and the one that its
//! migrations take.

use sqlx_core::Either;
use sqlx_core::connection::{ConnectOptions, Connection};
use sqlx_core::error::DatabaseError;
use sqlx_core::migrate::{Migrate, MigrateError};
use sqlx_postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgConnectOptions, PgConnection};

/// What is held.
pub(crate) enum Held {
    Lock(PgAdvisoryLockGuard<PgConnection>),
    Migrations(PgConnection),
}

/// Takes the lock, or nothing if somebody has it and we do not wait. That of migrations is named by
/// a database.
pub(crate) async fn take(
    kind: &str,
    name: &str,
    waits: bool,
    server: &str,
) -> Result<Option<Held>, String> {
    let database = if kind == "sqlx" { "postgres" } else { name };
    let url = format!("postgres://postgres@{server}/{database}");
    let options: PgConnectOptions = url.parse().map_err(text)?;
    // The lock of migrations has no try; the server ends the wait.
    let patience = if waits { "0" } else { "300ms" };
    let mut conn = options.options([("lock_timeout", patience)]).connect().await.map_err(text)?;
    let lock = PgAdvisoryLock::new(name);
    if kind == "sqlx-migrate" {
        return match conn.lock().await {
            Ok(()) => Ok(Some(Held::Migrations(conn))),
            Err(MigrateError::Execute(error)) if timed_out(&error) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
    }
    if waits {
        return lock.acquire(conn).await.map(|held| Some(Held::Lock(held))).map_err(text);
    }
    Ok(match lock.try_acquire(conn).await.map_err(text)? {
        Either::Left(held) => Some(Held::Lock(held)),
        Either::Right(_) => None,
    })
}

fn timed_out(error: &sqlx_core::Error) -> bool {
    const LOCK_NOT_AVAILABLE: &str = "55P03";
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.as_deref() == Some(LOCK_NOT_AVAILABLE)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Held {
    pub(crate) async fn release(self) -> Result<(), String> {
        let conn = match self {
            Held::Lock(guard) => guard.release_now().await.map_err(text)?,
            Held::Migrations(mut conn) => {
                conn.unlock().await.map_err(|error| error.to_string())?;
                conn
            }
        };
        conn.close().await.map_err(text)
    }
}
