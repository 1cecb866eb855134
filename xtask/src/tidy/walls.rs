//! The walls between parts of the code: which part may use which.
//!
//! ARCHITECTURE.md gives the reasons. Tests at the end of a file are exempt.

use super::Finding;
use super::source::{Source, find_word, is_name};

/// Files in `stores/`, or in the folder of a kind, that support several stores and so may be named
/// by all of them.
const SHARED_BY_STORES: &[&str] = &[
    "backend",
    "contract",
    "engine",
    "calls",
    "connecting",
    "division",
    "in_flight",
    "mod",
    "model",
    "opening",
    "recent",
    "runtime",
    "sessions",
    "shedlock",
    "simulated",
    "sql",
    "table",
    "ticket",
    "values",
    "view",
    "waiters",
];

/// The folders of `stores/` with one store per file or folder: one for each kind.
const KINDS: &[&str] = &["queue", "ephemeral"];

/// Single-key locks of Redis use that store's connection and notices, and that store opens them.
const MAY_NAME: &[(&str, &str)] = &[("single_key", "redis"), ("redis", "single_key")];

/// The library's sources.
const LIBRARY: &str = "crates/holdline/src/";

/// The sources of the clock, and of the clients that are crates of their own.
const BASE: &str = "crates/base/src/";
const CLIENTS: &[&str] =
    &["crates/etcd-client/src/", "crates/zookeeper-client/src/", "crates/redis-client/src/"];

/// Words that files in one part of the code may not use.
struct Wall {
    /// Whether it applies to this file.
    around: fn(&Source) -> bool,
    words: &'static [&'static str],
    /// The text after "X: ".
    why: &'static str,
}

const WALLS: &[Wall] = &[
    Wall {
        around: |source| source.below("crates/kernel/src/").is_some(),
        words: &["std::", "tokio", "Instant::now", "SystemTime", "rand"],
        why: "The kernel knows no clock, no I/O and no other crate",
    },
    Wall {
        around: |source| {
            let base = source.below(BASE).is_some_and(|file| file != "clock.rs");
            base || is_client(source) || source.below(LIBRARY).is_some()
        },
        words: &["Instant::now", "SystemTime", "clock_gettime"],
        why: "Only the clock.rs of holdline-base reads a clock",
    },
    Wall {
        around: |source| {
            let base = source.below(BASE).is_some_and(|file| file != "clock.rs");
            let store = |file: &str| file.starts_with("stores/ephemeral/");
            base || is_client(source) || source.below(LIBRARY).is_some_and(store)
        },
        words: &["tokio::time"],
        why: "Sessions and watches wait by the clock, which a simulation can move",
    },
    Wall {
        around: |source| source.below(BASE).is_some() || is_client(source),
        words: &["Ticket", "TicketId", "Line", "rule::"],
        why: "Clients know nothing of locks",
    },
    Wall {
        around: is_recipe,
        words: &["stores::", "crate::stores"],
        why: "Recipes name no store; they hold any `Arc<dyn Store>`",
    },
    Wall {
        around: |source| is_recipe(source) || is_guard(source),
        words: &["tokio::spawn", "thread::spawn", "sleep("],
        why: "Recipes and guards neither spawn nor sleep; the driver and the renewer do",
    },
    Wall {
        around: |source| source.below(LIBRARY).is_some_and(|file| file.starts_with("stores/")),
        words: &[
            "recipes::",
            "guard::",
            "driver::",
            "crate::recipes",
            "crate::guard",
            "crate::driver",
        ],
        why: "Stores know nothing of what is built on them",
    },
    Wall {
        around: |source| source.below("crates/cli/src/").is_some(),
        words: &["holdline::stores", "holdline_kernel"],
        why: "The program uses only the library's public API",
    },
];

fn is_client(source: &Source) -> bool {
    CLIENTS.iter().any(|folder| source.below(folder).is_some())
}

fn is_recipe(source: &Source) -> bool {
    source.below(LIBRARY).is_some_and(|file| file.starts_with("recipes/") || file == "recipes.rs")
}

fn is_guard(source: &Source) -> bool {
    source.below(LIBRARY).is_some_and(|file| file.starts_with("guard/") || file == "guard.rs")
}

/// The walls, and the names of all stores.
pub(super) struct Walls {
    stores: Vec<String>,
}

