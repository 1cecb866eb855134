//! Errors of requests and connections.

use holdline_base::probe::Found;
use std::fmt;

/// Why a request failed, or why its outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The connection broke before the answer came.
    ConnectionLoss,
    /// There was no answer in time.
    Timeout,
    /// All addresses refused the connection.
    NoHosts,
    /// These hosts' names are unknown, and no other host accepted the connection.
    NoAddress,
    /// A server reports that the session has ended.
    SessionExpired,
    /// The session has ended for us, since we cannot rely on it any more; the servers may still
    /// keep it.
    SessionGivenUp,
    /// The servers have lost transactions that they had confirmed since the session began.
    WentBack,
    /// The certificate of a server is not trusted, for this reason.
    Untrusted(String),
    /// Another kind of server listens at this host.
    UnexpectedServer(UnexpectedServer, String),
    /// The session has a newer connection than the one of this request.
    SessionMoved,
    /// The server knows the user, but with another password.
    AuthFailed,
    /// The node's access list denies the request.
    NoAuth,
    /// The access list is invalid for this user.
    InvalidAcl,
    /// A quota is exhausted.
    QuotaExceeded,
    /// The node does not exist.
    NoNode,
    /// The node already exists.
    NodeExists,
    /// The node has children.
    NotEmpty,
    /// The node has another version.
    BadVersion,
    /// The parent is ephemeral.
    NoChildrenForEphemerals,
    /// The server did not understand the request.
    BadArguments,
    /// The server failed internally, as when it is shutting down.
    MarshallingError,
    /// The server does not support the request.
    Unimplemented,
    /// The server sent an invalid answer.
    Garbled,
    /// Another error code of the server.
    Code(i32),
}

/// A server other than the expected one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnexpectedServer {
    /// ZooKeeper without TLS, though TLS is requested.
    Plain,
    /// Another kind of server, or one that speaks TLS, which is not requested.
    Other(Found),
}

impl fmt::Display for UnexpectedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnexpectedServer::Plain => {
                "a ZooKeeper answers that speaks no TLS; write zookeeper://, or name its \
                 secureClientPort"
            }
            UnexpectedServer::Other(Found::Tls) => {
                "a server answers that speaks TLS; write zks:// for that"
            }
            UnexpectedServer::Other(Found::Other(_) | Found::Closed) => {
                "something answers that is no ZooKeeper"
            }
            UnexpectedServer::Other(found) => {
                return write!(
                    f,
                    "{found} answers; name ZooKeeper's client port, which is 2181 unless \
                     configured otherwise"
                );
            }
        })
    }
}

impl Error {
    /// Whether the session has ended, and with it everything on it.
    pub fn is_over(&self) -> bool {
        matches!(
            self,
            Error::SessionExpired | Error::SessionGivenUp | Error::WentBack | Error::AuthFailed
        )
    }

    /// The error for a code in an answer; `None` for success.
    pub(crate) fn of(code: i32) -> Option<Error> {
        Some(match code {
            0 => return None,
            -4 => Error::ConnectionLoss,
            -5 => Error::MarshallingError,
            -6 => Error::Unimplemented,
            -8 => Error::BadArguments,
            -101 => Error::NoNode,
            -102 => Error::NoAuth,
            -103 => Error::BadVersion,
            -108 => Error::NoChildrenForEphemerals,
            -110 => Error::NodeExists,
            -111 => Error::NotEmpty,
            -112 => Error::SessionExpired,
            -114 => Error::InvalidAcl,
            // The latter: it requires a user, and we have none.
            -115 | -124 => Error::AuthFailed,
            -118 => Error::SessionMoved,
            -125 => Error::QuotaExceeded,
            code => Error::Code(code),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::UnexpectedServer(server, host) => {
                return write!(f, "at {host} {server}");
            }
            Error::Untrusted(why) => why,
            Error::ConnectionLoss => "the connection broke",
            Error::Timeout => "no answer in time",
            Error::NoHosts => "connection refused",
            Error::NoAddress => "the name of a host is not known",
            Error::SessionExpired => "the session is over",
            Error::SessionGivenUp => "the session was given up",
            Error::WentBack => "the servers have lost transactions that they had confirmed",
            Error::SessionMoved => "the session has moved to another connection",
            Error::AuthFailed => "the login was refused",
            Error::NoAuth => "the node's ACL does not allow it",
            Error::InvalidAcl => "the ACL is not valid for us",
            Error::QuotaExceeded => "the quota is used up",
            Error::NoNode => "there is no such node",
            Error::NodeExists => "the node is there",
            Error::NotEmpty => "the node has children",
            Error::BadVersion => "the node has another version",
            Error::NoChildrenForEphemerals => "the parent is ephemeral",
            Error::BadArguments => "the server takes the request for nonsense",
            Error::MarshallingError => "the server could not read or write what it should",
            Error::Unimplemented => "the server does not know the request",
            Error::Garbled => "the answer makes no sense",
            Error::Code(code) => return write!(f, "error {code} of the server"),
        })
    }
}

impl std::error::Error for Error {}
