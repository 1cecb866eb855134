//! Faults of calls, and their conversion to errors.

use holdline_base::net::certificate_advice;
use holdline_base::{Error, ErrorKind};
use redis::{ErrorKind as Kind, RedisError, ServerErrorKind, Value};
use std::io::ErrorKind::ConnectionReset;

/// A call that failed.
#[derive(Debug)]
pub enum Fault {
    /// No answer in time.
    Silence,
    /// No connection, or a broken one. With `true`, nothing had been sent.
    Broken(RedisError, bool),
    /// The server's answer is an error.
    Refused(RedisError),
    /// An error of this client.
    Ours(Error),
}

impl Fault {
    /// Whether the connection must be closed.
    pub fn breaks(&self) -> bool {
        match self {
            Fault::Broken(..) => true,
            // A primary that has become a replica: find the new one.
            Fault::Refused(error) => ["READONLY", "MASTERDOWN"].iter().any(|it| says(error, it)),
            Fault::Silence | Fault::Ours(_) => false,
        }
    }

    /// Whether the server may have carried out the call, or may yet do so.
    pub fn in_doubt(&self) -> bool {
        matches!(self, Fault::Silence | Fault::Broken(_, false))
    }

    /// A copy for another call that shared the attempt.
    pub fn copy(&self) -> Fault {
        match self {
            Fault::Silence => Fault::Silence,
            Fault::Broken(error, unsent) => Fault::Broken(error.clone(), *unsent),
            Fault::Refused(error) => Fault::Refused(error.clone()),
            Fault::Ours(error) => Fault::Ours(Error::new(error.kind(), error.to_string())),
        }
    }

    /// The error for the user.
    pub fn explain(self, address: &str) -> Error {
        match self {
            Fault::Silence => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{address} did not answer in time; check that it runs and can be reached, and \
                     that nothing blocks it"
                ),
            ),
            Fault::Broken(error, _) => {
                let why = clean(&error);
                let advice = certificate_advice(&why);
                let message = format!(
                    "the connection to {address} failed; check that it runs and can be reached: \
                     {why}{advice}"
                );
                Error::new(ErrorKind::Unavailable, message)
            }
            Fault::Refused(error) => refused(&error, address),
            Fault::Ours(error) => error,
        }
    }
}

/// The fault of a connection whose runtime has ended. `unsent` if nothing had been sent.
pub fn broken(unsent: bool) -> Fault {
    Fault::Broken(RedisError::from(std::io::Error::from(ConnectionReset)), unsent)
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            // After a parse error, nothing on the connection can be parsed.
            Kind::Io | Kind::ClusterConnectionNotFound | Kind::Parse => Fault::Broken(error, false),
            _ if error.is_connection_dropped() || error.is_timeout() => Fault::Broken(error, false),
            _ => Fault::Refused(error),
        }
    }
}

/// Whether a reply, or an error inside it, shows that its connection must be closed.
pub(crate) fn breaks(reply: &Result<Value, Fault>) -> bool {
    let inside = |part: &Value| match part {
        Value::ServerError(error) => Fault::from(RedisError::from(error.clone())).breaks(),
        _ => false,
    };
    match reply {
        Ok(Value::Array(parts)) => parts.iter().any(inside),
        Ok(_) => false,
        Err(fault) => fault.breaks(),
    }
}

/// Whether the script was not in the server's cache, so that nothing was done.
pub(crate) fn no_script(error: &RedisError) -> bool {
    error.kind() == Kind::Server(ServerErrorKind::NoScript)
}

/// Whether an error has this code. Errors inside a script wrap it in a text that depends on the
/// server version.
pub fn says(error: &RedisError, code: &str) -> bool {
    error.code() == Some(code) || error.detail().is_some_and(|detail| detail.contains(code))
}

