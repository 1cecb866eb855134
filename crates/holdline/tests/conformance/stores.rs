//! The table of the stores that go through the suite: a store, a layout or a topology is one row.

use holdline_conformance::{At, Subject};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// One row of the table.
pub(crate) struct Row {
    /// What its tests are called.
    pub(crate) name: &'static str,
    place: Place,
    /// What is added to each URL of a server.
    options: &'static str,
    /// The names that a lock can have here.
    takes: fn(&str) -> bool,
    /// Whether it tells observers of changes.
    notifies: bool,
    /// How much longer an operation may take for each place in the line.
    each_place: Duration,
    /// Whether the cases that measure run too. Three servers on a small machine measure the
    /// machine.
    pub(crate) measured: bool,
    /// The beginnings of the names of cases that it cannot serve.
    unserved: Vec<&'static str>,
}

/// Where a store is.
enum Place {
    /// At this URL, in this process.
    Here(&'static str),
    /// At this URL, in which `{}` is a temporary folder.
    #[cfg(feature = "sqlite")]
    Folder(&'static str),
    /// At the URL in this variable of the environment.
    #[allow(dead_code, reason = "a build may have no store on a server")]
    Server(&'static str),
}

/// Every store of this build.
pub(crate) fn rows() -> Vec<Row> {
    #[allow(unused_mut, reason = "a build may have no other")]
    let mut rows = vec![
        Row::at("memory", Place::Here("memory:conformance")).notifying(),
        Row::at(
            "quorum-memory",
            Place::Here("quorum:memory:conform-a,memory:conform-b,memory:conform-c"),
        ),
    ];
    #[cfg(feature = "sqlite")]
    rows.extend([
        Row::at("sqlite", Place::Folder("sqlite:{}/locks")).told_by_the_kernel(),
        Row::at("quorum-sqlite", Place::Folder("quorum:sqlite:{}/a,sqlite:{}/b,sqlite:{}/c")),
    ]);
    #[cfg(feature = "redis")]
    rows.extend(redis());
    #[cfg(feature = "mysql")]
    rows.extend(mysql());
    #[cfg(feature = "etcd")]
    rows.extend([
        Row::server("etcd", "HOLDLINE_TEST_ETCD", "").notifying().without(SESSIONS),
        Row::server("etcd-three", "HOLDLINE_TEST_ETCD_THREE", "")
            .notifying()
            .unmeasured()
            .without(SESSIONS),
    ]);
    #[cfg(feature = "zookeeper")]
    rows.extend(zookeeper());
    #[cfg(feature = "postgres")]
    rows.extend([
        Row::server("postgres", "HOLDLINE_TEST_POSTGRES", "?install=yes"),
        Row::server("postgres-pooled", "HOLDLINE_TEST_POSTGRES_POOLED", "?install=yes&listen=off"),
        Row::server("postgres-advisory", "HOLDLINE_TEST_POSTGRES", "?scheme=advisory")
            .without(SESSION_LOCKS)
            .without(MANY_LOCKS)
            .without(ADVISORY_LOCKS),
        Row::server(
            "postgres-row",
            "HOLDLINE_TEST_POSTGRES",
            "?scheme=row&install=yes&connections=40",
        )
        .without(SESSION_LOCKS)
        .without(MANY_LOCKS),
        Row::server("postgres-shedlock", "HOLDLINE_TEST_POSTGRES", "?scheme=shedlock&install=yes")
            .taking(short)
            .without(SHEDLOCK),
    ]);
    rows
}

/// Places that end with a session, which may be longer than their leases.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
const SESSIONS: &[&str] = &["contract::a_place_lasts_no_longer_than_its_lease"];

/// Whether ShedLock's table, as we make it, has room for this name.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn short(name: &str) -> bool {
    name.chars().count() <= 255
}

/// More locks at a time than a process has connections for, where each lock needs one.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const MANY_LOCKS: &[&str] = &[
    "leases::renewal_survives_an_unread_list",
    "storm::a_wait_for_room_ends_by_the_bound_of_outages",
];

/// What a client cannot know of another's locks that are kept by a session of the server: notes,
/// leases and names; by whom one was ended; and it cannot leave by another's ticket.
#[cfg(feature = "postgres")]
const SESSION_LOCKS: &[&str] = &[
    "admin::a_loss_without_a_breaker_has_none",
    "admin::a_removal_is_shown_and_only_the_last_few",
    "admin::breaking_tells_by_whom_and_why",
    "admin::the_holder_is_shown_as_it_is",
    "election::a_late_renewal_undoes_no_proclamation",
    "election::a_proclamation_is_seen_and_outlives_renewals",
    "election::observers_follow_the_changes",
    "election::the_leader_is_seen_with_its_value",
    "loss::a_hint_is_looked_into_at_once",
    "loss::a_lost_guard_that_is_kept_keeps_no_task_out",
    "loss::unlock_says_how_it_went",
    "names::lists_are_by_prefix",
    "names::look_alikes_are_different",
    "names::odd_names_are_names",
    "names::odd_prefixes_are_just_prefixes",
    "process::another_process_holds_it",
];

/// What ShedLock's table has no room for: long names and labels, and by whom a lock was broken.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const SHEDLOCK: &[&str] = &[
    "admin::a_removal_is_shown_and_only_the_last_few",
    "admin::breaking_tells_by_whom_and_why",
    "admin::labels_too_long_are_refused",
    "names::the_longest_names_are_different",
];

