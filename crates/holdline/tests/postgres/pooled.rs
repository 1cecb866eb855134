//! A pooler in between.

use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::soon;

/// Calls that follow closely are not torn apart: PgBouncer gives a server's connection away as soon
/// as a reply has ended, also when it has passed on a part of the next call.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_calls_at_once_get_their_own_answers() {
    let Ok(url) = std::env::var("HOLDLINE_TEST_POSTGRES_POOLED") else {
        holdline_testkit::missing("HOLDLINE_TEST_POSTGRES_POOLED is not set");
        return;
    };
    let url = format!("{url}?install=yes&listen=off");
    // One client alone would be given the same connection again.
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(open(&url).await.expect("opens"));
    }
    let label = "x".repeat(3000);
    let tasks: Vec<_> = (0..128)
        .map(|task| {
            let (client, label) = (clients[task % clients.len()].clone(), label.clone());
            tokio::spawn(async move {
                let name = format!("pooled {task}");
                let lock = Mutex::new(&client, &name).label(&label);
                for _ in 0..50 {
                    // Those of one kind only would not be noticed.
                    let (locked, seen, listed) =
                        tokio::join!(lock.try_lock(), client.inspect(&name), client.list(&name));
                    for error in [locked.err(), seen.err(), listed.err()].into_iter().flatten() {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        soon("a task", task).await.expect("all answers make sense");
    }
    for client in &clients {
        client.settle().await;
    }
}
