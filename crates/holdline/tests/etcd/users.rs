//! Users, passwords, tokens that are not good any more; and TLS.

use futures_util::future::try_join_all;
use holdline::store::Lines;
use holdline::{ErrorKind, Guard, Mutex, open};
use holdline_testkit::etcd::{Servers, start, start_forgetful, start_tls};
use holdline_testkit::{Link, released, soon, until};
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

/// Turns authentication on, with the user root, whose password is "secret"; before that come these
/// commands.
pub(crate) fn enable_auth(servers: &Servers, before: &[&[&str]]) {
    let root = [
        &["user", "add", "root:secret"][..],
        &["role", "add", "root"],
        &["user", "grant-role", "root", "root"],
    ];
    for words in root.iter().chain(before) {
        servers.say(words);
    }
    servers.say(&["auth", "enable"]);
}

/// Runs `etcdctl` as root, once authentication is on, and returns what it prints.
fn say_as_root(servers: &Servers, words: &[&str]) -> String {
    let done = servers.ctl().args(["--user", "root:secret"]).args(words).output();
    let done = done.expect("etcdctl runs");
    assert!(done.status.success(), "{words:?}");
    String::from_utf8(done.stdout).expect("text")
}

/// The commands for a user who may have the locks "first" and "second", by a right to each.
const TWO_LOCKS: [&[&str]; 5] = [
    &["user", "add", "me:mine"],
    &["role", "add", "locks"],
    &["role", "grant-permission", "--prefix=true", "locks", "readwrite", "first/"],
    &["role", "grant-permission", "--prefix=true", "locks", "readwrite", "second/"],
    &["user", "grant-role", "me", "locks"],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_and_their_passwords() {
    let Some(servers) = start(1) else { return };
    enable_auth(
        &servers,
        &[
            &["user", "add", "me:my p@ss"],
            &["role", "add", "locks"],
            &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "mine/"],
            &["user", "grant-role", "me", "locks"],
        ],
    );
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
        // There is nothing to remove, and a removal would be denied, too: again and again.
        soon("its end", other.settle()).await;
        assert_eq!(servers.calls("DeleteRange"), 0, "{url}");
    }
    // Whatever the users change makes old tokens worthless: log in again, unseen.
    let say = |words: &[&str]| drop(say_as_root(&servers, words));
    say(&["user", "add", "another:one"]);
    say(&["role", "add", "more"]);
    assert!(Mutex::new(&client, "x").try_lock().await.expect("works").is_none());
    guard.unlock().await.expect("held");
    let guard = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("allowed");
    guard.unlock().await.expect("held");
}

/// A user who may not see any more what is observed: the stream that all watches share is not begun
/// again and again for that, and the others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_that_lost_its_rights_does_not_disturb_the_others() {
    let Some(servers) = start(1) else { return };
    enable_auth(
        &servers,
        &[
            &["user", "add", "me:mine"],
            &["role", "add", "locks"],
            &["role", "grant-permission", "locks", "readwrite", "x", "z"],
            &["role", "add", "observes"],
            &["role", "grant-permission", "--prefix=true", "observes", "read", "z"],
            &["user", "grant-role", "me", "locks"],
            &["user", "grant-role", "me", "observes"],
        ],
    );
    let say = |words: &[&str]| drop(say_as_root(&servers, words));
    let link = Link::to(&servers.hosts()[0]).expect("a port is free");
    let url = format!("etcd://me:mine@{}", link.address());
    let client = open(&url).await.expect("a good URL");
    let lock = Mutex::new(&client, "x").lease(Duration::from_secs(600));
    let guard = soon("the lock", lock.lock()).await.expect("allowed");
    let mut changes = client.changes(Lines::Prefix("z".to_owned()));
    let never = Duration::from_secs(3600);
    soon("that it listens", changes.next(never)).await;
    say(&["user", "revoke-role", "me", "observes"]);
    let streams = servers.calls("Watch");
    link.cut();
    link.mend();
    until("another stream", async || servers.calls("Watch") > streams).await;
    let streams = servers.calls("Watch");
    tokio::time::sleep(Duration::from_secs(7)).await;
    let begun = servers.calls("Watch") - streams;
    assert!(begun <= 5, "{begun} streams in 7 s"); // at 0, 0, 1, 3 and 7 s
    say(&["user", "grant-role", "me", "observes"]);
    say(&["put", "z/1", "a change"]);
    soon("the change", changes.next(never)).await;
    say(&["del", "x/", "--prefix"]);
    soon("the loss", guard.lost()).await;
}

