//! The cryptography provider of the Redis client.

use rustls::crypto::{CryptoProvider, ring};

/// Installs ring as the process's default provider, unless the program has installed another one
/// before opening a store. The Redis client uses the default, and rustls panics if there is none
/// and several are compiled in, which any crate of the program may cause.
pub(crate) fn choose() {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread has installed one, which is as good.
        let _ = ring::default_provider().install_default();
    }
}
