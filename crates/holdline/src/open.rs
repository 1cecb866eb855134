//! From a URL to a store.

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::stores;
use std::sync::Arc;

/// Opens the store at this URL. With an empty URL, the default: the file store in the user's state
/// directory.
///
/// | URL | store |
/// | --- | --- |
/// | `memory:` or `memory:NAME` | this process's memory; by name, shared within the process |
/// | `sqlite:PATH` | a file, shared by the processes of this machine |
/// | `redis://HOST` and others | Redis or Valkey: see the guide for Redis |
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the URL makes no sense, [`ErrorKind::Unsupported`] if this build has
/// no such store, other kinds if the store cannot be opened. A password in the URL is never shown.
///
/// # Cancel safety
///
/// Dropping the future closes what was opened.
pub async fn open(url: &str) -> Result<Client> {
    Ok(Client::new(store(url).await?))
}

#[allow(clippy::unused_async, reason = "stores across a network connect here")]
async fn store(url: &str) -> Result<Arc<dyn Store>> {
    if url.is_empty() {
        return default();
    }
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(unknown(None));
    };
    match scheme {
        "memory" => stores::memory::open(rest),
        #[cfg(feature = "sqlite")]
        "sqlite" => stores::sqlite::open(rest),
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => Err(absent("sqlite", "sqlite")),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" | "redis+unix" => stores::redis::open(scheme, rest).await,
        #[cfg(not(feature = "redis"))]
        scheme if scheme.starts_with("redis") => Err(absent("the Redis store", "redis")),
        other => Err(unknown(Some(other))),
    }
}

#[cfg(feature = "sqlite")]
fn default() -> Result<Arc<dyn Store>> {
    Ok(Arc::new(stores::sqlite::File::open(stores::sqlite::default_path()?)?))
}

#[cfg(not(feature = "sqlite"))]
fn default() -> Result<Arc<dyn Store>> {
    Err(absent("the default file store", "sqlite"))
}

#[allow(dead_code, reason = "unused when every store is built in")]
fn absent(what: &str, feature: &str) -> Error {
    let message = format!("{what} is not in this build; build with the feature \"{feature}\"");
    Error::new(ErrorKind::Unsupported, message)
}

/// The scheme alone is shown: the rest may hold a password.
fn unknown(scheme: Option<&str>) -> Error {
    let known = "known are memory:, sqlite:PATH and redis://HOST";
    let message = match scheme {
        Some(scheme) => {
            let scheme: String = scheme.chars().take(30).flat_map(char::escape_default).collect();
            format!("no store has URLs that begin with \"{scheme}:\"; {known}")
        }
        None => format!("the store's URL has no scheme (the part before the colon); {known}"),
    };
    Error::new(ErrorKind::Invalid, message)
}
