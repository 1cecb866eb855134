//! The meaning of ZooKeeper's errors.

use super::address::Address;
use crate::error::{Error, ErrorKind};
use holdline_base::net::certificate_advice;
pub(super) use holdline_zookeeper_client::Error as ZkError;

/// Whether the connection broke, so that the request's outcome is unknown. The client reconnects by
/// itself.
pub(super) fn is_cut(error: &ZkError) -> bool {
    // A server that fails internally, as when it is shutting down, reports a marshalling error.
    matches!(
        error,
        ZkError::ConnectionLoss
            | ZkError::SessionMoved
            | ZkError::MarshallingError
            | ZkError::Garbled
            | ZkError::Code(_)
    )
}

/// Converts a reply about a node to `None` if the node does not exist.
pub(super) fn if_there<T>(answer: Result<T, ZkError>) -> Result<Option<T>, ZkError> {
    match answer {
        Err(ZkError::NoNode) => Ok(None),
        answer => answer.map(Some),
    }
}

/// The error for an acquisition that had to wait for too long behind others of this process, before
/// it sent anything.
pub(super) fn busy(address: &Address) -> Error {
    let message = format!(
        "too many acquisitions of this process are under way in {address}, or are being given up \
         there; ask for less at once"
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// The error for the caller. The client's error is its cause, and contains no secrets.
pub(super) fn error(address: &Address, error: ZkError) -> Error {
    let (kind, message) = match &error {
        ZkError::AuthFailed => {
            (ErrorKind::Denied, format!("{address} refuses the user or the password"))
        }
        ZkError::NoAuth | ZkError::InvalidAcl => {
            let message = format!("{address} denies access; check the user and the nodes' ACLs");
            (ErrorKind::Denied, message)
        }
        ZkError::QuotaExceeded => {
            (ErrorKind::Unavailable, format!("the quota of a node of {address} is used up"))
        }
        ZkError::Unimplemented => {
            (ErrorKind::Unsupported, format!("{address} is no ZooKeeper of version 3.5 or later"))
        }
        ZkError::NoChildrenForEphemerals => {
            let message = format!("a node that the lock needs is ephemeral in {address}");
            (ErrorKind::Corrupt, message)
        }
        ZkError::Garbled => {
            (ErrorKind::Unavailable, format!("{address} gave an answer that makes no sense"))
        }
        ZkError::BadArguments => {
            (ErrorKind::Corrupt, format!("{address} did not understand a request"))
        }
        ZkError::UnexpectedServer(..) => {
            (ErrorKind::Invalid, format!("{address} cannot be used: {error}"))
        }
        ZkError::NoHosts => {
            let message = format!(
                "nobody listens at {} (connection refused); check the address, and that ZooKeeper \
                 runs",
                address.servers.hosts.join(", ")
            );
            (ErrorKind::Unavailable, message)
        }
        ZkError::NoAddress => {
            let message = format!("{address} could not be reached; check the names of its hosts");
            (ErrorKind::Unavailable, message)
        }
        ZkError::Untrusted(why) => {
            let advice = certificate_advice(why);
            (ErrorKind::Unavailable, format!("{address} could not be reached{advice}"))
        }
        _ => {
            let tls = if address.servers.tls {
                ", that the port is the secure one, that its certificate names the host and is \
                 from an authority that is trusted (ca_file), and that ours is one that it asks \
                 for (cert_file)"
            } else {
                ""
            };
            let message =
                format!("{address} could not be reached; check that it runs and has a leader{tls}");
            (ErrorKind::Unavailable, message)
        }
    };
    Error::because(kind, message, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As on other stores: waiters wait until others have left.
    #[test]
    fn a_quota_that_is_used_up_is_a_lack_of_room() {
        let address = Address::read("zookeeper", "//a").expect("good");
        let error = error(&address, ZkError::QuotaExceeded);
        assert!(error.retryable() && error.to_string().contains("quota"), "{error}");
    }
}
