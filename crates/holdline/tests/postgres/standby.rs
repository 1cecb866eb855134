//! A standby: it is refused by every scheme, and skipped if the URL names several hosts.

use crate::raw::{Raw, ticket};
use crate::server::{Server, one, private};
use holdline::store::{Enter, Standing};
use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::{Deployment, Private, free_port, postgres, soon, until};

/// A standby of this server.
pub(crate) fn standby_of(primary: &Server) -> Option<Private> {
    Private::launch("standby", || {
        let port = free_port();
        let node = postgres::standby(port, primary.address().1);
        Deployment::new(postgres::url(port), vec![node])
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_refused_and_the_primary_found() {
    let Some(server) = private("primary", &["fsync=off"]) else { return };
    for scheme in ["table", "row"] {
        open(&format!("{}&scheme={scheme}&timeout=20s", server.url())).await.expect("opens");
    }
    let Some(standby) = standby_of(&server) else { return };
    let sql = server.sql().await;
    let behind = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn IS DISTINCT FROM \
                  pg_current_wal_lsn()";
    until("it has followed", async || one::<i64>(&sql, behind, &[]).await == 0).await;
    for scheme in ["table", "row", "advisory"] {
        // A busy machine may not connect within the usual time.
        let url = format!("{}?scheme={scheme}&timeout=20s", standby.url());
        let error = open(&url).await.expect_err("it is a standby");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{scheme}: {error}");
        assert!(error.to_string().contains("standby; name the primary"), "{scheme}: {error}");
        let both = url.replace('@', &format!("@{},", standby.hosts()[0]));
        let both = both.replacen(
            &format!(",{}", standby.hosts()[0]),
            &format!(",127.0.0.1:{}", server.address().1),
            1,
        );
        let client = open(&both).await.expect("the primary is found");
        Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
    }
}

/// An administrator may end a commit's wait for its standby, which then lacks it. The server
/// answers that all is well, after a warning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_no_standby_has_does_not_count() {
    let Some(server) = private("unconfirmed", &["fsync=off"]) else { return };
    let raw = Raw::open(&(server.url() + "&listen=off&timeout=60s")).await;
    let (mine, sql) = (ticket(1, 1), server.sql().await);
    let hangs = async |whose: &str| -> Option<i32> {
        let pid = format!(
            "SELECT max(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND {whose}"
        );
        one(&sql, &pid, &[]).await
    };
    server.commits_hang("").await;
    let asking = {
        let raw = raw.clone();
        tokio::spawn(async move { raw.enter(&mine, Enter::Queue).await })
    };
    let ours = "application_name = 'holdline'";
    until("it hangs", async || hangs(ours).await.is_some()).await;
    let first = hangs(ours).await.expect("it goes on for ever");
    assert!(one::<bool>(&sql, "SELECT pg_cancel_backend($1)", &[&first]).await);
    let another = format!("{ours} AND pid <> {first}");
    let asks_again = async || hangs(&another).await.is_some() || asking.is_finished();
    until("it asks again, over another connection", asks_again).await;
    assert!(!asking.is_finished(), "it counts");
    server.synchronous_with("").await;
    let standing = soon("the standby is not needed", asking).await.expect("no panic");
    assert!(matches!(standing, Ok(Standing::Admitted(_))), "{standing:?}");
}
