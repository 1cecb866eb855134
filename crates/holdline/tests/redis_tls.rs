//! The line store over TLS, with a certificate authority of the test's own.
#![cfg(feature = "redis-tls")]

mod redis_server;

use holdline::{ErrorKind, Mutex, open};
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes an authority and a certificate for 127.0.0.1, by the `openssl` program if it is there.
fn certificates(folder: &Path) -> bool {
    let openssl = |args: &str| {
        let mut command = Command::new("openssl");
        command.current_dir(folder).args(args.split(' ')).stdout(Stdio::null());
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    std::fs::write(folder.join("ext"), "subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        .expect("there is room");
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=test-ca",
    ) && openssl("req -newkey rsa:2048 -nodes -keyout key.pem -out csr.pem -subj /CN=localhost")
        && openssl(
            "x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 2 \
             -extfile ext",
        )
}

#[tokio::test]
async fn over_tls() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if !certificates(folder.path()) {
        assert!(std::env::var_os("CI").is_none(), "over_tls needs openssl");
        eprintln!("over_tls: not run: openssl is not there");
        return;
    }
    let file = |name: &str| folder.path().join(name).display().to_string();
    let port = redis_server::free_port();
    let args = [
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &file("cert.pem"),
        "--tls-key-file",
        &file("key.pem"),
        "--tls-ca-cert-file",
        &file("ca.pem"),
        "--tls-auth-clients",
        "no",
    ];
    let Some(_server) = redis_server::private("over_tls", &args) else { return };
    let url = format!("rediss://127.0.0.1:{port}");
    let client = open(&format!("{url}?ca_file={}", file("ca.pem"))).await.expect("opens");
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    guard.unlock().await.expect("held");
    // Whoever does not know the authority does not trust it.
    let error = open(&url).await.expect_err("an unknown authority");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let error = open(&format!("{url}?ca_file=/nonexistent")).await.expect_err("no such file");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
}
