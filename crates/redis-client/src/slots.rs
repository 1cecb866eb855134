//! The slots of a cluster: which node serves which, and the slot of a key.

use crate::cluster::Node;
use redis::{Arg, Cmd, Value};
use std::collections::{BTreeMap, HashMap};

/// The number of slots of every cluster.
const COUNT: u16 = 16384;

/// Which node serves which slot.
pub(crate) struct Slots {
    /// Ranges: the last slot of each to its first one and its node.
    ranges: BTreeMap<u16, (u16, Node)>,
    /// Slots that were since found elsewhere.
    moved: HashMap<u16, Node>,
}

impl Slots {
    /// Decodes a reply to `CLUSTER SLOTS` of a node at this host, which other nodes have too if it
    /// does not say where they are. `None` if no node serves any slot.
    pub(crate) fn read(reply: &Value, host: &str) -> Option<Self> {
        let Value::Array(parts) = reply else { return None };
        let range = |part: &Value| {
            let Value::Array(range) = part else { return None };
            let [Value::Int(first), Value::Int(last), nodes @ ..] = &range[..] else {
                return None;
            };
            let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
            // The first node is the primary.
            Some((last, (first, node(nodes.first()?, host)?)))
        };
        let ranges: BTreeMap<_, _> = parts.iter().filter_map(range).collect();
        (!ranges.is_empty()).then(|| Slots { ranges, moved: HashMap::new() })
    }

    /// The node that serves a slot.
    pub(crate) fn node_of(&self, slot: u16) -> Option<&Node> {
        self.moved.get(&slot).or_else(|| {
            let (_, (first, node)) = self.ranges.range(slot..).next()?;
            (*first <= slot).then_some(node)
        })
    }

    /// Records that a slot is served by this node.
    pub(crate) fn moved(&mut self, slot: u16, node: Node) {
        self.moved.insert(slot, node);
    }

    /// The nodes that serve slots, each once.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let nodes = self.ranges.values().map(|(_, node)| node).chain(self.moved.values());
        let mut nodes: Vec<Node> = nodes.cloned().collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }
}

/// The primaries in a reply to `CLUSTER SLOTS` of a node at this host, each once.
pub fn primaries(reply: &Value, host: &str) -> Vec<(String, u16)> {
    Slots::read(reply, host).map(|slots| slots.nodes()).unwrap_or_default()
}

/// The host and port of a node in a reply to `CLUSTER SLOTS`.
fn node(value: &Value, asked: &str) -> Option<Node> {
    let Value::Array(parts) = value else { return None };
    let [host, Value::Int(port), ..] = &parts[..] else { return None };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::Nil => "",
        _ => return None,
    };
    let host = if ["", "?", "0.0.0.0", "::"].contains(&host) { asked } else { host };
    Some((host.to_owned(), u16::try_from(*port).ok()?))
}

/// The slot of a command: that of its first key, which follows the number of keys in calls of
/// scripts, and the name in other commands. A command whose key is elsewhere is redirected.
pub(crate) fn slot_of(command: &Cmd) -> u16 {
    let mut words = command.args_iter().map(|arg| match arg {
        Arg::Simple(word) => word,
        _ => b"",
    });
    let scripted = words.next().is_some_and(|name| [&b"EVALSHA"[..], b"EVAL"].contains(&name));
    slot(words.nth(if scripted { 2 } else { 0 }).unwrap_or_default())
}

/// The slot of a key: a checksum (CRC-16/XMODEM) of the part in its first braces, if that is not
/// empty, and otherwise of the whole key.
fn slot(key: &[u8]) -> u16 {
    let after = |byte, text: &[u8]| text.iter().position(|it| *it == byte);
    let tag = after(b'{', key).and_then(|open| {
        let rest = &key[open + 1..];
        Some(&rest[..after(b'}', rest)?]).filter(|tag| !tag.is_empty())
    });
    let checksum = tag.unwrap_or(key).iter().fold(0_u16, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| {
            (sum << 1) ^ if sum & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    checksum % COUNT
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::cluster_routing::{Route, SlotAddr};

    #[test]
    fn a_key_has_the_slot_that_the_servers_compute() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        for key in ["", "a", "holdline:{x}", "{}", "{}a", "a{b", "a}b{c}", "{a}{b}", "ü{ö}"] {
            let theirs = Route::with_key(key, SlotAddr::Master);
            assert_eq!(Route::new(slot(key.as_bytes()), SlotAddr::Master), theirs, "{key}");
            let mut script = redis::cmd("EVALSHA");
            script.arg("0123").arg(1).arg(key).arg("more");
            assert_eq!(slot_of(&script), slot(key.as_bytes()));
            assert_eq!(slot_of(redis::cmd("GET").arg(key)), slot(key.as_bytes()));
        }
        assert_eq!(slot_of(&redis::cmd("PING")), 0);
    }

    fn read(reply: &str) -> Option<Slots> {
        let reply = redis::parse_redis_value(reply.replace(' ', "\r\n").as_bytes());
        Slots::read(&reply.expect("a reply"), "asked")
    }

    #[test]
    fn each_slot_has_the_node_that_was_last_heard_of() {
        let mut slots =
            read("*3 *3 :0 :99 *2 $1 a :1 *3 :200 :299 *2 $-1 :2 *3 :300 :16383 *2 $1 ? :3 ")
                .expect("slots");
        let (a, b, c) = (("a".into(), 1), ("asked".into(), 2), ("asked".into(), 3));
        for (slot, node) in [(0, Some(&a)), (99, Some(&a)), (100, None), (199, None)] {
            assert_eq!(slots.node_of(slot), node, "{slot}");
        }
        assert_eq!(slots.node_of(200), Some(&b));
        assert_eq!(slots.node_of(16383), Some(&c));
        slots.moved(200, a.clone());
        assert_eq!((slots.node_of(200), slots.node_of(201)), (Some(&a), Some(&b)));
        assert_eq!(slots.nodes(), [a, b, c]);
    }

    #[test]
    fn nonsense_is_no_map() {
        for reply in ["*0 ", ":1 ", "*1 *2 :0 :99 ", "*1 *3 :0 :99999 *2 $1 a :1 ", "*1 :1 "] {
            assert!(read(reply).is_none(), "{reply}");
        }
    }
}
