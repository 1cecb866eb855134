//! Builds the peers, once: where nothing has changed since, nothing is done.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::OnceCell;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "a build may lack the stores of some")]
pub(crate) enum Language {
    Go,
    Java,
    Node,
    Python,
    /// This binary itself.
    Rust,
}

/// The most that one step of a build may take: it may have to fetch packages.
const STEP: Duration = Duration::from_secs(600);

/// Why there is no peer: a tool or a package is missing.
type Missing = String;

/// The peer of this language, ready to be started; or what is missing.
///
/// # Panics
///
/// When the tools are there and the peer does not build.
pub(crate) async fn program(
    language: Language,
    servers: &str,
    lease: Duration,
) -> Result<Command, Missing> {
    if language == Language::Rust {
        return Ok(crate::rust::command(servers, lease));
    }
    static BUILT: [OnceCell<Result<PathBuf, Missing>>; 4] = [const { OnceCell::const_new() }; 4];
    let built = BUILT[language as usize].get_or_init(|| build(language)).await;
    let folder = built.as_ref().map_err(Clone::clone)?;
    let mut command = match language {
        Language::Go | Language::Rust => Command::new(folder.join("peer")),
        Language::Java => {
            let mut java = Command::new("java");
            // Small and quick to start is what matters here.
            java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
            java.arg(format!("{0}/classes:{0}/lib/*", folder.display())).arg("Peer");
            java
        }
        Language::Node => {
            let mut node = Command::new("node");
            node.arg(folder.join("peer.mjs"));
            node
        }
        Language::Python => {
            let mut python = Command::new(folder.join("venv/bin/python"));
            python.arg(folder.join("peer.py"));
            python
        }
    };
    command.arg(servers).arg(lease.as_millis().to_string());
    Ok(command)
}

/// Builds in a folder of its own, and leaves a note of what it was built from.
async fn build(language: Language) -> Result<PathBuf, Missing> {
    let name = format!("{language:?}").to_lowercase();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(&name);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers").join(&name);
    std::fs::create_dir_all(&folder).expect("there is room");
    let _lock = one_at_a_time(folder.with_extension("lock")).await;
    let version = version(language, &folder).await?;
    let mut hash = DefaultHasher::new();
    (&version, go_mod(&version)).hash(&mut hash);
    let mut files: Vec<_> = std::fs::read_dir(&source).expect("it is there").flatten().collect();
    files.sort_by_key(std::fs::DirEntry::file_name);
    for file in files {
        let text = std::fs::read(file.path()).expect("it can be read");
        (file.file_name(), &text).hash(&mut hash);
        std::fs::write(folder.join(file.file_name()), text).expect("there is room");
    }
    let (note, stamp) = (folder.join("built-from"), format!("{:x}", hash.finish()));
    if std::fs::read_to_string(&note).is_ok_and(|old| old == stamp) {
        return Ok(folder);
    }
    fetch(language, &folder, &version).await?;
    match language {
        Language::Go => {
            let file = go_mod(&version);
            let build = ["go", "build", "-modfile", file, "-o", "peer", "."];
            must(&run(&build, &folder).await.expect("go was there"));
        }
        Language::Java => {
            let build = ["javac", "-d", "classes", "-cp", "lib/*", "Peer.java"];
            must(&run(&build, &folder).await?);
        }
        Language::Node | Language::Python | Language::Rust => {}
    }
    std::fs::write(note, stamp).expect("there is room");
    Ok(folder)
}

/// What the tools call themselves: with others, the peer is built again.
async fn version(language: Language, folder: &Path) -> Result<String, Missing> {
    let probes: &[&[&str]] = match language {
        Language::Go => &[&["go", "env", "GOVERSION"]],
        Language::Java => &[&["javac", "-version"], &["mvn", "--version"]],
        Language::Node => &[&["node", "--version"], &["npm", "--version"]],
        Language::Python => &[&["python3", "-c", "import ensurepip, sys; print(sys.version)"]],
        Language::Rust => &[],
    };
    let mut all = String::new();
    for probe in probes {
        let output = run(probe, folder).await?;
        if !output.status.success() {
            return Err(missing(probe[0]));
        }
        all += &String::from_utf8_lossy(&output.stdout);
    }
    Ok(all.trim().to_owned())
}

