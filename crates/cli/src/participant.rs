//! Holders and waiters, formatted for people and for machines. Their notes are shown, never
//! trusted.

use crate::printer::clean;
use crate::{duration, timestamp};
use holdline::store::TicketId;
use holdline::{LockInfo, Participant};
use serde_json::{Value, json};
use std::time::Duration;

/// The short form of an id, for tables; enough for `break`.
pub(crate) fn short_id(id: TicketId) -> String {
    id.to_string()[..12].to_owned()
}

/// The host and process of a participant.
pub(crate) fn place(participant: &Participant) -> String {
    let note = &participant.note;
    match (note.pid, note.host.is_empty()) {
        (0, true) => "somebody unknown".to_owned(),
        (0, false) => clean(&note.host),
        (pid, true) => format!("pid {pid}"),
        (pid, false) => format!("pid {pid} on {}", clean(&note.host)),
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
    let value = note.value.as_deref().map(|value| format!("value {}", clean(value)));
    let parts: Vec<String> = note.label.as_deref().map(clean).into_iter().chain(value).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// How long a participant has held or waited, by its clock and ours.
pub(crate) fn age(participant: &Participant) -> Option<String> {
    let since = participant.note.since;
    let age = Duration::from_millis(timestamp::now().saturating_sub(since));
    (since != 0).then(|| duration::show(age))
}

/// A participant as JSON.
pub(crate) fn json(participant: &Participant) -> Value {
    let until = timestamp::now() + u64::try_from(participant.expires_in.as_millis()).unwrap_or(0);
    let note = &participant.note;
    json!({
        "id": participant.id.to_string(),
        "token": participant.token,
        "weight": participant.weight,
        "host": note.host,
        "pid": note.pid,
        "label": note.label,
        "value": note.value,
        "since": (note.since != 0).then(|| timestamp::show(note.since)),
        "until": timestamp::show(until),
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
