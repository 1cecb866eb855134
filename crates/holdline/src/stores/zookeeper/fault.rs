//! What ZooKeeper's errors mean for us.

use super::address::Address;
pub(super) use super::codes::Zk;
use crate::error::{Error, ErrorKind};

/// Whether the connection broke, so that nobody knows whether the request was carried out. The
/// next connection is made by itself.
pub(super) fn is_cut(error: &Zk) -> bool {
    // A server that fails inside, as one that is just going down, calls that a marshalling error.
    matches!(
        error,
        Zk::ConnectionLoss | Zk::SessionMoved | Zk::MarshallingError | Zk::Garbled | Zk::Code(_)
    )
}

/// Whether the session is over, and with it all that stood on it.
pub(super) fn is_over(error: &Zk) -> bool {
    matches!(error, Zk::SessionExpired | Zk::SessionGivenUp | Zk::WentBack | Zk::AuthFailed)
}

/// The error for the caller. What the client says is kept as its cause: it contains no secrets.
pub(super) fn error(address: &Address, error: Zk) -> Error {
    let (kind, message) = match &error {
        Zk::AuthFailed => {
            (ErrorKind::Denied, format!("{address} refuses the user or the password"))
        }
        Zk::NoAuth | Zk::InvalidAcl => {
            let message = format!("{address} refuses us; check the user and the nodes' ACLs");
            (ErrorKind::Denied, message)
        }
        Zk::QuotaExceeded => {
            (ErrorKind::Denied, format!("the quota of a node of {address} is used up"))
        }
        Zk::Unimplemented => {
            (ErrorKind::Unsupported, format!("{address} is no ZooKeeper of version 3.5 or later"))
        }
        Zk::NoChildrenForEphemerals => {
            let message = format!("a node that the lock needs is ephemeral in {address}");
            (ErrorKind::Corrupt, message)
        }
        Zk::Garbled => (ErrorKind::Unavailable, format!("an answer of {address} makes no sense")),
        Zk::BadArguments => (ErrorKind::Corrupt, format!("{address} did not understand us")),
        Zk::Stranger(..) => {
            (ErrorKind::Invalid, format!("{address} is no address of ours: {error}"))
        }
        Zk::Busy => {
            let message = format!(
                "too many acquisitions of this process are under way in {address}, or are being \
                 given up there; ask for less at once"
            );
            (ErrorKind::Unavailable, message)
        }
        Zk::NoHosts => {
            let message = format!(
                "nobody listens at {} (connection refused); check the address, and that ZooKeeper \
                 runs",
                address.hosts.join(", ")
            );
            (ErrorKind::Unavailable, message)
        }
        _ => {
            let tls = if address.tls {
                ", that the port is the secure one, that its certificate names the host and is \
                 from an authority that we trust (ca_file), and that ours is one that it asks for \
                 (cert_file)"
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
