//! The stores to measure, by URL.

use crate::Failure;
use holdline::Client;
use holdline_testkit::{Folder, Link, Private, install_missing, redis};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// The stores of one run, and the folder of their files.
#[derive(Debug)]
pub(crate) struct Targets {
    pub(crate) list: Vec<Target>,
    pub(crate) folder: TempDir,
    /// The links that delay the servers. They end with the run.
    _links: Vec<Link>,
    /// A private Redis server, which ends with the run.
    _redis: Option<Private>,
}

/// One store.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The URL to open it.
    pub(crate) url: String,
    /// Its name in tables.
    pub(crate) label: String,
}

impl Targets {
    /// The requested stores; if there are none, memory, a new file, and a Redis server: that of
    /// `HOLDLINE_TEST_REDIS`, or a private one. `longer` is added to a round trip to a Redis
    /// server.
    pub(crate) fn new(urls: &[String], longer: Option<Duration>) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("holdline-bench-").tempdir()?;
        let (mut list, mut links, mut own) = (Vec::new(), Vec::new(), None);
        if urls.is_empty() {
            list.push(Target { url: "memory:bench".to_owned(), label: "memory".to_owned() });
            let file = folder.path().join("locks.db");
            let url = format!("sqlite:{}", file.display());
            list.push(Target { url, label: "sqlite".to_owned() });
            let shared = std::env::var(redis::SINGLE.env).ok();
            own = if shared.is_none() { own_redis() } else { None };
            let url = shared.or(own.as_ref().map(Private::url));
            list.extend(url.map(|url| Target { url, label: "redis".to_owned() }));
        }
        for url in urls {
            let shared = if url == "memory:" { "memory:bench" } else { url };
            list.push(Target { url: shared.to_owned(), label: label(url) });
        }
        for target in list.iter_mut().filter(|target| longer.is_some() && target.is_redis()) {
            let longer = longer.unwrap_or_default();
            links.push(target.move_away(longer)?);
        }
        Ok(Targets { list, folder, _links: links, _redis: own })
    }

    /// The stores that several processes can use.
    pub(crate) fn between_processes(&self) -> impl Iterator<Item = &Target> {
        self.list.iter().filter(|target| !target.is_memory())
    }
}

/// A private Redis server, which is installed if possible; `None`, with a note, if there is none.
fn own_redis() -> Option<Private> {
    install_missing(redis::SINGLE.programs());
    let folder = Folder::new("bench");
    let describe = || redis::SINGLE.on_free_ports();
    let started = folder.and_then(|it| Private::try_launch_in(it, describe));
    started.inspect_err(|why| eprintln!("Redis is left out: {why}")).ok()
}

/// The URL without anything that may be secret.
fn label(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        _ => url.trim_end_matches(':').to_owned(),
    }
}

impl Target {
    pub(crate) fn is_memory(&self) -> bool {
        self.url.starts_with("memory:")
    }

    /// Whether it is a single Redis server with lines.
    pub(crate) fn is_redis(&self) -> bool {
        self.url.starts_with("redis://") && !self.url.contains("scheme=")
    }

    /// Puts a link in front of the server.
    fn move_away(&mut self, longer: Duration) -> Result<Link, Failure> {
        let start = self.url.rfind('@').or(self.url.find("//").map(|at| at + 1)).unwrap_or(0) + 1;
        let end = self.url[start..].find(['/', '?']).map_or(self.url.len(), |at| start + at);
        let link = Link::to(&self.url[start..end])?;
        link.delay(longer / 2);
        self.url.replace_range(start..end, &link.address().to_string());
        self.label = format!("{}, {} ms away", self.label, longer.as_secs_f64() * 1e3);
        Ok(link)
    }

    /// The file, if it is one.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        self.url.strip_prefix("sqlite:").map(PathBuf::from)
    }

    /// A client with connections of its own, as another process would have.
    pub(crate) async fn open(&self) -> Result<Client, Failure> {
        Ok(holdline::open(&self.url).await?)
    }
}

/// A name that no other measurement uses, in this run or another.
pub(crate) fn fresh(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("bench-{what}-{}-{count}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_no_password() {
        assert_eq!(label("redis://user:secret@host:1"), "redis://host:1");
        assert_eq!(label("sqlite:/a/b"), "sqlite:/a/b");
    }

    #[test]
    fn only_the_server_moves_away() {
        let mut target = Target {
            url: "redis://al:p@127.0.0.1:6379/3?idle=5m".to_owned(),
            label: "redis".to_owned(),
        };
        let link = target.move_away(Duration::from_millis(2)).unwrap();
        assert_eq!(target.url, format!("redis://al:p@{}/3?idle=5m", link.address()));
        assert_eq!(target.label, "redis, 2 ms away");
    }
}
