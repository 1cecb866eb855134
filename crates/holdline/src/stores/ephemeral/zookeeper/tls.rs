//! TLS, in builds with the feature `zookeeper-tls`.

use super::address::Address;
use super::transport::Socket;
use crate::error::{Error, ErrorKind, Result};
use tokio::net::TcpStream;

#[cfg(feature = "zookeeper-tls")]
pub(super) use with::{check, wrap};
#[cfg(not(feature = "zookeeper-tls"))]
pub(super) use without::{check, wrap};

#[cfg(not(feature = "zookeeper-tls"))]
mod without {
    use super::{Address, Error, ErrorKind, Result, Socket, TcpStream};

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

    /// The socket as it is.
    #[allow(clippy::unused_async, reason = "with TLS it waits")]
    pub(in super::super) async fn wrap(
        _address: &Address,
        _host: &str,
        socket: TcpStream,
    ) -> std::result::Result<Box<dyn Socket>, String> {
        Ok(Box::new(socket))
    }
}

#[cfg(feature = "zookeeper-tls")]
mod with {
    use super::{Address, Error, ErrorKind, Result, Socket, TcpStream};
    use rustls::pki_types::{InvalidDnsNameError, ServerName};
    use std::sync::Arc;
    use tokio_rustls::TlsConnector;

    /// What cannot be used is said now, and not first when connecting.
    pub(in super::super) fn check(address: &Address) -> Result<()> {
        if !address.tls {
            return Ok(());
        }
        for host in &address.hosts {
            name(host).map_err(|error| {
                let message = format!("{address} has a host that can have no certificate");
                Error::because(ErrorKind::Invalid, message, error)
            })?;
        }
        address.tls_options.config(address).map(drop)
    }

    /// The socket, made secret if that is asked for: with the certificates as they stand in the
    /// files now, so that they can be renewed there. Or why that does not work.
    pub(in super::super) async fn wrap(
        address: &Address,
        host: &str,
        socket: TcpStream,
    ) -> std::result::Result<Box<dyn Socket>, String> {
        if !address.tls {
            return Ok(Box::new(socket));
        }
        let config = address.tls_options.config(address).map_err(|error| error.to_string())?;
        let name = name(host).map_err(|error| error.to_string())?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, socket);
        Ok(Box::new(connecting.await.map_err(|error| error.to_string())?))
    }

    /// The name that a host's certificate must have.
    fn name(host: &str) -> std::result::Result<ServerName<'static>, InvalidDnsNameError> {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        ServerName::try_from(name.trim_start_matches('[').trim_end_matches(']').to_owned())
    }
}
