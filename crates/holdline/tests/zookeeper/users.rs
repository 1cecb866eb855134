//! Users, their passwords, and whose the nodes are.

use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::soon;
use holdline_testkit::zookeeper::{start, start_with};

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
    guard.unlock().await.expect("held");
    let open_to_all = format!("zookeeper://me:my p%40ss@{host}/ours?acl=open");
    let ours = open(&open_to_all).await.expect("a good URL");
    let guard = soon("the lock", Mutex::new(&ours, "x").lock()).await.expect("allowed");
    let theirs = open(&format!("zookeeper://{host}/ours")).await.expect("a good URL");
    assert!(Mutex::new(&theirs, "x").try_lock().await.expect("allowed").is_none());
    guard.unlock().await.expect("held");
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
