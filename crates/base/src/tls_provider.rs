//! The cryptography provider for clients that use the process's default.

use rustls::crypto::{CryptoProvider, ring};

/// Installs ring as the process's default provider, unless the program has already installed one.
/// Some clients use the default, and rustls panics if there is none and several are compiled in,
/// which any crate of the program may cause.
pub fn choose() {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread has installed one, which is as good.
        let _ = ring::default_provider().install_default();
    }
}
