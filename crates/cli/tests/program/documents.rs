//! The commands of the documents: each is one that the program understands, and those that need no
//! server are run.

use super::common::{HOLDLINE, Place, Run, finish, lives, until, write_script};
use std::fs;
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
    let single = ["README.md", "examples/README.md", "packaging/README.md"];
    let mut all: Vec<PathBuf> = single.iter().map(|name| root().join(name)).collect();
    for folder in ["docs", "docs/guides", "docs/faults", "docs/layouts", "docs/decisions"] {
        all.extend(files(folder));
    }
    for folder in ["systemd", "oci", "github", "kubernetes"] {
        all.extend(files(&format!("packaging/{folder}")));
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
    "top",
    "break",
    "elect",
    "schema",
    "sweep",
    "doctor",
    "bench",
    "completions",
    "man",
];

/// What a placeholder may stand for.
fn filled(word: &str) -> &str {
    match word {
        "ID" => "abcdef",
        "SHELL" => "bash",
        "TIME" => "1s",
        other => other,
    }
}

/// What is code in a document: blocks, and in the text what stands between backticks.
fn code(text: &str) -> String {
    let mut code: String = blocks(text).into_iter().map(|block| block.text).collect();
    for span in text.split('`').filter(|span| span.starts_with("holdline ")) {
        code.push_str(span);
        code.push('\n');
    }
    code
}

/// With `--help` behind them, wrong flags are still refused, and nothing is done.
#[test]
fn every_flag_that_a_document_shows_is_known() {
    let mut tried = 0;
    for path in documents() {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let is_code = path.extension().is_none_or(|end| end != "md");
        let in_text = code(&text);
        for line in if is_code { &text } else { &in_text }.lines() {
            for words in calls(line) {
                let known = words.first().is_some_and(|verb| VERBS.contains(&verb.as_str()));
                if !known
                    || words.iter().any(|word| word.contains(['[', '$', '%']) || word == "...")
                {
                    continue;
                }
                let words = words.iter().map(|word| filled(word)).chain(["--help"]);
                let run = Place::new().run(words);
                assert_eq!(run.code, 0, "{}: {line}: {run:?}", path.display());
                tried += 1;
            }
        }
    }
    assert!(tried >= 40, "only {tried} commands were found");
}

/// Runs a script in a place where the scripts of the documents are there, and say their names.
fn script(place: &Place, text: &str) -> Run {
    for name in ["report.sh", "backup.sh", "deploy.sh"] {
        let file = place.path(name);
        write_script(&file, &format!("#!/bin/sh\necho {name}\n"));
    }
    let folder = Path::new(HOLDLINE).parent().expect("it is in a folder").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command.args(["-e", "-c", text]).current_dir(place.path(""));
    command.env("PATH", format!("{folder}:{path}")).env("HOLDLINE_STORE", place.url());
    command.env("HOLDLINE_CONFIG", "");
    finish(&mut command)
}

/// The pages whose shell blocks need no server, or can do with files in place of servers.
const PAGES: &[&str] =
    &["README.md", "docs/guides/program.md", "docs/guides/file.md", "docs/guides/quorum.md"];

/// A block as it can be run here: in this place, as this user, and on files.
fn here(place: &Place, text: &str) -> String {
    let folder = place.path("machine").display().to_string();
    let file = |name: &str| format!("sqlite:{}", place.path(name).display());
    text.replace("\n...\n", "\n:\n")
        .replace("/var/lib/holdline", &folder)
        .replace("sudo ", "")
        .replace(
            "quorum:redis://a,redis://b,redis://c",
            &format!("quorum:{},{},{}", file("a"), file("b"), file("c")),
        )
}

