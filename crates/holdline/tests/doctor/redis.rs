//! Redis: each setting that the guide warns of.

use super::{at_worst, examine, found, look, worst};
use holdline::doctor::Level;
use holdline_testkit::redis::{self, Server};
use holdline_testkit::until;
use std::time::Duration;

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn durable(name: &str) -> Option<Server> {
    redis::private(name, &DURABLE)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_wrong_with_a_good_server_and_nothing_is_left_there() {
    let Some(server) = durable("doctor-good") else { return };
    let report = examine(server.url()).await;
    at_worst(&report, Level::Ok);
    assert!(report.answers);
    for check in
        ["version", "role", "eviction", "persistence", "rights", "clock", "latency", "lock"]
    {
        found(&report, check, Level::Ok, "");
    }
    // But the counter of the lock that was tried, which goes by itself, and how far the clock was.
    let mut keys: Vec<String> = server.query(&["KEYS", "*"]);
    keys.sort_unstable();
    assert_eq!(keys, ["holdline:clock", "holdline:{holdline-doctor}"]);
    let lives: i64 = server.query(&["PTTL", &keys[1]]);
    assert!(lives > 0, "{lives}");
    let () = server.query(&["FLUSHALL"]);
    at_worst(&look(server.url()).await, Level::Ok);
    let keys: Vec<String> = server.query(&["KEYS", "*"]);
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn eviction_is_a_problem_once_there_is_a_limit() {
    let Some(server) = durable("doctor-evicts") else { return };
    let () = server.query(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    found(&examine(server.url()).await, "eviction", Level::Warning, "allkeys-lru");
    let () = server.query(&["CONFIG", "SET", "maxmemory", "100mb"]);
    found(&examine(server.url()).await, "eviction", Level::Problem, "allkeys-lru");
    let () = server.query(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    at_worst(&examine(server.url()).await, Level::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_forgets_is_told() {
    let Some(server) = durable("doctor-forgets") else { return };
    let () = server.query(&["CONFIG", "SET", "appendfsync", "everysec"]);
    found(&examine(server.url()).await, "persistence", Level::Warning, "everysec");
    let () = server.query(&["CONFIG", "SET", "appendonly", "no"]);
    found(&examine(server.url()).await, "persistence", Level::Warning, "appendonly no");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_no_locks_and_its_primary_forgets_some() {
    let (Some(primary), Some(replica)) = (durable("doctor-primary"), durable("doctor-replica"))
    else {
        return;
    };
    let port = primary.port().to_string();
    let () = replica.query(&["REPLICAOF", "127.0.0.1", &port]);
    let linked = || {
        let info: String = primary.query(&["INFO", "replication"]);
        info.contains("state=online")
    };
    holdline_testkit::wait_until("the replica is online", linked);
    let report = examine(replica.url()).await;
    found(&report, "role", Level::Problem, "replica");
    found(&examine(primary.url()).await, "replicas", Level::Warning, "min-replicas-to-write 0");
    let () = primary.query(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    found(&examine(primary.url()).await, "replicas", Level::Advice, "min-replicas-to-write 1");
    let () = primary.query(&["CONFIG", "SET", "min-replicas-to-write", "2"]);
    found(&examine(primary.url()).await, "replicas", Level::Problem, "refuses locks");
}

/// The minimal ACL of the guide is enough, and what is missing from it is named.
#[tokio::test(flavor = "multi_thread")]
async fn rights_that_are_missing_are_named() {
    let Some(server) = durable("doctor-rights") else { return };
    let minimal = "reset on >canary resetchannels ~app:* &app:wake:* -@all +evalsha +eval +get \
        +getex +mget +set +setrange +hget +hset +hdel +hlen +hgetall +exists +del +zadd +zrem \
        +zcard +zrange +zrangebyscore +zremrangebyscore +zscore +pexpire +time +publish +subscribe \
        +ping";
    let set = |rights: &str| {
        let words: Vec<&str> =
            ["ACL", "SETUSER", "app"].into_iter().chain(rights.split(' ')).collect();
        let () =
            server.query(&words.iter().copied().filter(|it| !it.is_empty()).collect::<Vec<_>>());
    };
    let url = format!("redis://app:canary@127.0.0.1:{}?prefix=app:", server.port());
    set(minimal);
    let report = examine(&url).await;
    at_worst(&report, Level::Advice);
    found(&report, "settings", Level::Advice, "denies a permission");
    found(&report, "rights", Level::Advice, "SCAN");
    set("-mget");
    found(&examine(&url).await, "rights", Level::Advice, "MGET");
    set("+mget -zadd -hset");
    let report = examine(&url).await;
    found(&report, "rights", Level::Problem, "HSET, ZADD");
    assert!(!format!("{report:?}").contains("canary"), "{report:?}");
    set("+zadd +hset resetchannels");
    let report = examine(&url).await;
    found(&report, "rights", Level::Advice, "PUBLISH, SUBSCRIBE");
    set("-eval");
    found(&examine(&url).await, "rights", Level::Problem, "denies a permission");
    set(">other <canary");
    let report = examine(&url).await;
    found(&report, "reachable", Level::Problem, "refuses the user or password");
    assert_eq!(report.findings.len(), 1, "it is said once: {report:#?}");
    assert!(!format!("{report:?}").contains("canary"), "{report:?}");
}

/// The signals that wake other libraries' waiters need rights of their own.
#[tokio::test(flavor = "multi_thread")]
async fn rights_that_signals_need_are_named() {
    let Some(server) = durable("doctor-signals") else { return };
    let user = "ACL SETUSER app reset on >canary resetchannels ~app:* ~list:* &free:* -@all \
                +evalsha +eval +get +set +del +pttl +pexpire +scan +ping +config|get +info +time";
    let () = server.query(&user.split_whitespace().collect::<Vec<_>>());
    let at = format!("redis://app:canary@127.0.0.1:{}?scheme=string&prefix=app:", server.port());
    found(&examine(&at).await, "rights", Level::Ok, "");
    let url = format!("{at}&signal_list=list:&signal_channel=free:");
    let report = examine(&url).await;
    found(&report, "rights", Level::Advice, "refused: LPUSH");
    found(&report, "rights", Level::Advice, "refused: PUBLISH");
    let () = server.query(&["ACL", "SETUSER", "app", "+lpush", "+publish"]);
    found(&examine(&url).await, "rights", Level::Ok, "");
    // What stands for a key in the checks may be in a user's own prefix.
    let () = server.query(&["ACL", "SETUSER", "app", "~LISTKEY:*"]);
    let url = url.replace("prefix=app:", "prefix=LISTKEY:");
    found(&examine(&url).await, "rights", Level::Ok, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_poll_are_told_so() {
    let Some(server) = durable("doctor-polls") else { return };
    let url = format!("{}?scheme=string", server.url());
    found(&examine(&url).await, "notices", Level::Advice, "waiters poll");
    let () = server.query(&["CONFIG", "SET", "notify-keyspace-events", "Kgx"]);
    found(&examine(&url).await, "notices", Level::Ok, "gxK");
}

/// A clock that is off is told; one that is set while it is looked at ends leases.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_off_is_seen() {
    let Some(server) = redis::shifted("doctor-clock") else { return };
    server.shift(95);
    // To some seconds: a busy machine may read the clocks apart.
    found(&examine(server.url()).await, "clock", Level::Advice, "+9");
    let mut ahead = 95;
    until("it is seen that the clock is set", async || {
        let url = server.url().to_owned();
        let looking = tokio::spawn(async move { examine(&url).await });
        while !looking.is_finished() {
            ahead += 10;
            tokio::task::block_in_place(|| server.shift(ahead));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let report = looking.await.expect("it ends");
        worst(&report, "clock").found.contains("further than ours")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_are_looked_at_and_the_primary_that_they_name() {
    let Some((primary, replica, mut sentinels, url)) = redis::behind_sentinels() else { return };
    let report = examine(&url).await;
    found(&report, "sentinels", Level::Ok, "3 of 3");
    found(&report, "replicas", Level::Warning, "");
    found(&report, "role", Level::Ok, "primary");
    sentinels[0].kill();
    let report = examine(&url).await;
    found(&report, "sentinels", Level::Ok, "2 of 3");
    found(&report, "reachable", Level::Warning, "failed");
    let plain = sentinels[1].url().to_owned();
    found(&examine(&plain).await, "role", Level::Problem, "sentinel");
    drop((primary, replica));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_primary_of_a_cluster_is_looked_at() {
    let Some(mut nodes) = redis::cluster() else { return };
    let hosts: Vec<String> =
        nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    let report = examine(&url).await;
    found(&report, "cluster", Level::Ok, "3 primaries");
    let roles = report.findings.iter().filter(|finding| finding.check == "role").count();
    assert_eq!(roles, 3, "{report:#?}");
    at_worst(&report, Level::Warning);
    found(&examine(nodes[0].url()).await, "role", Level::Problem, "a node of a cluster");
    let () = nodes[1].query(&["ACL", "SETUSER", "default", "-asking"]);
    found(&examine(&url).await, "rights", Level::Problem, "ASKING");
    nodes[2].kill();
    found(&examine(&url).await, "reachable", Level::Problem, "failed");
}

/// Such nodes are at the host that was asked.
#[tokio::test(flavor = "multi_thread")]
async fn primaries_that_have_no_host_name_are_found() {
    let preferred = ["--cluster-preferred-endpoint-type", "hostname"];
    let Some(nodes) = redis::cluster_with(&preferred) else { return };
    let report = examine(&format!("redis+cluster://127.0.0.1:{}", nodes[0].port())).await;
    let roles = report.findings.iter().filter(|finding| finding.check == "role").count();
    assert_eq!(roles, 3, "{report:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_or_is_another_is_said_once() {
    let Some(mut server) = durable("doctor-away") else { return };
    server.kill();
    let report = examine(server.url()).await;
    assert!(!report.answers);
    found(&report, "reachable", Level::Problem, "failed");
    assert_eq!(report.findings.len(), 1, "{report:#?}");
}
