//! A peer in Rust: rslock, sqlx, and the crate zookeeper-client. It is this test binary, started
//! again as a process of its own, so that it can be killed.

use std::io::{BufRead, stdin};
use std::time::Duration;
use tokio::task::spawn_blocking;

/// Set in the process that is a peer: the servers, and the lease in milliseconds.
const VARIABLES: [&str; 2] = ["HOLDLINE_PEER_SERVERS", "HOLDLINE_PEER_LEASE"];

/// The command that starts one.
pub(crate) fn command(servers: &str, lease: Duration) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(std::env::current_exe().expect("it has a path"));
    command.args(["--exact", "rust::peer", "--nocapture"]);
    command.env(VARIABLES[0], servers).env(VARIABLES[1], lease.as_millis().to_string());
    command
}

/// Does nothing but in the process that [`command`] starts.
#[tokio::test]
async fn peer() {
    let [Ok(servers), Ok(lease)] = VARIABLES.map(std::env::var) else { return };
    let lease = Duration::from_millis(lease.parse().expect("a number"));
    let mut clients = Clients { servers, lease, ..Clients::default() };
    // Not behind what the harness says.
    println!("\nready");
    let next = || spawn_blocking(|| stdin().lock().lines().next());
    while let Some(line) = next().await.expect("no panic") {
        let line = line.expect("text");
        let words: Vec<&str> = line.split(' ').collect();
        println!("{}", clients.answer(&words).await.unwrap_or_else(|why| format!("error {why}")));
    }
}

#[derive(Default)]
struct Clients {
    servers: String,
    lease: Duration,
    rslock: Option<(rslock::LockManager, rslock::Lock)>,
    zookeeper: Option<zookeeper_client::Client>,
    node: Option<zookeeper_client::OwnedLockClient>,
    #[cfg(feature = "postgres")]
    sqlx: Option<crate::sqlx::Held>,
}

impl Clients {
    async fn answer(&mut self, words: &[&str]) -> Result<String, String> {
        let is_held = match words {
            [verb @ ("lock" | "try"), kind, name] => self.take(kind, name, *verb == "lock").await?,
            ["unlock"] => return self.unlock().await.map(|()| "released".to_owned()),
            ["quit"] => std::process::exit(0),
            _ => return Err("unknown command".to_owned()),
        };
        Ok(if is_held { "held -" } else { "refused" }.to_owned())
    }

    async fn take(&mut self, kind: &str, name: &str, waits: bool) -> Result<bool, String> {
        match kind {
            "rslock" => self.take_rslock(name, waits).await,
            "zookeeper-client" => self.take_node(name, waits).await,
            #[cfg(feature = "postgres")]
            "sqlx" | "sqlx-migrate" => {
                self.sqlx = crate::sqlx::take(kind, name, waits, &self.servers).await?;
                Ok(self.sqlx.is_some())
            }
            _ => Err(format!("unknown kind {kind} for {name}, {waits}")),
        }
    }

    async fn take_rslock(&mut self, name: &str, waits: bool) -> Result<bool, String> {
        let servers = self.servers.split(',').map(|host| format!("redis://{host}")).collect();
        let mut manager = rslock::LockManager::new(servers);
        manager.set_retry(if waits { 1_000_000 } else { 1 }, Duration::from_millis(20));
        match manager.lock(name.as_bytes(), self.lease).await {
            Ok(lock) => self.rslock = Some((manager, lock)),
            Err(rslock::LockError::Unavailable) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
        Ok(true)
    }

    async fn take_node(&mut self, name: &str, waits: bool) -> Result<bool, String> {
        use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};
        let text = |error: zookeeper_client::Error| error.to_string();
        if self.zookeeper.is_none() {
            let connector = Client::connector().with_session_timeout(self.lease);
            self.zookeeper = Some(connector.connect(&self.servers).await.map_err(text)?);
        }
        let client = self.zookeeper.as_ref().expect("it was made");
        let folder = format!("/{name}");
        let prefix = LockPrefix::new_curator(&folder, "lock-").map_err(text)?;
        let parents = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all());
        let options = options.with_ancestor_options(parents).map_err(text)?;
        let lock = client.lock(prefix, b"rust", options);
        // It has no try: one that is dropped leaves the line.
        let time = Duration::from_millis(if waits { 60_000 } else { 300 });
        match tokio::time::timeout(time, lock).await {
            Ok(lock) => self.node = Some(lock.map_err(text)?.into_owned()),
            Err(_) => return Ok(false),
        }
        Ok(true)
    }

    async fn unlock(&mut self) -> Result<(), String> {
        if let Some((manager, lock)) = self.rslock.take() {
            manager.unlock(&lock).await;
            return Ok(());
        }
        if let Some((node, client)) = self.node.take().zip(self.zookeeper.as_ref()) {
            let path = node.lock_path().to_owned();
            drop(node); // it is deleted in the background
            while client.check_stat(&path).await.map_err(|error| error.to_string())?.is_some() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            return Ok(());
        }
        #[cfg(feature = "postgres")]
        if let Some(held) = self.sqlx.take() {
            return held.release().await;
        }
        Err("nothing is held".to_owned())
    }
}
