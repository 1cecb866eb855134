//! The plans of `cargo xtask test`, as tables: the whole, the quick choice, and the parts.

use super::deny;
use super::steps::Work::{Beside, Cargo, OtherTests, Own, Tests};
use super::steps::{self, Step, Work};
use super::tools::{self, Tool};

/// A choice of steps, and their needs.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// Its name on the command line.
    pub(super) name: &'static str,
    /// Its description, for the help text.
    pub(super) about: &'static str,
    /// The topologies that are started for it (`cargo xtask servers --help` lists them).
    pub(super) needs: &'static [&'static str],
    /// The tools that it needs.
    pub(super) tools: &'static [&'static [Tool]],
    /// Steps of the lowest priority, one after another from the beginning on: their compilation
    /// uses the processors that the first steps leave idle. They use other folders than these,
    /// whose builds would wait for them.
    pub(super) aside: &'static [Step],
    /// The steps that need neither. Missing servers are fetched meanwhile.
    pub(super) first: &'static [Step],
    pub(super) steps: &'static [Step],
}

const fn step(name: &'static str, work: Work) -> Step {
    Step { name, work }
}

const fn part(name: &'static str, about: &'static str, steps: &'static [Step]) -> Plan {
    Plan { name, about, needs: &[], tools: &[], aside: &[], first: &[], steps }
}

const fn on(needs: &'static [&'static str], plan: Plan) -> Plan {
    Plan { needs, ..plan }
}

const FORMAT: Step = step("format", Cargo(&["fmt", "--all", "--check"], &[]));
const TIDY: Step = step("tidy", Own(steps::tidy_step));
const CLIPPY: Step = step(
    "clippy",
    Cargo(
        &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
        &[],
    ),
);
const PURITY: Step = step("kernel purity", Own(steps::kernel_purity));
const CRATES: Step = step("crates can be packed", Own(crate::package::crates_step));
const PACKAGING: Step = step("files of packages", Own(crate::package::lint_step));
const PACKAGES: Step = step("packages", Own(crate::package::trial_step));
const DENY: Step = step("licences and advisories", Own(deny::step));
const SIMULATION: Step = step("simulation", Own(steps::simulation));

/// Everything that must pass, cheap and informative steps first. A store whose tests need a real
/// server adds its topology here and to its part.
pub(super) const WHOLE: Plan = Plan {
    name: "",
    about: "everything",
    needs: &[
        "redis-single",
        "redis-events",
        "redis-five",
        "redis-oldest",
        "valkey",
        "redis-sentinel",
        "redis-cluster",
        "etcd-single",
        "etcd-three",
        "zookeeper-single",
        "zookeeper-three",
        "postgres-single",
        "postgres-pooled",
        "mariadb",
        "mysql",
    ],
    tools: &[tools::ETCDCTL, tools::GALERA, tools::LANGUAGES],
    aside: &[PACKAGES, DENY],
    first: &[FORMAT, CLIPPY, TIDY, step("build of the tests", Tests(&["--no-run"]))],
    steps: &[step(
        "tests, and the rest beside them",
        Beside(LONG_TESTS, WAITING_TESTS, BESIDE_TESTS),
    )],
};

/// The tests that keep all processors busy.
const LONG_TESTS: &[Step] = &[
    step("conformance", Tests(&["--test", "conformance"])),
    step("fault runs", Tests(&["--test", "faults"])),
];

/// The tests that wait most of the time: several of them run in parallel if there are several
/// processors. Those that take longest come first, so that none is left over at the end.
const WAITING_TESTS: &[Step] = &[
    step("other tests", OtherTests),
    step("program", Tests(&["--test", "program"])),
    step("zookeeper", Tests(&["--test", "zookeeper"])),
    step("redis", Tests(&["--test", "redis"])),
    step("quorum", Tests(&["--test", "quorum"])),
    step("mysql", Tests(&["--test", "mysql"])),
    step("sqlite", Tests(&["--test", "sqlite"])),
    step("etcd", Tests(&["--test", "etcd"])),
    step("postgres", Tests(&["--test", "postgres"])),
    step("interop", Tests(&["--test", "peers"])),
    step("reaper", Tests(&["--test", "reaper"])),
];

/// What needs no servers: mostly compilation, while no test needs the processors.
const BESIDE_TESTS: &[Step] = &[
    SIMULATION,
    step("each store alone", Own(steps::each_store_alone)),
    step("another Unix", Own(steps::another_unix)),
    step("documentation", Own(steps::documentation)),
    PURITY,
    CRATES,
    PACKAGING,
];

