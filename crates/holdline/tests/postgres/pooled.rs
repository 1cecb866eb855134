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
    let client = open(&format!("{url}?install=yes&listen=off")).await.expect("opens");
    let label = "x".repeat(1500);
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let (client, label) = (client.clone(), label.clone());
            tokio::spawn(async move {
                let name = format!("pooled {task}");
                let lock = Mutex::new(&client, &name).label(&label);
                for _ in 0..100 {
                    // Those of one kind only would not be noticed.
                    let (locked, _, _) =
                        tokio::join!(lock.try_lock(), client.inspect(&name), client.list(&name),);
                    match locked {
                        Ok(guard) => drop(guard),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        soon("a task", task).await.expect("all answers make sense");
    }
    client.settle().await;
}
