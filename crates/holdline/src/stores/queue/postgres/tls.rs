//! Connecting, with TLS in builds with the feature `postgres-tls`.

use super::address::Address;
use crate::clock;
use crate::stores::queue::sql::{Fault, answered};
use futures_util::stream::{BoxStream, poll_fn};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{AsyncMessage, Client, Connection, Error, NoTls};

/// The messages of the server that answer no request. Polling them drives the connection, until
/// they end.
pub(super) type Messages = BoxStream<'static, Result<AsyncMessage, Error>>;

/// Connects to the first usable host within the time limit of the address. Each host has its share
/// of the time that is left, so that those that accept connections but do not answer keep nobody
/// from the last.
pub(super) async fn connect(address: &Address) -> Result<(Client, Messages), Fault> {
    let (mut fault, end) = (Fault::Silence, clock::now().after(address.timeout));
    for (host, left) in address.hosts.iter().zip((1..=address.hosts.len()).rev()) {
        let now = clock::now();
        let limit = now.after(now.until(end) / left as u32);
        let connecting = Box::pin(connect_to(address, host)); // it is large
        match answered(limit, connecting).await {
            Ok(connected) => return Ok(connected),
            Err(failed) => fault = failed,
        }
    }
    Err(fault)
}

async fn connect_to(address: &Address, host: &(String, u16)) -> Result<(Client, Messages), Fault> {
    if address.tls {
        return secure(address, host).await;
    }
    let (client, connection) = address.config(host).connect(NoTls).await?;
    Ok((client, messages(connection)))
}

#[cfg(feature = "postgres-tls")]
async fn secure(address: &Address, host: &(String, u16)) -> Result<(Client, Messages), Fault> {
    // Certificates are read again for each connection, so that they can be renewed.
    let tls = address
        .tls_options
        .config(address)
        .map_err(|error| Fault::from(crate::Error::from(error)))?;
    let tls = tokio_postgres_rustls::MakeRustlsConnect::new(tls);
    let connected = address.config(host).connect(tls).await;
    let (client, connection) = connected.map_err(|error| untrusted(error.into()))?;
    Ok((client, messages(connection)))
}

/// Adds advice to a fault about TLS or a certificate.
#[cfg(feature = "postgres-tls")]
fn untrusted(fault: Fault) -> Fault {
    use holdline_base::net::certificate_advice;
    match fault {
        Fault::Broken(why) if why.contains("does not support TLS") => Fault::Unsent(format!(
            "{why}; leave sslmode out of the URL, or turn on ssl in its configuration"
        )),
        Fault::Broken(why) => match certificate_advice(&why) {
            "" => Fault::Broken(why),
            advice => Fault::Unsent(why + advice),
        },
        other => other,
    }
}

#[cfg(not(feature = "postgres-tls"))]
#[allow(clippy::unused_async, reason = "with TLS it waits")]
async fn secure(_: &Address, _: &(String, u16)) -> Result<(Client, Messages), Fault> {
    use crate::error::ErrorKind;
    let message = "TLS to PostgreSQL is not in this build; build with the feature \"postgres-tls\"";
    Err(Fault::Ours(ErrorKind::Unsupported, message.to_owned()))
}

fn messages<S, T>(mut connection: Connection<S, T>) -> Messages
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(poll_fn(move |context| connection.poll_message(context)))
}
