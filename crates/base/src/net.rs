//! TCP and TLS connections, for clients that implement their protocols themselves.

use crate::clock;
use crate::servers::Servers;
use crate::tls::TlsOptions;
use crate::{Error, ErrorKind, Result};
use std::fmt::Display;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A byte stream to a server, in plain text or over TLS.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// Connects to `host:port`: looks its name up, for which the caller sets a limit, and tries each of
/// its addresses in turn, all within `limit`.
///
/// # Errors
///
/// [`NotFound`](io::ErrorKind::NotFound) if the host's name is unknown. Otherwise the error of the
/// last address that failed for another reason than refusing the connection; so
/// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) means that all addresses refused it.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub async fn dial(host: &str, limit: Duration) -> io::Result<TcpStream> {
    let unknown = |error| {
        let message = format!("the name of the host {host} is not known: {error}");
        io::Error::new(io::ErrorKind::NotFound, message)
    };
    let addresses: Vec<_> = tokio::net::lookup_host(host).await.map_err(unknown)?.collect();
    let share = limit / u32::try_from(addresses.len()).unwrap_or(1).max(1);
    let mut last = None;
    for address in addresses {
        let connecting = clock::timeout(share, TcpStream::connect(address)).await;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "connecting took too long");
        match connecting.unwrap_or_else(|| Err(late())) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) if last.is_some() && error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::other("the host has no address")))
}

/// The TLS settings of a URL. Its certificates are read from their files for each connection, so
/// that they can be renewed there.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "there is none"))]
pub struct Tls {
    options: TlsOptions,
    /// The store's name in error messages.
    store: String,
    /// The protocol to negotiate, if the servers require that.
    protocol: Option<&'static [u8]>,
}

impl Tls {
    /// Creates the TLS settings of a URL, if it requests TLS. `feature` is the feature that the
    /// store's TLS needs, and whether this build has it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) in a build without the feature;
    /// [`Invalid`](ErrorKind::Invalid) if the certificates or a host are unusable.
    pub fn new(
        servers: &Servers,
        store: &impl Display,
        protocol: Option<&'static [u8]>,
        feature: (&str, bool),
    ) -> Result<Option<Tls>> {
        if !servers.tls {
            return Ok(None);
        }
        if !feature.1 {
            let message = format!(
                "{store} needs TLS, which is not in this build; build with the feature \"{}\"",
                feature.0
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let tls = Tls { options: servers.tls_options.clone(), store: store.to_string(), protocol };
        tls.check(&servers.hosts)?;
        Ok(Some(tls))
    }
}

/// Adds TLS to a connection, if it is requested. The caller sets the time limit.
///
/// # Errors
///
/// The handshake's error; [`speaks_no_tls`] and [`mistrusts`] recognize two cases.
pub async fn wrap(tls: Option<&Tls>, host: &str, socket: TcpStream) -> io::Result<Box<dyn Socket>> {
    match tls {
        None => Ok(Box::new(socket)),
        Some(tls) => tls.connect(host, socket).await,
    }
}

#[cfg(not(feature = "tls"))]
impl Tls {
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "there is none to check")]
    fn check(&self, _hosts: &[String]) -> Result<()> {
        Ok(())
    }

    #[allow(clippy::unused_async, reason = "with TLS it waits")]
    async fn connect(&self, _host: &str, _socket: TcpStream) -> io::Result<Box<dyn Socket>> {
        Err(io::Error::other("TLS is not in this build"))
    }
}

#[cfg(feature = "tls")]
mod with_tls {
    use super::{Error, ErrorKind, Result, Socket, TcpStream, Tls, io};
    use rustls::ClientConfig;
    use rustls::pki_types::{InvalidDnsNameError, ServerName};
    use std::sync::Arc;

    impl Tls {
        fn config(&self) -> Result<ClientConfig> {
            let mut config = self.options.config(&self.store)?;
            config.alpn_protocols.extend(self.protocol.map(<[u8]>::to_vec));
            Ok(config)
        }

        /// Reports invalid settings when the store is opened, and not only on connecting.
        pub(super) fn check(&self, hosts: &[String]) -> Result<()> {
            for host in hosts {
                name(host).map_err(|error| {
                    let message = format!("{} has a host that can have no certificate", self.store);
                    Error::because(ErrorKind::Invalid, message, error)
                })?;
            }
            self.config().map(drop)
        }

        pub(super) async fn connect(
            &self,
            host: &str,
            socket: TcpStream,
        ) -> io::Result<Box<dyn Socket>> {
            let config = self.config().map_err(io::Error::other)?;
            let name = name(host).map_err(io::Error::other)?;
            let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
            Ok(Box::new(connector.connect(name, socket).await?))
        }
    }

    /// The name that a host's certificate must have.
    fn name(host: &str) -> std::result::Result<ServerName<'static>, InvalidDnsNameError> {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        ServerName::try_from(name.trim_start_matches('[').trim_end_matches(']').to_owned())
    }

    /// Whether this handshake error shows that the server does not speak TLS: it sends something
    /// else, or hangs up.
    pub fn speaks_no_tls(error: &io::Error) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(reason(error), Some(rustls::Error::InvalidMessage(_)))
            || matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
    }

    /// Whether this handshake error means that the server's certificate is not trusted.
    pub fn mistrusts(error: &io::Error) -> bool {
        matches!(reason(error), Some(rustls::Error::InvalidCertificate(_)))
    }

    fn reason(error: &io::Error) -> Option<&rustls::Error> {
        error.get_ref()?.downcast_ref()
    }
}

#[cfg(feature = "tls")]
pub use with_tls::{mistrusts, speaks_no_tls};

/// Whether this handshake error shows that the server does not speak TLS.
#[cfg(not(feature = "tls"))]
pub fn speaks_no_tls(_error: &io::Error) -> bool {
    false
}

/// Whether this handshake error means that the server's certificate is not trusted.
#[cfg(not(feature = "tls"))]
pub fn mistrusts(_error: &io::Error) -> bool {
    false
}

/// The advice to add to an error of a TLS library, if it is about the server's certificate; else
/// nothing. `openssl req -x509` makes the certificate of an authority, which is refused for a
/// server.
pub fn certificate_advice(error: &str) -> &'static str {
    if error.contains("CaUsedAsEndEntity") {
        "; it is the certificate of an authority, and not of a server: make another with `openssl \
         req -x509 -addext basicConstraints=critical,CA:FALSE`, or let the authority sign one"
    } else if error.contains("certificate") {
        "; check that its certificate names the host and is from an authority that is trusted \
         (ca_file)"
    } else {
        ""
    }
}
