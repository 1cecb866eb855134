//! External tools that steps need; they are installed if possible. Among them are the languages of
//! the clients that the tests share locks with (`crates/holdline/tests/peers`).

use super::Run;
use super::report::Verdict;
use crate::package::says_text;
use crate::{Outcome, servers};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// A tool of another language, or written in one.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// A command that succeeds if the tool is installed.
    pub(crate) proof: &'static [&'static str],
    /// Debian's and Ubuntu's package.
    pub(crate) package: &'static str,
}

/// Creates virtual environments of Python.
pub(crate) const PYTHON: Tool = Tool {
    name: "python3 with venv",
    proof: &["python3", "-c", "import ensurepip, venv"],
    package: "python3-venv",
};

/// Queries etcd's servers directly.
pub(super) const ETCDCTL: &[Tool] =
    &[Tool { name: "etcdctl", proof: &["etcdctl", "version"], package: "etcd-client" }];

/// Makes MariaDB's server a node of a cluster.
pub(super) const GALERA: &[Tool] = &[Tool {
    name: "galera-4",
    proof: &["test", "-e", "/usr/lib/galera/libgalera_smm.so"],
    package: "galera-4",
}];

pub(super) const LANGUAGES: &[Tool] = &[
    Tool { name: "go", proof: &["go", "version"], package: "golang-go" },
    Tool { name: "javac", proof: &["javac", "-version"], package: "default-jdk-headless" },
    Tool { name: "mvn", proof: &["mvn", "--version"], package: "maven" },
    Tool { name: "node", proof: &["node", "--version"], package: "nodejs" },
    Tool { name: "npm", proof: &["npm", "--version"], package: "npm" },
    PYTHON,
    Tool { name: "php", proof: &["php", "--version"], package: "php-cli" },
    Tool {
        name: "PostgreSQL for PHP",
        proof: &["php", "-r", "exit(extension_loaded('pdo_pgsql') ? 0 : 1);"],
        package: "php-pgsql",
    },
    Tool {
        name: "Symfony's Lock for PHP",
        proof: &["php", "-r", "require 'Symfony/Component/Lock/autoload.php';"],
        package: "php-symfony-lock",
    },
    Tool { name: "ruby", proof: &["ruby", "--version"], package: "ruby" },
    Tool { name: "PostgreSQL for Ruby", proof: &["ruby", "-rpg", "-e", ""], package: "ruby-pg" },
    Tool {
        name: "Rails' Active Record",
        proof: &["ruby", "-rlogger", "-ractive_record", "-e", ""],
        package: "ruby-activerecord",
    },
];

impl Tool {
    pub(crate) fn is_here(&self) -> bool {
        let mut command = Command::new(self.proof[0]);
        command.args(&self.proof[1..]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

/// Looks for all of these tools, and installs missing ones if possible.
pub(crate) fn look(tools: &[&[Tool]], in_ci: bool) -> Verdict {
    let tools = || tools.iter().copied().flatten();
    let missing = || tools().filter(|tool| !tool.is_here()).collect::<Vec<_>>();
    let mut lacking = missing();
    if !lacking.is_empty() {
        let packages: BTreeSet<&str> = lacking.iter().map(|tool| tool.package).collect();
        servers::packages_from_apt(&packages);
        lacking = missing();
    }
    verdict(&lacking, in_ci)
}

fn verdict(lacking: &[&Tool], in_ci: bool) -> Verdict {
    if lacking.is_empty() {
        return Verdict::Passed;
    }
    let names: Vec<&str> = lacking.iter().map(|tool| tool.name).collect();
    let packages: Vec<&str> = lacking.iter().map(|tool| tool.package).collect();
    let words = format!(
        "missing: {}. Get it by `apt-get install {}` (Debian, Ubuntu).",
        names.join(", "),
        packages.join(" ")
    );
    Verdict::missing(words, in_ci)
}

/// Whether Rust can compile for a target.
pub(crate) fn rust_has(target: &str) -> Outcome<bool> {
    let sysroot = says_text(Command::new("rustc").args(["--print", "sysroot"]))?;
    Ok(Path::new(&sysroot).join("lib/rustlib").join(target).is_dir())
}

/// The same, after adding the target if it is missing.
pub(crate) fn rust_for(target: &str, run: &Run<'_>) -> Outcome<bool> {
    let add = || run.command(Path::new("rustup"), &["target", "add", target]);
    Ok(rust_has(target)? || add() == Verdict::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: Tool = Tool { name: "brain", proof: &["no-such-tool"], package: "no-such" };

    #[test]
    fn a_missing_tool_is_not_run_here_and_a_failure_in_ci() {
        assert!(!NOWHERE.is_here());
        assert_eq!(verdict(&[], true), Verdict::Passed);
        let Verdict::NotRun(words) = verdict(&[&NOWHERE], false) else { panic!("not run") };
        assert!(words.contains("missing: brain.") && words.contains("install no-such`"), "{words}");
        assert!(matches!(verdict(&[&NOWHERE], true), Verdict::Failed(_)));
    }

    #[test]
    fn a_tool_is_here_if_its_proof_succeeds() {
        let tool = |proof| Tool { proof, ..NOWHERE };
        assert!(tool(&["true"]).is_here());
        assert!(!tool(&["false"]).is_here());
    }
}
