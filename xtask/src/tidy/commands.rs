//! Checks that the `cargo` commands in documents exist: subcommands of xtask, packages, targets,
//! features.
//!
//! Only code is read, up to `--` and to shell syntax. A word in capital letters is a placeholder.

use super::Finding;
use super::links::is_document;
use crate::{Outcome, package, servers, test, workspace};
use std::collections::{BTreeMap, BTreeSet};

/// The subcommands of cargo, and of tools that the project uses.
const SUBCOMMANDS: &[&str] = &[
    "add", "bench", "build", "check", "clippy", "deny", "doc", "fetch", "fmt", "fuzz", "install",
    "login", "metadata", "owner", "package", "publish", "run", "test", "tree", "update", "yank",
];

/// The names that commands may use.
pub(super) struct Known {
    packages: BTreeMap<String, Package>,
    /// The default package.
    default: String,
    /// The subcommands of xtask, each with the names that it takes; `None` if it takes any.
    xtask: BTreeMap<&'static str, Option<BTreeSet<String>>>,
}

/// A package of the workspace.
#[derive(Default)]
struct Package {
    folder: String,
    features: BTreeSet<String>,
    /// Kind and name, such as `("test", "smoke")`.
    targets: BTreeSet<(String, String)>,
}

impl Known {
    /// The names in this workspace.
    pub(super) fn here() -> Outcome<Self> {
        let names = |names: Vec<&str>| Some(names.into_iter().map(str::to_owned).collect());
        let parts = |parts: &mut dyn Iterator<Item = (&'static str, &'static str)>| {
            names(parts.map(|(name, _)| name).collect())
        };
        let mut topologies: Vec<&str> = servers::TOPOLOGIES.iter().map(|it| it.name).collect();
        topologies.extend(["start", "stop", "status"]);
        let packages = workspace::packages()?;
        Ok(Known {
            packages: packages.iter().map(Package::of).collect(),
            default: "holdline-cli".to_owned(),
            xtask: BTreeMap::from([
                ("test", parts(&mut test::parts())),
                ("package", parts(&mut package::parts())),
                ("servers", names(topologies)),
                ("tidy", names(Vec::new())),
                ("bench", None),
            ]),
        })
    }

    /// The errors in a command, given the words after `cargo`.
    fn complaints(&self, words: &[&str]) -> Vec<String> {
        let Some((verb, rest)) = words.split_first() else { return Vec::new() };
        match *verb {
            "xtask" => self.xtask(rest),
            verb if verb.starts_with('-') || is_placeholder(verb) => Vec::new(),
            verb if !SUBCOMMANDS.contains(&verb) => vec![format!("There is no `cargo {verb}`.")],
            verb => self.cargo(verb, rest),
        }
    }

    fn xtask(&self, words: &[&str]) -> Vec<String> {
        let Some((verb, rest)) = words.split_first() else { return Vec::new() };
        if verb.starts_with('-') || is_placeholder(verb) {
            return Vec::new();
        }
        let Some(names) = self.xtask.get(verb) else {
            return vec![format!("There is no `cargo xtask {verb}`.")];
        };
        let Some(names) = names else { return Vec::new() };
        let named = rest.iter().filter(|word| !word.starts_with('-') && !is_placeholder(word));
        let unknown = named.filter(|word| !names.contains(**word));
        unknown.map(|word| format!("`cargo xtask {verb}` does not know {word}.")).collect()
    }

    fn cargo(&self, verb: &str, words: &[&str]) -> Vec<String> {
        let value = |flags: &[&str]| {
            let at = words.iter().position(|word| flags.contains(word))?;
            words.get(at + 1).copied().filter(|value| !is_placeholder(value))
        };
        let folder = value(&["--path"]);
        if verb == "install" && folder.is_none() && !words.iter().any(|w| w.starts_with("holdline"))
        {
            return Vec::new(); // A program of others.
        }
        let mut complaints = Vec::new();
        if verb == "install" && !words.contains(&"--locked") {
            complaints.push("Install with --locked: what was tested.".to_owned());
        }
        let by_folder = |folder: &str| {
            let folder = folder.trim_end_matches('/');
            self.packages.iter().find(|(_, package)| package.folder == folder)
        };
        let name = value(&["-p", "--package"]).unwrap_or(&self.default);
        let found = match folder {
            Some(folder) => by_folder(folder),
            None => self.packages.get_key_value(name),
        };
        let Some((name, package)) = found else {
            complaints.push(format!("There is no package {}.", folder.unwrap_or(name)));
            return complaints;
        };
        let features = value(&["-F", "--features"]).into_iter().flat_map(|it| it.split(','));
        for feature in features.filter(|feature| !package.features.contains(*feature)) {
            complaints.push(format!("{name} has no feature {feature}."));
        }
        for kind in ["test", "bin", "example", "bench"] {
            if let Some(target) = value(&[&format!("--{kind}")])
                && !package.targets.contains(&(kind.to_owned(), target.to_owned()))
            {
                complaints.push(format!("{name} has no {kind} {target}."));
            }
        }
        complaints
    }
}

