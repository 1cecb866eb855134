//! Users, their passwords, and whose the nodes are.

use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::zookeeper::{start, start_with};
use holdline_testkit::{soon, until};
use std::time::Duration;
use zookeeper_client as zk;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_for_their_user_alone() {
    let Some(servers) = start(1) else { return };
    let host = servers.hosts().join(",");
    let mine = open(&format!("zookeeper://me:my p%40ss@{host}/mine")).await.expect("a good URL");
    let guard = soon("the lock", Mutex::new(&mine, "x").lock()).await.expect("allowed");
    assert_eq!(mine.inspect("x").await.expect("allowed").holders.len(), 1);
    for url in [
        format!("zookeeper://{host}/mine"),
        format!("zookeeper://me:wrong secret@{host}/mine"),
        format!("zookeeper://you:my p%40ss@{host}/mine"),
    ] {
        let other = open(&url).await.expect("a good URL");
        let error = soon("the refusal", Mutex::new(&other, "x").lock()).await.expect_err("no");
        assert_eq!(error.kind(), ErrorKind::Denied, "{url}: {error:#}");
        let error = other.inspect("x").await.expect_err("not theirs to see");
        assert_eq!(error.kind(), ErrorKind::Denied, "{url}: {error:#}");
        assert!(!format!("{error:?} {}", other.address()).contains("secret"), "{error:?}");
    }
    // In a list of what others may see, it is left out.
    let all = servers.client().await;
    let seen = soon("the lock", Mutex::new(&all, "seen").lock()).await.expect("allowed");
    assert_eq!(all.list("").await.expect("allowed"), [seen.name().clone()]);
    assert_eq!(all.list("mine/").await.expect_err("not theirs to see").kind(), ErrorKind::Denied);
    seen.unlock().await.expect("held");
    guard.unlock().await.expect("held");
    let open_to_all = format!("zookeeper://me:my p%40ss@{host}/ours?acl=open");
    let ours = open(&open_to_all).await.expect("a good URL");
    let guard = soon("the lock", Mutex::new(&ours, "x").lock()).await.expect("allowed");
    let theirs = open(&format!("zookeeper://{host}/ours")).await.expect("a good URL");
    assert!(Mutex::new(&theirs, "x").try_lock().await.expect("allowed").is_none());
    guard.unlock().await.expect("held");
}

/// A place that only its owner may read: its waiters ask whether it is there, which is allowed, and
/// not over and over for a watch, which is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_may_not_be_read_is_polled() {
    let Some(servers) = start(1) else { return };
    let (client, raw) = (servers.client().await, servers.raw().await);
    let lock = Mutex::new(&client, "x");
    soon("the lock", lock.lock()).await.expect("works").unlock().await.expect("held");
    raw.auth("digest", b"you:secret").await.expect("works");
    let private = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::creator_all());
    let place = "/x/_c_12345678-0000-0000-0000-000000000001-lock-";
    let (_, number) = raw.create(place, b"", &private).await.expect("works");
    let waiter = tokio::spawn(async move { lock.lock().await });
    until("in the line", async || raw.list_children("/x").await.expect("works").len() == 2).await;
    let before = servers.requests();
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Two heartbeats in three seconds, pings, and the poll; a watch ten times a second would be 50.
    let cost = servers.requests() - before;
    assert!(cost < 40, "{cost} requests in 5 s");
    raw.delete(&format!("{place}{number}"), None).await.expect("works");
    soon("its turn", waiter).await.expect("no panic").expect("works").unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sasl_users_log_in() {
    let folder = tempfile::tempdir().expect("there is room");
    let jaas = folder.path().join("jaas.conf");
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    let text = format!("Server {{ {module} required user_me=\"right\"; }};\n");
    std::fs::write(&jaas, text).expect("there is room");
    let java = format!("-Djava.security.auth.login.config={}", jaas.display());
    let provider =
        "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider".to_owned();
    let Some(servers) = start_with(1, &java, &provider) else { return };
    let host = servers.hosts().join(",");
    let url = |password: &str| format!("zookeeper://me:{password}@{host}/mine?auth=sasl");
    let mine = open(&url("right")).await.expect("a good URL");
    let guard = soon("the lock", Mutex::new(&mine, "x").lock()).await.expect("allowed");
    let wrong = open(&url("wrong")).await.expect("a good URL");
    let error = soon("the refusal", Mutex::new(&wrong, "x").lock()).await.expect_err("no");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:#}");
    let nobody = open(&format!("zookeeper://{host}/mine")).await.expect("a good URL");
    let error = soon("the refusal", Mutex::new(&nobody, "x").lock()).await.expect_err("no");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:#}");
    guard.unlock().await.expect("held");
}

/// Without TLS in the build, a URL that asks for it is not taken for one that does not.
#[cfg(not(feature = "zookeeper-tls"))]
#[tokio::test]
async fn tls_is_not_in_this_build() {
    for url in ["zks://127.0.0.1:1", "zookeeper://127.0.0.1:1?tls=true"] {
        let error = open(url).await.expect_err("not in this build");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("zookeeper-tls"), "{error}");
    }
}
