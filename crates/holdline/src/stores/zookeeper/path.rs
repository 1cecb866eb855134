//! From a lock's name to the path of its node, and back.
//!
//! A name is the path, as Curator's and kazoo's users write it: `team/report` stands in
//! `/team/report`, below the root. What ZooKeeper does not take in a path, or what would be taken
//! for somebody's place, is written with a percent sign, and so is the percent sign itself: no two
//! names ever meet.

use super::line::Member;
use crate::names::Name;
use crate::stores::url;
use std::fmt::Write;

/// What stands for nothing between two slashes. It cannot come from anywhere else: no name has a
/// NUL.
const NOTHING: &str = "%00";

/// The path of the node in which a line stands.
pub(super) fn of(root: &str, name: &Name) -> String {
    let mut path = root.to_owned();
    for (at, part) in name.as_str().split('/').enumerate() {
        path.push('/');
        path.push_str(&escape(part, root.is_empty() && at == 0));
    }
    path
}

/// The name whose line stands there. None if no name leads there.
pub(super) fn name(root: &str, path: &str) -> Option<Name> {
    let parts = path.strip_prefix(root)?.strip_prefix('/')?.split('/');
    let parts =
        parts.map(|part| if part == NOTHING { Ok(String::new()) } else { url::decode(part) });
    let name = Name::new(parts.collect::<Result<Vec<_>, _>>().ok()?.join("/")).ok()?;
    (of(root, &name) == path).then_some(name)
}

fn escape(part: &str, first: bool) -> String {
    if part.is_empty() {
        return NOTHING.to_owned();
    }
    // ZooKeeper's own nodes are there.
    let reserved = (first && part == "zookeeper") || part == "." || part == "..";
    let mut escaped = String::with_capacity(part.len());
    for (at, c) in part.char_indices() {
        if is_bad(c) || (reserved && at == 0) {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                let _ = write!(escaped, "%{byte:02X}");
            }
        } else {
            escaped.push(c);
        }
    }
    if Member::read(&escaped).is_some() {
        // Ends in a digit, or it would be nobody's place.
        let last = escaped.pop().unwrap_or_default();
        let _ = write!(escaped, "%{:02X}", u32::from(last));
    }
    escaped
}

/// What ZooKeeper refuses, and the percent sign.
fn is_bad(c: char) -> bool {
    matches!(c,
        '%' | '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
        || c > '\u{ffff}' // two surrogates to ZooKeeper, which it refuses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(root: &str, text: &str) -> String {
        let name = Name::new(text).expect("a good name");
        let path = of(root, &name);
        assert_eq!(super::name(root, &path), Some(name), "{text} by way of {path}");
        path
    }

    #[test]
    fn a_name_is_a_path() {
        assert_eq!(both("", "team/report"), "/team/report");
        assert_eq!(both("/locks", "ä b"), "/locks/ä b");
    }

    #[test]
    fn what_zookeeper_does_not_take_is_escaped() {
        assert_eq!(both("", "/"), "/%00/%00");
        assert_eq!(both("", "a//."), "/a/%00/%2E");
        assert_eq!(both("/x", ".."), "/x/%2E.");
        assert_eq!(both("", "zookeeper"), "/%7Aookeeper");
        assert_eq!(both("/x", "zookeeper"), "/x/zookeeper");
        assert_eq!(both("", "100%"), "/100%25");
        assert_eq!(both("", "%00"), "/%2500");
        assert_eq!(both("", "\u{e000}\u{1f600}"), "/%EE%80%80%F0%9F%98%80");
        assert_eq!(both("", "a/lock-0000000001"), "/a/lock-000000000%31");
        assert_eq!(name("", "/a%2Fb"), None, "that is the name a/b, which stands elsewhere");
        assert_eq!(name("", "/a/%ff"), None);
    }
}