impl Walls {
    /// Finds the stores among the files.
    pub(super) fn new(sources: &[Source]) -> Self {
        let mut stores: Vec<String> = sources.iter().filter_map(store_of).collect();
        stores.sort();
        stores.dedup();
        Self { stores }
    }

    /// Looks for words that violate a wall.
    pub(super) fn check(&self, source: &Source, findings: &mut Vec<Finding>) {
        for wall in WALLS.iter().filter(|wall| (wall.around)(source)) {
            for (number, line) in source.code_before_tests() {
                let word = wall.words.iter().find(|word| find_word(line, word).is_some());
                findings.extend(word.map(|word| {
                    let sentence = format!("{}, but here is `{word}`.", wall.why);
                    Finding::new(&source.path, number, sentence)
                }));
            }
        }
        self.check_store(source, findings);
    }

    /// A store may not name another one.
    fn check_store(&self, source: &Source, findings: &mut Vec<Finding>) {
        let Some(own) = store_of(source) else { return };
        let Some(file) = source.below("crates/holdline/src/stores/") else { return };
        // From `quorum/mod.rs`, one `super` is `stores`; from `queue/redis.rs`, it takes two, and
        // one is the folder of its kind.
        let depth = file.trim_end_matches("/mod.rs").split('/').count();
        let up = "super::".repeat(depth);
        let to_kind = if kind_of(file).is_some() { &up["super::".len()..] } else { &up };
        let code: Vec<&str> = source.code.iter().map(String::as_str).collect();
        let code = code.join("\n");
        let kinds = KINDS.iter().map(|kind| format!("stores::{kind}::"));
        let prefixes =
            ["stores::".to_owned(), up.clone(), to_kind.to_owned()].into_iter().chain(kinds);
        for prefix in prefixes.collect::<std::collections::BTreeSet<_>>() {
            for (at, _) in code.match_indices(&prefix) {
                let before = &code[..at];
                if before.ends_with(is_name) || before.ends_with("super::") {
                    continue;
                }
                let named = first_names(&code[at + prefix.len()..]);
                for other in self
                    .stores
                    .iter()
                    .filter(|s| may_not_name(&own, s) && named.contains(&s.as_str()))
                {
                    let number = before.matches('\n').count() + 1;
                    let sentence = format!(
                        "The store {own} names the store {other}; what both need belongs beside \
                         them."
                    );
                    findings.push(Finding::new(&source.path, number, sentence));
                }
            }
        }
    }
}

/// The store that a file belongs to.
fn store_of(source: &Source) -> Option<String> {
    let file = source.below(LIBRARY)?.strip_prefix("stores/")?;
    let file = kind_of(file).map_or(file, |kind| &file[kind.len() + 1..]);
    let name = file.split('/').next()?.trim_end_matches(".rs");
    (!SHARED_BY_STORES.contains(&name)).then(|| name.to_owned())
}

/// The kind of the stores in whose folder a file is; its path is relative to `stores/`.
fn kind_of(file: &str) -> Option<&'static str> {
    let first = file.split('/').next()?;
    KINDS.iter().copied().find(|kind| *kind == first)
}

fn may_not_name(own: &str, other: &str) -> bool {
    own != other && !MAY_NAME.contains(&(own, other))
}

