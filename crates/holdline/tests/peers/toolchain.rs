//! The peers, built once for all tests.

use holdline_testkit as testkit;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Small and quick to start is what matters here.
const JAVA: &[&str] = &["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "a build may lack the stores of some")]
pub(crate) enum Language {
    Go,
    Java,
    Node,
    Php,
    Python,
    Ruby,
    /// This binary itself.
    Rust,
}

/// The peer of this language, ready to be started with these servers and lease; or what is missing.
///
/// # Panics
///
/// When the tools are there and the peer does not build.
pub(crate) async fn program(
    language: Language,
    servers: &str,
    lease: Duration,
) -> Result<Command, String> {
    static BUILT: [OnceCell<Result<PathBuf, String>>; 6] = [const { OnceCell::const_new() }; 6];
    let language = match language {
        Language::Go => testkit::Language::Go,
        Language::Java => testkit::Language::Java,
        Language::Node => testkit::Language::Node,
        Language::Php => testkit::Language::Php,
        Language::Python => testkit::Language::Python,
        Language::Ruby => testkit::Language::Ruby,
        Language::Rust => return Ok(crate::rust::command(servers, lease)),
    };
    let build = move || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers").join(language.folder());
        language.build("peer", &[&source.join(language.folder())], &folder)?;
        Ok(folder)
    };
    let built = BUILT[language as usize]
        .get_or_init(|| async { tokio::task::spawn_blocking(build).await.expect("it builds") });
    let folder = built.await.as_ref().map_err(Clone::clone)?;
    let mut command: Command = language.command("peer", folder, JAVA).into();
    command.arg(servers).arg(lease.as_millis().to_string());
    Ok(command)
}

/// Whether the peer in Go has the newest versions, and clients that have no older ones.
pub(crate) async fn newest_go() -> bool {
    tokio::task::spawn_blocking(testkit::newest_go).await.expect("it looks")
}
