//! The dialects of node names: the one that our nodes use, and those that are read.
//!
//! Each client library treats those nodes as places whose names it understands. Curator expects the
//! number right after `lock-`, kazoo right after `__lock__`: no name satisfies both, so a store has
//! a dialect. All dialects are *read*, since waiting for a node needlessly is safe, and overlooking
//! one is not.

use crate::store::{Ticket, TicketId};

/// How our own nodes are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Like Curator's: `_c_UUID-lock-NNNNNNNNNN`.
    Curator,
    /// Like kazoo's: `HEX__lock__NNNNNNNNNN`.
    Kazoo,
}

/// The capacity of read-write locks, all of which a writer takes.
pub(super) const READERS: u32 = 1 << 30;

/// The family of clients that a node belongs to, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Curator, or a client that names nodes like it: these see every child.
    Curator,
    Kazoo,
    /// The Node.js package zk-lock, with `lock-NNNNNNNNNN`: it sees only its own nodes.
    Bare,
    /// The recipe that comes with ZooKeeper, with `x-SESSION-NNNNNNNNNN`: it sees every child.
    Recipe,
    /// Elections after ZooKeeper's own recipe, with `n-NNNNNNNNNN` or `n_NNNNNNNNNN`.
    Election,
}

impl Family {
    /// The family's name, for messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Family::Curator => "Curator",
            Family::Kazoo => "kazoo",
            Family::Bare => "zk-lock or a client like it (lock-N)",
            Family::Recipe => "ZooKeeper's own lock (x-SESSION-N)",
            Family::Election => "an election after ZooKeeper's own recipe (n-N, n_N)",
        }
    }
}

impl Dialect {
    /// The name of a ticket's node without the number, which the server adds.
    pub(super) fn stem(self, ticket: &Ticket, elects: bool) -> String {
        let Ticket { id: TicketId(id), weight, capacity, .. } = *ticket;
        let share = format!("-{weight}of{capacity}");
        match (self, capacity) {
            (Dialect::Curator, 1) if elects => format!("_c_{}-latch-", uuid(id)),
            (Dialect::Curator, 1) => format!("_c_{}-lock-", uuid(id)),
            (Dialect::Curator, READERS) if weight == READERS => format!("_c_{}-__WRIT__", uuid(id)),
            (Dialect::Curator, READERS) if weight == 1 => format!("_c_{}-__READ__", uuid(id)),
            (Dialect::Curator, _) => format!("_c_{}{share}-lock-", uuid(id)),
            (Dialect::Kazoo, 1) => format!("{id:032x}__lock__"),
            (Dialect::Kazoo, READERS) if weight == 1 => format!("{id:032x}__rlock__"),
            (Dialect::Kazoo, _) => format!("{id:032x}{share}__lock__"),
        }
    }

    /// Whether the owner of a node of this family sees nodes of this dialect.
    pub(super) fn is_seen_by(self, family: Family) -> bool {
        match self {
            Dialect::Curator => matches!(family, Family::Curator | Family::Recipe),
            Dialect::Kazoo => matches!(family, Family::Kazoo | Family::Recipe),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Dialect::Curator => "curator",
            Dialect::Kazoo => "kazoo",
        }
    }
}

/// The parsed name of a node, without its number and its id.
pub(super) struct Stem {
    pub(super) family: Family,
    /// Its weight and the line's capacity; if unknown, it takes everything.
    pub(super) weights: Option<(u32, u32)>,
}

/// Parses the part of a name before the number. `None` if it is not known to be a place.
pub(super) fn read(stem: &str) -> Option<Stem> {
    let mark = |mark: &str, family, weights: Option<(u32, u32)>| {
        let rest = stem.strip_suffix(mark)?;
        let family =
            if rest.is_empty() && family == Family::Curator { Family::Bare } else { family };
        Some(Stem { family, weights: weights.or_else(|| share(rest)) })
    };
    let writer = Some((READERS, READERS));
    let reader = Some((1, READERS));
    mark("-lock-", Family::Curator, None)
        .or_else(|| mark("__lock__", Family::Kazoo, None))
        .or_else(|| mark("__READ__", Family::Curator, reader))
        .or_else(|| mark("__WRIT__", Family::Curator, writer))
        .or_else(|| mark("__rlock__", Family::Kazoo, reader))
        .or_else(|| mark("latch-", Family::Curator, None))
        .or_else(|| mark("lock-", Family::Curator, None))
        .or_else(|| {
            let election = matches!(stem, "n-" | "n_") || stem.ends_with("-n_");
            election.then_some(Stem { family: Family::Election, weights: None })
        })
        .or_else(|| is_recipe(stem).then_some(Stem { family: Family::Recipe, weights: None }))
}

