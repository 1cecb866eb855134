//! The stores to measure, by URL.

use crate::Failure;
use holdline::Client;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// The stores of one run, and the folder that files are put in meanwhile.
#[derive(Debug)]
pub(crate) struct Targets {
    pub(crate) list: Vec<Target>,
    pub(crate) folder: TempDir,
}

/// One store.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// How it is opened.
    pub(crate) url: String,
    /// How tables call it.
    pub(crate) label: String,
}

impl Targets {
    /// The stores asked for; if none, memory and a new file.
    pub(crate) fn new(urls: &[String]) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("holdline-bench-").tempdir()?;
        let mut list = Vec::new();
        if urls.is_empty() {
            list.push(Target { url: "memory:bench".to_owned(), label: "memory".to_owned() });
            let file = folder.path().join("locks.db");
            let url = format!("sqlite:{}", file.display());
            list.push(Target { url, label: "sqlite".to_owned() });
        }
        for url in urls {
            let shared = if url == "memory:" { "memory:bench" } else { url };
            list.push(Target { url: shared.to_owned(), label: label(url) });
        }
        Ok(Targets { list, folder })
    }

    /// Those that more than one process can use.
    pub(crate) fn between_processes(&self) -> impl Iterator<Item = &Target> {
        self.list.iter().filter(|target| !target.is_memory())
    }
}

/// The URL without whatever may be secret in it.
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
    use super::label;

    #[test]
    fn a_label_has_no_password() {
        assert_eq!(label("redis://user:secret@host:1"), "redis://host:1");
        assert_eq!(label("sqlite:/a/b"), "sqlite:/a/b");
    }
}
