//! The tables and functions in the database: their text, their installation and their check.

use super::address::{self, Address};
use super::session::Session;
use crate::clock;
use crate::error::{ErrorKind, Result};
use crate::stores::queue::sql::{Fault, answered, check_version, micros};
use futures_util::future::join;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// The version of the tables and functions that this library uses.
const VERSION: i32 = 1;
/// The oldest server version, in the form of `server_version_num`.
const OLDEST: i32 = 130_000;

const PARTS: [&str; 3] =
    [include_str!("sql/tables.sql"), include_str!("sql/line.sql"), include_str!("sql/rows.sql")];

/// The placeholder for the schema's name in the text.
const PLACEHOLDER: &str = "\"holdline\"";

/// The time limit of an installation or a sweep, which may wait for another one.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// A quoted SQL identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A statement of this library, with the name of the schema filled in.
pub(super) fn statement(schema: &str, sql: &str) -> String {
    sql.replace(PLACEHOLDER, &quoted(schema))
}

/// The statements that create the tables and functions in this schema.
pub(super) fn text(schema: &str) -> Result<String> {
    let schema = address::schema_name(schema)?;
    Ok(statement(schema, &PARTS.join("\n")))
}

/// Installs the tables and functions, all or nothing, even if they already exist.
pub(super) async fn install(address: &Address) -> Result<()> {
    let explain = |fault: Fault| fault.explain(address, "the schema");
    let session = Session::open(address, Arc::new(|_: &str| {})).await.map_err(explain)?;
    create(&session.client, address).await.map_err(explain)
}

async fn create(client: &Client, address: &Address) -> Result<(), Fault> {
    let text = text(&address.schema).map_err(Fault::from)?;
    // Several statements in one message are one transaction.
    answered(clock::now().after(LONGEST), client.batch_execute(&text)).await
}

/// See [`sweep`](crate::schema::sweep).
pub(super) async fn sweep(address: &Address, idle: Duration) -> Result<u64> {
    let explain = |fault: Fault| fault.explain(address, "the schema");
    let session = Session::open(address, Arc::new(|_: &str| {})).await.map_err(explain)?;
    let sql = format!("SELECT \"holdline\".sweep({})", micros(idle));
    let sql = statement(&address.schema, &sql);
    let limit = clock::now().after(LONGEST);
    let row = answered(limit, session.client.query_typed_one(&sql, &[])).await;
    let count: i64 = row.and_then(|row| Ok(row.try_get(0)?)).map_err(explain)?;
    Ok(count.unsigned_abs())
}

/// Checks that a new connection leads to a primary that is new enough. Returns its version in the
/// form of `server_version_num`.
pub(super) async fn check_server(client: &Client, address: &Address) -> Result<i32, Fault> {
    let sql = "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), \
               current_setting('default_transaction_isolation')";
    let row = client.query_typed_one(sql, &[]).await?;
    let (server, standby): (i32, bool) = (row.try_get(0)?, row.try_get(1)?);
    if server < OLDEST {
        let message = format!("{address} is older than PostgreSQL 13, which is needed");
        return Err(Fault::Ours(ErrorKind::Unsupported, message));
    }
    if standby {
        let message = format!("{address} is a standby; name the primary, or all hosts");
        return Err(Fault::Ours(ErrorKind::Unavailable, message));
    }
    if row.try_get::<_, &str>(2)? != "read committed" {
        tracing::warn!(
            "{address} has another default_transaction_isolation than \"read committed\": \
             transactions that meet on one lock must be repeated"
        );
    }
    Ok(server)
}

/// Runs [`check_server`] on a new connection and checks the version of the tables and functions,
/// both in one round trip. Installs them if the address says so.
pub(super) async fn check(client: &Client, address: &Address) -> Result<(), Fault> {
    let (server, found) = join(check_server(client, address), version(client, address)).await;
    server?;
    let version = match found {
        Err(fault) if address.install && absent(&fault) => {
            create(client, address).await?;
            version(client, address).await?
        }
        other => other?,
    };
    check_version(address, "postgres", version, VERSION)
}

async fn version(client: &Client, address: &Address) -> Result<i32, Fault> {
    let sql = statement(&address.schema, "SELECT \"holdline\".version()");
    Ok(client.query_typed_one(&sql, &[]).await?.try_get(0)?)
}

/// Whether the tables and functions do not exist.
pub(super) fn absent(fault: &Fault) -> bool {
    let codes =
        [SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_TABLE];
    fault.is(&codes.each_ref().map(SqlState::code))
}
