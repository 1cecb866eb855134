//! TLS, in builds with the feature `etcd-tls`.

use super::address::Address;
use super::connection::Socket;
use super::grpc::Status;
use crate::error::Result;
#[cfg(not(feature = "etcd-tls"))]
use crate::error::{Error, ErrorKind};
use tokio::net::TcpStream;

#[cfg(feature = "etcd-tls")]
pub(super) use with::{Tls, read, wrap};
#[cfg(not(feature = "etcd-tls"))]
pub(super) use without::{Tls, read, wrap};

#[cfg(not(feature = "etcd-tls"))]
mod without {
    use super::{Address, Error, ErrorKind, Result, Socket, Status, TcpStream};

    /// There is none in this build.
    #[derive(Clone, Debug)]
    pub(in super::super) enum Tls {}

    /// Nothing, if nothing is asked for.
    pub(in super::super) fn read(address: &Address) -> Result<Option<Tls>> {
        if address.tls {
            let message = format!(
                "{address} needs TLS, which is not in this build; build with the feature \
                 \"etcd-tls\""
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(None)
    }

    /// The socket as it is.
    #[allow(clippy::unused_async, reason = "with TLS it waits")]
    pub(in super::super) async fn wrap(
        _tls: Option<&Tls>,
        _host: &str,
        socket: TcpStream,
    ) -> std::result::Result<Box<dyn Socket>, Status> {
        Ok(Box::new(socket))
    }
}

#[cfg(feature = "etcd-tls")]
mod with {
    use super::super::grpc::Code;
    use super::{Address, Result, Socket, Status, TcpStream};
    use rustls::ClientConfig;
    use rustls::pki_types::ServerName;
    use std::sync::Arc;
    use std::time::Duration;

    /// How long a server may take to begin TLS: less than any call may take.
    const HANDSHAKE: Duration = Duration::from_millis(900);

    /// Whom to trust, and who we are: as it stands in the files when a connection is made, so that
    /// certificates can be renewed there.
    #[derive(Clone, Debug)]
    pub(in super::super) struct Tls(Arc<Address>);

    /// As the address wants it. What cannot be used is said now, and not first when connecting.
    pub(in super::super) fn read(address: &Address) -> Result<Option<Tls>> {
        if !address.tls {
            return Ok(None);
        }
        let tls = Tls(Arc::new(address.clone()));
        tls.config().map(|_| Some(tls))
    }

    impl Tls {
        fn config(&self) -> Result<ClientConfig> {
            let Tls(address) = self;
            let mut config = address.tls_options.config(&**address)?;
            config.alpn_protocols = vec![b"h2".to_vec()];
            Ok(config)
        }
    }

    /// The socket, made secret if that is asked for.
    pub(in super::super) async fn wrap(
        tls: Option<&Tls>,
        host: &str,
        socket: TcpStream,
    ) -> std::result::Result<Box<dyn Socket>, Status> {
        let Some(tls) = tls else { return Ok(Box::new(socket)) };
        let config = tls.config().map_err(Status::unsent)?;
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(name).map_err(Status::unsent)?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        // A port without TLS may wait for a line to end that never does.
        let Ok(socket) = tokio::time::timeout(HANDSHAKE, connector.connect(name, socket)).await
        else {
            let what = "it says nothing to TLS; write etcd: if it is to be plain";
            return Err(Status { unsent: true, ..Status::new(Code::Silent, what) });
        };
        let socket = socket.map_err(|error| unwelcome(&error))?;
        Ok(Box::new(socket))
    }

    /// Why there is no TLS. A server that speaks none says something else, or hangs up.
    fn unwelcome(error: &std::io::Error) -> Status {
        use std::io::ErrorKind;
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let plain = matches!(inner, Some(rustls::Error::InvalidMessage(_)));
        let over = matches!(
            error.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        );
        if plain || over {
            return Status::foreign("it does not speak TLS; write etcd: if it is to be plain");
        }
        Status::unsent(error)
    }
}
