//! The schema: the tables and functions that stores in databases need. Opening a store does not
//! create them unless told to: have an administrator run [`text`], or call [`install`].

use crate::error::{Error, ErrorKind, Result};
use crate::open::{canonical, feature_of};
#[cfg(feature = "mysql")]
use crate::stores::mysql;
#[cfg(feature = "postgres")]
use crate::stores::postgres;
use std::time::Duration;

/// The databases that have a schema.
pub const KINDS: [&str; 2] = ["postgres", "mysql"];

/// Returns the statements that create the tables and functions in a database of this kind (see
/// [`kind_of`]). They can be run repeatedly. `schema` is the name of the database schema; `None` is
/// the default, `holdline`.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if there is no such kind or the schema's name is invalid,
/// [`ErrorKind::Unsupported`] if this build lacks the store.
pub fn text(kind: &str, schema: Option<&str>) -> Result<String> {
    match kind_of(kind).unwrap_or(kind) {
        #[cfg(feature = "postgres")]
        "postgres" => postgres::schema_text(schema.unwrap_or("holdline")),
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

/// Installs the tables and functions in the database at this URL, in the schema that it names, or
/// ShedLock's table if it names `scheme=shedlock`: all or nothing. It is safe to repeat, and to run
/// concurrently. An older version is replaced. Returns a sentence that says what is installed.
///
/// # Errors
///
/// As for [`open`](crate::open); [`ErrorKind::Invalid`] if the store has no schema,
/// [`ErrorKind::Unsupported`] if a newer version is installed, which stays.
///
/// # Cancel safety
///
/// If the future is dropped, either all or nothing was installed.
#[allow(clippy::unused_async, reason = "a build may have no such store")]
pub async fn install(url: &str) -> Result<String> {
    match parts(&canonical(url)) {
        #[cfg(feature = "postgres")]
        ("postgres", rest) => postgres::install(rest).await,
        #[cfg(feature = "mysql")]
        ("mysql", rest) => mysql::install(rest).await,
        (kind, _) => Err(none(kind)),
    }
}

/// Removes data that no lock needs from the database at this URL: expired places, and the state of
/// locks unused for at least `idle`. Locks work without it; it saves space. Returns the number of
/// locks whose state was removed.
///
/// # Errors
///
/// As for [`install`]; [`ErrorKind::Unsupported`] for ShedLock's table, whose rows stay.
///
/// # Cancel safety
///
/// If the future is dropped, any part of the unused locks was removed; on MySQL the server may go
/// on for some seconds.
#[allow(clippy::unused_async, reason = "a build may have no such store")]
pub async fn sweep(url: &str, idle: Duration) -> Result<u64> {
    match parts(&canonical(url)) {
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

/// The kind of the database with this URL or scheme, one of [`KINDS`]. MariaDB's is `mysql`. `None`
/// for other stores.
#[must_use]
pub fn kind_of(url: &str) -> Option<&'static str> {
    let url = canonical(url);
    let feature = feature_of(url.split_once(':').map_or(&url, |(scheme, _)| scheme));
    feature.filter(|kind| KINDS.contains(kind))
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
    let message = format!("only databases have a schema, and need sweeping: {known}");
    Error::new(ErrorKind::Invalid, message)
}
