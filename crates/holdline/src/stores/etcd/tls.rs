//! TLS, in builds with the feature `etcd-tls`.

use super::address::Address;
use crate::error::{Error, ErrorKind, Result};
use tonic::transport::Endpoint;

/// The endpoint as the address wants it.
#[cfg(not(feature = "etcd-tls"))]
pub(super) fn secure(endpoint: Endpoint, address: &Address) -> Result<Endpoint> {
    if address.tls {
        let message = format!(
            "{address} needs TLS, which is not in this build; build with the feature \"etcd-tls\""
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(endpoint)
}

/// The endpoint as the address wants it.
#[cfg(feature = "etcd-tls")]
pub(super) fn secure(endpoint: Endpoint, address: &Address) -> Result<Endpoint> {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};
    if !address.tls {
        return Ok(endpoint);
    }
    let read = |path: &String| {
        std::fs::read(path).map_err(|error| {
            let message = format!("the certificate file {path} of {address} could not be read");
            Error::because(ErrorKind::Invalid, message, error)
        })
    };
    let mut config = ClientTlsConfig::new();
    config = match &address.ca_file {
        Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
        None => config.with_native_roots(),
    };
    if let (Some(cert), Some(key)) = (&address.cert_file, &address.key_file) {
        config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    endpoint.tls_config(config).map_err(|error| super::fault::unusable(address, error))
}