#[test]
fn the_shell_blocks_of_the_pages_run() {
    if !rustix::process::geteuid().is_root() {
        holdline_testkit::missing("the right to give a file to a group (root)");
        return;
    }
    for name in PAGES {
        let text = fs::read_to_string(root().join(name)).unwrap();
        let mut ran = 0;
        for block in blocks(&text).iter().filter(|block| block.language == "sh") {
            if !block.text.contains("holdline ") || block.text.contains("cargo ") {
                continue;
            }
            let place = Place::new();
            let run = script(&place, &here(&place, &block.text));
            assert_eq!((run.code, run.err.as_str()), (0, ""), "{name}: {}", block.text);
            assert_eq!(place.status("backup")["holders"].as_array().map(Vec::len), Some(0));
            for job in ["report.sh", "backup.sh"] {
                let (calls, done) = (format!("./{job}"), format!("{job}\n"));
                let calls = block.text.matches(&calls).count();
                assert_eq!(run.out.matches(&done).count(), calls, "{name}: {run:?}");
            }
            ran += 1;
        }
        assert!(ran >= 1, "no block of {name} was run");
    }
}

/// A text on one line, however it is broken: in a document, or as a constant in a program.
fn on_one_line(text: &str) -> String {
    text.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// All tests of the library, as text.
fn tests_of_the_library(folder: &Path, text: &mut String) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            tests_of_the_library(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// The least rights that the guides name are those with which the library's tests run on servers.
#[test]
fn the_rights_that_guides_name_are_tested() {
    let mut tests = String::new();
    tests_of_the_library(&root().join("crates/holdline/tests"), &mut tests);
    let tests = on_one_line(&tests);
    let mut found = 0;
    for (guide, start, end) in [
        ("redis", "resetchannels ~app:* &app:wake:*", "+ping"),
        ("postgres", "GRANT USAGE ON SCHEMA holdline TO app;", "holdline TO app;\n```"),
        ("etcd", "--prefix=true readwrite", " "),
    ] {
        let text = fs::read_to_string(root().join(format!("docs/guides/{guide}.md"))).unwrap();
        let from = text.find(start).unwrap_or_else(|| panic!("{guide} names no rights"));
        let length = text[from + start.len()..].find(end).expect("they end") + start.len();
        let rights = on_one_line(&text[from..from + length]).replace(['"', ','], "");
        let tests = tests.replace(['"', ','], "");
        assert!(tests.contains(&rights), "no test of {guide} has these rights: {rights}");
        found += 1;
    }
    assert_eq!(found, 3);
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

/// A file below `packaging/`.
fn packaged(name: &str) -> String {
    fs::read_to_string(root().join("packaging").join(name)).unwrap()
}

/// The value of the one line that begins with this key.
fn value<'a>(file: &'a str, key: &str) -> &'a str {
    let mut values = file.lines().filter_map(|line| line.trim().strip_prefix(key));
    let value = values.next().unwrap_or_else(|| panic!("there is no {key}"));
    assert_eq!(values.next(), None, "{key} is there twice");
    value.trim()
}

/// The place of the time that follows `--min-hold`, and its seconds; it is given in minutes.
fn min_hold(words: &[String]) -> (usize, u64) {
    let flag = words.iter().position(|word| word == "--min-hold").expect("it is held so long");
    let minutes = words[flag + 1].strip_suffix('m').expect("it is in minutes");
    (flag + 1, minutes.parse::<u64>().expect("it is a number") * 60)
}

/// Two machines start a job: the second one when the first one's job has ended, but still within
/// the time that it holds the lock. The job prints its process id. Returns how the second one ends.
fn started_again(place: &Place, words: &[String]) -> Run {
    let mut first = place.start(words);
    let job = first.line().parse().expect("it is a process id");
    until("the job ends", || !lives(job));
    let second = place.run(words);
    assert!(first.runs(), "the first one holds the lock no longer");
    second
}

/// The unit of the nightly job does it once, though machines start it at different times; and the
/// timer does not spread these times for longer than the unit holds the lock.
#[test]
fn the_job_of_systemd_is_done_by_one_machine() {
    let unit = packaged("systemd/holdline-job@.service");
    let place = Place::new();
    let script = place.path("job.sh");
    fs::write(&script, "echo $$\n").unwrap();
    let line = value(&unit, "ExecStart=").replace("%i", "job");
    let line = line.replace("/etc/holdline/job.sh", &script.display().to_string());
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    assert_eq!(words.remove(0), "/usr/bin/holdline");
    let again = started_again(&place, &words);
    assert_eq!((again.code, again.out.as_str()), (75, ""), "{again:?}");
    assert_eq!(value(&unit, "SuccessExitStatus="), "75");

    let timer = packaged("systemd/holdline-job@.timer");
    let spread = value(&timer, "AccuracySec=").strip_suffix('s').expect("it is in seconds");
    assert!(spread.parse::<u64>().unwrap() < min_hold(&words).1);
    assert!(!timer.contains("\nPersistent="), "a machine that was off does it again");
}

/// The command of the CronJob, with a job and a time of ours.
#[test]
fn the_cron_job_of_kubernetes_runs() {
    let file = packaged("kubernetes/cronjob.yml");
    let list = |key: &str| -> Vec<String> {
        let text = file.lines().find_map(|line| line.trim().strip_prefix(key));
        serde_json::from_str(text.expect("the example has it")).expect("it is a list")
    };
    let mut words = [list("command: "), list("args: ")].concat();
    assert_eq!(
        (words.remove(0).as_str(), words.pop().as_deref()),
        ("holdline", Some("/report.sh"))
    );
    let (time, seconds) = min_hold(&words);
    assert!(seconds > value(&file, "startingDeadlineSeconds:").parse().unwrap());
    let job = ["sh", "-c", "echo $$"].map(str::to_owned);
    let again = started_again(&Place::new(), &[&words[..], &job].concat());
    assert_eq!((again.code, again.out.as_str()), (0, ""), "{again:?}");
    "10ms".clone_into(&mut words[time]);
    let place = Place::new();
    let run =
        place.run(words.iter().map(String::as_str).chain(["sh", "-c", "echo \"$0\" ran", "it"]));
    assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (0, "it ran\n", ""));
    let _holder = place.hold(&[], "nightly-report");
    let run = place.run(words.iter().map(String::as_str).chain(["echo", "ran"]));
    assert_eq!((run.code, run.out.as_str()), (0, ""), "that another does it is no failure");
}

