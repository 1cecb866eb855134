//! Which provider of cryptography the clients of Redis and of ZooKeeper use.

use rustls::crypto::{CryptoProvider, ring};

/// Both take the one of the process, and rustls panics if there is none and more than one has been
/// compiled in, as ZooKeeper's client always does. So it is ring, unless the program has chosen:
/// whoever wants another one installs it before opening a store.
pub(crate) fn choose() {
    if CryptoProvider::get_default().is_none() {
        // Somebody else may have been faster, which is as good.
        let _ = ring::default_provider().install_default();
    }
}
