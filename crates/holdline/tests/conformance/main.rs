//! Every store that is there, through every case of the suite. Without the standard harness,
//! because this binary is started again as the suite's second process, and because what was not run
//! must be told apart from what passed.
//!
//! Arguments as for any test binary: words that a test's name must contain, `--exact`, `--skip`,
//! `--list`. A store on a server is run if its URL is in the environment; a missing one fails under
//! CI.

mod pace;

use futures_util::StreamExt;
use holdline_conformance::{self as conformance, AT_ONCE, At, Case, Outcome, Subject, Verdict};
use pace::{Pace, Unhurried};
use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Where a store's URL comes from.
enum Source {
    /// A space in this process.
    Memory,
    /// A majority of three spaces in this process.
    QuorumOfMemories,
    /// A majority of three files in a temporary folder.
    #[cfg(feature = "sqlite")]
    QuorumOfFiles,
    /// A file in a temporary folder.
    #[cfg(feature = "sqlite")]
    File,
    /// This variable of the environment, and what to add to each URL in it.
    #[allow(dead_code, reason = "a build may have no store on a server")]
    Server(&'static str, &'static str),
    /// A cluster, by this variable, with Redisson's layout.
    #[cfg(feature = "redis")]
    RedissonInCluster(&'static str),
}

/// Whether Redisson's key and channel for a name are in one slot of a cluster: it wraps a name that
/// has no `{` in braces, and leaves any other as it is.
#[cfg(feature = "redis")]
fn in_one_slot(name: &str) -> bool {
    match name.split_once('{') {
        None => !name.contains('}'),
        Some((_, rest)) => rest.find('}').is_some_and(|end| end > 0),
    }
}

/// Every store of this build.
fn stores() -> Vec<(&'static str, Source)> {
    vec![
        ("memory", Source::Memory),
        ("quorum-memory", Source::QuorumOfMemories),
        #[cfg(feature = "sqlite")]
        ("quorum-sqlite", Source::QuorumOfFiles),
        #[cfg(feature = "sqlite")]
        ("sqlite", Source::File),
        #[cfg(feature = "redis")]
        ("redis", Source::Server("HOLDLINE_TEST_REDIS", "")),
        #[cfg(feature = "redis")]
        ("redis-oldest", Source::Server("HOLDLINE_TEST_REDIS_OLDEST", "")),
        #[cfg(feature = "redis")]
        ("valkey", Source::Server("HOLDLINE_TEST_VALKEY", "")),
        #[cfg(feature = "redis")]
        ("redis-string", Source::Server("HOLDLINE_TEST_REDIS", "?scheme=string&prefix=string:")),
        #[cfg(feature = "redis")]
        (
            "redis-string-events",
            Source::Server("HOLDLINE_TEST_REDIS_EVENTS", "?scheme=string&prefix=string:"),
        ),
        #[cfg(feature = "redis")]
        (
            "redis-redisson",
            Source::Server("HOLDLINE_TEST_REDIS", "?scheme=redisson&prefix=redisson:"),
        ),
        #[cfg(feature = "redis")]
        ("redis-quorum", Source::Server("HOLDLINE_TEST_REDIS_FIVE", "")),
        #[cfg(feature = "redis")]
        ("redis-sentinel", Source::Server("HOLDLINE_TEST_REDIS_SENTINEL", "")),
        #[cfg(feature = "redis")]
        (
            "redis-string-quorum",
            Source::Server("HOLDLINE_TEST_REDIS_FIVE", "?scheme=string&prefix=string:"),
        ),
        #[cfg(feature = "redis")]
        ("redis-cluster", Source::Server("HOLDLINE_TEST_REDIS_CLUSTER", "")),
        #[cfg(feature = "redis")]
        ("redis-redisson-cluster", Source::RedissonInCluster("HOLDLINE_TEST_REDIS_CLUSTER")),
        #[cfg(feature = "mysql")]
        ("mariadb", Source::Server("HOLDLINE_TEST_MARIADB", "?install=yes")),
        #[cfg(feature = "mysql")]
        ("mysql", Source::Server("HOLDLINE_TEST_MYSQL", "?install=yes&found_rows=yes")),
        #[cfg(feature = "etcd")]
        ("etcd", Source::Server("HOLDLINE_TEST_ETCD", "")),
        #[cfg(feature = "etcd")]
        ("etcd-three", Source::Server("HOLDLINE_TEST_ETCD_THREE", "")),
        #[cfg(feature = "zookeeper")]
        ("zookeeper", Source::Server("HOLDLINE_TEST_ZOOKEEPER", "/curator?session=25s")),
        #[cfg(feature = "zookeeper")]
        (
            "zookeeper-kazoo",
            Source::Server("HOLDLINE_TEST_ZOOKEEPER", "/kazoo?session=25s&dialect=kazoo"),
        ),
        #[cfg(feature = "zookeeper")]
        ("zookeeper-three", Source::Server("HOLDLINE_TEST_ZOOKEEPER_THREE", "?session=25s")),
        #[cfg(feature = "postgres")]
        ("postgres", Source::Server("HOLDLINE_TEST_POSTGRES", "?install=yes")),
        #[cfg(feature = "postgres")]
        (
            "postgres-pooled",
            Source::Server("HOLDLINE_TEST_POSTGRES_POOLED", "?install=yes&listen=off"),
        ),
    ]
}

impl Source {
    /// The store, or what is missing.
    #[allow(unused_variables, reason = "a build may have no store in a file")]
    fn subject(&self, folder: &std::path::Path) -> Result<Arc<dyn Subject>, String> {
        match self {
            Source::Memory => Ok(At::new("memory:conformance")),
            Source::QuorumOfMemories => {
                Ok(At::new("quorum:memory:conform-a,memory:conform-b,memory:conform-c"))
            }
            #[cfg(feature = "sqlite")]
            Source::QuorumOfFiles => {
                let file = |name: &str| format!("sqlite:{}", folder.join(name).display());
                Ok(At::shared(format!("quorum:{},{},{}", file("a"), file("b"), file("c"))))
            }
            #[cfg(feature = "sqlite")]
            Source::File => Ok(At::shared(format!("sqlite:{}", folder.join("locks").display()))),
            Source::Server(variable, rest) => match std::env::var(variable) {
                Ok(url) => Ok(At::shared(url.replace(",redis:", &format!("{rest},redis:")) + rest)),
                Err(_) => Err(format!("{variable} is not set")),
            },
            #[cfg(feature = "redis")]
            Source::RedissonInCluster(variable) => match std::env::var(variable) {
                Ok(url) => Ok(At::with(url + "?scheme=redisson&prefix=redisson:", in_one_slot)),
                Err(_) => Err(format!("{variable} is not set")),
            },
        }
    }
}

/// What the command line asks for.
#[derive(Default)]
struct Ask {
    words: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
}

impl Ask {
    fn read() -> Self {
        let mut ask = Ask::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => ask.exact = true,
                "--list" => ask.list = true,
                "--skip" => ask.skip.extend(arguments.next()),
                "--test-threads" | "--format" | "--color" => drop(arguments.next()),
                flag if flag.starts_with('-') => {}
                _ => ask.words.push(argument),
            }
        }
        ask
    }

    fn chooses(&self, name: &str) -> bool {
        let fits = |word: &String| if self.exact { name == word } else { name.contains(word) };
        (self.words.is_empty() || self.words.iter().any(fits)) && !self.skip.iter().any(fits)
    }
}