/// Whether a step of the whole names a test binary.
pub(super) fn has_a_step(test: &str) -> bool {
    let mut steps = LONG_TESTS.iter().chain(WAITING_TESTS);
    steps.any(|step| matches!(step.work, Tests(args) if args.contains(&test)))
}

/// The most informative steps in the least time, without a server.
pub(super) const QUICK: Plan = part(
    "--quick",
    "format, clippy, tidy, and the tests that need no server",
    &[
        FORMAT,
        CLIPPY,
        TIDY,
        step("kernel and library", Tests(QUICK_TESTS)),
        step("conformance", Tests(&["--test", "conformance", "--", "memory::", "sqlite::"])),
        step(
            "simulation",
            Cargo(&["run", "--package", "holdline-sim", "--", "--seeds", "50"], &[]),
        ),
    ],
);

/// Without the two longest exhaustive searches, and without the scripts on a real server.
const QUICK_TESTS: &[&str] = &[
    "--lib",
    "--test",
    "acquisition",
    "--test",
    "cost",
    "--test",
    "id",
    "--test",
    "lease",
    "--test",
    "line_*",
    "--test",
    "memory_places",
    "--test",
    "rule",
    "--test",
    "schedule",
    "--test",
    "tally",
    "--test",
    "smoke",
    "--",
    "--skip",
    "redis::model",
    "--skip",
    "postgres::model",
    "--skip",
    "mysql::model",
    "--skip",
    "semaphore_of_three",
    "--skip",
    "semaphore_of_four",
];

/// The parts that can be run alone.
pub(super) const PARTS: &[Plan] = &[
    part(
        "kernel",
        "the kernel, its exhaustive searches, and that it depends on nothing",
        &[step("kernel", Cargo(&["test", "--package", "holdline-kernel"], &[])), PURITY],
    ),
    part(
        "library",
        "the library without a server: unit tests, renewal, cancellation, conformance in memory",
        &[
            step("library", Tests(LIBRARY_TESTS)),
            step("conformance", Tests(&["--test", "conformance", "--", "memory::"])),
        ],
    ),
    part(
        "file",
        "the SQLite store",
        &[
            step("file", Tests(&["--test", "sqlite"])),
            step("file: unit tests", Tests(&["--lib", "--", "stores::queue::sqlite::"])),
            step("conformance", Tests(&["--test", "conformance", "--", "sqlite::"])),
        ],
    ),
    on(
        &[
            "redis-single",
            "redis-events",
            "redis-oldest",
            "valkey",
            "redis-sentinel",
            "redis-cluster",
        ],
        part(
            "redis",
            "the Redis store, but for quorums",
            &[
                step("redis", Tests(&["--test", "redis"])),
                step(
                    "redis: unit tests",
                    Tests(&["--lib", "--", "stores::queue::redis::", "stores::single_key::"]),
                ),
                step("conformance", Tests(CONFORMANCE_OF_REDIS)),
            ],
        ),
    ),
    on(
        &["redis-five"],
        part(
            "quorum",
            "majorities of independent stores",
            &[
                step("quorum", Tests(&["--test", "quorum"])),
                step("quorum: unit tests", Tests(&["--lib", "--", "stores::quorum::"])),
                step("conformance", Tests(&["--test", "conformance", "--", "quorum"])),
            ],
        ),
    ),
    Plan {
        tools: &[tools::ETCDCTL],
        ..on(
            &["etcd-single", "etcd-three"],
            part(
                "etcd",
                "the etcd store",
                &[
                    step("etcd", Tests(&["--test", "etcd"])),
                    step("etcd: unit tests", Tests(&["--lib", "--", "stores::ephemeral::etcd::"])),
                    step("conformance", Tests(&["--test", "conformance", "--", "etcd"])),
                ],
            ),
        )
    },
    on(
        &["postgres-single", "postgres-pooled"],
        part(
            "postgres",
            "the store in PostgreSQL",
            &[
                step("postgres", Tests(&["--test", "postgres"])),
                step("postgres: unit tests", Tests(&["--lib", "--", "stores::queue::postgres::"])),
                step("conformance", Tests(&["--test", "conformance", "--", "postgres"])),
            ],
        ),
    ),
    Plan {
        tools: &[tools::GALERA],
        ..on(
            &["mariadb", "mysql"],
            part(
                "mysql",
                "the store in MySQL and MariaDB",
                &[
                    step("mysql", Tests(&["--test", "mysql"])),
                    step("mysql: unit tests", Tests(&["--lib", "--", "stores::queue::mysql::"])),
                    step(
                        "conformance",
                        Tests(&["--test", "conformance", "--", "mysql", "mariadb"]),
                    ),
                ],
            ),
        )
    },
    on(
        &["zookeeper-single", "zookeeper-three"],
        part(
            "zookeeper",
            "the ZooKeeper store",
            &[
                step("zookeeper", Tests(&["--test", "zookeeper"])),
                step(
                    "zookeeper: unit tests",
                    Tests(&["--lib", "--", "stores::ephemeral::zookeeper::"]),
                ),
                step("conformance", Tests(&["--test", "conformance", "--", "zookeeper"])),
            ],
        ),
    ),
    part(
        "program",
        "the program `holdline`",
        &[step("program", Tests(&["--bin", "holdline", "--test", "program"]))],
    ),
    part(
        "faults",
        "processes that are killed and stopped while the history checker looks on, on every store",
        &[step("faults", Tests(&["--test", "faults"]))],
    ),
    Plan {
        tools: &[tools::ETCDCTL, tools::LANGUAGES],
        ..on(
            &["redis-single", "redis-five", "etcd-single", "zookeeper-single"],
            part(
                "interop",
                "locks shared with clients of other languages",
                &[step("interop", Tests(&["--test", "peers"]))],
            ),
        )
    },
    part(
        "simulation",
        "the simulation, 300 seeds, and 100 of the engine of etcd and ZooKeeper",
        &[step("simulation: tests", Tests(&["--test", "holds", "--test", "power"])), SIMULATION],
    ),
    part("crates", "every crate can be packed as crates.io wants it", &[CRATES]),
    part(
        "packaging",
        "the packages, made and used, and the files below packaging/",
        &[PACKAGING, PACKAGES],
    ),
    part("deny", "licences, bans, and advisories where they can be reached", &[DENY]),
];

