//! Drivers: programs that take locks of one library, on orders given in lines.

use super::list::Peer;
use crate::Failure;
use holdline_testkit::Language;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The time limit of an answer. Pollers may wait long for each other.
const LONG: Duration = Duration::from_secs(120);
/// Java's heap.
const JAVA: &[&str] = &["-Xmx512m"];

/// The drivers of this run, each built when it is first needed, or the reason why it cannot be.
#[derive(Default)]
pub(super) struct Drivers {
    built: HashMap<String, Result<PathBuf, String>>,
}

impl Drivers {
    /// Starts a driver without waiting for it.
    pub(super) fn start(&mut self, peer: &Peer, url: &str) -> Result<Driver, Failure> {
        let key = peer.language.map_or("rust".to_owned(), Language::folder);
        let build = || build(peer.language, &key);
        let built = self.built.entry(key.clone()).or_insert_with(build).clone()?;
        let mut command = match peer.language {
            Some(language) => language.command("driver", &built, JAVA),
            None => Command::new(built),
        };
        Driver::spawn(command.args([peer.name, url]))
    }
}

/// The folder of the sources.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// Builds the driver in this language, with the packages that the interoperability tests pin.
fn build(language: Option<Language>, key: &str) -> Result<PathBuf, String> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = repository.join("target/peers").join(key);
    let Some(language) = language else { return rust(&repository.join("target/peers-rust")) };
    let pinned = target.with_extension("pinned");
    let tests = repository.join("crates/holdline/tests/peers").join(key);
    let all = std::fs::read_dir(tests).map_err(|e| e.to_string())?.flatten();
    std::fs::create_dir_all(&pinned).map_err(|e| e.to_string())?;
    for file in all.filter(|file| is_pin(&file.path())) {
        let copied = std::fs::copy(file.path(), pinned.join(file.file_name()));
        copied.map_err(|e| e.to_string())?;
    }
    language.build("driver", &[&pinned, &sources().join(key)], &target)?;
    Ok(target)
}

/// Whether this file pins the versions of packages.
fn is_pin(file: &Path) -> bool {
    let pins = ["mod", "sum", "xml", "json", "txt"];
    file.extension().is_some_and(|extension| pins.iter().any(|pin| extension == *pin))
}

/// The Rust driver. One of its libraries needs the protocol buffer compiler.
fn rust(target: &Path) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--locked", "--quiet", "--target-dir"]).arg(target);
    build.arg("--manifest-path").arg(sources().join("rust/Cargo.toml"));
    if crate::machine::output("protoc", &["--version"]).is_some() {
        build.args(["--features", "etcd-client"]);
    }
    let status = build.status().map_err(|error| format!("cargo does not start: {error}"))?;
    if !status.success() {
        return Err("the driver in Rust does not build; see above".to_owned());
    }
    Ok(target.join("release/holdline-peers"))
}

/// A running driver. It is killed when this is dropped.
pub(super) struct Driver {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Driver {
    fn spawn(command: &mut Command) -> Result<Self, Failure> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("a driver has no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("a driver has no output")?);
        let (send, lines) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).all(|line| send.send(line).is_ok())
        });
        Ok(Driver { child, input, lines })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn say(&mut self, line: &str) -> Result<(), Failure> {
        Ok(self.input.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Its next line.
    pub(super) fn answer(&mut self) -> Result<String, Failure> {
        self.lines.recv_timeout(LONG).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("no answer in {LONG:?}").into(),
            RecvTimeoutError::Disconnected => "the driver ended; what it said is above".into(),
        })
    }

    pub(super) fn ready(&mut self) -> Result<(), Failure> {
        self.expect("ready")
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<(), Failure> {
        let line = self.answer()?;
        if line == word { Ok(()) } else { Err(format!("{line:?} instead of {word:?}").into()) }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