/// Whether this is `x-SESSION-`, the session in any base.
fn is_recipe(stem: &str) -> bool {
    let session = stem.strip_prefix("x-").and_then(|rest| rest.strip_suffix('-'));
    let digits = session.map(|session| session.strip_prefix('-').unwrap_or(session));
    digits.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The share of the capacity, as our names have it after the id.
fn share(rest: &str) -> Option<(u32, u32)> {
    let (_, share) = guid(rest)?;
    let (weight, capacity) = share.trim_matches('-').split_once("of")?;
    let share: (u32, u32) = (weight.parse().ok()?, capacity.parse().ok()?);
    (share.0 > 0 && share.0 <= share.1).then_some(share)
}

/// The id at the beginning of a name, and the rest.
pub(super) fn guid(name: &str) -> Option<(TicketId, &str)> {
    let name = name.strip_prefix("_c_").unwrap_or(name);
    let dash = |at| name.as_bytes().get(at) == Some(&b'-');
    let is_uuid = dash(8) && dash(13) && dash(18) && dash(23);
    let (id, rest) = name.split_at_checked(if is_uuid { 36 } else { 32 })?;
    let (mut number, mut digits) = (0, 0);
    // Byte by byte: a line may have thousands of names, and every look reads them all.
    for byte in id.as_bytes() {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'-' if is_uuid => continue,
            _ => return None,
        };
        number = number << 4 | u128::from(digit);
        digits += 1;
    }
    (digits == 32).then_some((TicketId(number), rest))
}

fn uuid(id: u128) -> String {
    let hex = format!("{id:032x}");
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::ephemeral::ticket::tests::ticket;

    #[test]
    fn what_is_written_is_read() {
        let shapes = [(1, 1), (2, 3), (1, 3), (1, READERS), (READERS, READERS), (7, READERS)];
        for dialect in [Dialect::Curator, Dialect::Kazoo] {
            for (weight, capacity) in shapes {
                let stem = dialect.stem(&ticket(weight, capacity), false);
                let read = read(&stem).expect("it is a place");
                assert_eq!(guid(&stem).map(|(id, _)| id), Some(TicketId(5)), "{stem}");
                let known = (capacity > 1).then_some((weight, capacity));
                assert_eq!(read.weights, known, "{stem}");
                assert!(dialect.is_seen_by(read.family), "{stem}");
            }
        }
    }

    #[test]
    fn names_are_those_of_the_others() {
        let one = "00000000-0000-0000-0000-000000000005";
        let stem = |weight, capacity| Dialect::Curator.stem(&ticket(weight, capacity), false);
        assert_eq!(stem(1, 1), format!("_c_{one}-lock-"));
        assert_eq!(stem(READERS, READERS), format!("_c_{one}-__WRIT__"));
        assert_eq!(stem(1, READERS), format!("_c_{one}-__READ__"));
        assert_eq!(Dialect::Curator.stem(&ticket(1, 1), true), format!("_c_{one}-latch-"));
        let stem = Dialect::Kazoo.stem(&ticket(1, 1), true);
        assert_eq!(stem, "00000000000000000000000000000005__lock__");
    }

    #[test]
    fn others_are_read_for_what_they_are() {
        let table = [
            ("_c_a7b3a4de-05a8-4b0f-8a05-6a1b2b7b0b57-lock-", Some(Family::Curator), true),
            ("_c_a7b3a4de05a84b0f8a056a1b2b7b0b57-lock-", Some(Family::Curator), true),
            ("a7b3a4de05a84b0f8a056a1b2b7b0b57-lock-", Some(Family::Curator), true),
            ("a7b3a4de05a84b0f8a056a1b2b7b0b57__lock__", Some(Family::Kazoo), true),
            ("lock-", Some(Family::Bare), false),
            ("x-72057600000000000-", Some(Family::Recipe), false),
            ("x-0123456789abcdef-", Some(Family::Recipe), false),
            ("n-", Some(Family::Election), false),
            ("n_", Some(Family::Election), false),
            ("0123-n_", Some(Family::Election), false),
            ("man-", None, false),
            ("job-", None, false),
            ("é__lock__", Some(Family::Kazoo), false),
            ("", None, false),
        ];
        for (stem, family, has_id) in table {
            let read = read(stem);
            assert_eq!(read.as_ref().map(|stem| stem.family), family, "{stem}");
            assert_eq!(guid(stem).is_some(), has_id, "{stem}");
        }
    }
}
