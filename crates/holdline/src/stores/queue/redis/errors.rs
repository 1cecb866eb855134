//! Converts faults of calls into errors.

use crate::error::{Error, ErrorKind};
use holdline_redis_client::{Fault, says};
use redis::RedisError;

/// The error for the user. `what` is the subject of the call, such as the key.
pub(in crate::stores) fn explain(fault: Fault, address: &str, what: &str) -> Error {
    match &fault {
        Fault::Refused(error) => about_the_key(error, address, what),
        _ => None,
    }
    .unwrap_or_else(|| fault.explain(address).into())
}

/// The error, if it is about the key's content.
fn about_the_key(error: &RedisError, address: &str, what: &str) -> Option<Error> {
    let is = |code: &str| says(error, code);
    let (kind, message) = if is("WRONGTYPE") {
        let message = format!(
            "{address}: the key of {what} holds something else, which was not written by this \
             library; choose another prefix, or remove that key"
        );
        (ErrorKind::Corrupt, message)
    } else if is("FOREIGN") {
        let message = format!(
            "{address}: the key of {what} is {}, which shares no rules with the locks of this \
             scheme; use another name",
            foreign(error)
        );
        (ErrorKind::Mismatch, message)
    } else if is("HOLDLINE") || is("data string too short") {
        let message = format!(
            "{address}: {what} is kept in a form that this version of holdline does not know"
        );
        (ErrorKind::Corrupt, message)
    } else {
        return None;
    };
    Some(Error::new(kind, message))
}

/// The kind of key that a script found instead of a lock.
fn foreign(error: &RedisError) -> &'static str {
    if says(error, "read-write") {
        "Redisson's read-write lock"
    } else {
        "a hash that is no lock of Redisson's"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_others_is_named() {
        for (reply, kind, word) in [
            ("WRONGTYPE Operation", ErrorKind::Corrupt, "lock \"x\" holds something else"),
            ("FOREIGN read-write", ErrorKind::Mismatch, "read-write lock"),
            ("HOLDLINE 9", ErrorKind::Corrupt, "does not know"),
            ("NOAUTH Authentication required.", ErrorKind::Denied, "asks for a password"),
            ("WRONGPASS invalid", ErrorKind::Denied, "refuses the user"),
        ] {
            let value = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes());
            let error = value.expect("a reply").extract_error().expect_err("an error");
            let error = explain(Fault::from(error), "redis://h", "lock \"x\"");
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
