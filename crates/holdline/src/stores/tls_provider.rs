//! Which provider of cryptography the client of Redis uses.

use rustls::crypto::{CryptoProvider, ring};

/// It takes the one of the process, and rustls panics if there is none and more than one has been
/// compiled in, which any other crate of the program may cause. So it is ring, unless the program
/// has chosen: whoever wants another one installs it before opening a store.
pub(crate) fn choose() {
    if CryptoProvider::get_default().is_none() {
        // Somebody else may have been faster, which is as good.
        let _ = ring::default_provider().install_default();
    }
}
