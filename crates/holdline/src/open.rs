//! Opening a store by its URL.

mod connect_options;
mod nodes;
mod scheme;
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
mod settings;
mod site;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::stores;
use crate::thread;
pub use connect_options::ConnectOptions;
use scheme::split;
pub(crate) use scheme::{canonical, feature_of};
use std::sync::Arc;

/// Opens the store at this URL.
///
/// | URL | store |
/// | --- | --- |
/// | `memory:` or `memory:NAME` | this process's memory; a named one is shared within the process |
/// | `sqlite:PATH` | a file, shared by the processes of this machine |
/// | `redis://HOST`, `valkey:` and others | Redis or Valkey: see the guide for Redis |
/// | `etcd://HOST:PORT,HOST:PORT/PREFIX` or `etcds:` | etcd, shared with `etcdctl lock` and Go |
/// | `zookeeper://HOST:PORT,HOST:PORT/PATH`, `zk:`, `zks:` | ZooKeeper, as Curator or kazoo |
/// | `mysql://HOST/DATABASE`, `mariadb:` | MySQL or MariaDB: see the guide for MySQL |
/// | `postgres://HOST/DATABASE` or `postgresql:` | PostgreSQL: see the guide for PostgreSQL |
/// | `quorum:URL,URL,URL` | a majority of three or more stores |
///
/// [`ConnectOptions`] takes the parts of such a URL one by one.
///
/// Open a store once in a process, and clone the client. Two clients of one URL know nothing of
/// each other: tasks queue locally with the tasks of their own client only, and so do the owners of
/// re-entrant mutexes.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the URL is invalid. That includes an empty one, which may come from a
/// variable or a secret that is not set: locks in the [default file](open_default) would keep no
/// other machine out. [`ErrorKind::Invalid`] also in a forked child of a process that has used
/// locks. [`ErrorKind::Unsupported`] if this build lacks the store, other kinds if the store cannot
/// be opened. Messages never show a password from the URL.
///
/// A quorum is open once a majority of its nodes is, within 1.5 s. A permanent error of a node (in
/// its URL or password) is returned at once. An unreachable node is connected when it is back.
///
/// # Cancel safety
///
/// Dropping the future closes everything it has opened.
pub async fn open(url: &str) -> Result<Client> {
    let url = canonical(url);
    let client = Client::new(store(&url).await?);
    if connects(&url) {
        client.note_answered();
    }
    Ok(client)
}

/// Opens the default store: the machine's file if there is one, or else one in the user's state
/// directory (`sqlite::default_path`).
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] if this build lacks the store `sqlite`, [`ErrorKind::Invalid`] if the
/// environment does not tell the user's directory, and in a forked child of a process that has used
/// locks; other kinds if the file cannot be opened.
pub fn open_default() -> Result<Client> {
    thread::check_process()?;
    let client = Client::new(default()?);
    client.note_answered();
    Ok(client)
}

/// Whether opening the store at this URL includes an answer from it. Other stores connect on first
/// use.
fn connects(url: &str) -> bool {
    let urls = url.strip_prefix("quorum:").map_or_else(|| vec![url.to_owned()], split);
    let feature = |url: &String| url.split_once(':').and_then(|(scheme, _)| feature_of(scheme));
    !urls.iter().any(|url| matches!(feature(url), Some("etcd" | "zookeeper")))
}

