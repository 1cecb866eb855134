//! What the stores in SQL databases have in common: the faults of calls, what the functions of the
//! lease tables take and answer, and what the schemes promise.

use crate::clock;
use crate::error::{Error, ErrorKind};
#[cfg(feature = "doctor")]
use crate::findings::Findings;
use crate::names::Name;
use crate::store::{Capabilities, Enter, Refusal, Seq, Standing, Ticket};
pub(super) use crate::stores::queue::in_flight::outcome_unknown;
use crate::stores::{queue, url};
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
    /// The kind of the library's error, and what is said of the server. The text is what the call
    /// was about.
    pub(super) meaning: fn(&ServerError, &str) -> (ErrorKind, String),
}

/// Serialization failures, deadlocks, a row that changed since it was read, MySQL's end of a wait
/// for a row, and a commit that a group of its servers refuses.
const CONFLICTS: [&str; 8] = ["40001", "40P01", "1213", "1020", "3058", "1205", "3572", "3101"];
/// MySQL's ends of a statement from outside: the server shuts down, the statement or its connection
/// was killed, it took too long. A procedure may have committed by then.
const INTERRUPTED: [&str; 7] = ["1053", "1077", "1079", "1317", "1927", "1969", "3024"];

impl Fault {
    /// Whether this is the server's answer by one of these codes.
    pub(super) fn is(&self, codes: &[&str]) -> bool {
        matches!(self, Fault::Refused(error) if codes.contains(&&*error.code))
    }

    /// Whether another transaction was in the way, so that the same call can be made again at once.
    pub(super) fn conflict(&self) -> bool {
        self.is(&CONFLICTS)
    }

    /// Whether the connection or the statement was ended, so that the call may be made once more on
    /// another connection: it broke, its server is shutting down, or is a standby now.
    pub(super) fn ended(&self) -> bool {
        match self {
            Fault::Unsent(_) | Fault::Broken(_) => true,
            Fault::Refused(error) => {
                error.interrupted() || error.code.starts_with("08") || error.code == "25006"
            }
            Fault::Silence | Fault::Ours(..) => false,
        }
    }

    /// Whether the server has not answered.
    pub(super) fn silent(&self) -> bool {
        matches!(self, Fault::Silence | Fault::Broken(_))
    }

    /// Whether the server may have carried out the call, or may yet do so.
    pub(super) fn in_doubt(&self) -> bool {
        self.silent() || matches!(self, Fault::Refused(error) if error.interrupted())
    }

    /// The same, of a connection that was not made: nothing was sent.
    pub(super) fn unsent(self) -> Self {
        match self {
            Fault::Broken(why) => Fault::Unsent(why),
            other => other,
        }
    }

    /// The error for the user. `what` is what the call was about, such as a lock.
    pub(super) fn explain(self, address: &impl Display, what: &str) -> Error {
        let (kind, message) = match self {
            Fault::Silence => (
                ErrorKind::Unavailable,
                format!(
                    "{address} did not answer in time; check that such a server runs there and can \
                     be reached, and that no transaction blocks it"
                ),
            ),
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
    /// Whether it may have come while the server waited for a commit to be confirmed. PostgreSQL
    /// ends a session so.
    fn interrupted(&self) -> bool {
        self.code.starts_with("57P") || INTERRUPTED.contains(&&*self.code)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Ours(error.kind(), error.to_string())
    }
}

/// The answer to a call, or that there was none until then.
pub(super) async fn answered<T, E: Into<Fault>>(
    limit: Time,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, Fault> {
    clock::within(limit, call)
        .await
        .map_or(Err(Fault::Silence), |answer| answer.map_err(Into::into))
}

/// The error that says what listens at the first host that replies, if that is another kind of
/// server than `kind`. The caller limits the time.
pub(super) async fn foreign(
    address: &impl Display,
    kind: &str,
    hosts: &[(String, u16)],
) -> Option<Error> {
    let (host, found) = probe::first(hosts).await?;
    let what = match found {
        Found::MySql if kind == "MySQL" => return None,
        Found::Postgres if kind == "PostgreSQL" => return None,
        Found::Closed => return None, // PostgreSQL does so as well
        Found::Tls => format!("speaks TLS before anything else, which {kind} does not"),
        Found::Other(text) => format!("is no {kind} server: it answers \"{text}\""),
        found => format!("is {found}, not {kind}"),
    };
    Some(Error::new(ErrorKind::Invalid, format!("{address} cannot be used: {host} {what}")))
}

/// The server's words, short and on one line.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

/// The error for an answer that cannot be read.
pub(super) fn invalid_reply(address: &impl Display, line: &Name) -> Error {
    let message = format!(
        "{address} gave an answer about lock \"{line}\" that makes no sense; were holdline's \
         tables or functions changed?"
    );
    Error::new(ErrorKind::Corrupt, message)
}

/// Whole microseconds, at least as long: a lease is never shorter than it was asked for.
pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// The kind of an entry, as `enter` takes it.
pub(super) fn number_of(how: Enter) -> i64 {
    match how {
        Enter::Try => -1,
        Enter::Queue => -2,
        Enter::Keep(Seq(seq)) => i64::try_from(seq).unwrap_or(i64::MAX),
    }
}

/// Decodes the result of `enter`: an answer, a place number (or, after 3, the line's capacity), and
/// the time after which it is worth asking again, if that is before the ticket must be renewed.
/// None if it makes no sense.
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

/// Refuses tables of another version than this program's.
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

/// The scheme of this name, of those that a kind of store has.
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

/// The time limit of a call, as a URL says it; or what is wrong with that.
pub(super) fn timeout(value: &str) -> Result<Duration, &'static str> {
    let allowed = Duration::from_millis(50)..=Duration::from_secs(60);
    url::duration(value)
        .filter(|time| allowed.contains(time))
        .ok_or("has a timeout that is not like 500ms or 2s, from 50ms to 60s")
}

/// What an option says that is on or off; or what is wrong with that.
pub(super) fn yes(option: &str, value: &str) -> Result<bool, String> {
    match value {
        "yes" | "true" | "1" => Ok(true),
        "no" | "false" | "0" => Ok(false),
        _ => Err(format!("has the option {option}, which is neither yes nor no")),
    }
}

/// The lease table. Replication is asynchronous, unless set otherwise.
pub(super) const LEASE_TABLE: Capabilities =
    Capabilities { survives_restart: true, ..queue::CAPABILITIES };

/// Locks that end with a connection.
pub(super) const SESSION_LOCKS: Capabilities = Capabilities {
    fair_queue: false,
    notifications: false,
    weighted: false,
    token_ranges: false,
    crash_release: true,
    ..queue::CAPABILITIES
};

/// The finding about connections.
#[cfg(feature = "doctor")]
pub(super) fn connections(used: u64, most: u64, advice: &str, findings: &mut Findings) {
    let found = format!("{used} of {most} are used");
    if most > 0 && used > most / 10 * 9 {
        findings.warning("connections", found, advice);
    } else {
        findings.ok("connections", found);
    }
}

/// The finding about a server's clock, in microseconds, which this answers.
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
