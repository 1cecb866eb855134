//! The layout of a line in ZooKeeper: children of one node, in the order of the numbers that the
//! server appends to their names, and the admission rule over them.

use super::dialect::{self, Family};
use crate::store::{Ticket, TicketId};
use crate::stores::ephemeral::values::OURS;
use holdline_kernel::rule;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// The data that Curator's users write into a node to ask its owner to let go.
pub(super) const REVOKE: &[u8] = b"__REVOKE__";

/// The last usable number. The server's numbers have 32 bits: once they are used up, the server
/// keeps giving the last one, and no client can tell which node came first.
const LAST: i64 = 2_147_000_000;
/// The number from which warnings are logged, one in so many numbers: 147 million are left then.
const MANY: i64 = 2_000_000_000;
const WARNED_OF: i64 = 10_000;

/// The data of one of our nodes.
#[derive(Debug, Serialize, Deserialize)]
struct Data<'a> {
    holdline: u8,
    weight: u32,
    capacity: u32,
    /// Its fencing token, if that is not the transaction that created the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<i64>,
    /// Its lease, in milliseconds.
    #[serde(default)]
    lease: u64,
    #[serde(borrow)]
    note: std::borrow::Cow<'a, str>,
}

/// One place in a line, parsed from its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The name of its node, without the path.
    pub(super) child: String,
    pub(super) seq: i64,
    pub(super) family: Family,
    /// Unknown for an exclusive lock, and for others' nodes: then it takes everything.
    pub(super) weights: Option<(u32, u32)>,
    /// Whether the number is of the kind that does not run out.
    long: bool,
}

impl Member {
    /// Parses a child's name. `None` if it is not known to be a place.
    pub(super) fn read(child: &str) -> Option<Member> {
        let digits = child.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (stem, number) = child.split_at_checked(child.len() - digits)?;
        let seq: i64 = number.parse().ok()?;
        let (stem, seq) = match (digits, dialect::read(stem), stem.strip_suffix('-')) {
            (10 | 19, Some(stem), _) => (stem, seq),
            // Ten characters with its sign, or eleven.
            (9 | 10, None, Some(stem)) => (dialect::read(stem)?, -seq),
            _ => return None,
        };
        Some(Member {
            child: child.to_owned(),
            seq,
            family: stem.family,
            weights: stem.weights,
            long: digits == 19,
        })
    }

    /// Its globally unique id, which for our nodes is the ticket. Parsed on demand.
    pub(super) fn id(&self) -> Option<TicketId> {
        dialect::guid(&self.child).map(|(id, _)| id)
    }

    /// The capacity of its line, if its name tells.
    pub(super) fn capacity(&self) -> Option<u32> {
        self.weights.map(|(_, capacity)| capacity)
    }

    /// Its share of this capacity.
    pub(super) fn weight(&self, capacity: u32) -> u32 {
        self.weights.map_or(capacity, |(weight, _)| weight.min(capacity))
    }

    /// Whether the numbers are used up, so that they no longer tell the order.
    pub(super) fn is_exhausted(&self) -> bool {
        !self.long && !(0..LAST).contains(&self.seq)
    }

    /// Whether to warn that the numbers will soon be used up.
    pub(super) fn warns(&self) -> bool {
        !self.long && self.seq >= MANY && self.seq % WARNED_OF == 0
    }
}

/// The places among a node's children, front first.
pub(super) fn members(children: &[String]) -> Vec<Member> {
    let mut members: Vec<_> = children.iter().filter_map(|child| Member::read(child)).collect();
    // If two have the same number, as for a moment in Curator's downgrade, the writer is first.
    let weight = |member: &Member| std::cmp::Reverse(member.weight(u32::MAX));
    members.sort_unstable_by(|one, two| {
        let order = one.seq.cmp(&two.seq).then_with(|| weight(one).cmp(&weight(two)));
        order.then_with(|| one.child.cmp(&two.child))
    });
    members
}

/// Removes and returns the members with the same id as a node that are not that node.
pub(super) fn take_doubles(members: &mut Vec<Member>, own: &str) -> Vec<Member> {
    let Some((_, rest)) = dialect::guid(own) else { return Vec::new() };
    let id = &own[..own.len() - rest.len()];
    let is_double = |member: &mut Member| member.child.starts_with(id) && member.child != own;
    members.extract_if(.., is_double).collect()
}

/// The blockers of a ticket among the members ahead: as few as possible, nearest first. While all
/// of them stay, its standing is unchanged. None if it is admitted.
pub(super) fn blockers(ahead: &[Member], weight: u32, capacity: u32) -> Vec<Member> {
    let weights: Vec<u32> = ahead.iter().map(|member| member.weight(capacity)).collect();
    let blockers = rule::blockers(&weights, weight, capacity);
    blockers.into_iter().filter_map(|at| ahead.get(at).cloned()).collect()
}

/// Encodes the data of one of our nodes.
pub(super) fn data(ticket: &Ticket, token: Option<i64>, note: &str) -> Vec<u8> {
    let Ticket { weight, capacity, .. } = *ticket;
    let lease = u64::try_from(ticket.lease.as_millis()).unwrap_or(u64::MAX);
    let data = Data { holdline: 1, weight, capacity, token, lease, note: note.into() };
    serde_json::to_vec(&data).unwrap_or_default()
}