/// The locks of one lease do not depend on the rights to the first of them, which is read with the
/// lease's heartbeats. (G6: a place whose removal is denied ends with its lease.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_revoked_costs_no_other_lock() {
    let Some(servers) = start(1) else { return };
    enable_auth(&servers, &TWO_LOCKS);
    let url = servers.url().replace("etcd://", "etcd://me:mine@");
    let client = open(&url).await.expect("a good URL");
    let lock = |name| Mutex::new(&client, name).lease(Duration::from_secs(10));
    // On one lease. A busy machine may lose a reply, and then there is another.
    let mut most = 1;
    let (first, second) = loop {
        let before = servers.calls("LeaseGrant");
        let first = soon("the lock", lock("first").lock()).await.expect("allowed");
        let second = soon("the lock", lock("second").lock()).await.expect("allowed");
        if servers.calls("LeaseGrant") - before <= most {
            break (first, second);
        }
        most = 0;
        drop((first.unlock().await, second.unlock().await));
    };
    say_as_root(&servers, &["role", "revoke-permission", "--prefix=true", "locks", "first/"]);
    tokio::time::sleep(Duration::from_secs(14)).await; // longer than the lease
    assert!(second.is_valid(), "{:?}", soon("why", second.loss()).await);
    // Its removal is denied, too, so it goes with the lease, which the other lock must leave.
    drop(first);
    let keys = || say_as_root(&servers, &["get", "", "--prefix", "--keys-only"]);
    let is_there = |name| keys().contains(name);
    until("its end", async || !is_there("first/")).await;
    assert!(second.is_valid() && is_there("second/"));
    second.unlock().await.expect("held");
}

/// A holder whose right to its lock is revoked, and so the watch on it once the stream begins
/// again, cannot know whether it was removed: it must not take the lease, which other locks keep
/// alive, for a proof. (G19)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_may_no_longer_see_its_lock_does_not_keep_it() {
    let Some(servers) = start(1) else { return };
    enable_auth(&servers, &TWO_LOCKS);
    let say = |words: &[&str]| drop(say_as_root(&servers, words));
    let link = Link::to(&servers.hosts()[0]).expect("a port is free");
    let client = open(&format!("etcd://me:mine@{}", link.address())).await.expect("a good URL");
    let lock = |name| Mutex::new(&client, name).lease(Duration::from_secs(12));
    let second = soon("the lock", lock("second").lock()).await.expect("allowed");
    let first = soon("the lock", lock("first").lock()).await.expect("allowed");
    say(&["role", "revoke-permission", "--prefix=true", "locks", "first/"]);
    let streams = servers.calls("Watch");
    link.cut();
    link.mend();
    until("another stream", async || servers.calls("Watch") > streams).await;
    say(&["del", "first/", "--prefix"]);
    soon("the loss", first.lost()).await;
    assert!(second.is_valid(), "{:?}", soon("why", second.loss()).await);
    second.unlock().await.expect("held");
}

/// A token that nobody used for a while is worthless: to those who come back, and to those who
/// hold. (With a long lease, because signs of life use it. It is good for 1 s here, and the member
/// looks once a second for those that are older.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_runs_out() {
    let Some(servers) = start_forgetful() else { return };
    enable_auth(&servers, &[]);
    let url = servers.url().replace("etcd://", "etcd://root:secret@");
    let (one, two) = (open(&url).await.expect("good"), open(&url).await.expect("good"));
    let long = |name| Mutex::new(&one, name).lease(Duration::from_secs(600));
    let held = soon("the lock", long("x").lock()).await.expect("allowed");
    let waiting = Mutex::new(&two, "x");
    let waiter = tokio::spawn(async move { waiting.lock().await });
    let idle = soon("the lock", long("y").lock()).await.expect("allowed");
    idle.unlock().await.expect("held");
    let logins = servers.calls("Authenticate");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(held.is_valid());
    released(held).await;
    assert!(servers.calls("Authenticate") > logins, "no token has run out");
    let next = soon("its turn", waiter).await.expect("no panic").expect("allowed");
    next.unlock().await.expect("held");
}

