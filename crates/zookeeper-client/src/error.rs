//! What the servers refuse, and how a connection ends.

use std::fmt;

/// Why a request was not done, or why it is not known whether it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ZkError {
    /// The connection broke before the answer came.
    ConnectionLoss,
    /// No answer in time.
    Timeout,
    /// All addresses refused the connection.
    NoHosts,
    /// A server says that the session is over.
    SessionExpired,
    /// It is over for us, since we cannot rely on it any more; the servers may still keep it.
    SessionGivenUp,
    /// What was done after it was begun is not known to the servers any more.
    WentBack,
    /// What listens at this host is something else.
    Stranger(Stranger, String),
    /// Too much is under way: nothing was sent.
    Busy,
    /// The session has a newer connection than the one that asked.
    SessionMoved,
    /// The server knows the user, and not by this password.
    AuthFailed,
    NoAuth,
    InvalidAcl,
    QuotaExceeded,
    NoNode,
    NodeExists,
    NotEmpty,
    BadVersion,
    NoChildrenForEphemerals,
    /// The server did not understand us.
    BadArguments,
    /// The server failed inside, as one does that is going down.
    MarshallingError,
    /// The server does not know what was asked for.
    Unimplemented,
    /// The server said what makes no sense.
    Garbled,
    /// Another code of the server's.
    Code(i32),
}

/// What listens where ZooKeeper should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    Http,
    Tls,
    /// ZooKeeper without TLS, though it is asked for.
    Plain,
    Unknown,
}

impl Stranger {
    fn what(self) -> &'static str {
        match self {
            Stranger::Http => {
                "an HTTP server answers; name ZooKeeper's client port, which is 2181 unless \
                 configured otherwise"
            }
            Stranger::Tls => "a server answers that speaks TLS; write zks:// for that",
            Stranger::Plain => {
                "a ZooKeeper answers that speaks no TLS; write zookeeper://, or name its \
                 secureClientPort"
            }
            Stranger::Unknown => "something answers that is no ZooKeeper",
        }
    }
}

impl ZkError {
    /// What a code in an answer means. None if all went well.
    pub(super) fn of(code: i32) -> Option<ZkError> {
        Some(match code {
            0 => return None,
            -4 => ZkError::ConnectionLoss,
            -5 => ZkError::MarshallingError,
            -6 => ZkError::Unimplemented,
            -8 => ZkError::BadArguments,
            -101 => ZkError::NoNode,
            -102 => ZkError::NoAuth,
            -103 => ZkError::BadVersion,
            -108 => ZkError::NoChildrenForEphemerals,
            -110 => ZkError::NodeExists,
            -111 => ZkError::NotEmpty,
            -112 => ZkError::SessionExpired,
            -114 => ZkError::InvalidAcl,
            // The latter: it wants a user, and we are none.
            -115 | -124 => ZkError::AuthFailed,
            -118 => ZkError::SessionMoved,
            -125 => ZkError::QuotaExceeded,
            code => ZkError::Code(code),
        })
    }
}

impl fmt::Display for ZkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ZkError::Stranger(stranger, host) => {
                return write!(f, "at {host} {}", stranger.what());
            }
            ZkError::ConnectionLoss => "the connection broke",
            ZkError::Timeout => "no answer in time",
            ZkError::NoHosts => "nobody listens there",
            ZkError::SessionExpired => "the session is over",
            ZkError::SessionGivenUp => "the session was given up",
            ZkError::WentBack => "the servers have lost transactions that they had confirmed",
            ZkError::Busy => "too many acquisitions are under way or being given up",
            ZkError::SessionMoved => "the session has moved to another connection",
            ZkError::AuthFailed => "the login was refused",
            ZkError::NoAuth => "the node's ACL does not allow it",
            ZkError::InvalidAcl => "the ACL is not valid for us",
            ZkError::QuotaExceeded => "the quota is used up",
            ZkError::NoNode => "there is no such node",
            ZkError::NodeExists => "the node is there",
            ZkError::NotEmpty => "the node has children",
            ZkError::BadVersion => "the node has another version",
            ZkError::NoChildrenForEphemerals => "the parent is ephemeral",
            ZkError::BadArguments => "the server takes the request for nonsense",
            ZkError::MarshallingError => "the server could not read or write what it should",
            ZkError::Unimplemented => "the server does not know the request",
            ZkError::Garbled => "the answer makes no sense",
            ZkError::Code(code) => return write!(f, "error {code} of the server"),
        })
    }
}

impl std::error::Error for ZkError {}
