//! Certificates for tests.

use crate::program::Program;
use std::path::Path;
use std::process::{Command, Stdio};

const OPENSSL: Program = Program::new("openssl", "openssl", "brew install openssl");

/// Creates an authority (`ca.pem`) and its certificate for 127.0.0.1 (`cert.pem`, `key.pem`), for
/// servers and clients alike. `false` without the `openssl` program, which is noted by
/// [`crate::missing()`].
///
/// # Panics
///
/// If they cannot be created.
pub fn certificates(folder: &Path) -> bool {
    let binary = match OPENSSL.find() {
        Ok(found) => found.binary,
        Err(what) => {
            crate::missing(what.trim_end_matches('.'));
            return false;
        }
    };
    let openssl = |args: &str| {
        let mut command = Command::new(&binary);
        let output =
            command.current_dir(folder).args(args.split(' ')).stdin(Stdio::null()).output();
        let output = output.expect("openssl runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::write(folder.join("ext"), "subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        .expect("there is room");
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=test-ca",
    );
    openssl("req -newkey rsa:2048 -nodes -keyout key.pem -out csr.pem -subj /CN=localhost");
    openssl(
        "x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 2 \
         -extfile ext",
    );
    true
}