/// The server's message, without any password: an old server repeats the arguments of an unknown
/// command.
fn clean(error: &RedisError) -> String {
    let mut text = error.to_string();
    if let Some(at) = text.find("args beginning with") {
        text.truncate(at);
    }
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

/// The codes of retryable errors.
const PASSING: [&str; 15] = [
    "LOADING",
    "READONLY",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MASTERDOWN",
    "BUSY",
    "NOREPLICAS",
    "max number of clients",
    "UNKILLABLE",
    "Script killed by user",
    "non local key",
    "NOGOODSLAVE",
    "NOMASTERLINK",
    "UNBLOCKED",
    "INPROG",
];

/// The texts of errors about rights: outside of scripts, and in those of Redis 7 and of Redis 6.2.
const NO_RIGHT: [&str; 4] =
    ["NOPERM", "no permissions", "can't run this command", "can't access at least one of the keys"];

fn refused(error: &RedisError, address: &str) -> Error {
    let is = |code: &str| says(error, code);
    let (kind, advice) = if is("NOAUTH") {
        let advice = "asks for a password; write it before the host, after a colon, or name a \
                      file of it with ?password_file=PATH";
        (ErrorKind::Denied, advice)
    } else if error.kind() == Kind::AuthenticationFailed
        || is("WRONGPASS")
        || is("invalid password")
        || is("without any password")
    {
        (ErrorKind::Denied, "refuses the user or password; check both")
    } else if error.code() == Some("DENIED") {
        let advice = "serves its own machine only; give its default user a password, or set \
                      protected-mode to no";
        (ErrorKind::Denied, advice)
    } else if NO_RIGHT.iter().any(|text| is(text)) {
        (ErrorKind::Denied, "denies a permission; see the minimal ACL in the guide for Redis")
    } else if is("OOM") || is("MISCONF") {
        (ErrorKind::Unavailable, "has no room, in memory or on disk; give it more")
    } else if (is("MOVED") || error.code() == Some("ASK")) && !address.contains("+cluster:") {
        (ErrorKind::Invalid, "is part of a cluster; use a URL that begins with redis+cluster:")
    } else if is("unknown command") || is("Unknown Redis command") || is("NOPROTO") {
        (ErrorKind::Unsupported, "lacks a command; Redis 6.2 or later, or Valkey, is needed")
    } else if PASSING.iter().any(|code| is(code)) || error.is_cluster_error() {
        (ErrorKind::Unavailable, "cannot serve at the moment")
    } else if matches!(
        error.kind(),
        Kind::MasterNameNotFoundBySentinel | Kind::NoValidReplicasFoundBySentinel
    ) {
        (ErrorKind::Unavailable, "has sentinels that know no primary")
    } else if is("cluster support disabled") {
        (ErrorKind::Invalid, "is no cluster; use a URL with redis instead of redis+cluster")
    } else if is("DB index is out of range") {
        (ErrorKind::Invalid, "has no database of this number; the default is /0, without a number")
    } else if error.kind() == Kind::InvalidClientConfig {
        (ErrorKind::Invalid, "cannot be used so")
    } else {
        (ErrorKind::Corrupt, "gave an answer that makes no sense here")
    };
    Error::new(kind, format!("{address} {advice}: {}", clean(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(reply: &str) -> Error {
        let value = redis::parse_redis_value(reply.as_bytes()).expect("a reply");
        let error = value.extract_error().expect_err("an error");
        Fault::from(error).explain("redis://h")
    }

    #[test]
    fn what_is_missing_is_said() {
        for (reply, kind, advice) in [
            ("NOAUTH Authentication required.", ErrorKind::Denied, "asks for a password; write it"),
            ("WRONGPASS invalid username-password pair", ErrorKind::Denied, "check both"),
            ("ERR DB index is out of range", ErrorKind::Invalid, "no database of this number"),
            (
                "DENIED Redis is running in protected mode",
                ErrorKind::Denied,
                "its own machine only",
            ),
            (
                "ERR The user executing the script can't access at least one of the keys",
                ErrorKind::Denied,
                "denies a permission",
            ),
            (
                "ERR Unknown Redis command called from script script: 1, on @user_script:1.",
                ErrorKind::Unsupported,
                "lacks a command",
            ),
            (
                "ERR This instance has cluster support disabled",
                ErrorKind::Invalid,
                "is no cluster; use a URL with redis instead",
            ),
        ] {
            let error = explained(&format!("-{reply}\r\n"));
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(advice), "{error}");
        }
    }

    /// The texts are those of real servers, inside and outside of scripts.
    #[test]
    fn what_passes_by_itself_may_be_tried_again() {
        for reply in [
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "READONLY You can't write against a read only replica.",
            "READONLY You can't write against a read only replica. script: 1, on @user_script:1.",
            "ERR Error running script (call to f_1): @user_script: 1: -READONLY You can't write",
            "CLUSTERDOWN The cluster is down",
            "CLUSTERDOWN Hash slot not served",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL",
            "BUSY Valkey is busy running a script. You can only call SCRIPT KILL",
            "ERR Error running script: Script killed by user with SCRIPT KILL.",
            "NOREPLICAS Not enough good replicas to write.",
            "ERR max number of clients reached",
            "ERR Script attempted to access a non local key in a cluster node",
            "UNBLOCKED force unblock from blocking operation, instance state changed",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to",
        ] {
            let error = explained(&format!("-{reply}\r\n"));
            assert!(error.retryable(), "{error:?}");
        }
        for reply in
            ["NOAUTH Authentication required.", "NOPERM this user has no permissions to run the"]
        {
            let error = explained(&format!("-{reply}\r\n"));
            assert!(!error.retryable(), "{error:?}");
        }
        let parse = redis::parse_redis_value(b"?what").expect_err("no reply");
        assert!(Fault::from(parse.clone()).breaks() && Fault::from(parse).in_doubt());
    }
}
