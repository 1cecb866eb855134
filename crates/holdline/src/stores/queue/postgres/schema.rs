//! The tables and functions in the database: their text, their installation and their check.

use super::address::{self, Address, Scheme};
use super::errors::ABSENT;
use super::session::Session;
use super::shedlock;
use crate::error::{ErrorKind, Result};
use crate::stores::queue::calls::Answer;
use crate::stores::queue::shedlock::not_swept;
use crate::stores::queue::sql::{Fault, check_version, micros};
use futures_util::future::join;
use std::time::Duration;

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

/// The statements that create the tables and functions in this schema, as one transaction: if one
/// of them fails, as over a newer version, those that follow do nothing.
pub(crate) fn text(schema: &str) -> Result<String> {
    let schema = address::schema_name(schema)?;
    Ok(format!("BEGIN;\n{}\nCOMMIT;\n", statements(schema)))
}

fn statements(schema: &str) -> String {
    statement(schema, &PARTS.join("\n"))
}

/// See [`install`](crate::schema::install). `rest` follows the colon of the URL.
pub(crate) async fn install(rest: &str) -> Result<String> {
    let address = Address::read(rest)?;
    install_at(&address).await?;
    let what = match address.scheme {
        Scheme::Shedlock => "ShedLock's table".to_owned(),
        _ => format!("version {VERSION} of the tables and functions for locks"),
    };
    Ok(format!("{address} has {what} in the schema {}", quoted(&address.schema)))
}

/// Installs what the scheme needs, all or nothing, even if it already exists.
pub(super) async fn install_at(address: &Address) -> Result<()> {
    let text = match address.scheme {
        Scheme::Shedlock => statement(&address.schema, shedlock::CREATE),
        Scheme::Table | Scheme::Row | Scheme::Advisory(_) => statements(&address.schema),
    };
    once(address, &text).await.map(drop)
}

/// Whether a connection failed because of what is to be installed now.
pub(super) fn wanted<T>(opened: &Result<T, Fault>, address: &Address) -> bool {
    address.install && opened.as_ref().is_err_and(|fault| fault.is(&ABSENT))
}

/// See [`sweep`](crate::schema::sweep).
pub(crate) async fn sweep(rest: &str, idle: Duration) -> Result<u64> {
    let address = &Address::read(rest)?;
    if address.scheme == Scheme::Shedlock {
        return Err(not_swept(address));
    }
    let sql = format!("SELECT \"holdline\".sweep({})", micros(idle));
    let removed = once(address, &statement(&address.schema, &sql)).await?;
    Ok(removed.number().unwrap_or_default())
}

/// Sends statements, which are one transaction, over a connection of their own.
async fn once(address: &Address, sql: &str) -> Result<Answer> {
    let asked = async {
        let mut session = Session::open(address, None).await?;
        session.timeout = LONGEST;
        session.ask(sql).await
    };
    asked.await.map_err(|fault: Fault| fault.explain(address, "the schema"))
}

/// The name of a server that speaks PostgreSQL's protocol, by the text of `version()`. Forks of
/// PostgreSQL on one node begin with its name, and keep its locks.
pub(super) fn foreign(version: &str) -> Option<&str> {
    if version.contains("-YB-") {
        return Some("YugabyteDB");
    }
    let first = version.split_whitespace().next().unwrap_or("another server");
    (first != "PostgreSQL" && first != "EnterpriseDB").then_some(first)
}

/// Checks that a new connection leads to a primary of PostgreSQL that is new enough. Returns its
/// version in the form of `server_version_num`.
pub(super) async fn check_server(session: &Session, address: &Address) -> Result<i32, Fault> {
    let sql = "SELECT current_setting('server_version_num'), pg_is_in_recovery(), \
               current_setting('default_transaction_isolation'), version()";
    let found = session.ask(sql).await?.first();
    if let Some(name) = found.text(3).and_then(foreign) {
        let message = format!(
            "{address} is {name}, which only speaks PostgreSQL's protocol: its transactions, \
             advisory locks and clocks differ, so that two clients could hold one lock; use \
             PostgreSQL itself, or etcd or ZooKeeper"
        );
        return Err(Fault::Ours(ErrorKind::Unsupported, message));
    }
    let server = found.number(0).unwrap_or_default();
    if server < OLDEST {
        let message = format!("{address} is older than PostgreSQL 13, which is needed");
        return Err(Fault::Ours(ErrorKind::Unsupported, message));
    }
    if found.truth(1) == Some(true) {
        let message = format!("{address} is a standby; name the primary, or all hosts");
        return Err(Fault::Ours(ErrorKind::Unavailable, message));
    }
    if found.text(2) != Some("read committed") {
        tracing::warn!(
            "{address} has another default_transaction_isolation than \"read committed\": \
             transactions that meet on one lock must be repeated"
        );
    }
    Ok(server)
}

/// Runs [`check_server`] on a new connection and checks the version of the tables and functions,
/// both in one round trip.
pub(super) async fn check(session: &Session, address: &Address) -> Result<(), Fault> {
    let version = statement(&address.schema, "SELECT \"holdline\".version()");
    let (server, found) = join(check_server(session, address), session.ask(&version)).await;
    server?;
    check_version(address, "postgres", found?.number().unwrap_or_default(), VERSION)
}
