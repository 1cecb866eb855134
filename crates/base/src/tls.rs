//! The TLS options of URLs, and the rustls configuration that they result in.

use crate::url::{self, Secret};
use crate::{Error, ErrorKind, Result};
use std::fmt::Display;

/// Certificates or a key in PEM, inline or in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pem {
    /// The path of a file.
    File(String),
    /// The PEM text.
    Text(Secret),
}

/// The certificate authorities and the client certificate of a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The certificate authorities to trust in place of the system's.
    pub ca: Option<Pem>,
    /// The client's certificate.
    pub cert: Option<Pem>,
    /// The key of that certificate.
    pub key: Option<Pem>,
}

impl TlsOptions {
    /// Sets an option of a URL. Returns false if it is not about TLS.
    ///
    /// # Errors
    ///
    /// What is wrong with the URL, as the rest of a sentence.
    pub fn set(&mut self, option: &str, value: &str) -> Result<bool, String> {
        let (slot, from) = match option.split_once('_') {
            Some(("ca", from)) => (&mut self.ca, from),
            Some(("cert", from)) => (&mut self.cert, from),
            Some(("key", from)) => (&mut self.key, from),
            _ => return Ok(false),
        };
        let pem = match from {
            "file" => Pem::File(value.to_owned()),
            "env" => Pem::Text(url::secret_env(option, value)?),
            "pem" => Pem::Text(Secret(value.to_owned())),
            _ => return Ok(false),
        };
        *slot = Some(pem);
        Ok(true)
    }

    /// Refuses options that contradict each other, and any in a URL without TLS.
    ///
    /// # Errors
    ///
    /// What is wrong with the URL, as the rest of a sentence.
    pub fn check(&self, tls: bool) -> Result<(), &'static str> {
        if self.cert.is_some() != self.key.is_some() {
            return Err("needs a certificate (cert_file) and its key (key_file) together");
        }
        if !tls && *self != TlsOptions::default() {
            return Err("has certificates, but no TLS; say tls=true");
        }
        Ok(())
    }
}

/// Whether a URL with this value of the option `tls` requests TLS; its scheme may do so already.
///
/// # Errors
///
/// What is wrong with the URL, as the rest of a sentence.
pub fn wanted(by_scheme: bool, value: &str) -> Result<bool, &'static str> {
    match value {
        "true" | "1" | "" => Ok(true),
        "false" | "0" if by_scheme => Err("has a scheme that means TLS, and says tls=false"),
        "false" | "0" => Ok(false),
        _ => Err("has an option tls that is neither true nor false"),
    }
}

impl Pem {
    /// Reads the PEM text. `what` and the `store`'s name are for the error message.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the file cannot be read.
    pub fn read(&self, what: &str, store: &impl Display) -> Result<Vec<u8>> {
        let path = match self {
            Pem::Text(text) => return Ok(text.0.clone().into_bytes()),
            Pem::File(path) => path,
        };
        std::fs::read(path).map_err(|error| {
            let message = format!("the {what} file {path} of {store} cannot be read");
            Error::because(ErrorKind::Invalid, message, error)
        })
    }
}

#[cfg(feature = "tls")]
mod config {
    use super::TlsOptions;
    use crate::{Error, ErrorKind, Result};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, RootCertStore};
    use std::fmt::Display;
    use std::sync::Arc;

    type Certs = Vec<CertificateDer<'static>>;

    impl TlsOptions {
        /// Builds the rustls configuration. `store` is the store's name in error messages.
        ///
        /// # Errors
        ///
        /// [`ErrorKind::Invalid`] if a certificate or the key cannot be read or is unusable.
        pub fn config(&self, store: &impl Display) -> Result<ClientConfig> {
            let unusable = |error: rustls::Error| {
                let message = format!("the certificates of {store} cannot be used");
                Error::because(ErrorKind::Invalid, message, error)
            };
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(unusable)?
                .with_root_certificates(self.roots(store)?);
            let (Some(cert), Some(key)) = (&self.cert, &self.key) else {
                return Ok(config.with_no_client_auth());
            };
            let what = "certificate";
            let cert = certificates(&cert.read(what, store)?, what, store)?;
            let key = PrivateKeyDer::from_pem_slice(&key.read("key", store)?)
                .map_err(|error| wrong("key", store, error))?;
            config.with_client_auth_cert(cert, key).map_err(unusable)
        }

        /// The certificate authorities to trust: those of the URL, or the system's.
        fn authorities(&self, store: &impl Display) -> Result<Certs> {
            let Some(pem) = &self.ca else {
                // An unreadable certificate is not trusted; that is no error.
                return Ok(rustls_native_certs::load_native_certs().certs);
            };
            let what = "CA certificate";
            certificates(&pem.read(what, store)?, what, store)
        }

        fn roots(&self, store: &impl Display) -> Result<RootCertStore> {
            let certs = self.authorities(store)?;
            let mut roots = RootCertStore::empty();
            if self.ca.is_none() {
                roots.add_parsable_certificates(certs);
                return Ok(roots);
            }
            for cert in certs {
                roots.add(cert).map_err(|error| wrong("CA certificate", store, error))?;
            }
            Ok(roots)
        }
    }

    fn certificates(text: &[u8], what: &str, store: &impl Display) -> Result<Certs> {
        let certs = CertificateDer::pem_slice_iter(text)
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|error| wrong(what, store, error))?;
        if certs.is_empty() {
            let none = rustls::pki_types::pem::Error::NoItemsFound;
            return Err(wrong(what, store, none));
        }
        Ok(certs)
    }

    fn wrong(
        what: &str,
        store: &impl Display,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        let message = format!("the {what} of {store} is not one in PEM");
        Error::because(ErrorKind::Invalid, message, error)
    }
}