async fn store(url: &str) -> Result<Arc<dyn Store>> {
    if url.is_empty() {
        let message = "the store's URL is empty, perhaps by a variable or a secret that is not \
                       set; name a store, or open the file of this machine (open_default)";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    if url.contains(char::is_control) {
        let message = "the store's URL contains a line end or another control character; remove it \
                       (a file or a secret that holds the URL may end with one)";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    thread::check_process()?;
    match url.strip_prefix("quorum:") {
        Some(nodes) => nodes::open(split(nodes)).await,
        None => single(url).await,
    }
}

/// Opens any store but a quorum.
#[allow(clippy::unused_async, reason = "stores across a network connect here")]
async fn single(url: &str) -> Result<Arc<dyn Store>> {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    let Some(feature) = feature_of(scheme) else { return Err(unknown(url)) };
    match feature {
        "memory" => stores::memory::open(rest),
        #[cfg(feature = "sqlite")]
        "sqlite" => stores::sqlite::open(rest),
        #[cfg(feature = "redis")]
        "redis" => stores::redis::open(scheme, rest).await,
        #[cfg(feature = "etcd")]
        "etcd" => stores::etcd::open(scheme, rest),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => stores::zookeeper::open(scheme, rest),
        #[cfg(feature = "mysql")]
        "mysql" => stores::mysql::open(rest).await,
        #[cfg(feature = "postgres")]
        "postgres" => stores::postgres::open(rest).await,
        feature => Err(absent(&format!("the store {scheme}:"), feature)),
    }
}

/// The URLs of a quorum's nodes; `None` if the URL is not a quorum's.
pub(crate) fn nodes_of(url: &str) -> Option<Vec<String>> {
    url.strip_prefix("quorum:").map(split)
}

/// The address of the store at this URL: the URL without user, password and options, for messages.
/// Of a URL that makes no sense it is the scheme alone, or not even that, since all the rest may be
/// a password. An open store has [`Client::address`].
#[must_use]
pub fn address_of(url: &str) -> String {
    let url = canonical(url);
    nodes_of(&url).map_or_else(
        || site::address(&url),
        |nodes| {
            let nodes: Vec<String> = nodes.iter().map(|node| site::address(node)).collect();
            format!("quorum:{}", nodes.join(","))
        },
    )
}

#[cfg(feature = "sqlite")]
fn default() -> Result<Arc<dyn Store>> {
    stores::sqlite::open_default()
}

#[cfg(not(feature = "sqlite"))]
fn default() -> Result<Arc<dyn Store>> {
    Err(absent("the default file store", "sqlite"))
}

fn absent(what: &str, feature: &str) -> Error {
    let message = format!("{what} is not in this build; build with the feature \"{feature}\"");
    Error::new(ErrorKind::Unsupported, message)
}

/// The error for a URL whose scheme is unknown. It shows at most the scheme: the rest may contain a
/// password.
fn unknown(url: &str) -> Error {
    let known = "known are memory:, sqlite:PATH, redis://HOST, etcd://HOST:PORT, \
                 zookeeper://HOST:PORT, postgres://HOST/DATABASE, mysql://HOST/DATABASE and \
                 quorum:URL,URL,URL";
    let message = match scheme::shown(url) {
        Some(scheme) => {
            let meant = scheme::meant(scheme);
            let meant = meant.map(|meant| format!(" (did you mean \"{meant}:\"?)"));
            let scheme: String = scheme.chars().take(30).collect();
            let meant = meant.unwrap_or_default();
            format!("no store has URLs that begin with \"{scheme}:\"{meant}; {known}")
        }
        None => format!(
            "the store's URL has no scheme, the part before the first colon; a file is written \
             sqlite:PATH; {known}"
        ),
    };
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::{address_of, connects, open};
    use crate::ErrorKind;

    /// It comes from a variable that is not set, and the default file would keep no other machine
    /// out.
    #[tokio::test(flavor = "current_thread")]
    async fn an_empty_url_is_refused() {
        let error = open("").await.expect_err("it names no store");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("open_default"), "{error}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_store_that_is_open_has_been_reached_if_it_connects() {
        assert!(open("memory:").await.expect("opens").has_answered());
        let quorum = "quorum:memory:a,memory:b,memory:c";
        assert!(open(quorum).await.expect("opens").has_answered());
        for url in ["etcd://h", "etcds://h", "zk://h", "zks://h", "zookeeper://h"] {
            assert!(!connects(url), "{url}");
            assert!(!connects(&format!("quorum:redis://h,{url},redis://i")), "{url}");
        }
        for url in ["", "sqlite:/a", "redis://etcd", "rediss+cluster://a,zk"] {
            assert!(connects(url), "{url}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_path_alone_is_told_its_scheme() {
        for path in ["/run/locks.db", "locks.db", ":memory:", "~/locks.db"] {
            let error = open(path).await.expect_err(path).to_string();
            assert!(error.contains("has no scheme") && error.contains("sqlite:PATH;"), "{error}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn doubled_and_unknown_options_are_named() {
        let refusal = async |url: &str| open(url).await.expect_err(url).to_string();
        for scheme in ["redis", "etcd", "zookeeper", "postgres", "mysql"] {
            let twice = refusal(&format!("{scheme}://h/0?timeout=1s&timeout=2s")).await;
            assert!(twice.contains("the option \"timeout\" twice"), "{twice}");
            for bad in ["me:pa/ss@h/d", "me:pa?ss@h/d", "me:pa#ss@h/d"] {
                let hint = refusal(&format!("{scheme}://{bad}")).await;
                assert!(hint.contains("%2F") && !hint.contains("me:"), "{hint}");
            }
            let unknown = refusal(&format!("{scheme}://h/0?colour=red")).await;
            let absent = unknown.contains("build with the feature");
            assert!(absent || unknown.contains("colour"), "{unknown}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_password_whose_scheme_was_forgotten_is_not_shown() {
        for url in ["canary@h:6379", "me:canary@h", "can:ary@h", "canary:6379@h", ":canary@h"] {
            for url in [url.to_owned(), format!("quorum:{url},redis://a,redis://b")] {
                let error = open(&url).await.expect_err(&url).to_string();
                assert!(error.contains("has no scheme") && !error.contains("can"), "{error}");
                assert!(!address_of(&url).contains("can"), "{}", address_of(&url));
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_slip_in_the_scheme_is_recognized() {
        let error = open("redsi://h").await.expect_err("unknown").to_string();
        assert!(error.contains("did you mean \"redis:\"?"), "{error}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_case_of_a_scheme_and_blanks_around_a_url_do_not_matter() {
        open(" Memory: ").await.expect("opens");
        open("QUORUM:memory:a, MEMORY:b, memory:c").await.expect("opens");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_unknown_scheme_is_said_before_what_else_is_wrong() {
        for url in ["reddis://me:pa/ss@h/d", "redisx://h", "sqlite3:/a", "etcdx://h?a=1&a=1"] {
            let error = open(url).await.expect_err(url).to_string();
            assert!(error.contains("no store has URLs") && !error.contains("me:"), "{error}");
        }
    }

    #[cfg(not(feature = "redis"))]
    #[tokio::test(flavor = "current_thread")]
    async fn a_store_that_is_not_built_in_is_named_by_its_feature() {
        let error = open("rediss+cluster://h").await.expect_err("absent").to_string();
        assert!(error.contains("build with the feature \"redis\""), "{error}");
    }
}
