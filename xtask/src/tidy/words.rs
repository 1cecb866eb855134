//! Checks that names are the field's standard terms: lists words that are not used as names.
//!
//! A private metaphor sends every newcomer to a dictionary that does not exist. Only names in code
//! are checked; a program cannot recognize a metaphor in prose. In comments, a sentence has a noun
//! as its subject, and not *who* or *whoever*.

use super::Finding;
use super::source::Source;

/// A word that is not part of a name, and the terms to use instead.
const WORDS: &[(&str, &str)] = &[
    ("beacon", "liveness lock"),
    ("bury", "remove"),
    ("companion", "joining request"),
    ("crew", "workers, handler"),
    ("crowd", "contenders"),
    ("deaf", "unread, ignores losses"),
    ("deck", "places"),
    ("deed", "action"),
    ("desk", "executor, batcher, slot"),
    ("dice", "rng"),
    ("doors", "links"),
    ("ear", "callback, subscriber, inbox"),
    ("ears", "callbacks, subscribers"),
    ("errand", "workload"),
    ("flotsam", "orphans"),
    ("ghost", "late write"),
    ("ghosts", "late writes"),
    ("grip", "guard"),
    ("harbour", "process state"),
    ("haunt", "watch"),
    ("house", "shared state, store"),
    ("hub", "watcher"),
    ("keeper", "renewer"),
    ("lodging", "session slot"),
    ("mouth", "writer, outbox"),
    ("papers", "certificates, TLS options"),
    ("patrol", "check"),
    ("pen", "writer"),
    ("pulse", "stall detector"),
    ("puppet", "child process"),
    ("rage", "acquire, compete"),
    ("rouse", "wake"),
    ("scene", "setup"),
    ("shore", "directory"),
    ("steward", "janitor"),
    ("tower", "monitor"),
    ("twin", "background handle"),
    ("weather", "load, faults"),
    ("wreck", "stale lock"),
    ("wrecks", "stale locks"),
];

/// Checks the names in code, part by part: `find_house` and `HouseKeeper` have two each.
pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    for (number, line) in (1..).zip(&source.code) {
        for (word, instead) in words_of(line) {
            let sentence = format!(
                "\"{word}\" is no term of this field; here it may be: {instead} (see words.rs)."
            );
            findings.push(Finding::new(&source.path, number, sentence));
        }
    }
}

/// Checks the sentences in comments.
pub(super) fn check_comments(source: &Source, findings: &mut Vec<Finding>) {
    for (number, line) in (1..).zip(&source.lines) {
        let Some((_, comment)) = line.split_once("//") else { continue };
        let begins = comment.trim_start_matches(['/', '!', ' ']).starts_with("Who ");
        if begins || [". Who ", "Whoever ", " whoever "].iter().any(|who| comment.contains(who)) {
            let sentence = "The sentence is about \"who\": name its subject by a noun.";
            findings.push(Finding::new(&source.path, number, sentence));
        }
    }
}

/// The words of the list in the names of a line of code, each once.
fn words_of(line: &str) -> Vec<(&'static str, &'static str)> {
    let mut parts: Vec<String> = line
        .replace("ZooKeeper", "") // a product's name
        .split(|c: char| !c.is_alphanumeric())
        .filter(|name| !name.is_empty())
        .flat_map(parts)
        .collect();
    parts.sort();
    parts.dedup();
    parts.iter().filter_map(|part| WORDS.iter().find(|(word, _)| word == part).copied()).collect()
}

/// The parts of a name between changes of case, in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut small_before = false;
    for c in name.chars() {
        if parts.is_empty() || (c.is_uppercase() && small_before) {
            parts.push(String::new());
        }
        small_before = !c.is_uppercase();
        if let Some(part) = parts.last_mut() {
            part.extend(c.to_lowercase());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_names_are_looked_at() {
        let found = |line: &str| words_of(line).iter().map(|(word, _)| *word).collect::<Vec<_>>();
        assert_eq!(found("struct HouseKeeper(Tower);"), ["house", "keeper", "tower"]);
        assert_eq!(found("let light_house = ear;"), ["ear", "house"]);
        assert_eq!(found("fn HOUSE() {}"), ["house"]);
        assert!(found("fn clear_year(hearing: Bookkeeper) {}").is_empty());
        assert!(found("ZooKeeper::new()").is_empty());
    }

    #[test]
    fn sentences_about_who_are_found() {
        let about = |text: &str| {
            let mut findings = Vec::new();
            check_comments(&Source::new("a.rs", text), &mut findings);
            findings.len()
        };
        for found in ["! Whoever waits is told.", " Who waits", "/ A wait. Who waits is told."] {
            assert_eq!(about(&format!("f(); //{found}")), 1, "{found}");
        }
        for free in ["/ It is known who waits.", "/ Whose it is."] {
            assert_eq!(about(&format!("//{free}")), 0, "{free}");
        }
    }

    #[test]
    fn what_comments_and_strings_say_is_not_looked_at() {
        let source = Source::new("a.rs", "// a tower\nlet a = \"a tower\";\n");
        let mut findings = Vec::new();
        check(&source, &mut findings);
        assert!(findings.is_empty());
    }
}
