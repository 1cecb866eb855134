//! The Debian package: the static program, manual pages, completions, the machine-wide folder.

use super::{
    dist, emptied, install, is_root, program, run, says, says_text, source_date, sources, tool,
    version, write,
};
use crate::{Outcome, workspace};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHELLS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/holdline"),
    ("zsh", "usr/share/zsh/vendor-completions/_holdline"),
    ("fish", "usr/share/fish/vendor_completions.d/holdline.fish"),
];

const UNITS: [&str; 3] =
    ["holdline-job@.service", "holdline-job@.timer", "holdline-leader@.service"];

const DOCUMENTS: [&str; 4] = ["README.md", "GUARANTEES.md", "CHANGELOG.md", "SECURITY.md"];

pub(super) fn make(check: bool) -> Outcome<String> {
    let package = pack()?;
    let said = package.display().to_string();
    if !check {
        return Ok(said);
    }
    lintian(&package)?;
    Ok(format!("{said}; {}", in_a_fresh_root(&package)?))
}

/// Builds the package. The same program gives the same file: its timestamps are the last commit's.
pub(super) fn pack() -> Outcome<PathBuf> {
    let (program, version) = (program::build()?, version()?);
    let tree = emptied("deb")?;
    fill(&tree, &program, &version)?;
    let package = dist()?.join(format!("holdline_{version}_amd64.deb"));
    // Independent of the umask; and one thread, since xz's output differs with several.
    run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(&tree))?;
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]);
    build.arg(&tree).arg(&package);
    run(build.env("SOURCE_DATE_EPOCH", source_date()?))?;
    Ok(package)
}

/// Puts everything where it will be installed.
fn fill(tree: &Path, program: &Path, version: &str) -> Outcome<()> {
    install(program, &tree.join("usr/bin/holdline"), 0o755)?;
    for (shell, file) in SHELLS {
        let text = says(Command::new(program).args(["completions", shell]))?;
        write(&tree.join(file), &text, 0o644)?;
    }
    for verb in verbs(program)? {
        let mut man = Command::new(program);
        man.arg("man");
        let page = if verb.is_empty() { "holdline".to_owned() } else { format!("holdline-{verb}") };
        if !verb.is_empty() {
            man.arg(&verb);
        }
        let packed = gzip(&says(&mut man)?)?;
        write(&tree.join(format!("usr/share/man/man1/{page}.1.gz")), &packed, 0o644)?;
    }
    let (root, sources) = (workspace::root(), sources());
    let documents = tree.join("usr/share/doc/holdline");
    for name in DOCUMENTS {
        install(&root.join(name), &documents.join(name), 0o644)?;
    }
    install(&root.join("docs/guides/program.md"), &documents.join("program.md"), 0o644)?;
    for name in UNITS {
        let to = documents.join("examples/systemd").join(name);
        install(&sources.join("systemd").join(name), &to, 0o644)?;
    }
    install(&sources.join("deb/copyright"), &documents.join("copyright"), 0o644)?;
    for (name, folder) in [("tmpfiles", "tmpfiles.d"), ("sysusers", "sysusers.d")] {
        let to = tree.join("usr/lib").join(folder).join("holdline.conf");
        install(&sources.join("deb").join(format!("holdline.{name}")), &to, 0o644)?;
    }
    for name in ["postinst", "postrm"] {
        install(&sources.join("deb").join(name), &tree.join("DEBIAN").join(name), 0o755)?;
    }
    control(tree, version)
}

/// The package's control file, and the checksums of its files.
fn control(tree: &Path, version: &str) -> Outcome<()> {
    let mut sums = String::new();
    let mut size = 0;
    for file in files(&tree.join("usr"))? {
        size += std::fs::metadata(&file).map_or(0, |data| data.len());
        let sum = says_text(Command::new("md5sum").arg("-b").arg(&file))?;
        let name = file.strip_prefix(tree).unwrap_or(&file).display();
        let _ = writeln!(sums, "{}  {name}", sum.split(' ').next().unwrap_or_default());
    }
    let file = sources().join("deb/control");
    let text = std::fs::read_to_string(&file)
        .map_err(|e| format!("I cannot read {}: {e}.", file.display()))?;
    let text = text.replace("VERSION", version).replace("SIZE", &(size / 1024).to_string());
    write(&tree.join("DEBIAN/control"), text.as_bytes(), 0o644)?;
    write(&tree.join("DEBIAN/md5sums"), sums.as_bytes(), 0o644)
}

/// The verbs of the program, and an empty one for the program itself.
fn verbs(program: &Path) -> Outcome<Vec<String>> {
    let help = says_text(Command::new(program).arg("--help"))?;
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let verbs = lines.take_while(|line| line.starts_with("  ")).filter_map(|line| {
        let word = line.strip_prefix("  ")?.split(' ').next().filter(|word| !word.is_empty());
        word.map(str::to_owned)
    });
    let verbs: Vec<String> = std::iter::once(String::new()).chain(verbs).collect();
    if verbs.len() < 5 {
        return Err(format!("`holdline --help` lists only these verbs: {verbs:?}"));
    }
    Ok(verbs)
}

/// Compresses without a name or a timestamp.
fn gzip(text: &[u8]) -> Outcome<Vec<u8>> {
    let file = dist()?.join("page");
    write(&file, text, 0o644)?;
    says(Command::new("gzip").args(["-9", "-n", "-c"]).arg(&file))
}

fn files(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .map_err(|e| format!("I cannot list {}: {e}.", folder.display()))?;
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    found.sort();
    Ok(found)
}

fn lintian(package: &Path) -> Outcome<()> {
    if tool("lintian").is_none() {
        println!("lintian is not installed: not asked");
        return Ok(());
    }
    // The package is meant to be a static program, not built with Debian's own tools.
    let suppressed =
        "statically-linked-binary,no-changelog,embedded-library,unstripped-binary-or-object";
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error", "--suppress-tags", suppressed]).arg(package);
    run(&mut lintian)
}

/// A folder with a fresh Debian in it.
fn fresh_root(debootstrap: &Path) -> Outcome<PathBuf> {
    let root = emptied("debian")?;
    let mut bootstrap = Command::new(debootstrap);
    bootstrap.args(["--variant=minbase", "bookworm"]).arg(&root);
    run(bootstrap.arg("http://deb.debian.org/debian"))?;
    Ok(root)
}

/// Installs the package in a fresh Debian, uses it as two users, and purges it.
fn in_a_fresh_root(package: &Path) -> Outcome<String> {
    if !is_root() {
        return Ok("not installed: a fresh root needs root".to_owned());
    }
    let Some(debootstrap) = tool("debootstrap") else {
        return Ok("not installed: debootstrap is missing".to_owned());
    };
    // Debian's servers may be unreachable for a moment.
    let root = fresh_root(&debootstrap).or_else(|_| fresh_root(&debootstrap))?;
    install(package, &root.join("holdline.deb"), 0o644)?;
    let script = sources().join("deb/try.sh");
    install(&script, &root.join("try.sh"), 0o755)?;
    // In its own mount namespace, with which /proc is unmounted however the script ends.
    let inside = r#"mount -t proc proc "$0/proc" && exec chroot "$0" /bin/sh /try.sh"#;
    run(Command::new("unshare")
        .args(["--mount", "/bin/sh", "-c", inside])
        .arg(&root)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"))?;
    std::fs::remove_dir_all(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    Ok("installed, used and purged in a fresh Debian 12 (chroot)".to_owned())
}
