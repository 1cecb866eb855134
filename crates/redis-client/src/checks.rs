//! The checks of a server on opening a store.

use crate::connection::Connection;
use crate::fault::{Fault, says};
use holdline_base::{Error, ErrorKind};
use redis::{FromRedisValue, RedisError, Value};

impl Connection {
    /// Connects, checks that the server accepts the login, is new enough and takes no writes of
    /// its own beside a primary, and warns if it evicts keys when memory is short. A server that
    /// does not tell passes. Call it once, before any other call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the server is too old, or one of several that take writes;
    /// otherwise the reason why it could not be asked.
    ///
    /// # Cancel safety
    ///
    /// The checks only read. Dropping the future before it has connected closes what was opened.
    pub async fn check(&self, address: &str) -> Result<(), Error> {
        self.connect().await.map_err(|fault| fault.explain(address))?;
        let mut info = redis::cmd("INFO");
        let texts = match self.ask_all(info.arg("default")).await {
            Ok(values) => texts(values),
            Err(Fault::Refused(error)) if ["NOPERM", UNKNOWN].iter().any(|it| says(&error, it)) => {
                return Ok(());
            }
            Err(fault) => return Err(fault.explain(address)),
        };
        if let Some(version) = said(&texts, "redis_version").find(|version| too_old(version)) {
            let message = format!(
                "{address} runs version {version}; Redis 6.2 or later, or Valkey, is needed"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if let Some(why) = texts.chunks(1).find_map(writes_apart) {
            return Err(Error::new(ErrorKind::Unsupported, format!("{address} {why}")));
        }
        if let Some(policy) = said(&texts, "maxmemory_policy").find(|it| *it != "noeviction") {
            tracing::warn!(
                "{address} has maxmemory-policy {policy}: when it runs out of memory it drops \
                 keys that are still needed; set it to noeviction"
            );
        }
        Ok(())
    }
}

/// The error for a disabled command: every server version has `INFO`.
const UNKNOWN: &str = "unknown command";

/// The replies to `INFO`, one from each node of a cluster.
fn texts(values: Vec<Value>) -> Vec<String> {
    values.into_iter().filter_map(|text| String::from_redis_value(text).ok()).collect()
}

/// The values of this field in all texts.
fn said<'a>(texts: &'a [String], what: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.filter_map(move |line| Some(line.strip_prefix(what)?.strip_prefix(':')?.trim()))
}

/// Whether a server of this version, as given by `INFO`, is too old.
pub fn too_old(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next(), parts.next()) < (Some(6), Some(2))
}

/// Why a server with this `INFO` takes writes that no other server confirms or sees in time, so
/// that the clients of two servers would hold one lock.
fn writes_apart(info: &[String]) -> Option<&'static str> {
    let get = |what| said(info, what).next();
    // In a cluster, a replica sends all writes to its primary.
    let writable = get("slave_read_only") == Some("0") && get("cluster_enabled") != Some("1");
    match get("role")? {
        "active-replica" => Some(
            "is an active replica (KeyDB): it and its peers take writes without asking one \
             another, so two clients would hold one lock; use a server without active-replica",
        ),
        "slave" | "replica" if writable => Some(
            "is a replica that takes writes (replica-read-only no): its primary does not see \
             them, so two clients would hold one lock; name the primary",
        ),
        _ => None,
    }
}

/// Whether the server does not know a command or its subcommand.
fn does_not_know(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.to_ascii_lowercase().starts_with("unknown "))
}

impl Connection {
    /// Whether the server has sharded channels, decided by the command that Redisson uses too: both
    /// must publish and subscribe in the same way.
    ///
    /// # Errors
    ///
    /// The user may not ask, or the server did not answer, or with another error than that it does
    /// not know the question: then nobody knows which way the others use.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn shards(&self) -> Result<bool, Fault> {
        match self.ask_any(redis::cmd("PUBSUB").arg("SHARDNUMSUB")).await {
            Ok(_) => Ok(true),
            Err(Fault::Refused(error)) if does_not_know(&error) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Whether keyspace notifications are on for deleted and expired keys. Assumed to be off if the
    /// server does not tell.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn tells_of_keys(&self) -> bool {
        let mut config = redis::cmd("CONFIG");
        let answer = self.ask(config.arg("GET").arg("notify-keyspace-events")).await;
        let words: Vec<String> =
            answer.ok().and_then(|value| Vec::from_redis_value(value).ok()).unwrap_or_default();
        words.get(1).is_some_and(|flags| flags_suffice(flags))
    }
}

/// Whether a server with these `notify-keyspace-events` notifies of deleted and expired keys.
pub fn flags_suffice(flags: &str) -> bool {
    let all = flags.contains('A');
    flags.contains('K') && (all || (flags.contains('g') && flags.contains('x')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_takes_writes_of_its_own_is_told_by_its_role() {
        for (role, writable, cluster, apart) in [
            ("master", None, "0", false),
            ("slave", Some("1"), "0", false),
            ("slave", Some("0"), "0", true),
            ("slave", Some("0"), "1", false),
            ("active-replica", Some("0"), "0", true),
        ] {
            let writable =
                writable.map_or(String::new(), |one| format!("slave_read_only:{one}\r\n"));
            let info =
                format!("# Replication\r\nrole:{role}\r\n{writable}cluster_enabled:{cluster}\r\n");
            assert_eq!(writes_apart(&[info]).is_some(), apart, "{role}, {writable}, {cluster}");
        }
        assert_eq!(writes_apart(&[String::new()]), None, "it does not tell");
    }

    /// Of Redis 5, 6.2 and 7, and what leaves it open which channels others use.
    #[test]
    fn a_server_without_shards_does_not_know_the_question() {
        for (text, unknown) in [
            ("ERR Unknown subcommand or wrong number of arguments for 'SHARDNUMSUB'.", true),
            ("ERR unknown subcommand 'SHARDNUMSUB'. Try PUBSUB HELP.", true),
            ("ERR unknown command 'PUBSUB', with args beginning with: ", true),
            ("NOPERM this user has no permissions to run the 'pubsub' command", false),
            ("BUSY Redis is busy running a script.", false),
            ("LOADING Redis is loading the dataset in memory", false),
        ] {
            let value = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
            let error = value.extract_error().unwrap_err();
            assert_eq!(does_not_know(&error), unknown, "{error:?}");
        }
    }
}