impl Package {
    /// The name and the rest of a package, as `cargo metadata` describes it.
    fn of(package: &serde_json::Value) -> (String, Package) {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let manifest = text(&package["manifest_path"]);
        let root = format!("{}/", workspace::root().display());
        let folder = manifest.trim_start_matches(&root).trim_end_matches("/Cargo.toml");
        let targets = package["targets"].as_array().into_iter().flatten();
        let package_features = package["features"].as_object().into_iter().flatten();
        let found = Package {
            folder: folder.to_owned(),
            features: package_features.map(|(name, _)| name.clone()).collect(),
            targets: targets.map(|it| (text(&it["kind"][0]), text(&it["name"]))).collect(),
        };
        (text(&package["name"]), found)
    }
}

/// Checks the commands in all documents.
pub(super) fn check(texts: &BTreeMap<String, String>, known: &Known, findings: &mut Vec<Finding>) {
    for (path, text) in texts.iter().filter(|(path, _)| is_document(path)) {
        for (line, code) in code(text) {
            for words in commands(code) {
                let complaints = known.complaints(&words);
                findings.extend(complaints.into_iter().map(|it| Finding::new(path, line, it)));
            }
        }
    }
}

/// The code of a document: the lines of blocks, and text between backticks; with line numbers.
fn code(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_block = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            found.push((number, line));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(|code| (number, code)));
        }
    }
    found
}

/// The words of each cargo command in a line of code, after `cargo`.
fn commands(line: &str) -> Vec<Vec<&str>> {
    let line = line.split_once(" #").map_or(line, |(before, _)| before);
    let parts = line.split(['|', ';', '&', '(', ')', '"', '>']);
    let words = parts.map(|part| part.split_whitespace().collect::<Vec<_>>());
    let found = words.filter_map(|words| {
        let is_setting = |word: &&str| *word == "$" || word.contains('=');
        let begin = words.iter().take_while(|word| is_setting(word)).count();
        (words.get(begin) == Some(&"cargo")).then(|| {
            let rest = words[begin + 1..].iter().copied();
            rest.take_while(|word| *word != "--").collect()
        })
    });
    found.collect()
}

/// Whether a word is a placeholder.
fn is_placeholder(word: &str) -> bool {
    word.contains(|c: char| c.is_uppercase() || "[<.…$".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let program = Package {
            folder: "crates/cli".to_owned(),
            features: names(&["full"]),
            targets: BTreeSet::from([("bin".to_owned(), "holdline".to_owned())]),
        };
        Known {
            packages: BTreeMap::from([("holdline-cli".to_owned(), program)]),
            default: "holdline-cli".to_owned(),
            xtask: BTreeMap::from([("test", Some(names(&["redis"]))), ("bench", None)]),
        }
    }

    /// The findings about a document.
    fn about(text: &str) -> Vec<String> {
        let texts = BTreeMap::from([("a.md".to_owned(), text.to_owned())]);
        let mut findings = Vec::new();
        check(&texts, &known(), &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn commands_that_are_there_are_fine() {
        let text = "`cargo xtask test redis` and `cargo xtask bench anything`, cargo nonsense\n\
                    ```sh\n$ A=1 cargo run --bin holdline -- nonsense  # cargo nonsense\n\
                    cargo install --locked --path crates/cli --features full && cargo xtask test\n\
                    cargo install nonsense\ncargo test -p CRATE --test NAME\n```\n";
        assert_eq!(about(text), [""; 0]);
    }

    #[test]
    fn commands_that_are_not_there_are_found() {
        let text = "`cargo xtask tset`, `cargo xtask test redsi`, `cargo rum`\n\
                    ```\neval \"$(cargo xtask tset)\"\ncargo install --path crates/cli\n\
                    cargo test -p nowhere\ncargo run --features ful --bin holdlin\n```\n";
        assert_eq!(
            about(text),
            [
                "a.md:1: There is no `cargo xtask tset`.",
                "a.md:1: `cargo xtask test` does not know redsi.",
                "a.md:1: There is no `cargo rum`.",
                "a.md:3: There is no `cargo xtask tset`.",
                "a.md:4: Install with --locked: what was tested.",
                "a.md:5: There is no package nowhere.",
                "a.md:6: holdline-cli has no feature ful.",
                "a.md:6: holdline-cli has no bin holdlin.",
            ]
        );
    }
}
