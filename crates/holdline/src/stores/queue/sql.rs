//! Code shared by the stores in SQL databases: the faults of calls, the arguments and results of
//! the lease table's functions, and the capabilities of the schemes.

use crate::clock;
use crate::error::{Error, ErrorKind};
#[cfg(feature = "doctor")]
use crate::findings::Findings;
use crate::names::Name;
use crate::store::{Capabilities, Enter, Refusal, Seq, Standing, Ticket, TicketId};
use crate::stores::{queue, url};
use futures_util::FutureExt;
use holdline_base::probe::{self, Found};
use holdline_kernel::Time;
use std::cmp::Ordering;
use std::fmt::Display;
use std::time::Duration;

/// A call that failed.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// No answer in time.
    Silence,
    /// No connection could be made, or it ended before anything was sent.
    Unsent(String),
    /// The connection broke.
    Broken(String),
    /// The server's answer is an error.
    Refused(ServerError),
    /// An error of the client's own.
    Ours(ErrorKind, String),
}

/// An error of the server's. It undid what it had done, unless it was interrupted.
#[derive(Clone, Debug)]
pub(super) struct ServerError {
    /// The SQLSTATE in PostgreSQL, the number in MySQL.
    pub(super) code: String,
    pub(super) message: String,
    /// The kind of the error for the user, and a clause about the server. The text is the subject
    /// of the call.
    pub(super) meaning: fn(&ServerError, &str) -> (ErrorKind, String),
    /// Whether it came while connecting, before a call was sent.
    pub(super) connecting: bool,
}

/// Serialization failures, deadlocks, a row that changed since it was read, MySQL's failed waits
/// for a row lock, and commits refused by its group replication.
const CONFLICTS: [&str; 8] = ["40001", "40P01", "1213", "1020", "3058", "1205", "3572", "3101"];
/// MySQL's errors for a statement ended from outside: by a shutdown, a kill of the statement or its
/// connection, or a timeout. A procedure may have committed by then. With the last three a proxy
/// says that it lost its server.
const INTERRUPTED: [&str; 10] =
    ["1053", "1077", "1079", "1317", "1927", "1969", "3024", "2006", "2013", "9004"];

/// The time limit of a probe of what listens at an address.
#[cfg(feature = "doctor")]
const PROBE: Duration = Duration::from_millis(700);

impl Fault {
    /// Whether the server answered with one of these error codes.
    pub(super) fn is(&self, codes: &[&str]) -> bool {
        matches!(self, Fault::Refused(error) if codes.contains(&&*error.code))
    }

    /// Whether the call conflicted with another transaction, so that it can be repeated at once.
    pub(super) fn conflict(&self) -> bool {
        self.is(&CONFLICTS)
    }

    /// Whether the reason may be that another transaction has locked the row.
    pub(super) fn locked(&self) -> bool {
        self.conflict() || self.is(&["55P03"])
    }

    /// Whether the connection or the statement was ended, so that the call may be repeated once on
    /// another connection: it broke, or its server is shutting down or has become a standby.
    pub(super) fn ended(&self) -> bool {
        match self {
            Fault::Unsent(_) | Fault::Broken(_) => true,
            Fault::Refused(error) => error.interrupted() || error.code == "25006",
            Fault::Silence | Fault::Ours(..) => false,
        }
    }

    /// Whether the server has not answered.
    pub(super) fn silent(&self) -> bool {
        matches!(self, Fault::Silence | Fault::Broken(_))
    }

    /// Whether the server may have carried out the call, or may yet do so.
    pub(super) fn in_doubt(&self) -> bool {
        self.silent()
            || matches!(self, Fault::Refused(error) if error.interrupted() && !error.connecting)
    }

    /// Whether the server refused the statements of a call, and undid what it had done.
    pub(super) fn undone(&self) -> bool {
        matches!(self, Fault::Refused(error) if !error.connecting) && !self.in_doubt()
    }

    /// The fault of a failed attempt to connect: nothing was sent.
    pub(super) fn unsent(self) -> Self {
        match self {
            Fault::Broken(why) => Fault::Unsent(why),
            Fault::Refused(error) => Fault::Refused(ServerError { connecting: true, ..error }),
            other => other,
        }
    }

    /// The fault of a failed try whose first request had no answer: that may yet take a place,
    /// which the caller must give up.
    pub(super) fn doubtful() -> Self {
        Fault::Broken("a first request had no answer, and may yet be carried out".to_owned())
    }