/// Most cases wait for most of their time, so two stores hardly disturb each other.
const STORES_AT_ONCE: usize = 2;

#[derive(Default)]
struct Tally {
    passed: usize,
    ignored: usize,
    failures: String,
    failed: usize,
    /// What says nothing so far.
    again: Vec<Excused>,
}

impl Tally {
    fn count(&mut self, store: &str, outcome: &Outcome) {
        println!("test {store}::{outcome} ({:.1?})", outcome.took);
        match &outcome.verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::NotPromised(_) => self.ignored += 1,
            Verdict::Failed(why) => self.fail(&format!("{store}::{}", outcome.case), why),
        }
    }

    fn add(&mut self, more: Tally) {
        self.passed += more.passed;
        self.ignored += more.ignored;
        self.failed += more.failed;
        self.failures += &more.failures;
        self.again.extend(more.again);
    }

    fn fail(&mut self, name: &str, why: &str) {
        self.failed += 1;
        let _ = writeln!(self.failures, "    {name}: {why}");
    }
}

fn main() -> ExitCode {
    if conformance::taker() {
        return ExitCode::SUCCESS;
    }
    let ask = Ask::read();
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("the system gives a runtime");
    runtime.block_on(run(&ask, folder.path()))
}

async fn run(ask: &Ask, folder: &std::path::Path) -> ExitCode {
    let start = Instant::now();
    let mut tally = Tally::default();
    for (timed, at_once) in [(false, STORES_AT_ONCE), (true, 1)] {
        let all =
            stores().into_iter().map(|(store, source)| one(ask, folder, store, source, timed));
        let mut ended = futures_util::stream::iter(all).buffer_unordered(at_once);
        while let Some(more) = ended.next().await {
            tally.add(more);
        }
    }
    if ask.list {
        return ExitCode::SUCCESS;
    }
    for excused in std::mem::take(&mut tally.again) {
        excused.again(&mut tally).await;
    }
    let Tally { passed, ignored, failures, failed, .. } = tally;
    if failed > 0 {
        println!("\nfailures:\n{failures}");
    }
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; \
         0 filtered out; finished in {:.2?}\n",
        if failed == 0 { "ok" } else { "FAILED" },
        start.elapsed()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What is asked for of one store: the cases that measure time, or the others.
async fn one(
    ask: &Ask,
    folder: &std::path::Path,
    store: &str,
    source: Source,
    timed: bool,
) -> Tally {
    let mut tally = Tally::default();
    // Time is measured where one server answers: three on a small machine measure the machine.
    if timed && store.ends_with("-three") {
        return tally;
    }
    let kind = |case: &Case| case.name().starts_with("cost::") == timed;
    let cases = conformance::cases().into_iter().filter(kind);
    let chosen = cases.filter(|case| ask.chooses(&format!("{store}::{}", case.name())));
    let chosen: Vec<_> = chosen.collect();
    if ask.list {
        for case in chosen {
            println!("{store}::{}: test", case.name());
        }
        return tally;
    }
    match source.subject(folder) {
        Ok(subject) => through(store, &subject, chosen, &mut tally).await,
        Err(missing) => {
            if !chosen.is_empty() {
                println!("test {store}::* ... ignored, {} cases: {missing}", chosen.len());
            }
            tally.ignored += chosen.len();
            let ci = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty() && ci != "false");
            if ci && !chosen.is_empty() {
                tally.fail(store, &format!("not run: {missing}"));
            }
        }
    }
    tally
}

