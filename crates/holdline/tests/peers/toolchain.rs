//! The peers, built once for all tests.

pub(crate) use holdline_testkit::Language;
use std::path::{Path, PathBuf};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Small and quick to start is what matters here.
const JAVA: &[&str] = &["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];

/// The peer of this language, ready to be started; or what is missing.
///
/// # Panics
///
/// When the tools are there and the peer does not build.
pub(crate) async fn program(language: Language) -> Result<Command, String> {
    static BUILT: [OnceCell<Result<PathBuf, String>>; 4] = [const { OnceCell::const_new() }; 4];
    let build = move || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers").join(language.folder());
        language.build("peer", &[&source.join(language.folder())], &folder)?;
        Ok(folder)
    };
    let built = BUILT[language as usize]
        .get_or_init(|| async { tokio::task::spawn_blocking(build).await.expect("it builds") });
    let folder = built.await.as_ref().map_err(Clone::clone)?;
    Ok(language.command("peer", folder, JAVA).into())
}

/// Whether the peer in Go has the newest versions, and clients that have no older ones.
pub(crate) async fn newest_go() -> bool {
    tokio::task::spawn_blocking(holdline_testkit::newest_go).await.expect("it looks")
}
