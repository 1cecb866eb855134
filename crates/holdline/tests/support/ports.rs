//! Ports for servers of our own.
#![allow(unreachable_pub, reason = "one of those who use it hands it on")]

use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// A port from 22100 to 31100: below those that the system gives to connections (32768 and up), any
/// of which may take it before the server does, or while it starts again. The second port of a
/// Redis cluster is 10000 higher.
pub fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(fastrand::u16(..9000)));
    loop {
        let port = 22100 + NEXT.fetch_add(1, Ordering::Relaxed) % 9000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
