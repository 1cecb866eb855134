//! The files below `packaging/`: each is checked by a tool of its own kind.

use super::{emptied, install, python, run, sources, tool};
use crate::Outcome;
use std::path::PathBuf;
use std::process::Command;

pub(super) fn make(_check: bool) -> Outcome<String> {
    let sources = sources();
    let requirements = sources.join("lint-requirements.txt");
    let python = python("lint", &requirements)?;
    let bin = python.parent().map(PathBuf::from).unwrap_or_default();
    let folder = |name: &str| sources.join(name);

    let yamllint = ["--strict", "--config-file"];
    let mut lint = Command::new(bin.join("yamllint"));
    lint.args(yamllint).arg(folder("yamllint.yml"));
    run(lint.arg(folder("github")).arg(folder("kubernetes")).arg(folder("prometheus")))?;

    let schema = |name: &str, file: &str| {
        let mut check = Command::new(bin.join("check-jsonschema"));
        run(check.args(["--builtin-schema", name]).arg(sources.join(file)))
    };
    schema("vendor.github-actions", "github/action.yml")?;
    schema("vendor.github-workflows", "github/workflow.yml")?;

    for file in ["kubernetes/cronjob.yml", "kubernetes/leader.yml"] {
        let mut check = Command::new(bin.join("kubernetes-validate"));
        run(check.arg("--strict").arg(sources.join(file)))?;
    }
    for file in ["deb/postinst", "deb/postrm", "deb/try.sh"] {
        run(Command::new("sh").arg("-n").arg(sources.join(file)))?;
    }
    if tool("shellcheck").is_some() {
        let files = ["deb/postinst", "deb/postrm", "deb/try.sh"].map(|file| sources.join(file));
        run(Command::new("shellcheck").args(files))?;
    }
    let prometheus = folder("prometheus");
    run(Command::new(&python)
        .args(["-m", "json.tool"])
        .arg(prometheus.join("dashboard.json"))
        .arg("/dev/null"))?;
    let rules = match tool("promtool") {
        Some(promtool) => {
            run(Command::new(promtool)
                .args(["check", "rules"])
                .arg(prometheus.join("alerts.yml")))?;
            "alerts"
        }
        None => "not the alerts' expressions: promtool is missing",
    };
    let units = units()?;
    let rest = ["wheel.py", "holdline/__init__.py", "holdline/__main__.py"];
    let rest = rest.map(|file| folder("python").join(file));
    run(Command::new(&python).args(["-m", "py_compile"]).args(rest))?;
    Ok(format!("YAML, schemas of GitHub and Kubernetes, shell, Python, JSON, {units}, {rules}"))
}

/// systemd's own check wants the programs that units start to exist.
fn units() -> Outcome<String> {
    if tool("systemd-analyze").is_none() {
        return Ok("not the units: systemd-analyze is missing".to_owned());
    }
    let folder = emptied("units")?;
    for name in ["holdline-job@.service", "holdline-job@.timer", "holdline-leader@.service"] {
        let file = sources().join("systemd").join(name);
        let text = std::fs::read_to_string(&file)
            .map_err(|e| format!("I cannot read {}: {e}.", file.display()))?;
        super::write(
            &folder.join(name),
            text.replace("/usr/bin/holdline", "/bin/true").as_bytes(),
            0o644,
        )?;
    }
    let units = ["holdline-job@x.service", "holdline-job@x.timer", "holdline-leader@x.service"];
    for unit in units {
        install(&folder.join(unit.replace("@x", "@")), &folder.join(unit), 0o644)?;
        let mut verify = Command::new("systemd-analyze");
        run(verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(folder.join(unit)))?;
    }
    Ok("units".to_owned())
}
