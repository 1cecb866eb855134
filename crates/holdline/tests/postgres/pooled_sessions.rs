//! Locks of sessions behind PgBouncer, in each of its modes: a pool of sessions can be used, and
//! one that gives a client another session for each transaction or statement is refused.

use crate::raw::{Raw, ticket};
use holdline::store::{Enter, Standing};
use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::{Private, free_port, postgres, until};
use rustix::process::Signal;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A private pooler with these settings, and its server.
fn pooler(name: &str, settings: &str) -> Option<Private> {
    Private::launch(name, || postgres::pooled([free_port(), free_port()], settings))
}

fn url(pooled: &Private) -> String {
    pooled.url() + "?scheme=advisory&listen=off"
}

/// Another client of the pooler, of this database.
async fn client(pooled: &Private, database: &str) -> Client {
    let url = in_database(&pooled.url(), database);
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("runs");
    tokio::spawn(connection);
    client
}

/// The same URL with another database, and a user of its name: the pooler logs in all as one.
fn in_database(url: &str, database: &str) -> String {
    url.replace("/postgres", &format!("/{database}"))
}

/// The only value of a query.
async fn value(client: &Client, query: &str) -> String {
    let messages = client.simple_query(query).await.expect("works");
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    row.expect("a row").to_owned()
}

/// Clients that use this number of sessions, each one of its own.
async fn busy(pooled: &Private, database: &str, sessions: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..sessions {
        let client = client(pooled, database).await;
        client.batch_execute("BEGIN").await.expect("begins");
        clients.push(client);
    }
    clients
}

async fn is_refused(url: &str) {
    let error = open(url).await.expect_err(url);
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}: {error}");
    assert!(error.to_string().contains("pools transactions"), "{url}: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_transactions_is_refused_whatever_session_it_gives() {
    for turns in ["server_round_robin = 0", "server_round_robin = 1"] {
        let Some(pooled) = pooler("pool_transactions", turns) else { return };
        for sessions in 1..=3 {
            let name = format!("with_{sessions}");
            let create = format!("CREATE DATABASE {name}");
            client(&pooled, "postgres").await.batch_execute(&create).await.expect("works");
            drop(busy(&pooled, &name, sessions).await);
            for _ in 0..3 {
                is_refused(&in_database(&url(&pooled), &name)).await;
            }
            // The sessions are other clients', too: each still waits for the disk.
            for other in busy(&pooled, &name, sessions + 1).await {
                assert_eq!(value(&other, "SHOW synchronous_commit").await, "on", "{turns} {name}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_statements_is_refused() {
    let Some(pooled) = pooler("pool_statements", "pool_mode = statement") else { return };
    is_refused(&url(&pooled)).await;
}

/// Settings and locks end with each transaction there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_resets_after_each_transaction_is_refused() {
    let settings = "server_reset_query_always = 1";
    let Some(pooled) = pooler("pool_resets", settings) else { return };
    is_refused(&url(&pooled)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_sessions_can_be_used() {
    let Some(pooled) = pooler("pool_sessions", "pool_mode = session") else { return };
    for _ in 0..3 {
        // Later rounds get the sessions of earlier ones.
        let one = open(&url(&pooled)).await.expect("opens");
        let two = open(&url(&pooled)).await.expect("opens");
        let (one, two) = (Mutex::new(&one, "x"), Mutex::new(&two, "x"));
        let guard = one.lock().await.expect("works");
        assert!(two.try_lock().await.expect("works").is_none(), "two have it");
        guard.unlock().await.expect("it was held");
        two.lock().await.expect("works").unlock().await.expect("it was held");
    }
}

/// It keeps the locks of a client that has gone, and gives them to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_sessions_that_are_not_reset_is_refused() {
    let settings = "pool_mode = session\nserver_reset_query =";
    let Some(pooled) = pooler("pool_unreset", settings) else { return };
    drop(open(&url(&pooled)).await.expect("its sessions are new"));
    // The pooler learns in a while that the client has gone.
    until("the next client gets such a session", async || open(&url(&pooled)).await.is_err()).await;
    is_refused(&url(&pooled)).await;
}

/// A proxy pools sessions when the store is opened, and transactions later: no lock is taken with
/// the session of another client, which might have it already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lock_is_taken_with_the_session_of_another_client() {
    let Some(pooled) = pooler("pool_changes", "pool_mode = session") else { return };
    let (holder, rival) = (Raw::open(&url(&pooled)).await, Raw::open(&url(&pooled)).await);
    let (one, two) = (client(&pooled, "postgres").await, client(&pooled, "postgres").await);
    let file = pooled.servers[1].dir().join("pgbouncer.ini");
    let text = std::fs::read_to_string(&file).expect("it is there");
    std::fs::write(&file, text + "pool_mode = transaction\n").expect("it can be written");
    pooled.signal(1, Signal::HUP);
    let pid = "SELECT pg_backend_pid()";
    until("it pools transactions", async || value(&one, pid).await == value(&two, pid).await).await;
    let (held, mine) = (ticket(1, 1), ticket(1, 1));
    holder.hold(&held).await;
    let standing = rival.enter(&mine, Enter::Try).await.expect("this was its own session");
    assert!(matches!(standing, Standing::Waiting { .. }), "{standing:?}");
    one.batch_execute("BEGIN").await.expect("it uses that session");
    let error = rival.enter(&mine, Enter::Try).await.expect_err("the holder's session has it");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    two.batch_execute("BEGIN").await.expect("it uses the holder's session");
    assert!(!holder.leave(&held).await, "another session cannot free it");
}
