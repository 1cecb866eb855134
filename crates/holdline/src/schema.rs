//! The tables and functions that stores in databases need. Opening a store never creates them
//! without being told to: have [`text`] run by an administrator, or call [`install`].

use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "mysql")]
use crate::stores::mysql;
#[cfg(feature = "postgres")]
use crate::stores::postgres;
use std::time::Duration;

/// The databases that have a schema.
pub const KINDS: [&str; 2] = ["postgres", "mysql"];

/// The statements that create the tables and functions in a database of this kind, as [`kind_of`]
/// knows it. They can be run more than once. `schema` is the name of the database schema; `None` is
/// the default, `holdline`.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if there is no such kind or can be no such schema,
/// [`ErrorKind::Unsupported`] if this build lacks the store.
pub fn text(kind: &str, schema: Option<&str>) -> Result<String> {
    match kind_of(kind).unwrap_or(kind) {
        #[cfg(feature = "postgres")]
        "postgres" => postgres::schema(schema.unwrap_or("holdline")),
        #[cfg(feature = "mysql")]
        "mysql" if schema.is_none() => Ok(mysql::SCHEMA.to_owned()),
        #[cfg(feature = "mysql")]
        "mysql" => {
            let message = "MySQL has no schemas inside a database; run the statements in the \
                database that the URL names";
            Err(Error::new(ErrorKind::Invalid, message))
        }
        kind => {
            let _ = schema;
            Err(none(kind))
        }
    }
}

/// Installs the tables and functions in the database at this URL, in the schema that it names: all
/// or nothing. It does no harm if they are there, or if others do the same at the same time.
///
/// # Errors
///
/// As for [`open`](crate::open); [`ErrorKind::Invalid`] if the store has no schema.
///
/// # Cancel safety
///
/// If the future is dropped, all or nothing was done.
#[allow(clippy::unused_async, reason = "a build may have no such store")]
pub async fn install(url: &str) -> Result<()> {
    match parts(url) {
        #[cfg(feature = "postgres")]
        ("postgres", rest) => postgres::install(rest).await,
        #[cfg(feature = "mysql")]
        ("mysql", rest) => mysql::install(rest).await,
        (kind, _) => Err(none(kind)),
    }
}

/// Removes what no lock needs from the database at this URL: expired places, and what is kept of
/// locks that nobody has used for `idle`. No store needs it; it saves room. Returns the number of
/// locks that were forgotten.
///
/// # Errors
///
/// As for [`install`].
///
/// # Cancel safety
///
/// If the future is dropped, all or nothing was done.
#[allow(clippy::unused_async, reason = "a build may have no such store")]
pub async fn sweep(url: &str, idle: Duration) -> Result<u64> {
    match parts(url) {
        #[cfg(feature = "postgres")]
        ("postgres", rest) => postgres::sweep(rest, idle).await,
        #[cfg(feature = "mysql")]
        ("mysql", rest) => mysql::sweep(rest, idle).await,
        (kind, _) => {
            let _ = idle;
            Err(none(kind))
        }
    }
}

/// The kind, one of [`KINDS`], of the database with this URL or scheme of a URL: MariaDB's is
/// `mysql`. `None` for other stores.
#[must_use]
pub fn kind_of(url: &str) -> Option<&'static str> {
    match url.split_once(':').map_or(url, |(scheme, _)| scheme) {
        "postgres" | "postgresql" => Some("postgres"),
        "mysql" | "mariadb" => Some("mysql"),
        _ => None,
    }
}

/// The kind of the database at a URL, and what follows the colon.
fn parts(url: &str) -> (&'static str, &str) {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    (kind_of(scheme).unwrap_or_default(), rest)
}

fn none(kind: &str) -> Error {
    if KINDS.contains(&kind) {
        let message = format!("{kind} is not in this build; build with the feature \"{kind}\"");
        return Error::new(ErrorKind::Unsupported, message);
    }
    let known = KINDS.join(", ");
    let message = format!("only databases have a schema: {known}");
    Error::new(ErrorKind::Invalid, message)
}
