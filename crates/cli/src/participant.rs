//! Holders and waiters, formatted for people and for machines. Their notes are shown but never
//! trusted.

use crate::printer::clean;
use crate::{duration, timestamp};
use holdline::store::TicketId;
use holdline::{LockInfo, Participant};
use serde_json::{Value, json};
use std::time::Duration;

/// The time that stores report for an unknown end.
const UNKNOWN: Duration = Duration::from_secs(24 * 3600);
/// The most characters shown of a label, a value or a host; JSON has all.
const WORDS: usize = 200;

/// The short form of an id, for tables; enough for `break`.
pub(crate) fn short_id(id: TicketId) -> String {
    id.to_string()[..12].to_owned()
}

/// The host and process of a participant.
pub(crate) fn place(participant: &Participant) -> String {
    let note = &participant.note;
    match (note.pid, note.host.is_empty()) {
        (0, true) => "somebody unknown".to_owned(),
        (0, false) => brief(&note.host),
        (pid, true) => format!("pid {pid}"),
        (pid, false) => format!("pid {pid} on {}", brief(&note.host)),
    }
}

/// The host, process and label of a participant.
pub(crate) fn who(participant: &Participant) -> String {
    match description(participant) {
        Some(description) => format!("{} ({description})", place(participant)),
        None => place(participant),
    }
}

/// The label and the value of a participant.
pub(crate) fn description(participant: &Participant) -> Option<String> {
    let note = &participant.note;
    let value = note.value.as_deref().map(|value| format!("value {}", brief(value)));
    let parts: Vec<String> = note.label.as_deref().map(brief).into_iter().chain(value).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// How long a participant has held or waited, by its clock and ours; `None` if it is unknown.
pub(crate) fn age(participant: &Participant) -> Option<Duration> {
    let since = participant.note.since;
    (since != 0).then(|| Duration::from_millis(timestamp::now().saturating_sub(since)))
}

/// The time until a participant's lease ends unless renewed; `None` if the store does not know it,
/// or if it depends only on a connection.
pub(crate) fn left(participant: &Participant) -> Option<Duration> {
    Some(participant.expires_in).filter(|left| !left.is_zero() && *left < UNKNOWN)
}

/// "it is held by ... for ..., 2 wait": the common description of a lock in use. `which` is "it",
/// or a name. `None` if the lock is not in use.
pub(crate) fn in_use(info: &LockInfo, which: &str) -> Option<String> {
    let waiters = waiting(info.waiters.len());
    let Some(first) = info.holders.first() else {
        return waiters.map(|waiters| format!("nobody holds {which}, and {waiters}"));
    };
    let age = age(first).map(|age| format!(" for {}", duration::show(age))).unwrap_or_default();
    let others = match info.holders.len() - 1 {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let waiters = waiters.map(|waiters| format!("; {waiters}")).unwrap_or_default();
    Some(format!("{which} is held by {}{age}{others}{waiters}", who(first)))
}

/// "1 waits", "2 wait"; `None` for none.
pub(crate) fn waiting(count: usize) -> Option<String> {
    match count {
        0 => None,
        1 => Some("1 waits".to_owned()),
        n => Some(format!("{n} wait")),
    }
}

/// Text of other programs, made harmless and short enough for a sentence or a table.
fn brief(text: &str) -> String {
    let text = clean(text);
    match text.char_indices().nth(WORDS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The fencing token of a participant; `None` if there is none, or the store does not tell.
pub(crate) fn token(participant: &Participant) -> Option<u64> {
    known(participant.token)
}

/// A fencing token; `None` on a store without tokens.
pub(crate) fn known(token: u64) -> Option<u64> {
    Some(token).filter(|token| *token != 0)
}

/// A fencing token in a line that has a place for it: "token 7", or "no token".
pub(crate) fn token_words(token: u64) -> String {
    known(token).map_or_else(|| "no token".to_owned(), |token| format!("token {token}"))
}

/// A fencing token that a sentence ends with, after these words; nothing on a store without tokens.
pub(crate) fn with_token(words: &str, token: u64) -> String {
    known(token).map_or_else(String::new, |token| format!("{words} token {token}"))
}

/// A participant as JSON. Unknown values are null.
pub(crate) fn json(participant: &Participant) -> Value {
    let until = left(participant).and_then(|left| u64::try_from(left.as_millis()).ok());
    let until = until.map(|left| timestamp::show(timestamp::now() + left));
    let note = &participant.note;
    json!({
        "id": participant.id.to_string(),
        "token": token(participant),
        "weight": participant.weight,
        "host": Some(&note.host).filter(|host| !host.is_empty()),
        "pid": Some(note.pid).filter(|pid| *pid != 0),
        "label": note.label,
        "value": note.value,
        "since": (note.since != 0).then(|| timestamp::show(note.since)),
        "until": until,
    })
}

/// A lock as JSON.
pub(crate) fn info_json(info: &LockInfo) -> Value {
    json!({
        "name": info.name.as_str(),
        "capacity": info.capacity,
        "holders": info.holders.iter().map(json).collect::<Vec<_>>(),
        "waiters": info.waiters.iter().map(json).collect::<Vec<_>>(),
    })
}
