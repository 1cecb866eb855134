//! The commands of the documents: each is one that the program understands, and those that need no
//! server are run.

use super::common::{HOLDLINE, Place, Run, finish};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A fenced block of a document.
struct Block {
    language: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents that users read, and the files that they copy from.
fn documents() -> Vec<PathBuf> {
    let files = |folder: &str| {
        let entries = fs::read_dir(root().join(folder)).expect("the folder is there");
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
    };
    let mut all: Vec<PathBuf> = vec![root().join("README.md"), root().join("examples/README.md")];
    for folder in ["docs/guides", "docs", "packaging/systemd", "packaging/oci"] {
        all.extend(files(folder));
    }
    all.sort();
    all
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line.trim_start().strip_prefix("```") {
            Some(language) => {
                inside = !inside;
                if inside {
                    let language = language.trim().to_owned();
                    blocks.push(Block { language, text: String::new() });
                }
            }
            None if inside => {
                let block = blocks.last_mut().expect("one was begun");
                block.text.push_str(line);
                block.text.push('\n');
            }
            None => {}
        }
    }
    blocks
}

/// The command lines in a text that call the program, as words up to `--` or the end of it.
fn calls(line: &str) -> Vec<Vec<String>> {
    let starts = line.match_indices("holdline ").filter(|(at, _)| {
        let before = &line[..*at];
        before.is_empty() || before.ends_with([' ', '(', '/', '`', '=', '\t'])
    });
    let mut found = Vec::new();
    for (at, word) in starts {
        let rest = &line[at + word.len()..];
        let end = rest.find(['#', '|', ')', '`', '"', '\'', '<', ';']).unwrap_or(rest.len());
        let words = rest[..end].split_whitespace().take_while(|word| *word != "--");
        let words: Vec<String> = words.map(str::to_owned).collect();
        found.push(words);
    }
    found
}

const VERBS: &[&str] = &[
    "run",
    "acquire",
    "release",
    "try",
    "status",
    "watch",
    "break",
    "elect",
    "schema",
    "sweep",
    "completions",
    "man",
];

/// With `--help` behind them, wrong flags are still refused, and nothing is done.
#[test]
fn every_flag_that_a_document_shows_is_known() {
    let mut tried = 0;
    for path in documents() {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let is_code = path.extension().is_none_or(|end| end != "md");
        let in_blocks = blocks(&text).into_iter().map(|block| block.text).collect::<String>();
        for line in if is_code { &text } else { &in_blocks }.lines() {
            for words in calls(line) {
                let known = words.first().is_some_and(|verb| VERBS.contains(&verb.as_str()));
                if !known
                    || words.iter().any(|word| word.contains(['[', '$', '%']) || word == "...")
                {
                    continue;
                }
                let run = Place::new().run(words.iter().map(String::as_str).chain(["--help"]));
                assert_eq!(run.code, 0, "{}: {line}: {run:?}", path.display());
                tried += 1;
            }
        }
    }
    assert!(tried >= 8, "only {tried} commands were found");
}

/// Runs a script in a place where the scripts of the documents are there, and say their names.
fn script(place: &Place, text: &str) -> Run {
    for name in ["report.sh", "backup.sh", "deploy.sh"] {
        let file = place.path(name);
        fs::write(&file, format!("#!/bin/sh\necho {name}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let folder = Path::new(HOLDLINE).parent().expect("it is in a folder").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command.args(["-e", "-c", text]).current_dir(place.path(""));
    command.env("PATH", format!("{folder}:{path}")).env("HOLDLINE_STORE", place.url());
    command.env("HOLDLINE_CONFIG", "");
    finish(&mut command)
}

#[test]
fn the_shell_blocks_of_readme_and_guide_run() {
    let mut ran = 0;
    for name in ["README.md", "docs/guides/program.md"] {
        let text = fs::read_to_string(root().join(name)).unwrap();
        for block in blocks(&text).iter().filter(|block| block.language == "sh") {
            if !block.text.contains("holdline ") || block.text.contains("cargo ") {
                continue;
            }
            let place = Place::new();
            let run = script(&place, &block.text.replace("\n...\n", "\n:\n"));
            assert_eq!((run.code, run.err.as_str()), (0, ""), "{name}: {}", block.text);
            assert_eq!(place.status("backup")["holders"].as_array().map(Vec::len), Some(0));
            let reports = block.text.matches("./report.sh").count();
            assert_eq!(run.out.matches("report.sh\n").count(), reports, "{name}: {run:?}");
            ran += 1;
        }
    }
    assert!(ran >= 3, "only {ran} blocks were run");
}

/// What the README says of a script section, word for word.
#[test]
fn the_readmes_script_section_locks() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let line = "is locked by `lock=$(holdline acquire NAME)` and `holdline release \"$lock\"`";
    assert!(readme.contains(line), "the README says it otherwise");
    let place = Place::new();
    let run = script(
        &place,
        "lock=$(holdline acquire NAME); holdline try NAME || echo held; \
         holdline release \"$lock\"; \
         holdline try NAME && echo free",
    );
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.out.contains("held") && run.out.contains("free"), "{run:?}");
}

/// The sidecar of the Kubernetes example: the readiness answer is there while it leads, and says
/// the token; with its end others can lead.
#[test]
fn the_readiness_answer_is_there_while_it_leads() {
    let file = fs::read_to_string(root().join("packaging/kubernetes/leader.yml")).unwrap();
    let line = file.lines().find_map(|line| line.trim().strip_prefix("- mkdir -p /tmp/lead"));
    let line = line.expect("the example has such a line");
    assert!(
        line.contains("$HOLDLINE_TOKEN") && line.ends_with("exec httpd -f -p 8081 -h /tmp/lead")
    );
    let place = Place::new();
    // The server of the example is busybox's; here a command that says when it serves stands in.
    let lead = place.path("lead");
    let serve = format!(
        "mkdir -p {0}{1}",
        lead.display(),
        line.replace("/tmp/lead", &lead.display().to_string())
            .replace("exec httpd -f -p 8081 -h", "echo serves; exec sleep 60 #"),
    );
    let mut leader = place.start(["elect", "scheduler", "pod-1", "--", "/bin/sh", "-c", &serve]);
    assert_eq!(leader.line(), "serves");
    let token = fs::read_to_string(lead.join("index.html")).expect("it is written before");
    let status = place.status("scheduler");
    assert_eq!(status["holders"][0]["token"].to_string(), token.trim());
    leader.signal(rustix::process::Signal::TERM);
    assert_eq!(leader.end().code, 143);
    assert_eq!(place.counts("scheduler"), (0, 0));
}
