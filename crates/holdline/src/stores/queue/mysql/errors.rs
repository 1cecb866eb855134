//! The meanings of the server's errors.

use crate::error::{ErrorKind, without_doubles};
use crate::stores::queue::sql::{Fault, ServerError, clean};
use holdline_base::net::certificate_advice;
use mysql_async::{DriverError, Error as ClientError};

/// The message about a server that was the primary, or will be.
pub(super) const READ_ONLY: &str =
    "is read-only, as a replica is; use the address of the primary, or unset read_only there";

/// Whether a server with this value of `read_only` refuses writes. From MariaDB 12 on it is a word,
/// OFF, ON, NO_LOCK or NO_LOCK_NO_ADMIN, and earlier, as in MySQL, a number.
pub(super) fn is_read_only(value: &str) -> bool {
    !["0", "OFF"].contains(&value)
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Server(error) => Fault::Refused(ServerError {
                code: if out_of_order(&error) { DEADLOCK } else { error.code }.to_string(),
                message: clean(&error.message),
                meaning: match error.state.get(..2) {
                    Some("40" | "08") => passing,
                    _ => meaning,
                },
                connecting: false,
            }),
            // The connection reported this before anything else could be sent on it.
            error @ ClientError::Driver(DriverError::ConnectionClosed) => {
                Fault::Unsent(clean(&error.to_string()))
            }
            ClientError::Driver(DriverError::UnknownAuthPlugin { name }) => {
                Fault::Refused(ServerError {
                    code: UNKNOWN_LOGIN.to_string(),
                    message: name,
                    meaning,
                    connecting: false,
                })
            }
            ClientError::Driver(DriverError::NoClientSslFlagFromServer) => {
                let why = "it does not speak TLS; leave tls=true out of the URL, or give it a \
                           certificate";
                Fault::Broken(why.to_owned())
            }
            ClientError::Driver(error) => Fault::Broken(clean(&error.to_string())),
            ClientError::Io(error) => {
                let text = error.to_string();
                let why = text.trim_start_matches("Input/output error: ");
                Fault::Broken(clean(&without_doubles(why)) + certificate_advice(why))
            }
            error => Fault::Broken(clean(&without_doubles(&error.to_string()))),
        }
    }
}

const DEADLOCK: u16 = 1213;

/// Whether a group member has rolled back a transaction at its commit because another member's came
/// first: it reports "error 149", the engine's error for a deadlock.
fn out_of_order(error: &mysql_async::ServerError) -> bool {
    error.code == 1180 && error.message.contains("error 149 ")
}

/// The number of an error of MySQL's own clients: an unknown authentication method.
const UNKNOWN_LOGIN: u16 = 2059;

const BUSY: &str = "cannot serve at the moment";
const FULL: &str = "has no room left, in memory or on disk; free some, or give it more";

/// The same for a transaction that was rolled back, by a failover for instance.
fn passing(error: &ServerError, what: &str) -> (ErrorKind, String) {
    match meaning(error, what) {
        (ErrorKind::Corrupt, _) => (ErrorKind::Unavailable, BUSY.to_owned()),
        known => known,
    }
}

/// The meaning of a server error, by its code.
fn meaning(error: &ServerError, _: &str) -> (ErrorKind, String) {
    let (kind, advice) = match error.code.parse().unwrap_or(0_u16) {
        1146 | 1142 if error.message.contains("shedlock") => (
            ErrorKind::Denied,
            "lacks ShedLock's table, or the user may not use it; the guide for MySQL says more",
        ),
        1406 => (ErrorKind::Invalid, "has a column that is too short for the name"),
        1366 | 3854 => (ErrorKind::Invalid, "has a column that cannot have such a name or label"),
        1146 | 1305 | 1370 | 1142
            if error.message.contains("holdline") && !error.message.starts_with("CREATE ") =>
        {
            (
                ErrorKind::Denied,
                "lacks holdline's tables and procedures, or the user may not use them; \
             `holdline schema mysql` prints them, `holdline schema mysql --install URL` or \
             ?install=yes installs them, and the guide for MySQL lists the grants",
            )
        }
        // Whether there is such a database, the server tells only a user with a right to it.
        1044 => (
            ErrorKind::Denied,
            "denies a permission in the database, if there is one of this name; the guide for \
             MySQL lists the grants",
        ),
        // The last three are for a locked account, in MySQL and MariaDB.
        1045 | 1698 | 1130 | 1251 | 1862 | 1820 | 3118 | 3955 | 4151 => {
            let advice = "refuses the user, the password or the host; check them, and say tls=true \
                if it wants TLS";
            (ErrorKind::Denied, advice)
        }
        UNKNOWN_LOGIN => (
            ErrorKind::Denied,
            "asks for a login that is not known here, as MySQL does of a user that it does not \
             have; check the user, or have it use caching_sha2_password",
        ),
        1095 | 1142 | 1143 | 1227 | 1370 | 1419 | 1449 => {
            (ErrorKind::Denied, "denies a permission; the guide for MySQL lists the grants")
        }
        _ if error.message.contains("require_secure_transport") => {
            (ErrorKind::Denied, "wants TLS; say tls=true")
        }
        1049 => (ErrorKind::Invalid, "has no such database; create it first"),
        1644 if error.message.starts_with("HOLDLINE") => (
            ErrorKind::Unsupported,
            "has another time zone than holdline set: a proxy in between mixes sessions; use a \
             direct connection, or a proxy that keeps a session's settings",
        ),
        1665 => (
            ErrorKind::Unsupported,
            "logs statements, and refuses such a write then; set its binlog_format to ROW or MIXED",
        ),
        9006 => (
            ErrorKind::Unsupported,
            "is a proxy (ProxySQL) that sends statements of one connection to different servers; \
             have it send all of this user's to one hostgroup",
        ),
        code => match outage(code, &error.message) {
            Some(advice) => (ErrorKind::Unavailable, advice),
            None => (ErrorKind::Corrupt, "gave an answer that makes no sense here"),
        },
    };
    (kind, advice.to_owned())
}

