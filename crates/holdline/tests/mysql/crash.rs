//! What a server crash can undo, and what it cannot.

use crate::server::{Database, ticket};
use holdline::store::{Enter, Standing, Store, Ticket};
use holdline::{Client, Name, open};
use holdline_testkit::{Deployment, Folder, Private, free_port, mysql, soon};
use mysql_async::prelude::Queryable;
use std::sync::Arc;
use std::time::Duration;

/// A server that stops flushing commits to the disk on request.
struct Lazy {
    server: Private,
    database: Database,
    client: Client,
    line: Name,
}

impl Lazy {
    async fn start(name: &str) -> Option<Self> {
        // In memory it would write its log anyway.
        let folder = Folder::on_disk(&format!("mysql-{name}")).expect("there is room");
        let server = Private::launch_in(folder, || {
            let port = free_port();
            Deployment::new(mysql::url(port), vec![mysql::mariadb("mariadb", port)])
        })?;
        let database = Database::fresh(&server.url(), name).await;
        let client = open(&database.url("")).await.expect("opens");
        let lazy = Self { server, database, client, line: Name::new("x").expect("good") };
        let first = mine();
        lazy.enter(&first, Enter::Try).await; // the name's row
        assert!(lazy.leave(&first).await);
        Some(lazy)
    }

    /// Sets `innodb_flush_log_at_trx_commit`, without a flush every second.
    async fn flush(&self, value: u8) {
        let sql = format!(
            "SET GLOBAL innodb_flush_log_at_timeout = 2700; \
             SET GLOBAL innodb_flush_log_at_trx_commit = {value}"
        );
        self.database.conn().await.query_drop(sql).await.expect("it may");
    }

    async fn enter(&self, ticket: &Ticket, how: Enter) -> Standing {
        let store: &Arc<dyn Store> = self.client.store();
        let entered = async {
            loop {
                match store.enter(&self.line, ticket, &"".into(), how).await {
                    Ok(standing) => break standing,
                    Err(error) => assert!(error.retryable(), "{error}"),
                }
            }
        };
        soon("an answer", entered).await
    }

    async fn leave(&self, ticket: &Ticket) -> bool {
        self.client.store().leave(&self.line, ticket.id).await.expect("works")
    }

    fn crash(&mut self) {
        self.server.kill(0);
        self.server.restart(0);
    }
}

fn mine() -> Ticket {
    ticket(Duration::from_secs(3600))
}

fn waits(standing: &Standing) -> bool {
    matches!(standing, Standing::Waiting { .. })
}

/// A lock that the server forgets goes to the next client, with a higher token, and the first
/// holder is told of the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_crash_forgets_is_fenced() {
    let Some(mut lazy) = Lazy::start("forgets").await else { return };
    lazy.flush(0).await;
    let (first, next) = (mine(), mine());
    let Standing::Admitted(seq) = lazy.enter(&first, Enter::Try).await else { panic!("free") };
    assert!(waits(&lazy.enter(&next, Enter::Try).await), "it is held");
    lazy.crash();
    let Standing::Admitted(later) = lazy.enter(&next, Enter::Try).await else {
        panic!("it is not forgotten");
    };
    assert!(later > seq, "{later:?} after {seq:?}");
    assert_eq!(lazy.enter(&first, Enter::Keep(seq)).await, Standing::Lost);
}

/// A release that the server forgets must be repeated, or the lease must end. There are never two
/// holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_a_crash_forgets_lets_nobody_in() {
    let Some(mut lazy) = Lazy::start("stays").await else { return };
    let (first, next) = (mine(), mine());
    let Standing::Admitted(seq) = lazy.enter(&first, Enter::Try).await else { panic!("free") };
    lazy.flush(0).await;
    assert!(lazy.leave(&first).await);
    lazy.crash();
    assert!(waits(&lazy.enter(&next, Enter::Try).await), "it is held again");
    assert_eq!(lazy.enter(&first, Enter::Keep(seq)).await, Standing::Admitted(seq));
    assert!(lazy.leave(&first).await);
    assert!(
        matches!(lazy.enter(&next, Enter::Try).await, Standing::Admitted(later) if later > seq)
    );
}

/// Data passed to the operating system survive a crash of the server, though not of the machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_system_was_told_outlives_the_server() {
    let Some(mut lazy) = Lazy::start("told").await else { return };
    lazy.flush(2).await;
    let (first, next) = (mine(), mine());
    let Standing::Admitted(seq) = lazy.enter(&first, Enter::Try).await else { panic!("free") };
    lazy.crash();
    assert!(waits(&lazy.enter(&next, Enter::Try).await), "it is held");
    assert_eq!(lazy.enter(&first, Enter::Keep(seq)).await, Standing::Admitted(seq));
}
