//! TLS, with a certificate authority of the test's own.

use holdline::{Client, ErrorKind, Mutex, open};
use holdline_testkit::certs::certificates;
use holdline_testkit::zookeeper::{Servers, start_each};
use holdline_testkit::{free_port, persist, soon, until};
use std::process::Command;
use std::time::{Duration, Instant};

/// A server with a secure port, that port, and where its certificates are; nothing if it was not
/// run. `clients` is what it wants of clients: `none` or `need`.
fn server(clients: &str) -> Option<(Servers, u16, tempfile::TempDir)> {
    let (servers, ports, folder) = ensemble(1, clients)?;
    Some((servers, ports[0], folder))
}

/// The same with so many members.
fn ensemble(count: usize, clients: &str) -> Option<(Servers, Vec<u16>, tempfile::TempDir)> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if !certificates(folder.path()) {
        holdline_testkit::missing("openssl is not there");
        return None;
    }
    let text = |name| std::fs::read_to_string(folder.path().join(name)).expect("it is there");
    let both = text("key.pem") + &text("cert.pem");
    std::fs::write(folder.path().join("both.pem"), both).expect("there is room");
    let ports: Vec<_> = (0..count).map(|_| free_port()).collect();
    let more = |at: usize| {
        format!(
            "secureClientPort={}\nsecureClientPortAddress=127.0.0.1\n\
             serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             ssl.keyStore.location={}\nssl.keyStore.type=PEM\n\
             ssl.trustStore.location={}\nssl.trustStore.type=PEM\nssl.clientAuth={clients}",
            ports[at],
            file(&folder, "both.pem"),
            file(&folder, "ca.pem"),
        )
    };
    let servers = start_each(count, &more)?;
    Some((servers, ports, folder))
}

fn file(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// Takes the lock and gives it back.
async fn works(client: &Client) {
    works_on(client, "x").await;
}

async fn works_on(client: &Client, name: &str) {
    let guard = soon("the lock", persist(Mutex::new(client, name))).await;
    guard.unlock().await.expect("held");
}

/// A client that opens this URL is not let in, and is told soon.
async fn is_refused(url: &str) {
    let client = open(url).await.expect("a good URL");
    let begun = Instant::now();
    let lock = Mutex::new(&client, "x").lease(Duration::from_secs(2));
    let error = soon("the refusal", lock.lock()).await.expect_err(url);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    assert!(error.to_string().contains("that is trusted (ca_file)"), "{error:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls() {
    let Some((mut servers, port, folder)) = server("none") else { return };
    let url = format!("zks://127.0.0.1:{port}?session=60");
    let good = format!("{url}&ca_file={}", file(&folder, "ca.pem"));
    let (one, two) = (open(&good).await.expect("good"), open(&good).await.expect("good"));
    works(&one).await;
    // A waiter is woken, and a session outlives its connection.
    let lock = Mutex::new(&one, "x").lease(Duration::from_secs(50));
    let guard = soon("the lock", persist(lock)).await;
    let waiting = Mutex::new(&two, "x").lease(Duration::from_secs(50));
    let waiter = tokio::spawn(persist(waiting));
    holdline_testkit::until("it waits", async || {
        one.inspect("x").await.is_ok_and(|view| view.waiters.len() == 1)
    })
    .await;
    servers.kill(0);
    servers.restart(0);
    holdline_testkit::until("it is back", async || one.inspect("x").await.is_ok()).await;
    assert!(guard.is_valid());
    guard.unlock().await.expect("held");
    soon("its turn", waiter).await.expect("no panic").unlock().await.expect("held");
    // The same port without TLS, the other one with it, and an authority that is not known.
    let plain = open(&format!("zk://127.0.0.1:{port}")).await.expect("a good URL");
    let lock = Mutex::new(&plain, "x").lease(Duration::from_secs(2));
    let error = soon("no", lock.lock()).await.expect_err("it wants TLS");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:#}");
    let other = tempfile::tempdir().expect("a temporary folder");
    assert!(certificates(other.path()));
    let stranger = format!("{url}&ca_file={}", file(&other, "ca.pem"));
    is_refused(&stranger).await;
    let client = open(&stranger).await.expect("a good URL");
    let error = client.inspect("x").await.expect_err("its authority is not known");
    assert!(format!("{error:#}").contains("invalid peer certificate"), "{error:#}");
    let plain = servers.hosts()[0].rsplit(':').next().expect("a port").to_owned();
    let plain = good.replace(&port.to_string(), &plain);
    crate::strangers::is_named(&plain, "speaks no TLS; write zookeeper://").await;
    works(&one).await;
}

/// Each of three members dies in turn, also the one that we talk to: a lock goes on over TLS with
/// another, and so does its waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_over_tls_loses_a_member() {
    let Some((mut servers, ports, folder)) = ensemble(3, "need") else { return };
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| file(&folder, name));
    let options = format!("ca_file={ca}&cert_file={cert}&key_file={key}");
    let url = format!("zks://{}?session=60&{options}", hosts.join(","));
    let (one, two) = (open(&url).await.expect("good"), open(&url).await.expect("good"));
    let lease = Duration::from_secs(50);
    let mut guard = soon("the lock", persist(Mutex::new(&one, "x").lease(lease))).await;
    for member in 0..3 {
        let waiter = tokio::spawn(persist(Mutex::new(&two, "x").lease(lease)));
        until("it waits", async || {
            one.inspect("x").await.is_ok_and(|view| view.waiters.len() == 1)
        })
        .await;
        servers.kill(member);
        works_on(&one, "y").await;
        works_on(&two, "y").await;
        assert!(guard.is_valid(), "member {member} took the lock along");
        assert!(!waiter.is_finished(), "two hold");
        let token = guard.token();
        soon("the release", guard.unlock()).await.expect("held");
        let next = soon("its turn", waiter).await.expect("no panic");
        assert!(next.token() > token);
        next.unlock().await.expect("held");
        servers.restart(member);
        guard = soon("the lock", persist(Mutex::new(&one, "x").lease(lease))).await;
    }
    guard.unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_certificate_of_our_own() {
    let Some((_servers, port, folder)) = server("need") else { return };
    let ca = format!("zookeeper://127.0.0.1:{port}?tls&ca_file={}", file(&folder, "ca.pem"));
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| file(&folder, name));
    works(&open(&format!("{ca}&cert_file={cert}&key_file={key}")).await.expect("good")).await;
    // Without one, or with somebody else's, the server does not let us in.
    is_refused(&ca).await;
    let other = tempfile::tempdir().expect("a temporary folder");
    assert!(certificates(other.path()));
    let [stranger, secret] = ["cert.pem", "key.pem"].map(|name| file(&other, name));
    is_refused(&format!("{ca}&cert_file={stranger}&key_file={secret}")).await;
}

