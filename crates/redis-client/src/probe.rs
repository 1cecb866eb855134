//! The error for an address that does not behave like a Redis server, when a store cannot be
//! opened.

use crate::config::{Config, Kind};
use holdline_base::probe::{self, Found};
use holdline_base::{Error, ErrorKind};

/// The error that says what listens at the first host that replies. `None` if no host replies, or
/// if it is a Redis server that has a connection left. The caller limits the time.
///
/// # Cancel safety
///
/// Dropping the future closes its connections.
pub async fn why(config: &Config) -> Option<Error> {
    if matches!(config.kind, Kind::Unix(_)) {
        return None;
    }
    let (host, found) = probe::first(&config.hosts).await?;
    let address = config.address();
    // A server that is shutting down hangs up as well, and so does a proxy without its server.
    let kind = match found {
        Found::Closed | Found::RedisFull => ErrorKind::Unavailable,
        _ => ErrorKind::Invalid,
    };
    let problem = match (found, config.tls) {
        (Found::RedisFull, false) => {
            format!("{host} has no connection left: max number of clients reached (maxclients)")
        }
        (Found::Redis | Found::RedisFull, true) => {
            format!("{host} does not speak TLS; use a URL with redis")
        }
        (Found::Tls, false) => format!("{host} speaks TLS; use a URL with rediss"),
        (Found::Closed, false) => format!(
            "{host} closes connections without a word; if it speaks TLS, use a URL with rediss; \
             else check that it is a Redis or Valkey server"
        ),
        (found @ (Found::Http | Found::MySql | Found::Postgres), _) => {
            format!("{host} is {found}, not Redis or Valkey")
        }
        (Found::Other(text), _) => {
            format!("{host} is no Redis or Valkey server: it answers \"{text}\"")
        }
        (Found::Redis, false) | (Found::Tls | Found::Closed, true) => return None,
    };
    Some(Error::new(kind, format!("{address} cannot be used: {problem}")))
}
