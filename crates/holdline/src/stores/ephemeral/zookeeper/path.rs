//! The mapping between a lock's name and the path of its node.
//!
//! The name is the path, as users of Curator and kazoo write it: `team/report` is at
//! `/team/report`, below the root. A character that ZooKeeper does not accept in a path, or that
//! would make the path look like a place, is written as a percent sign and two digits; a percent
//! sign of the name is escaped only if two hexadecimal digits follow it. So no two names have the
//! same path, and a name like `100%` is its own path.

use super::layout::Member;
use crate::names::Name;
use std::fmt::Write;

/// The escape of the empty part between two slashes. It is unambiguous, because no name has a NUL.
const NOTHING: &str = "%00";

/// The path of a line's node.
pub(super) fn of(root: &str, name: &Name) -> String {
    let mut path = root.to_owned();
    for (at, part) in name.as_str().split('/').enumerate() {
        path.push('/');
        path.push_str(&escape(part, root.is_empty() && at == 0));
    }
    path
}

/// The name of the line at this path. `None` if no name leads there.
pub(super) fn name(root: &str, path: &str) -> Option<Name> {
    let parts = path.strip_prefix(root)?.strip_prefix('/')?.split('/');
    let parts =
        parts.map(|part| if part == NOTHING { Some(String::new()) } else { unescape(part) });
    let name = Name::new(parts.collect::<Option<Vec<_>>>()?.join("/")).ok()?;
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
        if is_bad(c) || (reserved && at == 0) || escapes(&part[at..]) {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                let _ = write!(escaped, "%{byte:02X}");
            }
        } else {
            escaped.push(c);
        }
    }
    if Member::read(&escaped).is_some() {
        // It ends in a digit, or it would not look like a place.
        let last = escaped.pop().unwrap_or_default();
        let _ = write!(escaped, "%{:02X}", u32::from(last));
    }
    escaped
}

/// Whether this begins with an escape.
fn escapes(text: &str) -> bool {
    matches!(text.as_bytes(), [b'%', high, low, ..]
        if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

/// Decodes a part of a path.
fn unescape(part: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(part.len()), part.as_bytes());
    while let [byte, after @ ..] = rest {
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        if let (b'%', Some(high), Some(low)) = (byte, digit(0), digit(1)) {
            bytes.push(u8::try_from(high * 16 + low).ok()?);
            rest = after.get(2..)?;
        } else {
            bytes.push(*byte);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

/// Whether ZooKeeper refuses this character.
fn is_bad(c: char) -> bool {
    matches!(c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
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
        assert_eq!(both("", "100%"), "/100%");
        assert_eq!(both("", "%41"), "/%2541");
        assert_eq!(both("", "%%4g%4"), "/%%4g%4");
        assert_eq!(both("", "%%aB"), "/%%25aB");
        assert_eq!(both("", "%4\u{e000}"), "/%4%EE%80%80");
        assert_eq!(both("", "%00"), "/%2500");
        assert_eq!(both("", "\u{e000}\u{1f600}"), "/%EE%80%80%F0%9F%98%80");
        assert_eq!(both("", "a/lock-0000000001"), "/a/lock-000000000%31");
        assert_eq!(name("", "/a%2Fb"), None, "that is the name a/b, which stands elsewhere");
        assert_eq!(name("", "/a/%ff"), None);
        assert_eq!(name("", "/%41"), None, "that is the name A, which stands elsewhere");
    }

    #[test]
    fn no_two_names_meet() {
        let mut rng = fastrand::Rng::with_seed(1);
        let letters: Vec<char> = "%%%%012459aFg./-\u{e000}".chars().collect();
        let mut paths = std::collections::HashMap::new();
        for _ in 0..20_000 {
            let text: String =
                (0..rng.usize(1..8)).map(|_| letters[rng.usize(..letters.len())]).collect();
            let path = both("", &text);
            if let Some(other) = paths.insert(path.clone(), text.clone()) {
                assert_eq!(other, text, "both are {path}");
            }
        }
    }
}