#[tokio::test]
async fn what_is_no_certificate_is_told_at_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = tempfile::tempdir().expect("a temporary folder");
    if !certificates(folder.path()) || !certificates(other.path()) {
        holdline_testkit::missing("openssl is not there");
        return;
    }
    let [ca, cert, key, ext] =
        ["ca.pem", "cert.pem", "key.pem", "ext"].map(|name| file(&folder, name));
    let secret = file(&other, "key.pem");
    let nothing = "/nonexistent".to_owned();
    let url = "zks://127.0.0.1:1?";
    for (ca, cert, key) in [
        (&nothing, &cert, &key),
        (&ext, &cert, &key),
        (&key, &cert, &key),
        (&ca, &key, &key),
        (&ca, &cert, &ext),
        (&ca, &cert, &nothing),
        (&ca, &cert, &secret),
    ] {
        let url = format!("{url}ca_file={ca}&cert_file={cert}&key_file={key}");
        let error = open(&url).await.expect_err(&url);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
        let text = std::fs::read_to_string(key).unwrap_or_default();
        let line = text.lines().nth(1).unwrap_or("subjectAltName");
        assert!(!format!("{error:?}").contains(line), "a secret is shown");
    }
    let url = format!("zks://no_such..host:1?ca_file={ca}");
    let error = open(&url).await.expect_err("no name for a certificate");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
}

/// The cryptography is ring's, whatever the program has installed for others: here, what could not
/// make a connection. There is one for a process, so this test runs itself again in one of its own.
#[test]
fn the_programs_own_cryptography_does_not_matter() {
    if let Ok(url) = std::env::var("HOLDLINE_TEST_TLS_URL") {
        let mut useless = rustls::crypto::ring::default_provider();
        useless.cipher_suites.clear();
        useless.install_default().expect("the first");
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.expect("it is given").block_on(async {
            works(&open(&url).await.expect("a good URL")).await;
        });
        return;
    }
    let Some((_servers, port, folder)) = server("none") else { return };
    let text = std::fs::read_to_string(folder.path().join("ca.pem")).expect("it is there");
    let status = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "tls::the_programs_own_cryptography_does_not_matter"])
        .env("HOLDLINE_TEST_TLS_URL", format!("zks://127.0.0.1:{port}?ca_env=MY_CA"))
        .env("MY_CA", text)
        .status();
    assert!(status.expect("it runs").success());
}

/// The other way round: see `strangers`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secure_port_is_named() {
    let Some((_servers, port, _folder)) = server("none") else { return };
    let url = format!("zookeeper://127.0.0.1:{port}");
    crate::strangers::is_named(&url, "speaks TLS; write zks://").await;
}
