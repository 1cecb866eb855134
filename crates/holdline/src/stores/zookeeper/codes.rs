//! What the servers refuse, and how a connection ends.

use std::fmt;

/// Why a request was not done, or why it is not known whether it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Zk {
    /// The connection broke before the answer came.
    ConnectionLoss,
    /// No answer in time.
    Timeout,
    /// Nobody listens at any of the addresses.
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

impl Zk {
    /// What a code in an answer means. None if all went well.
    pub(super) fn of(code: i32) -> Option<Zk> {
        Some(match code {
            0 => return None,
            -4 => Zk::ConnectionLoss,
            -5 => Zk::MarshallingError,
            -6 => Zk::Unimplemented,
            -8 => Zk::BadArguments,
            -101 => Zk::NoNode,
            -102 => Zk::NoAuth,
            -103 => Zk::BadVersion,
            -108 => Zk::NoChildrenForEphemerals,
            -110 => Zk::NodeExists,
            -111 => Zk::NotEmpty,
            -112 => Zk::SessionExpired,
            -114 => Zk::InvalidAcl,
            // The latter: it wants a user, and we are none.
            -115 | -124 => Zk::AuthFailed,
            -118 => Zk::SessionMoved,
            -125 => Zk::QuotaExceeded,
            code => Zk::Code(code),
        })
    }
}

impl fmt::Display for Zk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Zk::Stranger(stranger, host) => {
                return write!(f, "at {host} {}", stranger.what());
            }
            Zk::ConnectionLoss => "the connection broke",
            Zk::Timeout => "no answer in time",
            Zk::NoHosts => "nobody listens there",
            Zk::SessionExpired => "the session is over",
            Zk::SessionGivenUp => "the session was given up",
            Zk::WentBack => "the servers have lost transactions that they had confirmed",
            Zk::Busy => "too many acquisitions are under way or being given up",
            Zk::SessionMoved => "the session has moved to another connection",
            Zk::AuthFailed => "the login was refused",
            Zk::NoAuth => "the node's ACL does not allow it",
            Zk::InvalidAcl => "the ACL is not valid for us",
            Zk::QuotaExceeded => "the quota is used up",
            Zk::NoNode => "there is no such node",
            Zk::NodeExists => "the node is there",
            Zk::NotEmpty => "the node has children",
            Zk::BadVersion => "the node has another version",
            Zk::NoChildrenForEphemerals => "the parent is ephemeral",
            Zk::BadArguments => "the server takes the request for nonsense",
            Zk::MarshallingError => "the server could not read or write what it should",
            Zk::Unimplemented => "the server does not know the request",
            Zk::Garbled => "the answer makes no sense",
            Zk::Code(code) => return write!(f, "error {code} of the server"),
        })
    }
}

impl std::error::Error for Zk {}