/// The same of advisory locks, of which it does not even know the tickets.
#[cfg(feature = "postgres")]
const ADVISORY_LOCKS: &[&str] = &[
    "::a_broken_lock_is_lost",
    "admin::breaking_",
    "election::a_proclamation_of_a_lost_leader_fails",
    "multi::one_lost_is_all_lost",
    "leases::a_lost_lock_cannot_be_extended",
    "mutex::mutex::a_broken_lock_is_lost",
    "reentrant::an_owner_that_lost_it_is_told",
];

#[cfg(feature = "redis")]
fn redis() -> [Row; 11] {
    const ONE: &str = "HOLDLINE_TEST_REDIS";
    const FIVE: &str = "HOLDLINE_TEST_REDIS_FIVE";
    const CLUSTER: &str = "HOLDLINE_TEST_REDIS_CLUSTER";
    const STRING: &str = "?scheme=string&prefix=string:";
    const REDISSON: &str = "?scheme=redisson&prefix=redisson:";
    [
        Row::server("redis", ONE, ""),
        Row::server("redis-oldest", "HOLDLINE_TEST_REDIS_OLDEST", ""),
        Row::server("valkey", "HOLDLINE_TEST_VALKEY", ""),
        Row::server("redis-string", ONE, STRING),
        Row::server("redis-string-events", "HOLDLINE_TEST_REDIS_EVENTS", STRING),
        Row::server("redis-redisson", ONE, REDISSON),
        Row::server("redis-quorum", FIVE, ""),
        Row::server("redis-sentinel", "HOLDLINE_TEST_REDIS_SENTINEL", ""),
        Row::server("redis-string-quorum", FIVE, STRING),
        Row::server("redis-cluster", CLUSTER, ""),
        Row::server("redis-redisson-cluster", CLUSTER, REDISSON).taking(in_one_slot),
    ]
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

#[cfg(feature = "zookeeper")]
fn zookeeper() -> [Row; 3] {
    const ONE: &str = "HOLDLINE_TEST_ZOOKEEPER";
    // It lists; a request for each place would take ten times as long.
    let listing =
        |row| Row { each_place: Duration::from_micros(10), ..row }.notifying().without(SESSIONS);
    [
        listing(Row::server("zookeeper", ONE, "/curator?session=25s")),
        listing(Row::server("zookeeper-kazoo", ONE, "/kazoo?session=25s&dialect=kazoo")),
        Row::server("zookeeper-three", "HOLDLINE_TEST_ZOOKEEPER_THREE", "?session=25s")
            .notifying()
            .unmeasured()
            .without(SESSIONS),
    ]
}

#[cfg(feature = "mysql")]
fn mysql() -> [Row; 8] {
    const MARIADB: &str = "HOLDLINE_TEST_MARIADB";
    const MYSQL: &str = "HOLDLINE_TEST_MYSQL";
    const ROW: &str = "?install=yes&scheme=row";
    const NAMED: &str = "?install=yes&scheme=named";
    const OF_SHEDLOCK: &str = "?install=yes&scheme=shedlock";
    [
        Row::server("mariadb", MARIADB, "?install=yes"),
        Row::server("mariadb-row", MARIADB, ROW).without(MANY_LOCKS),
        Row::server("mariadb-named", MARIADB, NAMED).without(MANY_LOCKS),
        Row::server("mysql", MYSQL, "?install=yes"),
        Row::server("mysql-row", MYSQL, ROW).without(MANY_LOCKS),
        Row::server("mysql-named", MYSQL, NAMED).without(MANY_LOCKS),
        Row::server("mariadb-shedlock", MARIADB, OF_SHEDLOCK).taking(short).without(SHEDLOCK),
        Row::server("mysql-shedlock", MYSQL, OF_SHEDLOCK).taking(short).without(SHEDLOCK),
    ]
}

impl Row {
    fn at(name: &'static str, place: Place) -> Self {
        let (options, each_place) = ("", Duration::ZERO);
        Row {
            name,
            place,
            options,
            takes: |_| true,
            notifies: false,
            each_place,
            measured: true,
            unserved: Vec::new(),
        }
    }

    #[allow(dead_code, reason = "a build may have no store on a server")]
    fn server(name: &'static str, variable: &'static str, options: &'static str) -> Self {
        Row { options, ..Row::at(name, Place::Server(variable)) }
    }

    /// Where the kernel tells of files.
    #[cfg(feature = "sqlite")]
    fn told_by_the_kernel(self) -> Self {
        Row { notifies: cfg!(target_os = "linux"), ..self }
    }

    fn notifying(self) -> Self {
        Row { notifies: true, ..self }
    }

    #[allow(dead_code, reason = "a build may have no store in a cluster")]
    fn taking(self, takes: fn(&str) -> bool) -> Self {
        Row { takes, ..self }
    }

    #[allow(dead_code, reason = "a build may have no store on several servers")]
    fn unmeasured(self) -> Self {
        Row { measured: false, ..self }
    }

    #[allow(dead_code, reason = "a build may have no such store")]
    fn without(mut self, cases: &[&'static str]) -> Self {
        self.unserved.extend(cases);
        self
    }

    /// Whether it can serve the case.
    pub(crate) fn serves(&self, case: &str) -> bool {
        let is_it = |part: &&str| match part.strip_prefix("::") {
            Some(_) => case.ends_with(part),
            None => case.starts_with(part),
        };
        !self.unserved.iter().any(is_it)
    }

    /// The store, or what is missing.
    #[allow(unused_variables, reason = "a build may have no store in a file")]
    pub(crate) fn subject(&self, folder: &Path) -> Result<Arc<dyn Subject>, String> {
        let at = match self.place {
            Place::Here(url) => At::new(url),
            #[cfg(feature = "sqlite")]
            Place::Folder(url) => {
                At::new(url.replace("{}", &folder.display().to_string())).shared()
            }
            Place::Server(variable) => {
                let url = std::env::var(variable).map_err(|_| format!("{variable} is not set"))?;
                // A quorum has several URLs, each with options of its own.
                let url = url.replace(",redis:", &format!("{},redis:", self.options));
                At::new(url + self.options).shared()
            }
        };
        let at = if self.notifies { at.notifying() } else { at };
        Ok(Arc::new(at.taking(self.takes).listing(self.each_place)))
    }
}
