//! The container image: the static program, and nothing else.

use super::{dist, emptied, install, program, run, says_text, sources, tool, version};
use crate::Outcome;
use std::process::Command;

/// Builds with buildah, which needs no daemon; without it, prepares the folder for any other tool.
pub(super) fn make(check: bool) -> Outcome<String> {
    let (program, version) = (program::build()?, version()?);
    let folder = emptied("image")?;
    install(&program, &folder.join("holdline"), 0o755)?;
    install(&sources().join("oci/Containerfile"), &folder.join("Containerfile"), 0o644)?;
    let Some(buildah) = tool("buildah") else {
        let said = format!("{} is ready for `docker build`; ", folder.display());
        return Ok(said + "not built: buildah is missing");
    };
    let tag = format!("holdline:{version}");
    let buildah = || {
        let mut command = Command::new(&buildah);
        command.args(["--storage-driver", "vfs"]);
        command
    };
    let build = ["build", "--isolation", "chroot", "--timestamp", "0", "--tag", &tag];
    run(buildah().args(build).arg(&folder))?;
    let archive = dist()?.join(format!("holdline-{version}-oci.tar"));
    run(buildah().args(["push", &tag]).arg(format!("oci-archive:{}:{tag}", archive.display())))?;
    if !check {
        return Ok(archive.display().to_string());
    }
    let container = says_text(buildah().args(["from", &tag]))?;
    let words = ["run", "--isolation", "chroot", &container, "--", "/holdline", "--version"];
    let said = says_text(buildah().args(words));
    run(buildah().args(["rm", &container]))?;
    Ok(format!("{}; run in it: {}", archive.display(), said?))
}