const LIBRARY_TESTS: &[&str] = &[
    "--lib",
    "--test",
    "smoke",
    "--",
    "--skip",
    "redis::model",
    "--skip",
    "postgres::model",
    "--skip",
    "mysql::model",
];

const CONFORMANCE_OF_REDIS: &[&str] =
    &["--test", "conformance", "--", "redis", "valkey", "--skip", "quorum"];

/// The plans that the command line asks for, or a sentence.
pub(super) fn chosen(words: &[&str]) -> Result<Vec<&'static Plan>, String> {
    match words {
        [] => return Ok(vec![&WHOLE]),
        ["--quick"] => return Ok(vec![&QUICK]),
        _ => {}
    }
    let part = |word: &&str| {
        PARTS.iter().find(|plan| plan.name == *word).ok_or_else(|| {
            let known: Vec<&str> = PARTS.iter().map(|plan| plan.name).collect();
            format!("test: there is no part {word:?}; there are {}, and --quick.", known.join(", "))
        })
    };
    words.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers;

    #[test]
    fn what_tests_need_is_known_and_part_of_the_whole() {
        for plan in PARTS.iter().chain([&WHOLE]) {
            for name in plan.needs {
                servers::topology(name).unwrap();
                assert!(WHOLE.needs.contains(name), "{name}");
            }
        }
    }

    #[test]
    fn quick_needs_nothing() {
        assert!(QUICK.needs.is_empty() && QUICK.tools.is_empty());
    }

    #[test]
    fn parts_are_chosen_by_name() {
        let names = |words: &[&str]| -> Vec<&str> {
            chosen(words).unwrap().into_iter().map(|plan| plan.name).collect()
        };
        assert_eq!(names(&[]), [""]);
        assert_eq!(names(&["--quick"]), ["--quick"]);
        assert_eq!(names(&["redis", "file"]), ["redis", "file"]);
        let error = chosen(&["redis", "moon"]).err().unwrap();
        assert!(error.contains("no part \"moon\"") && error.contains("zookeeper"), "{error}");
    }

    /// A named test that no longer exists would be an empty step.
    #[test]
    fn every_named_test_is_there() {
        let found = crate::workspace::test_targets().unwrap();
        let whole = LONG_TESTS.iter().chain(WAITING_TESTS);
        for step in PARTS.iter().chain([&QUICK]).flat_map(|plan| plan.steps).chain(whole) {
            let Tests(args) = step.work else { continue };
            for pair in args.windows(2).filter(|pair| pair[0] == "--test") {
                let there = |name: &String| match pair[1].strip_suffix('*') {
                    Some(start) => name.starts_with(start),
                    None => name == pair[1],
                };
                assert!(found.iter().any(there), "{}: there is no test {}", step.name, pair[1]);
            }
        }
    }
}