/// The parsed data of a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NodeData {
    /// Known only for our nodes.
    pub(super) capacity: Option<u32>,
    pub(super) token: Option<i64>,
    pub(super) lease: Duration,
    pub(super) note: Arc<str>,
}

impl NodeData {
    /// Parses the data of any client's node.
    pub(super) fn read(data: &[u8]) -> NodeData {
        let text = String::from_utf8_lossy(data);
        let ours = serde_json::from_str::<Data<'_>>(&text).ok();
        match ours.filter(|_| text.starts_with(OURS)) {
            Some(data) => NodeData {
                capacity: Some(data.capacity),
                token: data.token,
                lease: Duration::from_millis(data.lease),
                note: data.note.into(),
            },
            None if text.is_empty() => NodeData::default(),
            None => {
                let label = if data == REVOKE { "asked to let go (__REVOKE__)" } else { &text };
                let note = json!({ "label": label }).to_string().into();
                NodeData { note, ..NodeData::default() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::dialect::READERS;
    use super::*;
    use crate::stores::ephemeral::ticket::tests::ticket;

    const ID: &str = "_c_a7b3a4de-05a8-4b0f-8a05-6a1b2b7b0b57";

    #[test]
    fn numbers_are_read_whatever_they_look_like() {
        let table = [
            ("-lock-0000000007", Some((7, false))),
            ("-lock-2147483647", Some((i64::from(i32::MAX), true))),
            ("-lock--000000001", Some((-1, true))),
            ("-lock--2147483648", Some((i64::from(i32::MIN), true))),
            ("-lock-0000000002147483648", Some((2_147_483_648, false))),
            ("-lock-2146999999", Some((2_146_999_999, false))),
            ("-lock-2147000000", Some((2_147_000_000, true))),
            ("-lock-7", None),
            ("-lock-", None),
            ("-job-0000000007", None),
        ];
        for (rest, expected) in table {
            let member = Member::read(&format!("{ID}{rest}"));
            let read = member.map(|member| (member.seq, member.is_exhausted()));
            assert_eq!(read, expected, "{rest}");
        }
        let kazoo = "a7b3a4de05a84b0f8a056a1b2b7b0b57__lock__-999999999";
        assert_eq!(Member::read(kazoo).map(|member| member.seq), Some(-999_999_999));
    }

    /// A busy lock has a thousand numbers a second, for days.
    #[test]
    fn few_numbers_are_warned_of() {
        let warns = |rest: &str| Member::read(&format!("{ID}{rest}")).is_some_and(|it| it.warns());
        let number = |number: i64| format!("-lock-{number:010}");
        let count = |numbers: std::ops::Range<i64>| numbers.filter(|n| warns(&number(*n))).count();
        assert_eq!(count(MANY - 100_000..MANY), 0);
        assert_eq!(count(MANY + 1..MANY + 100_001), 10);
        assert!(!warns(&format!("-lock-{MANY:019}")), "these do not run out");
    }

    fn line(names: &[&str]) -> Vec<Member> {
        members(&names.iter().map(|name| format!("{ID}-{name}")).collect::<Vec<_>>())
    }

    #[test]
    fn the_order_is_that_of_the_numbers() {
        let children = ["sub", "zzz__lock__0000000001", "lock-0000000003", "x-1-0000000002"];
        let children = children.map(str::to_owned);
        let seqs: Vec<_> = members(&children).iter().map(|member| member.seq).collect();
        assert_eq!(seqs, [1, 2, 3], "what has no number is nobody's place");
        let downgraded = line(&["__READ__0000000001", "__WRIT__0000000001"]);
        assert!(downgraded[0].child.contains("WRIT"));
    }

    #[test]
    fn a_waiter_watches_as_few_as_may_be() {
        let watched = |names: &[&str], weight, capacity| {
            let blockers = blockers(&line(names), weight, capacity);
            blockers.iter().map(|member| member.seq).collect::<Vec<_>>()
        };
        let two = ["lock-0000000001", "lock-0000000002"];
        assert_eq!(watched(&two, 1, 1), [2], "the one before it");
        let read = ["__READ__0000000001", "__WRIT__0000000002", "__READ__0000000003"];
        assert_eq!(watched(&read, 1, READERS), [2], "a reader the writer");
        assert_eq!(watched(&read[2..], 1, READERS), [] as [i64; 0]);
        assert_eq!(watched(&read[2..], READERS, READERS), [3], "a writer the last reader");
        let permits = ["1of3-lock-0000000001", "1of3-lock-0000000002", "1of3-lock-0000000003"];
        assert_eq!(watched(&permits, 1, 3), [3, 2, 1]);
        assert_eq!(watched(&permits, 2, 3), [3, 2]);
        assert_eq!(watched(&permits[1..], 1, 3), [] as [i64; 0]);
    }

    #[test]
    fn data_are_read_as_they_were_written() {
        let (ticket, lease) = (ticket(2, 3), Duration::from_secs(60));
        let told = NodeData::read(&data(&ticket, Some(9), "{\"host\":\"é\\\"\"}"));
        assert_eq!((told.capacity, told.token, told.lease), (Some(3), Some(9), lease));
        assert_eq!(&*told.note, "{\"host\":\"é\\\"\"}");
        assert_eq!(&*NodeData::read(b"10.0.0.1").note, "{\"label\":\"10.0.0.1\"}");
        assert_eq!(NodeData::read(b""), NodeData::default());
        assert!(NodeData::read(REVOKE).note.contains("asked to let go"));
    }
}
