//! Certificates for tests.

use std::path::Path;
use std::process::{Command, Stdio};

/// Makes an authority (`ca.pem`) and its certificate for 127.0.0.1 (`cert.pem`, `key.pem`), by the
/// `openssl` program if it is there.
pub(crate) fn certificates(folder: &Path) -> bool {
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