/// The first name of a path, or the first names of all paths in a group in braces.
fn first_names(text: &str) -> Vec<&str> {
    let name = |text: &'_ str| text.find(|c| !is_name(c)).unwrap_or(text.len());
    let Some(group) = text.strip_prefix('{') else { return vec![&text[..name(text)]] };
    let mut names = Vec::new();
    let (mut depth, mut expected) = (0, true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => expected = true,
            c if expected && is_name(c) => {
                names.push(&group[at..at + name(&group[at..])]);
                expected = false;
            }
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let store = |name: &str| Source::new(&format!("{LIBRARY}stores/{name}"), "");
        let mut sources = vec![store("mod.rs"), store("sqlite.rs"), store("redis/mod.rs")];
        sources.push(Source::new(path, text));
        let mut findings = Vec::new();
        Walls::new(&sources).check(&sources[3], &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    /// Asserts that the file has one finding, on its first line.
    fn bad(path: &str, text: &str) {
        let findings = found(path, text);
        assert_eq!(findings.len(), 1, "{path}: {text}: {findings:?}");
        assert!(findings[0].starts_with(&format!("{path}:1: ")), "{findings:?}");
    }

    fn good(path: &str, text: &str) {
        assert_eq!(found(path, text), [""; 0], "{path}: {text}");
    }

    #[test]
    fn the_kernel_is_pure() {
        let kernel = "crates/kernel/src/line.rs";
        bad(kernel, "use std::time::Duration;");
        bad(kernel, "use rand::Rng;");
        bad(kernel, "tokio::pin!(x);");
        good(kernel, "use core::time::Duration; // std::time\nlet operand = \"std::\";");
        good(kernel, "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    use std::vec;\n}\n");
        good("crates/kernel/src/tests.rs", "use std::vec;");
        good("crates/kernel/tests/all.rs", "use std::vec;");
    }

    #[test]
    fn only_the_clock_reads_a_clock() {
        bad("crates/holdline/src/gate.rs", "let now = Instant::now();");
        bad("crates/holdline/src/stores/memory.rs", "let now = std::time::SystemTime::now();");
        bad("crates/holdline/src/clock.rs", "let now = Instant::now();");
        bad("crates/etcd-client/src/lease.rs", "let now = Instant::now();");
        bad("crates/base/src/net.rs", "let now = Instant::now();");
        good("crates/base/src/clock.rs", "let now = Instant::now();");
        good("testing/sim/src/main.rs", "let now = Instant::now();");
    }

    #[test]
    fn clients_know_no_locks_and_wait_by_the_clock() {
        bad("crates/zookeeper-client/src/session.rs", "use holdline_kernel::TicketId;");
        bad("crates/zookeeper-client/src/session.rs", "tokio::time::sleep(x).await;");
        bad("crates/holdline/src/stores/ephemeral/etcd/late.rs", "tokio::time::sleep(x).await;");
        good("crates/etcd-client/src/lease.rs", "use holdline_kernel::{Backoff, Time};");
        good("crates/base/src/clock.rs", "tokio::time::sleep(x).await;");
    }

    #[test]
    fn recipes_name_no_store_and_do_not_sleep() {
        bad("crates/holdline/src/recipes/mutex.rs", "use crate::stores::memory::Memory;");
        bad("crates/holdline/src/recipes/mutex.rs", "tokio::spawn(x);");
        bad("crates/holdline/src/recipes/mutex.rs", "tokio::time::sleep(x).await;");
        bad("crates/holdline/src/guard.rs", "std::thread::spawn(f);");
        good("crates/holdline/src/guard.rs", "use crate::keeper; x.oversleep(1);");
        good("crates/holdline/src/driver.rs", "tokio::time::sleep(x).await;");
    }

    #[test]
    fn stores_look_down_only() {
        bad("crates/holdline/src/stores/sqlite.rs", "use crate::guard::Guard;");
        bad("crates/holdline/src/stores/sqlite.rs", "use crate::driver;");
        good("crates/holdline/src/stores/sqlite.rs", "use crate::store::Store;");
    }

    #[test]
    fn stores_do_not_name_each_other() {
        let redis = "crates/holdline/src/stores/redis/line.rs";
        bad(redis, "use crate::stores::sqlite::open;");
        bad(redis, "use crate::stores::{redis, sqlite};");
        bad(redis, "use super::super::sqlite;");
        bad("crates/holdline/src/stores/redis/mod.rs", "use super::sqlite;");
        bad("crates/holdline/src/stores/sqlite.rs", "use super::{sqlite::X, redis::{A, B}};");
        good(redis, "use super::sqlite; use super::super::shared; use redis::aio;");
        good(redis, "use crate::stores::redis::script; use super::{a::{sqlite}, b};");
        let redis = "crates/holdline/src/stores/queue/redis/mod.rs";
        bad(redis, "use super::super::sqlite;");
        bad(redis, "use crate::stores::queue::sqlite::open;");
        good("crates/holdline/src/stores/single_key/mod.rs", "use crate::stores::redis::encode;");
        good("crates/holdline/src/stores/mod.rs", "use crate::stores::sqlite;");
        good("crates/holdline/src/open.rs", "use crate::stores::sqlite;");
    }

    #[test]
    fn the_program_uses_the_public_api() {
        bad("crates/cli/src/run.rs", "use holdline::stores::memory;");
        bad("crates/cli/src/run.rs", "use holdline_kernel::Line;");
        good("crates/cli/src/run.rs", "use holdline::open;");
    }
}
