//! Locks shared with the clients of other languages: the real ones, each in a small program of its
//! language (`go/`, `java/`, `node/`, `php/`, `python/`, `ruby/`; `rust.rs`), as rows of a table of
//! stores and kinds of lock.
//!
//! Such a program is started with the servers' addresses (`host:port`, separated by commas) and
//! its lease in milliseconds. It says `ready`, and then answers each line with a line:
//!
//! | line | answer |
//! | --- | --- |
//! | `lock KIND NAME [VALUE]` | `held TOKEN`, when it is; TOKEN is `-` where there is none |
//! | `try KIND NAME` | `held TOKEN` or `refused`, at once |
//! | `unlock` | `released`: what was taken last |
//! | `leader KIND NAME` | `leader VALUE` or `nobody` |
//! | `observe KIND NAME VALUE` | `leader VALUE`, when it leads |
//! | `quit` | none: it ends |
//!
//! Of a database it is told a URL for JDBC instead. What goes wrong is `error TEXT`. A language
//! that is not there, or a server, is a test that was not run: see `holdline_testkit::missing`.
#![cfg(all(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]

mod advisory;
mod etcd;
mod peer;
mod redis;
mod rust;
mod shedlock;
mod sqlx;
mod suite;
mod toolchain;
mod zookeeper;

/// The URL in this variable, or nothing, with a word about it.
fn server(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok();
    if url.is_none() {
        skipped(&format!("{variable} is not set; see `cargo xtask servers --help`"));
    }
    url
}

/// Says that a test was not run, which is not a pass.
fn skipped(why: &str) {
    holdline_testkit::missing(why);
}

/// What a peer is told of a store's URL: its `host:port` pairs.
fn hosts(url: &str) -> String {
    let url = url.trim_start_matches("quorum:");
    let host = |part: &str| part.rsplit("//").next().unwrap_or_default().to_owned();
    url.split(',').map(host).collect::<Vec<_>>().join(",")
}
