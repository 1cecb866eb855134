//! The peers.

use super::Store;
use holdline_testkit::Language::{self, Go, Java, Node, Python};

/// A library's lock. `docs/peers.md` says how each waits, and what it promises.
pub(super) struct Peer {
    pub(super) store: Store,
    /// Its name in its driver.
    pub(super) name: &'static str,
    /// The language of its driver; `None` is Rust.
    pub(super) language: Option<Language>,
    /// The scheme of this library to compare with, if not the usual one.
    pub(super) scheme: Option<&'static str>,
    /// Whether it can keep 10,000 locks for longer than its lease, or why not.
    pub(super) keeps: Result<(), &'static str>,
}

impl Peer {
    /// Its name in tables.
    pub(super) fn label(&self) -> String {
        let beside = self.scheme.map(|scheme| format!(", beside {scheme}"));
        format!("{}{}", self.name, beside.unwrap_or_default())
    }

    /// The length of its warm-up, in seconds.
    pub(super) fn warm(&self) -> f64 {
        if self.language == Some(Java) { 4.0 } else { 0.5 }
    }
}

const OK: Result<(), &str> = Ok(());
const NO_RENEWAL: Result<(), &str> = Err("does not renew by itself");
const A_THREAD: Result<(), &str> = Err("not tried: a thread for each lock renews");
const A_CONNECTION: Result<(), &str> = Err("a connection for each lock");
const A_LOCK: Result<(), &str> = Err("not tried: renewed inside of `using` alone");

const fn peer(
    store: Store,
    name: &'static str,
    language: Option<Language>,
    keeps: Result<(), &'static str>,
) -> Peer {
    Peer { store, name, language, scheme: None, keeps }
}

/// This library, on any store.
pub(super) const OURS: Peer = peer(Store::Redis, "holdline", None, OK);

const SQLX: Peer = peer(Store::Postgres, "sqlx", None, A_CONNECTION);

pub(super) const PEERS: &[Peer] = &[
    peer(Store::Redis, "bare", None, NO_RENEWAL),
    peer(Store::Redis, "rslock", None, NO_RENEWAL),
    peer(Store::Redis, "distributed-lock", None, OK),
    peer(Store::Redis, "redsync", Some(Go), NO_RENEWAL),
    peer(Store::Redis, "redislock", Some(Go), NO_RENEWAL),
    peer(Store::Redis, "rueidislock", Some(Go), OK),
    peer(Store::Redis, "redisson", Some(Java), OK),
    peer(Store::Redis, "redisson-fair", Some(Java), OK),
    peer(Store::Redis, "redlock", Some(Node), A_LOCK),
    peer(Store::Redis, "redlock4", Some(Node), NO_RENEWAL),
    peer(Store::Redis, "redis-py", Some(Python), NO_RENEWAL),
    peer(Store::Redis, "python-redis-lock", Some(Python), A_THREAD),
    peer(Store::Etcd, "etcd-go", Some(Go), OK),
    peer(Store::Etcd, "etcd-client", None, OK),
    peer(Store::Etcd, "jetcd", Some(Java), OK),
    peer(Store::Zookeeper, "curator", Some(Java), OK),
    peer(Store::Zookeeper, "go-zookeeper", Some(Go), OK),
    peer(Store::Zookeeper, "kazoo", Some(Python), OK),
    peer(Store::Zookeeper, "zookeeper-client", None, OK),
    peer(Store::Postgres, "shedlock", Some(Java), NO_RENEWAL),
    SQLX,
    Peer { scheme: Some("advisory"), ..SQLX }, // the same kind of lock
];
