//! The line store over TLS, with a certificate authority of the test's own.

use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::certs::certificates;
use holdline_testkit::until;
use std::process::Command;

/// A server over TLS, and where its files are; nothing if it was not run.
fn server(
    test: &str,
    clients: &str,
) -> Option<(holdline_testkit::redis::Server, u16, tempfile::TempDir)> {
    server_with("cert.pem", "key.pem", test, clients, &[])
}

/// The same with this certificate, and more arguments.
fn server_with(
    cert: &str,
    key: &str,
    test: &str,
    clients: &str,
    more: &[&str],
) -> Option<(holdline_testkit::redis::Server, u16, tempfile::TempDir)> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if !certificates(folder.path()) {
        holdline_testkit::missing(&format!("{test} needs openssl"));
        return None;
    }
    let port = holdline_testkit::free_port();
    let [cert, key, ca] = [cert, key, "ca.pem"].map(|name| file(&folder, name));
    let port_text = port.to_string();
    let args = [
        ["--tls-port", &port_text],
        ["--tls-cert-file", &cert],
        ["--tls-key-file", &key],
        ["--tls-ca-cert-file", &ca],
        ["--tls-auth-clients", clients],
    ];
    let args = [args.as_flattened(), more].concat();
    let server = holdline_testkit::redis::private(test, &args)?;
    Some((server, port, folder))
}

fn file(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

#[tokio::test]
async fn over_tls() {
    let Some((_server, port, folder)) = server("over_tls", "no") else { return };
    let url = format!("rediss://127.0.0.1:{port}");
    let ca = file(&folder, "ca.pem");
    for url in
        [format!("{url}?ca_file={ca}"), format!("redis://127.0.0.1:{port}?tls=true&ca_file={ca}")]
    {
        let client = open(&url).await.expect("opens");
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        guard.unlock().await.expect("held");
    }
    // A client that does not know the authority does not trust the server.
    let error = open(&url).await.expect_err("an unknown authority");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let error = open(&format!("{url}?ca_file=/nonexistent")).await.expect_err("no such file");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
}

/// The nodes of a cluster tell clients that come over TLS their ports for TLS.
#[tokio::test]
async fn a_cluster_over_tls() {
    let bus = holdline_testkit::free_port().to_string();
    let cluster =
        ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", &bus, "--save", ""];
    let started = server_with("cert.pem", "key.pem", "tls_cluster", "no", &cluster);
    let Some((server, port, folder)) = started else { return };
    let _: () = server.query(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until("it serves", async || {
        server.query::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    })
    .await;
    let ca = file(&folder, "ca.pem");
    for scheme in ["line", "string", "redisson"] {
        let url = format!(
            "rediss+cluster://127.0.0.1:{port}?ca_file={ca}&scheme={scheme}&prefix={scheme}:"
        );
        let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
        let guard = Mutex::new(&one, "x").lock().await.expect("works");
        let lock = Mutex::new(&two, "x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        until("it is listed", async || two.list("").await.expect("works").len() == 1).await;
        guard.unlock().await.expect("held");
        waiting.await.expect("no panic").expect("works").unlock().await.expect("held");
    }
}

/// What `openssl req -x509` makes is an authority's, so rustls refuses it even if it is trusted.
#[tokio::test]
async fn an_authoritys_own_certificate_is_explained() {
    let server = server_with("ca.pem", "ca.key", "tls_authority", "no", &[]);
    let Some((_server, port, folder)) = server else { return };
    let url = format!("rediss://127.0.0.1:{port}?ca_file={}", file(&folder, "ca.pem"));
    let error = open(&url).await.expect_err("no server's certificate");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("CA:FALSE"), "{error}");
}

/// A URL without the second `s` is told of it.
#[tokio::test]
async fn a_plain_client_is_told_that_the_server_speaks_tls() {
    let Some((_server, port, _folder)) = server("plain_to_tls", "no") else { return };
    let error = open(&format!("redis://127.0.0.1:{port}")).await.expect_err("no TLS");
    // It hangs up, as a server does that is just going down.
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("rediss"), "{error}");
}

#[tokio::test]
async fn with_a_certificate_of_our_own() {
    let Some((_server, port, folder)) = server("tls_clients", "yes") else { return };
    let ca = format!("rediss://127.0.0.1:{port}?ca_file={}", file(&folder, "ca.pem"));
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| file(&folder, name));
    for scheme in ["line", "string", "redisson"] {
        let url = format!("{ca}&cert_file={cert}&key_file={key}&scheme={scheme}&prefix={scheme}:");
        let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
        let guard = Mutex::new(&one, "x").lock().await.expect("works");
        let lock = Mutex::new(&two, "x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        guard.unlock().await.expect("held");
        waiting.await.expect("no panic").expect("works").unlock().await.expect("held");
    }
    // Without one, or with somebody else's, the server does not let us in.
    let error = open(&ca).await.expect_err("no certificate");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let other = tempfile::tempdir().expect("a temporary folder");
    assert!(certificates(other.path()));
    let [stranger, secret] = ["cert.pem", "key.pem"].map(|name| file(&other, name));
    let url = format!("{ca}&cert_file={stranger}&key_file={secret}");
    let error = open(&url).await.expect_err("another authority's certificate");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    // What is no certificate, and a key that belongs to another one, are told apart from that.
    for (cert, key) in [(&key, &key), (&cert, &file(&folder, "ext")), (&cert, &secret)] {
        let error = open(&format!("{ca}&cert_file={cert}&key_file={key}")).await.expect_err("bad");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        let text = std::fs::read_to_string(key).expect("it is there");
        let line = text.lines().nth(1).unwrap_or("subjectAltName");
        assert!(!format!("{error:?}").contains(line), "a secret is shown");
    }
    let error = open(&format!("{ca}&cert_file={cert}&key_file=/nonexistent")).await;
    assert_eq!(error.expect_err("no such file").kind(), ErrorKind::Invalid);
}

/// The environment of a test cannot be changed without `unsafe`, so this one runs itself again.
#[test]
fn certificates_from_the_environment() {
    if let Ok(url) = std::env::var("HOLDLINE_TEST_TLS_URL") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("it is given").block_on(async {
            let client = open(&url).await.expect("opens");
            let guard = Mutex::new(&client, "x").lock().await.expect("works");
            guard.unlock().await.expect("held");
        });
        return;
    }
    let Some((_server, port, folder)) = server("tls_env", "yes") else { return };
    let url = format!("rediss://127.0.0.1:{port}?ca_env=MY_CA&cert_env=MY_CERT&key_env=MY_KEY");
    let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("it is there");
    let status = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "tls::certificates_from_the_environment"])
        .env("HOLDLINE_TEST_TLS_URL", url)
        .env("MY_CA", text("ca.pem"))
        .env("MY_CERT", text("cert.pem"))
        .env("MY_KEY", text("key.pem"))
        .status();
    assert!(status.expect("it runs").success());
}
