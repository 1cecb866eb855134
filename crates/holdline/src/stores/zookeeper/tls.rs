//! TLS, in builds with the feature `zookeeper-tls`.

use super::address::Address;
use super::fault::Zk;
use crate::error::{Error, ErrorKind, Result};
use zookeeper_client::{Client, Connector};

#[cfg(feature = "zookeeper-tls")]
pub(super) use with::{check, connect};
#[cfg(not(feature = "zookeeper-tls"))]
pub(super) use without::{check, connect};

#[cfg(not(feature = "zookeeper-tls"))]
mod without {
    use super::{Address, Client, Connector, Error, ErrorKind, Result, Zk};

    /// Nothing, if nothing is asked for.
    pub(in super::super) fn check(address: &Address) -> Result<()> {
        if address.tls {
            let message = format!(
                "{address} needs TLS, which is not in this build; build with the feature \
                 \"zookeeper-tls\""
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    pub(in super::super) async fn connect(
        connector: Connector,
        address: &Address,
    ) -> Result<Client, Zk> {
        connector.connect(&address.cluster()).await
    }
}

#[cfg(feature = "zookeeper-tls")]
mod with {
    use super::{Address, Client, Connector, Error, ErrorKind, Result, Zk};
    use crate::stores::tls::Certs;
    use rustls::pki_types::ServerName;
    use std::fmt::Write;
    use zookeeper_client::{TlsCa, TlsCerts, TlsIdentity, TlsOptions};

    /// What cannot be used is said now, and not first when connecting.
    pub(in super::super) fn check(address: &Address) -> Result<()> {
        if !address.tls {
            return Ok(());
        }
        for host in &address.hosts {
            let name = host.rsplit_once(':').map_or(&**host, |(name, _)| name);
            let name = name.trim_start_matches('[').trim_end_matches(']');
            // The client panics at those.
            ServerName::try_from(name).map_err(|error| {
                let message = format!("{address} has a host that can have no certificate");
                Error::because(ErrorKind::Invalid, message, error)
            })?;
        }
        address.papers.config(address)?;
        options(address).map(drop)
    }

    /// With the certificates as they stand in the files now, so that they can be renewed there.
    pub(in super::super) async fn connect(
        connector: Connector,
        address: &Address,
    ) -> Result<Client, Zk> {
        if !address.tls {
            return connector.connect(&address.cluster()).await;
        }
        crate::stores::crypto::choose();
        let options = options(address).map_err(|error| Zk::UnexpectedError(error.to_string()))?;
        connector.with_tls(options).secure_connect(&address.cluster()).await
    }

    fn options(address: &Address) -> Result<TlsOptions> {
        let unusable = |error: Zk| {
            let message = format!("the certificates of {address} cannot be used");
            Error::because(ErrorKind::Invalid, message, error)
        };
        let papers = &address.papers;
        let ca = TlsCa::from_pem(&pem(&papers.authorities(address)?)).map_err(unusable)?;
        let mut certs = TlsCerts::builder().with_ca(ca);
        if let (Some(cert), Some(key)) = (&papers.cert, &papers.key) {
            let (cert, key) = (cert.read("certificate", address)?, key.read("key", address)?);
            let [cert, key] = [&cert, &key].map(|text| String::from_utf8_lossy(text));
            certs = certs.with_identity(TlsIdentity::from_pem(&cert, &key).map_err(unusable)?);
        }
        Ok(TlsOptions::new().with_certs(certs.build().map_err(unusable)?))
    }

    /// As text, which is all that the client takes.
    fn pem(certs: &Certs) -> String {
        let mut text = String::new();
        for cert in certs {
            let _ = writeln!(text, "-----BEGIN CERTIFICATE-----");
            let code = base64(cert);
            for line in code.as_bytes().chunks(64) {
                let _ = writeln!(text, "{}", String::from_utf8_lossy(line));
            }
            let _ = writeln!(text, "-----END CERTIFICATE-----");
        }
        text
    }

    /// RFC 4648, section 4.
    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
        for chunk in bytes.chunks(3) {
            let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for at in 0..4 {
                let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
                text.push(if at > chunk.len() { '=' } else { char::from(digit) });
            }
        }
        text
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject;

        #[test]
        fn base64_is_that_of_the_rfc() {
            let table = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v")];
            for (plain, code) in table {
                assert_eq!(base64(plain.as_bytes()), code);
            }
            assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
        }

        #[test]
        fn what_is_written_is_read() {
            let certs: Certs =
                [1, 48, 100].map(|len| CertificateDer::from(vec![0xa7; len])).to_vec();
            let text = pem(&certs);
            let read: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
            let read: Vec<_> = read.into_iter().map(|cert| cert.expect("good")).collect();
            assert_eq!(read, certs);
        }
    }
}
