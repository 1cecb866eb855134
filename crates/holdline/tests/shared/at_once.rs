//! Locks that are taken at the same time, so that their calls are sent together: a part of the
//! binaries of stores that do so.

use holdline::{Client, Guard, Mutex};
use holdline_testkit::{released, soon};
use std::time::Duration;
use tokio::task::JoinSet;

/// A lease so long that no renewal interferes.
pub(crate) const LEASE: Duration = Duration::from_secs(600);

pub(crate) async fn lock(client: Client, name: String) -> holdline::Result<Guard> {
    Mutex::new(&client, name).lease(LEASE).lock().await
}

pub(crate) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}{n}")).collect()
}

/// The names of which a server is to refuse those that start with `refused`.
pub(crate) fn some_refused() -> Vec<String> {
    [names("good", 60), names("refused", 4), names("more", 60)].concat()
}

/// Locks these names at the same time. The server refuses those that start with `refused`, and says
/// that the test `wants` it: they fail alone.
pub(crate) async fn refused_calls_fail_alone(client: &Client, names: Vec<String>) {
    let mut locks: JoinSet<_> = names
        .into_iter()
        .map(|name| {
            let client = client.clone();
            async move { (name.starts_with("refused"), lock(client, name).await) }
        })
        .collect();
    while let Some(answer) = soon("an answer", locks.join_next()).await {
        let (refused, guard) = answer.expect("no panic");
        match guard {
            Ok(guard) => {
                assert!(!refused);
                released(guard).await;
            }
            Err(error) => assert!(refused && error.to_string().contains("wants"), "{error}"),
        }
    }
}
