//! Users, passwords, tokens that are not good any more; and TLS.

use crate::server::{soon, start, start_tls};
use holdline::{ErrorKind, Mutex, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_and_their_passwords() {
    let Some(servers) = start(1) else { return };
    for words in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "me:my p@ss"],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "mine/"],
        &["user", "grant-role", "me", "locks"],
    ] {
        if words[1] == "grant-role" && words[2] == "root" {
            servers.say(&["role", "add", "root"]);
        }
        servers.say(words);
    }
    servers.say(&["auth", "enable"]);
    let host = servers.url().replace("etcd://", "");
    let client = open(&format!("etcd://me:my p%40ss@{host}/mine")).await.expect("a good URL");
    let guard = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("allowed");
    let denied = [
        format!("etcd://{host}"),
        format!("etcd://me:wrong secret@{host}/mine"),
        format!("etcd://me:my p%40ss@{host}/theirs"),
    ];
    for url in denied {
        let other = open(&url).await.expect("a good URL");
        let error = soon("the refusal", Mutex::new(&other, "x").lock()).await.expect_err("no");
        assert_eq!(error.kind(), ErrorKind::Denied, "{url}: {error:#}");
        assert!(!format!("{error:?} {}", other.address()).contains("secret"), "{error:?}");
    }
    // Whatever the users change makes old tokens worthless: log in again, unseen.
    let say = |words: &[&str]| {
        let done = servers.ctl().args(["--user", "root:secret"]).args(words).output();
        assert!(done.expect("etcdctl runs").status.success(), "{words:?}");
    };
    say(&["user", "add", "another:one"]);
    say(&["role", "add", "more"]);
    assert!(Mutex::new(&client, "x").try_lock().await.expect("works").is_none());
    guard.unlock().await.expect("held");
    let guard = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("allowed");
    guard.unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_used_where_it_is_asked_for() {
    let Some(servers) = start_tls() else { return };
    let url = servers.url().replace("etcd://", "etcds://");
    #[cfg(feature = "etcd-tls")]
    {
        let good = open(&format!("{url}?ca_file={}", servers.certificate())).await.expect("good");
        let guard = soon("the lock", Mutex::new(&good, "x").lock()).await.expect("trusted");
        guard.unlock().await.expect("held");
        let stranger = open(&url).await.expect("a good URL");
        let error = soon("no", Mutex::new(&stranger, "x").lock()).await.expect_err("not trusted");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    }
    #[cfg(not(feature = "etcd-tls"))]
    {
        let error = open(&url).await.expect_err("not in this build");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    let plain = open(&servers.url()).await.expect("a good URL");
    let error = soon("no", Mutex::new(&plain, "x").lock()).await.expect_err("it speaks only TLS");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
}
