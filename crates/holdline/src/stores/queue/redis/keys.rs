//! The keys of a lock, and the name in a key.
//!
//! The name is between braces, so that a cluster puts all keys of a line into one slot. Only braces
//! in the name, and the escape character itself, are escaped, so that keys stay readable.

use crate::names::Name;

/// `prefix{name}`: the key of the line; the other keys add a suffix.
pub(in crate::stores) fn line(prefix: &str, name: &Name) -> String {
    let mut key = String::with_capacity(prefix.len() + name.as_str().len() + 4);
    key.push_str(prefix);
    key.push('{');
    escape(name.as_str(), &mut key);
    key.push('}');
    key
}

fn escape(text: &str, into: &mut String) {
    if !text.contains(['{', '}', '%']) {
        return into.push_str(text);
    }
    for c in text.chars() {
        match c {
            '{' => into.push_str("%7B"),
            '}' => into.push_str("%7D"),
            '%' => into.push_str("%25"),
            c => into.push(c),
        }
    }
}

/// The name in a line's key; `None` if it is not a line's key.
pub(in crate::stores) fn name(prefix: &str, key: &str) -> Option<Name> {
    let inner = key.strip_prefix(prefix)?.strip_prefix('{')?.strip_suffix('}')?;
    let name = inner.replace("%7B", "{").replace("%7D", "}").replace("%25", "%");
    let name = Name::new(name).ok()?;
    (line(prefix, &name) == key).then_some(name)
}

/// A pattern for `SCAN` that finds the lines whose names begin with `start`, and perhaps more.
pub(in crate::stores) fn pattern(prefix: &str, start: &str) -> String {
    let mut literal = format!("{prefix}{{");
    escape(start, &mut literal);
    glob(&literal) + "*}"
}

/// Escapes a literal text for a pattern.
pub(in crate::stores) fn glob(literal: &str) -> String {
    let mut pattern = String::with_capacity(literal.len() + 4);
    for c in literal.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// The suffixes of the keys beside a lock in the layouts of other libraries: of the holder's note,
/// and of the evictions. (A line's evictions are at `:v`.)
pub(in crate::stores) const NOTE: &str = ":holdline";
pub(in crate::stores) const EVICTIONS: &str = ":holdline:v";

/// Whether a key is beside that of a lock. So it cannot be a lock itself.
pub(in crate::stores) fn is_beside(key: &str) -> bool {
    key.contains('{') && [NOTE, EVICTIONS].iter().any(|suffix| key.ends_with(suffix))
}

/// A key beside that of a lock, in the same slot.
pub(in crate::stores) fn beside(key: &str, suffix: &str) -> String {
    if key.contains('{') { format!("{key}{suffix}") } else { format!("{{{key}}}{suffix}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_injective_and_have_one_hash_tag() {
        for text in ["a", "a}b", "{a}", "%7D", "}", "100%", "a{b}c%", "ü:ö", "%257B"] {
            let name = Name::new(text).expect("a good name");
            let key = line("p:", &name);
            assert_eq!(key.matches('{').count(), 1, "{key}");
            assert_eq!(key.matches('}').count(), 1, "{key}");
            assert_eq!(super::name("p:", &key), Some(name));
        }
        assert_eq!(name("p:", "p:{a}:q"), None);
        assert_eq!(name("p:", "p:{%61}"), None);
        assert_eq!(pattern("p*:", "a}["), "p\\*:{a%7D\\[*}");
    }

    #[test]
    fn keys_beside_a_lock_are_no_locks() {
        for lock in ["jobs", "{jobs}", "app:{jobs}:1", "{", "jobs:holdline"] {
            assert!(!is_beside(lock));
            assert!([NOTE, EVICTIONS].iter().all(|suffix| is_beside(&beside(lock, suffix))));
        }
    }
}