    /// The error for the user. `what` is the subject of the call, such as a lock.
    pub(super) fn explain(self, address: &impl Display, what: &str) -> Error {
        let (kind, message) = match self {
            Fault::Silence => {
                let message = format!("{}, and that no transaction blocks it", silent(address));
                (ErrorKind::Unavailable, message)
            }
            Fault::Unsent(why) | Fault::Broken(why) => (
                ErrorKind::Unavailable,
                format!(
                    "the connection to {address} failed; check that it runs and can be reached: \
                     {why}"
                ),
            ),
            Fault::Refused(error) => {
                let (kind, advice) = (error.meaning)(&error, what);
                (kind, format!("{address} {advice}: {} (error {})", error.message, error.code))
            }
            Fault::Ours(kind, message) => (kind, message),
        };
        Error::new(kind, message)
    }
}

impl ServerError {
    /// Whether the error may have come while the server waited for a commit to be confirmed.
    /// PostgreSQL ends sessions with 57P codes, and with 25P codes at the time limits of
    /// transactions; a proxy says by 08 codes that it lost its server.
    fn interrupted(&self) -> bool {
        ["57P", "25P", "08"].iter().any(|class| self.code.starts_with(class))
            || INTERRUPTED.contains(&&*self.code)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Ours(error.kind(), error.to_string())
    }
}

/// The answer to a call, or [`Fault::Silence`] at `limit`.
pub(super) fn answered<T, E: Into<Fault>>(
    limit: Time,
    call: impl Future<Output = Result<T, E>>,
) -> impl Future<Output = Result<T, Fault>> {
    clock::within(limit, call)
        .map(|answer| answer.map_or(Err(Fault::Silence), |answer| answer.map_err(Into::into)))
}

fn silent(address: &impl Display) -> String {
    format!(
        "{address} did not answer in time; check that such a server runs there and can be reached"
    )
}

/// The error for a server that has not answered while a store was opened.
pub(super) fn unopened(address: &impl Display) -> Error {
    Error::new(ErrorKind::Unavailable, silent(address))
}

/// The error for a server that the doctor could not ask, which says what else listens there.
#[cfg(feature = "doctor")]
pub(super) async fn unasked(
    fault: Fault,
    address: &impl Display,
    kind: &str,
    hosts: &[(String, u16)],
) -> Error {
    let error = match fault {
        Fault::Silence => unopened(address),
        fault => fault.explain(address, "the server"),
    };
    if !error.retryable() {
        return error;
    }
    let limit = clock::now().after(PROBE);
    clock::within(limit, foreign(address, kind, hosts)).await.flatten().unwrap_or(error)
}

/// The error that says what listens at the first host that replies, if it is not a server of this
/// kind. The caller limits the time.
pub(super) async fn foreign(
    address: &impl Display,
    kind: &str,
    hosts: &[(String, u16)],
) -> Option<Error> {
    let (host, found) = probe::first(hosts).await?;
    let what = match found {
        Found::MySql if kind == "MySQL" => return None,
        Found::Postgres if kind == "PostgreSQL" => return None,
        Found::Closed => return None, // PostgreSQL closes it too
        Found::Tls => format!("speaks TLS before anything else, which {kind} does not"),
        Found::Other(text) => format!("is no {kind} server: it answers \"{text}\""),
        found => format!("is {found}, not {kind}"),
    };
    Some(Error::new(ErrorKind::Invalid, format!("{address} cannot be used: {host} {what}")))
}

/// The server's message, shortened and on one line.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

/// The error for a malformed answer.
pub(super) fn invalid_reply(address: &impl Display, line: &Name) -> Error {
    let message = format!(
        "{address} gave an answer about lock \"{line}\" that makes no sense; were holdline's \
         tables or functions changed?"
    );
    Error::new(ErrorKind::Corrupt, message)
}

