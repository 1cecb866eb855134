//! The program: one static file with all stores, for every Linux of its processor.

use super::{dist, emptied, install, is_root, order, run, says_text, tool};
use crate::test::tools;
use crate::{Outcome, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Linux with musl, against which everything that the program needs can be linked statically.
pub(super) const TARGET: &str = "x86_64-unknown-linux-musl";

/// The parts of SQLite that the file store does not use, and that each opening of a database would
/// initialize.
const SQLITE: [&str; 5] = [
    "-USQLITE_ENABLE_DBSTAT_VTAB",
    "-USQLITE_ENABLE_FTS3",
    "-USQLITE_ENABLE_FTS3_PARENTHESIS",
    "-USQLITE_ENABLE_FTS5",
    "-USQLITE_ENABLE_RTREE",
];

/// Builds the program and tests it in an otherwise empty root.
pub(super) fn make(check: bool) -> Outcome<String> {
    let program = build()?;
    let size = std::fs::metadata(&program).map_or(0, |data| data.len());
    let said = format!("{} ({:.1} MB)", program.display(), size as f64 / 1e6);
    if check {
        is_static(&program)?;
        names_no_path(&program)?;
        return Ok(format!("{said}; static; {}; {}", order::check(&program)?, alone(&program)?));
    }
    Ok(said)
}

/// The program, built if its sources have changed; otherwise the earlier build.
pub(super) fn build() -> Outcome<PathBuf> {
    let built = match std::env::var_os("HOLDLINE_PROGRAM") {
        Some(program) => PathBuf::from(program),
        None => compile(&workspace::root(), &workspace::target())?,
    };
    let program = dist()?.join("holdline");
    install(&built, &program, 0o755)?;
    Ok(program)
}

/// Compiles the sources in a folder into a target folder. No path of this machine gets into the
/// program, so that the same sources give the same bytes elsewhere.
pub(super) fn compile(root: &Path, target: &Path) -> Outcome<PathBuf> {
    if !tools::rust_has(TARGET)? {
        return Err(format!("Rust for {TARGET} is missing: `rustup target add {TARGET}`."));
    }
    if tool("musl-gcc").is_none() {
        return Err("musl-gcc is missing: `apt-get install musl-tools`.".to_owned());
    }
    let cargo_home = cargo_home();
    let (root_path, cargo_home, target_path) =
        (root.display(), cargo_home.display(), target.display());
    // At a fixed address nothing is relocated at each start, which would touch 270 pages, and again
    // in the command's launcher.
    let rust = format!(
        "-C relocation-model=static -C link-arg=-Wl,-T,{} \
         --remap-path-prefix={cargo_home}=/cargo \
         --remap-path-prefix={target_path}=/target --remap-path-prefix={root_path}=/source",
        order::SCRIPT
    );
    let c = format!(
        "-ffile-prefix-map={cargo_home}=/cargo -ffile-prefix-map={target_path}=/target \
         -ffile-prefix-map={root_path}=/source"
    );
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--release", "--locked", "--target", TARGET]);
    cargo.args(["--package", "holdline-cli", "--features", "full"]).arg("--target-dir").arg(target);
    cargo.current_dir(root);
    cargo.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUSTFLAGS", rust);
    cargo.env("CFLAGS_x86_64_unknown_linux_musl", c);
    cargo.env("CC_x86_64_unknown_linux_musl", "musl-gcc");
    cargo.env("LIBSQLITE3_FLAGS", SQLITE.join(" "));
    if let Some(jobs) = std::env::var_os("HOLDLINE_JOBS") {
        cargo.arg("--jobs").arg(jobs);
    }
    run(&mut cargo)?;
    Ok(target.join(TARGET).join("release/holdline"))
}

fn cargo_home() -> PathBuf {
    let named = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let named = named.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    named.unwrap_or_default()
}

/// Fails if the program contains a path of this machine.
fn names_no_path(program: &Path) -> Outcome<()> {
    let bytes =
        std::fs::read(program).map_err(|e| format!("I cannot read {}: {e}.", program.display()))?;
    for path in [workspace::root(), workspace::target(), cargo_home()] {
        let text = path.as_os_str().as_encoded_bytes();
        if !text.is_empty() && bytes.windows(text.len()).any(|part| part == text) {
            return Err(format!(
                "the program has a path of this machine in it: {}",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Fails if the program needs any library.
fn is_static(program: &Path) -> Outcome<()> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .map_err(|e| format!("`ldd` could not be started: {e}."))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let good = ["statically linked", "not a dynamic executable"];
    if good.iter().any(|words| text.contains(words)) {
        return Ok(());
    }
    Err(format!("the program is not static: {}", text.trim()))
}

/// Runs the program in a root folder that contains nothing else.
fn alone(program: &Path) -> Outcome<String> {
    if !is_root() {
        return Ok("not tried in an empty root, which needs root".to_owned());
    }
    let root = emptied("empty-root")?;
    install(program, &root.join("holdline"), 0o755)?;
    let inside = |args: &[&str]| {
        let mut command = Command::new("chroot");
        command.arg(&root).arg("/holdline").args(args);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        says_text(&mut command)
    };
    let version = inside(&["--version"])?;
    let store = "sqlite:/locks.db";
    let token = inside(&["run", "--store", store, "x", "--", "/holdline", "--version"])?;
    if token != version {
        return Err(format!("the command under the lock said {token:?}, not {version:?}"));
    }
    for (kind, path) in
        [("redis", ""), ("etcd", ""), ("zookeeper", ""), ("postgres", "/x"), ("mysql", "/x")]
    {
        let url = format!("{kind}://127.0.0.1:1{path}");
        let error = match inside(&["try", "--store", &url, "x"]) {
            Ok(said) => return Err(format!("{url} answers: {said}")),
            Err(error) => error,
        };
        // 69: the store is known, but unreachable.
        if !error.contains("exit status: 69") {
            return Err(format!("{url} is no store of this build: {error}"));
        }
    }
    Ok("runs in an empty root, with every store".to_owned())
}
