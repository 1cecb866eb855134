//! The texts of `--help`. They teach: a new contributor should need nothing else to get going.

use crate::servers::TOPOLOGIES;
use std::fmt::Write as _;

/// `cargo xtask --help`
pub(crate) const ALL: &str = "
cargo xtask COMMAND [--help]

  test      everything that must pass before a change is merged; CI runs just this
  servers   start, stop and show real servers on private ports, for tests and benchmarks
  tidy      the rules of the project that a program can check, each finding as path:line: sentence
  bench     the benchmark program, built with optimisation
  package   what users install: crates, program, Debian package, wheel, image; made and tried

Start with `cargo xtask test --quick` while you work, and `cargo xtask test` before you send it.
";

/// `cargo xtask test --help`
pub(crate) fn test() -> String {
    let mut text = String::from(
        "
cargo xtask test [--quick | PART...]

Without a word: formatting, clippy, tidy, all tests, the documentation, the kernel's purity, the
library with each store alone, the program for another Unix, cargo-deny, the simulation. A failed
step does not stop the later ones. A table of all steps comes at the end, and the last line is
`N passed, N failed`.

  --quick      formatting, clippy, tidy, the tests of kernel and library and 50 simulated seeds,
               without any server: for while you work
",
    );
    for (name, about) in crate::test::parts() {
        let _ = writeln!(text, "  {name:<12} {about}");
    }
    text.push_str(
        "
Servers that the chosen tests need are started first on private ports, handed to the tests in
environment variables, and stopped at the end, also after Ctrl-C or a crash. A variable that you
have set yourself (say HOLDLINE_TEST_REDIS) is used as it is, and that server is not started.
A server or tool that is missing, and each test that lacks it, is `not run` on your machine, and a
failure where CI is set. Under plain `cargo test`, a test that lacks its server fails.

  CI                     if set: a missing server fails, and the whole run may take 80 minutes
  HOLDLINE_PORT_BASE     the first of the private ports (default 21000)
  HOLDLINE_NO_INSTALL    if set: never install a missing server or tool
  HOLDLINE_TEST_MISSING  for plain `cargo test`: a file to note tests in that lack something;
                         they then do not fail
",
    );
    text
}

/// `cargo xtask tidy --help`
pub(crate) const TIDY: &str = "
cargo xtask tidy

Checks the rules of the project on every .rs and .md file that git tracks or would track, and prints
each finding as `path:line: sentence`:

  shape      lines of 100 columns, files of 600 lines before their tests,
             functions of 70 lines, a `//!` comment at the top of every file
  walls      what may use what: the kernel imports nothing, recipes name no store, stores name
             neither recipes nor each other, only clock.rs reads a clock, and so on
  links      links of documents lead to files and headings that are there; those of the guides
             also lead somewhere in the documentation of the library, which has them as pages
  promises   every public async method has `# Cancel safety`; every promise of GUARANTEES.md
             (a line that starts with **G12**, after any list, table or heading mark) is cited in
             the code as G12, and the code cites no other

The rules are in xtask/src/tidy/, with a test for each.
";

/// `cargo xtask package --help`
pub(crate) fn package() -> String {
    let mut text = String::from(
        "
cargo xtask package [--check] [PART...]

Makes what users install, in target/dist, from one build of the program. Without a PART: all.

",
    );
    for (name, about) in crate::package::parts() {
        let _ = writeln!(text, "  {name:<12} {about}");
    }
    text.push_str(
        "
  --check      also tries what was made: crates build from their packages, the program runs in an
               empty root, the Debian package in a fresh Debian, the wheel in a venv, a second
               build gives the same bytes. What could not be tried is said.

It needs `rustup target add x86_64-unknown-linux-musl`, and of Debian musl-tools and python3-venv;
for all that --check tries, root, and debootstrap, buildah, lintian and shellcheck.

  HOLDLINE_JOBS     how many processes the builds may use at once
  HOLDLINE_PROGRAM  a program that was built before, to be packed instead of a new one
",
    );
    text
}

/// `cargo xtask bench --help`
pub(crate) const BENCH: &str = "
cargo xtask bench ARGS...

Builds the benchmark program with optimisation and runs it with ARGS. `cargo xtask bench help`
shows its own commands. Servers that a command needs are installed and started for it, with data
in a temporary folder, and end with it; a Redis that runs is used if it is in the environment:

  eval \"$(cargo xtask servers start redis-single)\"

`cargo xtask bench --check` compares the ratios to the bare idioms with the recorded ones, and ends
with exit code 1 if one became worse; `--check --record` records them.

`cargo xtask bench models` is `holdline bench` with seven ways to wait; ARGS are its own, as in
`cargo xtask bench models redis --clients 64 --html models.html`.
";

/// `cargo xtask servers --help`
pub(crate) fn servers() -> String {
    let mut text = String::from(
        "
cargo xtask servers start|stop|status [NAME...]

Real servers on private ports of 127.0.0.1, with their data in a temporary folder.

  start    starts them, waits until each one answers, prints `export VARIABLE=URL` lines;
           what already runs is left running and printed again
  stop     kills them by the process ids that `start` wrote down, and removes their data
  status   shows what runs and where

Without a NAME: all of them. To use them in your shell:

  eval \"$(cargo xtask servers start redis-single)\"

On Debian and Ubuntu, as root or with a sudo that asks for no password, `start` installs what is
missing with apt-get, and keeps the packages from starting services of their own. Elsewhere it
says what is missing and how to get it.

  HOLDLINE_PORT_BASE     the first of the private ports (default 21000)
  HOLDLINE_NO_INSTALL    if set: never install
  TMPDIR                 where the data goes (default: /dev/shm if it has room, else /tmp)

",
    );
    for topology in TOPOLOGIES {
        let _ = writeln!(text, "  {:<18} {} ({})", topology.name, topology.about, topology.env);
    }
    text
}
