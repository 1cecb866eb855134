//! The values of entries, and the ids of other clients' entries, in both stores.

use crate::hash;
use crate::store::{Ticket, TicketId};
use serde::Deserialize;

/// The prefix of our values.
pub(super) const OURS: &str = "{\"holdline\":";

/// The value that a leader publishes, if the ticket is a candidate's.
pub(super) fn word(ticket: &Ticket, note: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Word {
        value: String,
    }
    let may_be = ticket.capacity == 1 && note.contains("\"value\"");
    may_be.then(|| serde_json::from_str::<Word>(note).ok())?.map(|word| word.value)
}

/// A ticket id for another client's entry, which has none. No other entry ever gets the same id,
/// and its first digits distinguish it from others.
pub(super) fn made_up(key: &[u8], create: i64) -> TicketId {
    TicketId(hash::wide(&[key, &create.to_be_bytes()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_tickets_differ_in_their_first_digits() {
        let id = |key: &str, create| made_up(key.as_bytes(), create);
        assert_eq!(id("a/1f", 7), id("a/1f", 7));
        let all = (0..100).flat_map(|n| [id(&format!("a/{n:x}"), 7), id("a/1f", n + 8)]);
        let short: std::collections::BTreeSet<String> =
            all.map(|id| id.to_string()[..8].to_owned()).collect();
        assert_eq!(short.len(), 200);
    }
}
