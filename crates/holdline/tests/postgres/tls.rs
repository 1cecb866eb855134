//! The store over TLS, with the test's own certificate authority.
#![cfg(feature = "postgres-tls")]

use crate::server::{Server, private};
use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::certs::certificates;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A server that accepts TLS and plain connections, and the folder of its certificates; `None` if
/// it is not installed.
fn server(test: &str) -> Option<(Server, tempfile::TempDir)> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if !certificates(folder.path()) {
        return None;
    }
    // The server runs as another user, and requires a private key readable by itself only.
    let nobody = Some(65534);
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    mode(folder.path(), 0o755);
    mode(&folder.path().join("key.pem"), 0o600);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(folder.path().join("key.pem"), nobody, nobody).expect("we may");
    }
    let [cert, key, ca] = ["cert.pem", "key.pem", "ca.pem"].map(|name| file(&folder, name));
    let settings = [
        "fsync=off".to_owned(),
        "ssl=on".to_owned(),
        format!("ssl_cert_file={cert}"),
        format!("ssl_key_file={key}"),
        format!("ssl_ca_file={ca}"),
    ];
    let settings = settings.each_ref().map(String::as_str);
    Some((private(test, &settings)?, folder))
}

fn file(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls() {
    let Some((server, folder)) = server("tls") else { return };
    let url = server.url();
    let trusting = format!("{url}&sslmode=verify-full&ca_file={}", file(&folder, "ca.pem"));
    let by_tls = trusting.replace("sslmode=verify-full", "tls=true");
    for (url, scheme) in
        [(&trusting, "table"), (&trusting, "row"), (&trusting, "advisory"), (&by_tls, "table")]
    {
        let client = open(&format!("{url}&scheme={scheme}")).await.expect("opens");
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        let sql = server.sql().await;
        let plain = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE application_name LIKE 'holdline%' AND NOT ssl";
        assert_eq!(crate::server::one::<i64>(&sql, plain, &[]).await, 0, "{scheme}");
        guard.unlock().await.expect("held");
    }
    let error = open(&format!("{url}&sslmode=require")).await.expect_err("an unknown authority");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("that is trusted (ca_file)"), "{error}");
    let other = tempfile::tempdir().expect("a temporary folder");
    assert!(certificates(other.path()));
    let wrong = file(&other, "ca.pem");
    let error = open(&format!("{url}&sslmode=verify-full&ca_file={wrong}")).await;
    let error = error.expect_err("another authority");
    assert!(error.to_string().contains("that is trusted (ca_file)"), "{error}");
    let error = open(&format!("{url}&sslmode=require&ca_file=/nonexistent")).await;
    assert_eq!(error.expect_err("no such file").kind(), ErrorKind::Invalid);
    // Certificates without TLS are an error.
    let error = open(&format!("{url}&ca_file={wrong}")).await.expect_err("no TLS");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_not_trusted() {
    let Some(server) = private("no_tls", &["fsync=off"]) else { return };
    let error = open(&format!("{}&sslmode=require", server.url())).await.expect_err("no TLS");
    assert!(error.to_string().contains("TLS"), "{error}");
}