/// The step of the GitHub Action that takes the lock, with the program where pip would put it.
#[test]
fn the_github_action_runs_a_line_under_the_lock() {
    let file = fs::read_to_string(root().join("packaging/github/action.yml")).unwrap();
    let (_, step) = file.rsplit_once("run: |\n").expect("its last step is a script");
    let place = Place::new();
    let bin = place.path("holdline/bin");
    fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(HOLDLINE, bin.join("holdline")).unwrap();
    let act_at = |store: &str, flags: &str| {
        let mut command = Command::new("bash");
        command.args(["-e", "-c", step]).env("RUNNER_TEMP", place.path("")).env("NAME", "deploy");
        command.env("LINE", "echo \"$HOLDLINE_NAME\"; exit 3").env("FLAGS", flags);
        command.env("LABEL", "a run").env("HOLDLINE_WAIT", "100ms");
        finish(command.env("HOLDLINE_STORE", store).env("HOLDLINE_CONFIG", ""))
    };
    let url = place.url();
    let act = |flags: &str| act_at(&url, flags);
    for flags in ["", "--lease 30s --permits 1/4"] {
        let run = act(flags);
        assert_eq!((run.code, run.out.as_str()), (3, "deploy\n"), "{run:?}");
    }
    let wrong = act("--quiet\n--lease 1ms\n");
    assert_eq!(wrong.code, 64, "flags of all lines count: {wrong:?}");
    let missing = act_at("", "");
    assert_eq!(missing.code, 64, "a secret that is missing is no store: {missing:?}");
    assert!(missing.out.starts_with("::error::"), "{missing:?}");
    let _holder = place.hold(&[], "deploy");
    assert_eq!(act("").code, 75, "it waits for as long as it was told");
}
