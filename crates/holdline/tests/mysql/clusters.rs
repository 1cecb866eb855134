//! Clusters whose servers all take writes: Galera and group replication.

use crate::server::Database;
use holdline::{Backoff, ErrorKind, Mutex, open};
use holdline_testkit::{Deployment, Private, free_port, mysql, until};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A cluster node grants no connection locks, because the other nodes do not know of them.
async fn connection_locks_are_refused(database: &Database) {
    for scheme in ["row", "named"] {
        let error = open(&database.url(&format!("&scheme={scheme}"))).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("Galera or group replication"), "{error}");
        assert!(error.to_string().contains("\"table\""), "{error}");
    }
}

/// The lease tables are replicated like any other.
async fn leases_are_locks(database: &Database) {
    let client = open(&database.url("")).await.expect("opens");
    let (one, two) = (Mutex::new(&client, "x"), Mutex::new(&client, "x"));
    let guard = one.lock().await.expect("works");
    assert!(two.try_lock().await.expect("works").is_none());
    let token = guard.token();
    guard.unlock().await.expect("held");
    let guard = two.lock().await.expect("works");
    assert!(guard.token() > token);
    guard.unlock().await.expect("held");
}

/// `doctor` reports the kind of cluster, and what to do.
#[cfg(feature = "doctor")]
async fn doctor_tells(database: &Database, words: &str) {
    use holdline::doctor::Examination;
    let report = holdline::doctor::examine(&database.url(""), &Examination::default()).await;
    let findings = report.expect("a good URL").findings;
    let cluster = findings.iter().find(|finding| finding.check == "cluster").expect("it looks");
    assert_eq!(cluster.level, holdline::doctor::Level::Warning, "{cluster:?}");
    assert!(cluster.found.contains(words) && cluster.advice.is_some(), "{cluster:?}");
}

/// Waits until the server gives this answer.
async fn says(url: &str, sql: &str, wanted: &str) {
    until(sql, async || {
        let opts = Opts::from_url(&format!("{url}?prefer_socket=false")).expect("good");
        let Ok(mut conn) = Conn::new(opts).await else { return false };
        let said = conn.query_first::<(String, String), _>(sql).await;
        said.unwrap_or_default().is_some_and(|(_, state)| state == wanted)
    })
    .await;
}

/// A Galera cluster of one node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn galera_is_refused_for_locks_of_connections() {
    const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";
    if !Path::new(PROVIDER).exists() {
        return holdline_testkit::missing("galera-4 is not installed (apt install galera-4)");
    }
    let describe = || {
        let (port, group) = (free_port(), free_port());
        let node = mysql::mariadb("mariadb", port)
            .args([
                "--wsrep-on=ON",
                &format!("--wsrep-provider={PROVIDER}"),
                "--wsrep-cluster-address=gcomm://",
                "--wsrep-node-address=127.0.0.1",
                &format!(
                    "--wsrep-provider-options=base_host=127.0.0.1;base_port={group};\
                 gmcast.listen_addr=tcp://127.0.0.1:{group};gcache.size=1M;gcache.page_size=1M"
                ),
                "--binlog-format=ROW",
                "--innodb-autoinc-lock-mode=2",
            ])
            .also_listens([group]);
        Deployment::new(mysql::url(port), vec![node])
    };
    let Some(server) = Private::launch("mysql-galera", describe) else { return };
    // It answers before it is ready.
    says(&server.url(), "SHOW STATUS LIKE 'wsrep_ready'", "ON").await;
    let database = Database::fresh(&server.url(), "galera").await;
    connection_locks_are_refused(&database).await;
    leases_are_locks(&database).await;
    #[cfg(feature = "doctor")]
    doctor_tells(&database, "Galera, 1 node").await;
}

/// Two members of a group take writes. Clients of both want one lock: if two take it at once, the
/// group refuses one, so there are never two holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_group_know_of_one_anothers_leases() {
    const MEMBERS: &str = "SELECT 'online', CONVERT(COUNT(*), CHAR) \
        FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'";
    let Some(members) = Private::launch("mysql-group", mysql::group) else { return };
    let urls = members.servers.iter().map(|member| mysql::url(member.port()));
    let urls: Vec<String> = urls.collect();
    for url in &urls {
        says(url, MEMBERS, "2").await;
    }
    let database = Database::fresh(&urls[0], "group").await;
    leases_are_locks(&database).await;
    connection_locks_are_refused(&database).await;
    #[cfg(feature = "doctor")]
    doctor_tells(&database, "group replication").await;
    let (inside, last) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for at in 0..8 {
        let url = database.url("").replace(&urls[0], &urls[at % 2]);
        let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
        tasks.spawn(async move {
            let client = open(&url).await.expect("opens");
            let poll = Backoff::fixed(Duration::from_millis(5)).jitter(50);
            let lock = Mutex::new(&client, "both").poll(poll);
            for _ in 0..20 {
                let guard = lock.lock().await.expect("works");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                assert!(last.swap(guard.token(), Ordering::SeqCst) < guard.token(), "tokens rise");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.expect("it was held");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
}