/// Tokens that a new password made worthless are replaced by one login, not by one for each call:
/// the server checks a password slowly on purpose.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_calls_share_a_login() {
    const CALLS: usize = 60;
    let Some(servers) = start(1) else { return };
    enable_auth(&servers, &[]);
    let url = servers.url().replace("etcd://", "etcd://root:secret@");
    let client = open(&url).await.expect("a good URL");
    let lock = |number| Mutex::new(&client, format!("x{number}"));
    soon("the lock", lock(0).lock()).await.expect("allowed").unlock().await.expect("held");
    for round in 0..3 {
        // This invalidates all tokens.
        let mut ctl = servers.ctl();
        ctl.args(["--user", "root:secret", "user", "passwd", "--interactive=false", "root"]);
        let mut ctl = ctl.stdin(Stdio::piped()).spawn().expect("etcdctl runs");
        ctl.stdin.take().expect("it is piped").write_all(b"secret\n").expect("it reads");
        assert!(ctl.wait().expect("it ends").success(), "round {round}");
        let before = servers.calls("Authenticate");
        let locks = (0..CALLS).map(|number| {
            let lock = lock(number);
            tokio::spawn(async move { lock.lock().await.expect("allowed") })
        });
        let guards = soon("the locks", try_join_all(locks)).await.expect("no panic");
        let logins = servers.calls("Authenticate") - before;
        // One on each of its runtimes, and as many if the first came too early.
        assert!(logins <= 6, "{logins} logins for {CALLS} calls");
        let unlocks = guards.into_iter().map(Guard::unlock);
        soon("their release", try_join_all(unlocks)).await.expect("held");
    }
}

/// A client without a certificate is not let in, nor one whose certificate is not trusted.
#[cfg(feature = "etcd-tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_our_own_is_shown() {
    let Some(servers) = holdline_testkit::etcd::start_mutual() else { return };
    let url = servers.url().replace("etcd://", "etcds://");
    let (cert, key) = (servers.certificate(), servers.key());
    let url = format!("{url}?ca_file={}", servers.authority());
    let good = format!("{url}&cert_file={cert}&key_file={key}");
    let good = open(&good).await.expect("a good URL");
    let guard = soon("the lock", Mutex::new(&good, "x").lock()).await.expect("trusted");
    guard.unlock().await.expect("held");
    // Read whenever a connection is made: what is wrong by then is an error, and no panic.
    let copy = format!("{key}.copy");
    std::fs::copy(&key, &copy).expect("there is room");
    let later = open(&format!("{url}&cert_file={cert}&key_file={copy}")).await.expect("good");
    std::fs::remove_file(&copy).expect("it was there");
    let error = soon("no", Mutex::new(&later, "x").lock()).await.expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    std::fs::copy(&key, &copy).expect("there is room");
    let guard = soon("the lock", Mutex::new(&later, "x").lock()).await.expect("there again");
    guard.unlock().await.expect("held");
    let nobody = open(&url).await.expect("a good URL");
    let error = soon("no", Mutex::new(&nobody, "x").lock()).await.expect_err("not trusted");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    for wrong in [
        format!("{url}&cert_file={cert}&key_file={cert}"),
        format!("{url}&cert_file={key}&key_file={key}"),
        format!("{url}&cert_file=/nowhere&key_file={key}"),
    ] {
        let error = open(&wrong).await.expect_err("no such thing");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong}: {error:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_used_where_it_is_asked_for() {
    let Some(servers) = start_tls() else { return };
    let url = servers.url().replace("etcd://", "etcds://");
    #[cfg(feature = "etcd-tls")]
    {
        let good = open(&format!("{url}?ca_file={}", servers.authority())).await.expect("good");
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
