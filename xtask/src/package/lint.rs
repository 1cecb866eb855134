//! The files below `packaging/`: each is checked by a tool for its kind.

use super::{emptied, install, python, run, sources, tool};
use crate::Outcome;
use crate::test::tools::{self, PYTHON, Tool};
use crate::test::{Run, Verdict};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tools, in addition to those of `lint-requirements.txt`.
const TOOLS: &[Tool] = &[
    PYTHON,
    Tool { name: "shellcheck", proof: &["shellcheck", "--version"], package: "shellcheck" },
    Tool { name: "promtool", proof: &["promtool", "--version"], package: "prometheus" },
    Tool { name: "systemd-analyze", proof: &["systemd-analyze", "--version"], package: "systemd" },
];

pub(super) fn make(_check: bool) -> Outcome<String> {
    let tools = tools::look(&[TOOLS], false);
    check(&environment()?)?;
    let lacking = match tools {
        Verdict::Passed => String::new(),
        Verdict::PassedBut(words) | Verdict::NotRun(words) | Verdict::Failed(words) => {
            format!("; {words}")
        }
    };
    let done = "YAML, schemas of GitHub and Kubernetes, shell, Python, JSON, alerts, units";
    Ok(format!("{done}{lacking}"))
}

/// A step of `cargo xtask test`: the same.
pub(crate) fn step(run: &Run<'_>) -> Outcome<Verdict> {
    let tools = tools::look(&[TOOLS], run.in_ci());
    match environment() {
        Ok(python) => check(&python)?,
        Err(words) => return Ok(Verdict::missing(words, run.in_ci())),
    }
    Ok(tools)
}

/// Python with the packages that check YAML and schemas.
fn environment() -> Outcome<PathBuf> {
    python("lint", &sources().join("lint-requirements.txt"))
}

/// Checks the files with the tools that are installed.
fn check(python: &Path) -> Outcome<()> {
    schemas(python)?;
    let shell = ["deb/postinst", "deb/postrm", "deb/try.sh"].map(|file| sources().join(file));
    for file in &shell {
        run(Command::new("sh").arg("-n").arg(file))?;
    }
    if let Some(shellcheck) = tool("shellcheck") {
        run(Command::new(shellcheck).args(shell))?;
    }
    prometheus(python)?;
    if tool("systemd-analyze").is_some() {
        units()?;
    }
    let modules = ["wheel.py", "holdline/__init__.py", "holdline/__main__.py"];
    let modules = modules.map(|file| sources().join("python").join(file));
    run(Command::new(python).args(["-m", "py_compile"]).args(modules))
}

/// Checks YAML syntax, and the schemas of the programs that read it.
fn schemas(python: &Path) -> Outcome<()> {
    let bin = python.parent().map(PathBuf::from).unwrap_or_default();
    let folder = |name: &str| sources().join(name);
    let mut lint = Command::new(bin.join("yamllint"));
    lint.args(["--strict", "--config-file"]).arg(folder("yamllint.yml"));
    run(lint.arg(folder("github")).arg(folder("kubernetes")).arg(folder("prometheus")))?;

    let schema = |name: &str, file: &str| {
        let mut check = Command::new(bin.join("check-jsonschema"));
        run(check.args(["--builtin-schema", name]).arg(folder(file)))
    };
    schema("vendor.github-actions", "github/action.yml")?;
    schema("vendor.github-workflows", "github/workflow.yml")?;
    for file in ["kubernetes/cronjob.yml", "kubernetes/leader.yml"] {
        let mut check = Command::new(bin.join("kubernetes-validate"));
        run(check.arg("--strict").arg(folder(file)))?;
    }
    Ok(())
}

/// Checks that the dashboard is JSON and the alerts are rules, and that they fire on some histories
/// as they should.
fn prometheus(python: &Path) -> Outcome<()> {
    let folder = sources().join("prometheus");
    let mut dashboard = Command::new(python);
    dashboard.args(["-m", "json.tool"]).arg(folder.join("dashboard.json")).arg("/dev/null");
    run(&mut dashboard)?;
    let Some(promtool) = tool("promtool") else { return Ok(()) };
    run(Command::new(&promtool).args(["check", "rules"]).arg(folder.join("alerts.yml")))?;
    run(Command::new(&promtool).args(["test", "rules"]).arg(folder.join("alerts_test.yml")))
}

/// systemd's own check requires the programs that units start to exist.
fn units() -> Outcome<()> {
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
    Ok(())
}
