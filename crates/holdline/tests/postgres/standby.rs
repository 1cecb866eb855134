//! A standby: it is refused by every scheme, and skipped if the URL names several hosts.

use crate::server::{Server, one, private};
use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::{Deployment, Private, free_port, postgres, until};

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
