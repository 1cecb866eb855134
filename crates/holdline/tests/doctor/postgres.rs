//! PostgreSQL: what its settings say.

use super::{examine, found, look};
use holdline::doctor::Level;
use holdline_testkit::{Deployment, Private, free_port, postgres, until};
use tokio_postgres::NoTls;

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cost_locks_are_told() {
    let describe = || {
        let port = free_port();
        let node = postgres::node("postgres", port);
        let node = node.args(["-c", "idle_in_transaction_session_timeout=60000"]);
        Deployment::new(postgres::url(port), vec![node])
    };
    let Some(mut server) = Private::launch("postgres", describe) else { return };
    let url = server.url();
    let report = look(&format!("{url}?install=yes")).await;
    found(&report, "open", Level::Problem, "has no tables"); // and none are made
    found(&report, "durability", Level::Ok, "fsync on");
    found(&report, "role", Level::Ok, "primary");
    // What is wrong is said once, and no server is to be started for it.
    let missing = format!("{}/missing", url.trim_end_matches("/postgres"));
    let nobody = url.replacen("postgres@", "nobody:canary@", 1);
    for (url, words) in [(missing, "has no such database"), (nobody, "refuses the user")] {
        let report = look(&url).await;
        found(&report, "reachable", Level::Problem, words);
        assert!(report.findings.len() == 1 && report.findings[0].advice.is_none(), "{report:#?}");
    }
    holdline::schema::install(&url).await.expect("it installs");
    let report = examine(&url).await;
    super::at_worst(&report, Level::Ok);
    found(&report, "lock", Level::Ok, "holdline-doctor");
    server.servers[0].stop();
    let node = server.servers[0].node().clone().args(["-c", "fsync=off"]);
    *server.servers[0].node_mut() = node;
    server.servers[0].restart().expect("it starts");
    found(&examine(&url).await, "durability", Level::Problem, "fsync");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_may_be_behind_is_told_where_locks_have_leases() {
    let Some(server) = postgres::start("primary") else { return };
    let standby = || {
        let port = free_port();
        let node = postgres::standby(port, server.servers[0].port());
        Deployment::new(postgres::url(port), vec![node])
    };
    let Some(_standby) = Private::launch("standby", standby) else { return };
    let replicas = async |scheme: &str| {
        let report = look(&format!("{}?scheme={scheme}", server.url())).await;
        report.findings.iter().any(|it| it.check == "replicas" && it.level == Level::Warning)
    };
    until("the standby follows", async || replicas("table").await).await;
    assert!(replicas("shedlock").await);
    assert!(!replicas("advisory").await, "a session ends with its server");
}

/// Once the queue is full, no unlock wakes a waiter. A session of another program may fill it.
#[tokio::test(flavor = "multi_thread")]
async fn notices_that_a_session_keeps_are_told() {
    let Some(server) = postgres::start("postgres") else { return };
    let session = async || {
        let connected = tokio_postgres::connect(&server.url(), NoTls).await;
        let (client, connection) = connected.expect("it runs");
        tokio::spawn(connection);
        client
    };
    let (listens, notifies) = (session().await, session().await);
    found(&look(&server.url()).await, "notices", Level::Ok, "room");
    listens.batch_execute("LISTEN x").await.expect("it listens");
    listens.batch_execute("BEGIN; SELECT 1").await.expect("it stays in a transaction");
    let many = "SELECT pg_notify('x', n || repeat('x', 7900)) FROM generate_series(1, 12000) n";
    notifies.batch_execute(many).await.expect("there is room");
    found(&look(&server.url()).await, "notices", Level::Warning, "1% full");
    listens.batch_execute("COMMIT").await.expect("it ends");
    let has_room = async || {
        let report = look(&server.url()).await;
        super::worst(&report, "notices").level == Level::Ok
    };
    until("they are read", has_room).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_between_is_told_of_by_its_port() {
    let describe = || postgres::pooled([free_port(), free_port()], "");
    let Some(pooled) = Private::launch("pooled", describe) else { return };
    for (options, level, told) in [
        ("table", Level::Advice, &["listen=URL"][..]),
        ("row", Level::Advice, &["listen=URL", "pgpool-II"]),
        ("row&listen=off", Level::Advice, &["pgpool-II"]),
        ("table&listen=off", Level::Ok, &[]),
    ] {
        let report = look(&format!("{}?scheme={options}", pooled.url())).await;
        found(&report, "pooler", level, "the URL names");
        let finding = report.findings.iter().find(|it| it.check == "pooler").expect("found");
        let advice = finding.advice.as_deref().unwrap_or_default();
        for word in ["listen=URL", "pgpool-II"] {
            assert_eq!(advice.contains(word), told.contains(&word), "{options}: {advice}");
        }
    }
}