/// The error for a lock that a scheme does not have; `has` says what it has instead.
pub(super) fn no_such_lock(address: &impl Display, has: &str) -> Error {
    let message = format!(
        "{address} has {has} by this scheme; scheme=table has semaphores and read-write locks"
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// Whole microseconds, rounded up: a lease is never shorter than requested.
pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// The ticket that may take a place by an entry: one that keeps its place never does, however late
/// its request is carried out.
pub(super) fn taker(ticket: &Ticket, how: Enter) -> Option<TicketId> {
    (!matches!(how, Enter::Keep(_))).then_some(ticket.id)
}

/// The kind of an entry, as an argument of `enter`.
pub(super) fn number_of(how: Enter) -> i64 {
    match how {
        Enter::Try => -1,
        Enter::Queue => -2,
        Enter::Keep(Seq(seq)) => i64::try_from(seq).unwrap_or(i64::MAX),
    }
}

/// Decodes the result of `enter`: an answer, a place number (or, after 3, the line's capacity), and
/// the time after which to ask again, if that is before the ticket must be renewed. `None` if it is
/// malformed.
pub(super) fn standing(
    ticket: &Ticket,
    answer: i64,
    seq: Option<u64>,
    wait: Option<Duration>,
) -> Option<Result<Standing, Refusal>> {
    Some(match answer {
        0 => Ok(Standing::Admitted(Seq(seq.filter(|seq| *seq > 0)?))),
        1 => {
            let keep = ticket.wait_lease / 3;
            let again = wait.map_or(keep, |wait| wait.min(keep)).max(Duration::from_millis(2));
            Ok(Standing::Waiting { seq: seq.filter(|seq| *seq > 0).map(Seq), again })
        }
        2 => Ok(Standing::Lost),
        3 => Err(Refusal::Capacity { line: u32::try_from(seq?).ok()? }),
        4 => Err(Refusal::Weight),
        5 => Err(Refusal::Exhausted),
        _ => return None,
    })
}

/// Refuses tables whose version is not this program's.
pub(super) fn check_version(
    address: &impl Display,
    database: &str,
    found: i32,
    needed: i32,
) -> Result<(), Fault> {
    let advice = match found.cmp(&needed) {
        Ordering::Equal => return Ok(()),
        Ordering::Greater => "update this program".to_owned(),
        Ordering::Less => {
            format!("upgrade it with \"holdline schema {database} --install URL\"")
        }
    };
    let message = format!(
        "{address} has version {found} of the tables for locks, but this program needs {needed}; \
         {advice}"
    );
    Err(Fault::Ours(ErrorKind::Unsupported, message))
}

/// The scheme of this name among those of a kind of store.
pub(super) fn scheme<S: Copy>(
    store: &str,
    schemes: &[(&str, S)],
    wanted: &str,
) -> Result<S, Error> {
    let found = schemes.iter().find(|(name, _)| *name == wanted);
    let unknown = || {
        let names: Vec<String> = schemes.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let message =
            format!("a {store} store has the schemes {}; no other is supported", names.join(", "));
        Error::new(ErrorKind::Unsupported, message)
    };
    found.map(|(_, scheme)| *scheme).ok_or_else(unknown)
}

/// Parses the time limit of calls in a URL. The error says what is wrong with it.
pub(super) fn timeout(value: &str) -> Result<Duration, &'static str> {
    let allowed = Duration::from_millis(50)..=Duration::from_secs(60);
    url::duration(value)
        .filter(|time| allowed.contains(time))
        .ok_or("has a timeout that is not like 500ms or 2s, from 50ms to 60s")
}

/// Parses an option that is on or off. The error says what is wrong with it.
pub(super) fn yes(option: &str, value: &str) -> Result<bool, String> {
    match value {
        "yes" | "true" | "1" => Ok(true),
        "no" | "false" | "0" => Ok(false),
        _ => Err(format!("has the option {option}, which is neither yes nor no")),
    }
}

/// The lease table. Replication is asynchronous unless configured otherwise.
pub(super) const LEASE_TABLE: Capabilities =
    Capabilities { survives_restart: true, ..queue::CAPABILITIES };

/// Locks that end with a connection.
pub(super) const SESSION_LOCKS: Capabilities = Capabilities {
    fair_queue: false,
    notifications: false,
    weighted: false,
    read_write: false,
    token_ranges: false,
    crash_release: true,
    ..queue::CAPABILITIES
};

/// Adds the finding about connections.
#[cfg(feature = "doctor")]
pub(super) fn connections(used: u64, most: u64, advice: &str, findings: &mut Findings) {
    let found = format!("{used} of {most} are used");
    if most > 0 && used * 10 > most * 9 {
        findings.warning("connections", found, advice);
    } else {
        findings.ok("connections", found);
    }
}

/// Adds the finding about a server's clock, which `asked` returns in microseconds.
#[cfg(feature = "doctor")]
pub(super) async fn clock_of(
    address: &impl Display,
    asked: impl Future<Output = Option<i64>>,
    findings: &mut Findings,
) {
    let began = clock::now();
    let Some(theirs) = asked.await else { return };
    let half = began.until(clock::now()).as_micros() as i64 / 2;
    findings.clock(address.to_string(), theirs + half - clock::wall_micros().cast_signed());
}

#[cfg(all(test, feature = "doctor"))]
mod tests {
    use super::*;
    use crate::findings::Level;

    #[test]
    fn connections_are_scarce_beyond_nine_of_ten() {
        for (used, most, level) in
            [(9, 10, Level::Ok), (10, 10, Level::Warning), (11, 19, Level::Ok), (1, 5, Level::Ok)]
        {
            let mut findings = Findings::default();
            connections(used, most, "raise it", &mut findings);
            assert_eq!(findings.list[0].level, level, "{used} of {most}");
        }
    }
}
