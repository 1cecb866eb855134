//! Checks that links between documents lead somewhere: in the repository and, for the guides, also
//! in the library's documentation, whose pages they are.

use super::Finding;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The folder of the pages that are also in the documentation.
const GUIDES: &str = "docs/guides/";

/// The file with the targets of the guides' links in the documentation.
const THERE: &str = "crates/holdline/src/guides/links.md";

/// The module that lists the pages.
pub(super) const MODULE: &str = "crates/holdline/src/guides.rs";

/// The address in the repository of a file that is no page.
const REPOSITORY: &str = "https://github.com/holdline/holdline/blob/main/";

/// A link to a file, or to a heading.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    line: usize,
    to: String,
    /// The label, if the line is a definition such as `[label]: page.md`.
    label: Option<String>,
}

/// Checks the links of all documents. `texts` has the documents, and the module of the guides, by
/// path.
pub(super) fn check(
    paths: &[String],
    texts: &BTreeMap<String, String>,
    findings: &mut Vec<Finding>,
) {
    let there = texts.get(THERE).map(|text| links(text)).unwrap_or_default();
    let there: BTreeMap<String, &Link> =
        there.iter().filter_map(|link| Some((link.label.clone()?, link))).collect();
    let mut used = BTreeSet::new();
    for (path, text) in texts.iter().filter(|(path, _)| is_document(path) && *path != THERE) {
        let mut say = |line, sentence: String| findings.push(Finding::new(path, line, sentence));
        for link in links(text).into_iter().filter(|link| !link.to.contains("://")) {
            let (file, heading) = link.to.split_once('#').unwrap_or((&link.to, ""));
            let target = if file.is_empty() { path.clone() } else { beside(path, file) };
            if !is_there(&target, paths) {
                say(link.line, format!("The link leads to {target}, which is not there."));
            } else if !heading.is_empty() && !has_heading(texts.get(&target), heading) {
                say(link.line, format!("{target} has no heading #{heading}."));
            }
            if !path.starts_with(GUIDES) || file.is_empty() {
                continue;
            }
            let wanted = in_the_documentation(&target, heading);
            match link.label {
                None => {
                    let sentence = format!(
                        "Write [words][label], and `[label]: {}` at the end: this is a page of \
                         the documentation, too, where the label leads to what {THERE} says.",
                        link.to
                    );
                    say(link.line, sentence);
                }
                Some(label) if there.get(&label).is_none_or(|link| link.to != wanted) => {
                    say(link.line, format!("{THERE} needs `[{label}]: {wanted}`."));
                }
                Some(label) => {
                    used.insert(label);
                }
            }
        }
    }
    for (label, link) in there.iter().filter(|(label, _)| !used.contains(*label)) {
        let sentence = format!("No guide has a link with the label {label}.");
        findings.push(Finding::new(THERE, link.line, sentence));
    }
    pages(paths, texts, findings);
}

/// Every guide is a page of the documentation.
fn pages(paths: &[String], texts: &BTreeMap<String, String>, findings: &mut Vec<Finding>) {
    let named = texts.get(MODULE).and_then(|text| text.split_once("pages! {"));
    let named = named.map_or("", |(_, rest)| rest.split('}').next().unwrap_or_default());
    let named: BTreeSet<&str> = named.split_whitespace().collect();
    for path in paths {
        let page = path.strip_prefix(GUIDES).and_then(|name| name.strip_suffix(".md"));
        if page.is_some_and(|page| !named.contains(page)) {
            findings.push(Finding::new(path, 1, format!("`pages!` of {MODULE} does not name it.")));
        }
    }
}

/// Whether a file is a document.
pub(super) fn is_document(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|end| end == "md")
}

/// All links of a text, except those in code.
fn links(text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        if let Some((label, to)) = definition.filter(|(label, _)| !label.contains(']')) {
            let (label, to) = (Some(label.to_lowercase()), to.trim().to_owned());
            found.push(Link { line: number, to, label });
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for rest in prose.split("](").skip(1) {
            let to = rest.split(')').next().unwrap_or_default().to_owned();
            found.push(Link { line: number, to, label: None });
        }
    }
    found
}

/// The path, from the root, that a file refers to.
fn beside(path: &str, named: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in named.trim_end_matches('/').split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether a file or folder exists.
fn is_there(target: &str, paths: &[String]) -> bool {
    let folder = format!("{target}/");
    paths.iter().any(|path| path == target || path.starts_with(&folder))
}

/// Whether a document has a heading with this anchor.
fn has_heading(text: Option<&String>, anchor: &str) -> bool {
    let mut headings = text.into_iter().flat_map(|text| text.lines());
    headings.any(|line| line.starts_with('#') && self::anchor(line) == anchor)
}

/// The anchor of a heading, as GitHub and rustdoc generate it.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The target of a link from a page of the documentation.
fn in_the_documentation(target: &str, heading: &str) -> String {
    let heading = if heading.is_empty() { String::new() } else { format!("#{heading}") };
    match target.strip_prefix(GUIDES).and_then(|name| name.strip_suffix(".md")) {
        Some(page) => format!("crate::guides::{page}{heading}"),
        None => format!("{REPOSITORY}{target}{heading}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings about a tree of these files.
    fn about(files: &[(&str, &str)]) -> Vec<String> {
        let texts: BTreeMap<String, String> =
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let paths: Vec<String> = texts.keys().cloned().collect();
        let mut findings = Vec::new();
        check(&paths, &texts, &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn links_lead_to_files_folders_and_headings() {
        let good = "[a](docs/a.md) [b](docs/) [c](docs/a.md#the-ab-of-it) [d](#top)\n# Top\n\
                    [e](https://example.com) `[f](nowhere)`\n```\n[g](nowhere)\n```\n";
        let page = ("docs/a.md", "# The `a/b` of it\n[up](../README.md)\n");
        assert_eq!(about(&[("README.md", good), page]), [""; 0]);
        let bad = "[a](docs/b.md)\n[b](docs/a.md#it)\n";
        assert_eq!(
            about(&[("README.md", bad), page]),
            [
                "README.md:1: The link leads to docs/b.md, which is not there.",
                "README.md:2: docs/a.md has no heading #it."
            ]
        );
    }

    #[test]
    fn links_of_guides_lead_somewhere_in_the_documentation() {
        let module = (MODULE, "pages! { a b }\n");
        let there = "[b]: crate::guides::b#x\n[read]: \
                     https://github.com/holdline/holdline/blob/main/README.md\n";
        let (b, readme) = (("docs/guides/b.md", "# X\n"), ("README.md", ""));
        let a = "[b], [me][read], [x](https://example.com), [y](#y)\n# Y\n\n\
                 [b]: b.md#x\n[read]: ../../README.md\n";
        let files = [module, b, readme, (THERE, there), ("docs/guides/a.md", a)];
        assert_eq!(about(&files), [""; 0]);

        let a = "[b](b.md)\n[read]: ../../README.md\n";
        let there = "[b]: crate::guides::b\n[read]: README.md\n";
        let module = (MODULE, "pages! { a }\n");
        let found = about(&[module, b, readme, (THERE, there), ("docs/guides/a.md", a)]);
        let [inline, other, unused @ .., unnamed] = &found[..] else { panic!("{found:?}") };
        assert!(inline.starts_with("docs/guides/a.md:1: Write [words][label]"), "{inline}");
        assert!(other.contains(":2: ") && other.contains("blob/main/README.md`."), "{other}");
        assert_eq!(unused.len(), 2, "{found:?}");
        assert!(unnamed.starts_with("docs/guides/b.md:1: `pages!`"), "{unnamed}");
    }
}