/// The clause about an error that time, or an administrator, may end.
fn outage(code: u16, message: &str) -> Option<&'static str> {
    Some(match code {
        1461 => "has no prepared statement left; raise its max_prepared_stmt_count",
        1040 | 1203 | 1226 => {
            "has no connection left; a process needs one, one more while it waits, and with the \
             schemes row and named one more for each lock: raise max_connections or the user's \
             limit, or close others"
        }
        1129 => {
            "has blocked this host, because too many connections from it were cut off; run FLUSH \
             HOSTS there (mysqladmin flush-hosts), or raise its max_connect_errors"
        }
        // The last three if InnoDB is, by its own settings.
        1290 | 1792 | 1836 | 1036 | 1874 | 1881 => READ_ONLY,
        1021 | 1037 | 1038 | 1041 | 1114 | 1206 => FULL,
        // The numbers of errors of a commit, for instance, say only what failed.
        _ if message.contains("No space left on device") => FULL,
        // Conflicts, interruptions, the lock wait timeout, a prepared statement whose table left
        // the server's cache or that a proxy's new connection does not have, a node that is not in
        // its cluster's majority, a transaction that the cluster refuses, no thread, the offline
        // mode.
        1020 | 1047 | 1053 | 1077 | 1079 | 1135 | 1205 | 1213 | 1243 | 1317 | 1615 | 1927
        | 1969 | 3024 | 3032 | 3058 | 3100 | 3101 => BUSY,
        // What proxies say of the server behind them: that they cannot reach it, or lost it. The
        // last ones are ProxySQL's own numbers, and that of Amazon's RDS Proxy.
        2002 | 2003 | 2006 | 2013 | 9001 | 9002 | 9004 | 9501 => {
            "is a proxy that has no server at the moment"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(code: u16, message: &str) -> Fault {
        let (message, state) = (message.to_owned(), "HY000".to_owned());
        Fault::from(ClientError::Server(mysql_async::ServerError { code, message, state }))
    }

    /// The messages of MySQL 8 and of MariaDB 10.
    #[test]
    fn a_full_disk_is_told_whatever_failed() {
        for (code, message) in [
            (3, "Error writing file '/tmp/ML1' (OS errno 28 - No space left on device)"),
            (1021, "Disk full (/tmp/#sql-1); waiting for someone to free some space..."),
            (1026, "Error writing file 'binlog' (errno: 28 - No space left on device)"),
            (1030, "Got error 28 \"No space left on device\" from storage engine InnoDB"),
            (1041, "Out of memory; check if mysqld or some other process uses all available"),
            (1114, "The table 'holdline_line' is full"),
            (1180, "Got error 28 - 'No space left on device' during COMMIT"),
        ] {
            let error = fault(code, message).explain(&"mysql://h", "");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("has no room left"), "{error}");
        }
        let other = fault(1180, "Got error 1 - 'Operation not permitted' during COMMIT");
        assert_eq!(other.explain(&"mysql://h", "").kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_server_is_writable_if_read_only_is_off() {
        assert!(["0", "OFF"].iter().all(|value| !is_read_only(value)));
        assert!(["1", "ON", "NO_LOCK", "NO_LOCK_NO_ADMIN"].iter().all(|value| is_read_only(value)));
    }

    /// Waiters outlast what an administrator or time ends, or a new connection.
    #[test]
    fn a_server_that_takes_nobody_is_an_outage() {
        for code in [1040, 1129, 1135, 1243, 3032] {
            let error = fault(code, "what it says").explain(&"mysql://h", "");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }

    /// Waiters outlast it. Neither `read_only` nor a replica need be the reason.
    #[test]
    fn a_read_only_engine_is_an_outage() {
        for (code, message) in [
            (1036, "Table 'holdline_line' is read only"),
            (1874, "InnoDB is in read only mode."),
            (1881, "Operation not allowed when innodb_force_recovery > 0."),
        ] {
            let error = fault(code, message).explain(&"mysql://h", "");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("is read-only"), "{error}");
        }
    }

    /// An outage behind a proxy is one that waiters outlast. If the proxy lost its server, the
    /// statement may have been carried out.
    #[test]
    fn a_proxy_without_its_server_is_an_outage() {
        for (code, in_doubt) in [
            (2002, false),
            (2003, false),
            (2006, true),
            (2013, true),
            (9001, false),
            (9002, false),
            (9004, true),
            (9501, false),
        ] {
            let fault = fault(code, "what it says");
            assert_eq!(fault.in_doubt(), in_doubt, "{code}");
            let error = fault.explain(&"mysql://h", "");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        let split = "ProxySQL Error: connection is locked to hostgroup 0 but trying to reach 1";
        assert_eq!(fault(9006, split).explain(&"mysql://h", "").kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_commit_that_a_group_refuses_is_a_conflict() {
        let deadlock = "Got error 149 - 'Lock deadlock; Retry transaction' during COMMIT";
        assert!(fault(1180, deadlock).conflict());
        assert!(fault(3101, "Plugin instructed the server to rollback").conflict());
        let full = "Got error 28 - 'No space left on device' during COMMIT";
        assert!(!fault(1180, full).conflict());
    }
}