/// How often a case is done again, if each time the machine stood still meanwhile.
const AGAIN: usize = 5;

/// A case that failed while the machine stood still.
struct Excused {
    store: String,
    subject: Arc<dyn Subject>,
    case: Case,
    pace: Arc<Pace>,
    outcome: Outcome,
}

impl Excused {
    fn new(
        (store, subject, pace): (&str, &Arc<dyn Subject>, &Arc<Pace>),
        case: Case,
        outcome: Outcome,
    ) -> Self {
        let (store, subject, pace) = (store.to_owned(), Arc::clone(subject), Arc::clone(pace));
        Excused { store, subject, case, pace, outcome }
    }

    /// Runs it again, alone and with longer leases.
    async fn again(mut self, tally: &mut Tally) {
        for _ in 0..AGAIN {
            self.pace.calm(self.subject.lease()).await;
            let began = Instant::now();
            self.outcome = self.case.run(Arc::new(Unhurried(Arc::clone(&self.subject)))).await;
            let excuse = excuse(&self.store, &self.outcome, &self.pace, began, &self.subject);
            if excuse.is_none() {
                break;
            }
        }
        tally.count(&self.store, &self.outcome);
    }
}

/// Whether a case failed for want of speed; and says so.
fn excuse(
    store: &str,
    outcome: &Outcome,
    pace: &Pace,
    began: Instant,
    subject: &Arc<dyn Subject>,
) -> Option<()> {
    let Verdict::Failed(why) = &outcome.verdict else { return None };
    let excuse = pace.excuse(began, subject.lease())?;
    println!("again: {store}::{} failed ({why}), but {excuse}", outcome.case);
    Some(())
}

async fn through(store: &str, subject: &Arc<dyn Subject>, cases: Vec<Case>, tally: &mut Tally) {
    let pace = &Pace::watch(subject);
    let started = cases.into_iter().map(|case| async move {
        let began = Instant::now();
        let outcome = case.run(Arc::clone(subject)).await;
        let excused = excuse(store, &outcome, pace, began, subject);
        (case, outcome, excused)
    });
    let mut ended = futures_util::stream::iter(started).buffer_unordered(AT_ONCE);
    while let Some((case, outcome, excused)) = ended.next().await {
        match excused {
            None => tally.count(store, &outcome),
            Some(()) => tally.again.push(Excused::new((store, subject, pace), case, outcome)),
        }
    }
}
