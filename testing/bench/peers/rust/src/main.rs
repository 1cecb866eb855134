//! Locks of Rust's libraries, and holdline's own, behind the line protocol of `cargo xtask bench
//! peers`, which `../../README.md` describes. All of them run the same loop.

#[cfg(feature = "etcd-client")]
mod etcd;
mod load;
mod ours;
mod redis;
mod sql;
mod zookeeper;

use std::error::Error;
use std::future::Future;
use std::time::Duration;

/// What goes wrong.
type Failure = Box<dyn Error + Send + Sync>;

/// How long a lock lasts unless it is renewed.
const LEASE: Duration = Duration::from_secs(10);

/// A library, connected to its server, as one process of a service has it.
trait Library: Send + Sync + 'static {
    /// One task's handle of one name.
    type Lock: Send + 'static;
    /// What is held.
    type Held: Send + 'static;

    /// Makes a handle. This is not measured.
    fn lock(&self, name: &str) -> impl Future<Output = Result<Self::Lock, Failure>> + Send;

    /// Waits for the lock.
    fn acquire(
        &self,
        lock: &mut Self::Lock,
    ) -> impl Future<Output = Result<Self::Held, Failure>> + Send;

    /// Gives it back.
    fn release(
        &self,
        lock: &mut Self::Lock,
        held: Self::Held,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [peer, url] = &args[..] else { return Err("usage: holdline-peers PEER URL".into()) };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Ok(threads) = std::env::var("PEER_THREADS") {
        runtime.worker_threads(threads.parse()?);
    }
    runtime.enable_all().build()?.block_on(serve(peer, url))
}

async fn serve(peer: &str, url: &str) -> Result<(), Failure> {
    match peer {
        "holdline" => load::serve(ours::Ours::open(url, false).await?).await,
        "holdline-handoff" => load::serve(ours::Ours::open(url, true).await?).await,
        "bare" => load::serve(redis::Bare::open(url).await?).await,
        "rslock" => load::serve(redis::Rslock::open(url)).await,
        "distributed-lock" => load::serve(redis::Distributed::open(url).await?).await,
        #[cfg(feature = "etcd-client")]
        "etcd-client" => load::serve(etcd::Rpc::open(url).await?).await,
        "zookeeper-client" => load::serve(zookeeper::Recipe::open(url).await?).await,
        "sqlx" => load::serve(sql::Advisory::open(url)?).await,
        other => Err(format!("I do not know the peer {other:?}").into()),
    }
}

/// `host:port` of a URL.
fn host(url: &str) -> &str {
    let rest = url.split_once("//").map_or(url, |(_, rest)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or(rest)
}