/// Gets the packages, in the versions and with the checksums that the lock files name. Without a
/// network that can fail, and then the peer is missing.
async fn fetch(language: Language, folder: &Path, version: &str) -> Result<(), Missing> {
    let modfile = format!("-modfile={}", go_mod(version));
    let steps: &[&[&str]] = match language {
        Language::Go => &[&["go", "list", &modfile, "-deps", "."]],
        Language::Java => {
            let copy = ["mvn", "-q", "-B", "-C", "dependency:copy-dependencies"];
            &[&[copy[0], copy[1], copy[2], copy[3], copy[4], "-DoutputDirectory=lib"]]
        }
        Language::Rust => &[],
        Language::Node => &[&["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]],
        Language::Python => &[
            &["python3", "-m", "venv", "--clear", "venv"],
            &[
                "venv/bin/python",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--only-binary=:all:",
                "--require-hashes",
                "--requirement=requirements.txt",
            ],
        ],
    };
    for step in steps {
        let output = run(step, folder).await?;
        if !output.status.success() {
            return Err(format!("`{}` failed: {}", step.join(" "), words(&output)));
        }
    }
    Ok(())
}

/// Whether the peer in Go has the newest versions, and clients that have no older ones.
pub(crate) async fn newest_go() -> bool {
    let version = version(Language::Go, Path::new(".")).await;
    version.is_ok_and(|version| go_mod(&version) == "newest.mod")
}

/// The newest versions need a new Go; with any older one, those that built with Go 1.19 are taken.
/// `HOLDLINE_TEST_GO_MOD` chooses.
fn go_mod(version: &str) -> &'static str {
    let minor = version.trim_start_matches("go1.").split(['.', 'r', 'b', ' ']).next();
    let new = minor.and_then(|minor| minor.parse().ok()).is_some_and(|minor: u32| minor >= 26);
    match std::env::var("HOLDLINE_TEST_GO_MOD").as_deref() {
        Ok("go.mod") => "go.mod",
        Ok("newest.mod") => "newest.mod",
        _ if new => "newest.mod",
        _ => "go.mod",
    }
}

async fn run(words: &[&str], folder: &Path) -> Result<Output, Missing> {
    let own = folder.join(words[0]);
    let binary = if own.is_file() { own } else { PathBuf::from(words[0]) };
    let mut command = Command::new(binary);
    command.args(&words[1..]).current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
    command.env("CGO_ENABLED", "0").env("GOFLAGS", "-buildvcs=false").env("GOWORK", "off");
    let output = tokio::time::timeout(STEP, command.output()).await;
    let output = output.unwrap_or_else(|_| panic!("`{}` took too long", words.join(" ")));
    output.map_err(|_| missing(words[0]))
}

fn missing(tool: &str) -> Missing {
    let package = match tool {
        "go" => "golang-go",
        "java" | "javac" => "default-jdk-headless",
        "mvn" => "maven",
        "node" => "nodejs",
        "python3" => "python3-venv",
        other => other,
    };
    format!("{tool} is missing; `apt-get install {package}` on Debian and Ubuntu")
}

fn must(output: &Output) {
    assert!(output.status.success(), "the peer does not build: {}", words(output));
}

fn words(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).trim().to_owned()
}

/// Held while a peer is built: two runs of the tests may want the same one.
async fn one_at_a_time(path: PathBuf) -> std::fs::File {
    let wait = move || {
        let file = std::fs::File::create(path).expect("there is room");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("it waits");
        file
    };
    tokio::task::spawn_blocking(wait).await.expect("no panic")
}
