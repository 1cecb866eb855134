//! The scheme of a store's URL: which schemes there are, and one spelling for all of them.

/// The schemes, by the feature that provides their store; `memory`, which is always there, needs
/// none.
const SCHEMES: [(&str, &[&str]); 7] = [
    ("memory", &["memory"]),
    ("sqlite", &["sqlite"]),
    (
        "redis",
        &[
            "redis",
            "rediss",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
            "redis+unix",
        ],
    ),
    ("etcd", &["etcd", "etcds"]),
    ("zookeeper", &["zookeeper", "zk", "zks"]),
    ("mysql", &["mysql", "mariadb"]),
    ("postgres", &["postgres", "postgresql"]),
];

/// The scheme of a quorum's URLs.
const QUORUM: &str = "quorum";

/// The feature that provides the store with this URL scheme. `None` for unknown schemes.
pub(crate) fn feature_of(scheme: &str) -> Option<&'static str> {
    SCHEMES.iter().find(|(_, schemes)| schemes.contains(&scheme)).map(|(feature, _)| *feature)
}

/// The URL in the spelling that the stores read: the scheme in lower case, Valkey's as Redis's, and
/// no blanks around the URL or a quorum's nodes.
pub(crate) fn canonical(url: &str) -> String {
    let url = url.trim_matches(' ');
    let Some((scheme, rest)) = url.split_once(':') else { return url.to_owned() };
    let scheme = scheme.to_ascii_lowercase();
    if scheme == QUORUM {
        let nodes: Vec<String> = split(rest).iter().map(|node| canonical(node)).collect();
        return format!("{QUORUM}:{}", nodes.join(","));
    }
    let scheme = match scheme.strip_prefix("valkey") {
        Some(kind) => format!("redis{kind}"),
        None => scheme,
    };
    match feature_of(&scheme) {
        Some(_) => format!("{scheme}:{rest}"),
        None => url.to_owned(), // the error shows it as it was written
    }
}

/// Splits the part after `quorum:` into the nodes' URLs. A comma separates URLs only before a
/// scheme, so nodes' URLs may contain commas themselves.
pub(super) fn split(rest: &str) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for part in rest.split(',') {
        match urls.last_mut() {
            Some(last) if !begins_with_scheme(part.trim_start_matches(' ')) => {
                last.push(',');
                last.push_str(part);
            }
            _ => urls.push(part.to_owned()),
        }
    }
    urls
}

/// Whether a part of a quorum's URL begins a node's. A host with its port looks like a scheme,
/// except for the slashes.
fn begins_with_scheme(part: &str) -> bool {
    let Some((scheme, rest)) = part.split_once(':') else { return false };
    let is_local = ["memory", "sqlite"].iter().any(|local| local.eq_ignore_ascii_case(scheme));
    is_local
        || rest.starts_with("//") && scheme.chars().all(|c| c.is_ascii_alphabetic() || c == '+')
}

/// The scheme of a URL for messages. `None` if what stands before the colon may be no scheme, but a
/// part of a password: then nothing of the URL may be shown.
pub(super) fn shown(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once(':')?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    let is_followed = rest.starts_with("//") || !rest.contains('@');
    (is_scheme && (is_followed || feature_of(scheme).is_some())).then_some(scheme)
}

/// The known scheme that differs from this unknown one by a slip or two.
pub(super) fn meant(scheme: &str) -> Option<&'static str> {
    let known = SCHEMES.iter().flat_map(|(_, schemes)| schemes.iter().copied()).chain([QUORUM]);
    let near = known.map(|known| (distance(scheme, known), known));
    near.filter(|(slips, known)| *slips <= 2 && known.len() > 3).min().map(|(_, known)| known)
}

/// The number of letters to add, to remove or to replace, to make one word of another.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, b) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(!a.eq_ignore_ascii_case(&b));
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_one_spelling() {
        for (url, one) in [
            (" Redis://H:1/a ", "redis://H:1/a"),
            ("REDISS+Cluster://a,b", "rediss+cluster://a,b"),
            ("valkey://h", "redis://h"),
            ("valkeys+sentinel://h/x", "rediss+sentinel://h/x"),
            (
                "Quorum:redis://a, Valkey://b , SQLite:/c, d",
                "quorum:redis://a,redis://b,sqlite:/c, d",
            ),
            ("MEMORY:", "memory:"),
            ("Redsi://h", "Redsi://h"),
            ("valkeyx://h", "valkeyx://h"),
            ("  ", ""),
        ] {
            assert_eq!(canonical(url), one);
        }
    }

    #[test]
    fn a_comma_parts_nodes_only_before_a_scheme() {
        assert_eq!(split("memory:a,memory:b"), ["memory:a", "memory:b"]);
        assert_eq!(split("etcd://a,b:1/x,sqlite:/c,d"), ["etcd://a,b:1/x", "sqlite:/c,d"]);
        assert_eq!(split("redis+cluster://a,b,memory:"), ["redis+cluster://a,b", "memory:"]);
        assert_eq!(split("redis://a, Redis://b"), ["redis://a", " Redis://b"]);
        assert_eq!(split(""), [""]);
    }

    #[test]
    fn only_a_scheme_is_shown() {
        for (url, scheme) in [
            ("redis://:canary@h", Some("redis")),
            ("sqlite:/a@b", Some("sqlite")),
            ("redsi://canary@h", Some("redsi")),
            ("foo:bar", Some("foo")),
            ("canary@h:6379", None),
            ("canary:6379@h", None),
            ("can:ary@h:6379", None),
            (":canary@h", None),
            ("canary", None),
        ] {
            assert_eq!(shown(url), scheme, "{url}");
        }
    }

    #[test]
    fn a_slip_is_recognized() {
        for (slip, scheme) in [
            ("redsi", Some("redis")),
            ("Postgress", Some("postgres")),
            ("zookeper", Some("zookeeper")),
            ("ectd", Some("etcd")),
            ("quorom", Some("quorum")),
            ("http", None),
            ("file", None),
            ("x", None),
        ] {
            assert_eq!(meant(slip), scheme, "{slip}");
        }
    }
}
