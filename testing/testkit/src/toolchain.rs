//! Builds of programs in other languages, with the versions pinned by their lock files. If nothing
//! has changed since, nothing is built.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// The language of a peer program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Language {
    Go,
    Java,
    Node,
    Php,
    Python,
    Ruby,
}

/// The time limit of a build step, which may have to fetch packages.
const STEP: Duration = Duration::from_secs(600);

/// The reason why there is no program: a tool or a package is missing.
type Missing = String;

impl Language {
    /// The name of its folders, of sources and of built programs.
    pub fn folder(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Builds the program `name` in `folder` from all files of these folders, and records its
    /// inputs. The program is `name` in Go, the class `Name` in Java, or `name.mjs`, `name.php`,
    /// `name.py`, `name.rb`.
    ///
    /// # Errors
    ///
    /// The missing tool or package.
    ///
    /// # Panics
    ///
    /// If the tools are there and the program does not build.
    pub fn build(self, name: &str, sources: &[&Path], folder: &Path) -> Result<(), Missing> {
        std::fs::create_dir_all(folder).expect("there is room");
        let _lock = one_at_a_time(&folder.with_extension("lock"));
        let version = version(self, folder)?;
        let mut hash = DefaultHasher::new();
        (&version, go_mod(&version)).hash(&mut hash);
        for source in sources {
            let mut files: Vec<_> =
                std::fs::read_dir(source).expect("it is there").flatten().collect();
            files.sort_by_key(std::fs::DirEntry::file_name);
            for file in files.iter().filter(|file| file.path().is_file()) {
                let text = std::fs::read(file.path()).expect("it can be read");
                (file.file_name(), &text).hash(&mut hash);
                std::fs::write(folder.join(file.file_name()), text).expect("there is room");
            }
        }
        let (note, stamp) = (folder.join("built-from"), format!("{:x}", hash.finish()));
        if std::fs::read_to_string(&note).is_ok_and(|old| old == stamp) {
            return Ok(());
        }
        fetch(self, folder, &version)?;
        match self {
            Language::Go => {
                let file = go_mod(&version);
                let build = ["go", "build", "-modfile", file, "-o", name, "."];
                must(&run(&build, folder).expect("go was there"));
            }
            Language::Java => {
                let file = class(name) + ".java";
                let build = ["javac", "-d", "classes", "-cp", "lib/*", &file];
                must(&run(&build, folder)?);
            }
            Language::Node | Language::Php | Language::Python | Language::Ruby => {}
        }
        std::fs::write(note, stamp).expect("there is room");
        Ok(())
    }

    /// A command for the program built in this folder. Java gets these options.
    pub fn command(self, name: &str, folder: &Path, java: &[&str]) -> Command {
        match self {
            Language::Go => Command::new(folder.join(name)),
            Language::Java => {
                let mut command = Command::new("java");
                let path = format!("{0}/classes:{0}/lib/*", folder.display());
                command.args(java).arg("-cp").arg(path).arg(class(name));
                command
            }
            Language::Node => script(Path::new("node"), folder, name, ".mjs"),
            Language::Php => script(Path::new("php"), folder, name, ".php"),
            Language::Python => script(&folder.join("venv/bin/python"), folder, name, ".py"),
            Language::Ruby => script(Path::new("ruby"), folder, name, ".rb"),
        }
    }
}

fn script(interpreter: &Path, folder: &Path, name: &str, ending: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(folder.join(name.to_owned() + ending));
    command
}

/// The name of a program's class: capitalized.
fn class(name: &str) -> String {
    let (first, rest) = name.split_at(1);
    first.to_uppercase() + rest
}

/// Checks for Debian's package of Symfony's Lock component, and its PostgreSQL driver.
const SYMFONY_LOCK: &str = "require 'Symfony/Component/Lock/autoload.php'; echo PHP_VERSION; \
                            exit(extension_loaded('pdo_pgsql') ? 0 : 1);";

/// The same for Active Record of Rails.
const ACTIVE_RECORD: &str = "puts ActiveRecord::VERSION::STRING";

/// The versions of the tools: a change rebuilds everything.
fn version(language: Language, folder: &Path) -> Result<String, Missing> {
    let probes: &[&[&str]] = match language {
        Language::Go => &[&["go", "env", "GOVERSION"]],
        Language::Java => &[&["javac", "-version"], &["mvn", "--version"]],
        Language::Node => &[&["node", "--version"], &["npm", "--version"]],
        Language::Php => &[&["php", "-r", SYMFONY_LOCK]],
        Language::Python => &[&["python3", "-c", "import ensurepip, sys; print(sys.version)"]],
        Language::Ruby => &[&["ruby", "-rlogger", "-ractive_record", "-rpg", "-e", ACTIVE_RECORD]],
    };
    let mut all = String::new();
    for probe in probes {
        let output = run(probe, folder)?;
        if !output.status.success() {
            return Err(missing(probe[0]));
        }
        all += &String::from_utf8_lossy(&output.stdout);
    }
    Ok(all.trim().to_owned())
}

/// Fetches the packages, with the versions and checksums of the lock files. Without a network this
/// can fail; then the program is missing.
fn fetch(language: Language, folder: &Path, version: &str) -> Result<(), Missing> {
    let modfile = format!("-modfile={}", go_mod(version));
    let steps: &[&[&str]] = match language {
        Language::Go => &[&["go", "list", &modfile, "-deps", "."]],
        Language::Java => {
            let copy = ["mvn", "-q", "-B", "-C", "dependency:copy-dependencies"];
            &[&[copy[0], copy[1], copy[2], copy[3], copy[4], "-DoutputDirectory=lib"]]
        }
        Language::Node => &[&["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]],
        Language::Php | Language::Ruby => &[], // Debian's
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
        let output = run(step, folder)?;
        if !output.status.success() {
            return Err(format!("`{}` failed: {}", step.join(" "), words(&output)));
        }
    }
    Ok(())
}

/// Whether Go programs use the newest versions, and clients that have no older ones.
pub fn newest_go() -> bool {
    let version = version(Language::Go, Path::new("."));
    version.is_ok_and(|version| go_mod(&version) == "newest.mod")
}

/// The module file: the newest versions need a new Go; an older Go gets versions for Go 1.19.
/// `HOLDLINE_TEST_GO_MOD` overrides the choice.
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

fn run(words: &[&str], folder: &Path) -> Result<Output, Missing> {
    let own = folder.join(words[0]);
    let binary = if own.is_file() { own } else { PathBuf::from(words[0]) };
    let mut command = Command::new(binary);
    command.args(&words[1..]).current_dir(folder).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("CGO_ENABLED", "0").env("GOFLAGS", "-buildvcs=false").env("GOWORK", "off");
    let child = command.spawn().map_err(|_| missing(words[0]))?;
    let pid = rustix::process::Pid::from_child(&child);
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    let Ok(output) = ended.recv_timeout(STEP) else {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        panic!("`{}` took too long", words.join(" "));
    };
    Ok(output.expect("its output is read"))
}

fn missing(tool: &str) -> Missing {
    let package = match tool {
        "go" => "golang-go",
        "java" | "javac" => "default-jdk-headless",
        "mvn" => "maven",
        "node" => "nodejs",
        "php" => "php-cli php-pgsql php-symfony-lock",
        "python3" => "python3-venv",
        "ruby" => "ruby ruby-activerecord ruby-pg",
        other => other,
    };
    format!("{tool} is missing; `apt-get install {package}` on Debian and Ubuntu")
}

fn must(output: &Output) {
    assert!(output.status.success(), "the program does not build: {}", words(output));
}

fn words(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).trim().to_owned()
}

/// A lock held while a program is built: two runs may need the same one.
fn one_at_a_time(path: &Path) -> std::fs::File {
    let file = std::fs::File::create(path).expect("there is room");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("it waits");
    file
}
