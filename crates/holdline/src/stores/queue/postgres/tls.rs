//! Connecting, with TLS in builds with the feature `postgres-tls`.

use super::address::Address;
use crate::clock;
use crate::stores::queue::sql::{Fault, answered};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls};

/// A future that drives a connection until it ends.
pub(super) type Driver = BoxFuture<'static, Fault>;

/// Called with the payload of every notification.
pub(super) type OnNotice = Arc<dyn Fn(&str) + Send + Sync>;

/// Connects to the first usable host. Each has its share of the time that is left, so that those
/// that accept connections but do not answer keep nobody from the last. The caller limits the whole
/// time.
pub(super) async fn connect(
    address: &Address,
    on_notice: OnNotice,
) -> Result<(Client, Driver), Fault> {
    let (mut fault, end) = (Fault::Silence, clock::now().after(address.timeout));
    for (host, left) in address.hosts.iter().zip((1..=address.hosts.len()).rev()) {
        let now = clock::now();
        let limit = now.after(now.until(end) / left as u32);
        let connecting = Box::pin(connect_to(address, host, Arc::clone(&on_notice))); // it is large
        match answered(limit, connecting).await {
            Ok(connected) => return Ok(connected),
            Err(failed) => fault = failed,
        }
    }
    Err(fault)
}

async fn connect_to(
    address: &Address,
    host: &(String, u16),
    on_notice: OnNotice,
) -> Result<(Client, Driver), Fault> {
    if address.tls {
        return secure(address, host, on_notice).await;
    }
    let (client, connection) = address.config(host).connect(NoTls).await?;
    Ok((client, Box::pin(drive(connection, on_notice))))
}

#[cfg(feature = "postgres-tls")]
async fn secure(
    address: &Address,
    host: &(String, u16),
    on_notice: OnNotice,
) -> Result<(Client, Driver), Fault> {
    // Certificates are read again for each connection, so that they can be renewed.
    let tls = address
        .tls_options
        .config(address)
        .map_err(|error| Fault::from(crate::Error::from(error)))?;
    let tls = tokio_postgres_rustls::MakeRustlsConnect::new(tls);
    let connected = address.config(host).connect(tls).await;
    let (client, connection) = connected.map_err(|error| untrusted(error.into(), address))?;
    Ok((client, Box::pin(drive(connection, on_notice))))
}

/// Adds advice to a fault about TLS or a certificate.
#[cfg(feature = "postgres-tls")]
fn untrusted(fault: Fault, address: &Address) -> Fault {
    use crate::stores::tls::Pem;
    match fault {
        Fault::Broken(why) if why.contains("does not support TLS") => Fault::Unsent(format!(
            "{why}; leave sslmode out of the URL, or turn on ssl in its configuration"
        )),
        Fault::Broken(why) if why.contains("certificate") => {
            let trusted = match &address.tls_options.ca {
                Some(Pem::File(path)) => format!("those of ca_file {path}"),
                Some(Pem::Text(_)) => "those of ca_env".to_owned(),
                None => "the system's; ca_file names others".to_owned(),
            };
            Fault::Unsent(format!("{why}; the authorities that are trusted are {trusted}"))
        }
        other => other,
    }
}

#[cfg(not(feature = "postgres-tls"))]
#[allow(clippy::unused_async, reason = "with TLS it waits")]
async fn secure(_: &Address, _: &(String, u16), _: OnNotice) -> Result<(Client, Driver), Fault> {
    use crate::error::ErrorKind;
    let message = "TLS to PostgreSQL is not in this build; build with the feature \"postgres-tls\"";
    Err(Fault::Ours(ErrorKind::Unsupported, message.to_owned()))
}

/// Drives a connection until it ends. Returns the fault.
async fn drive<S, T>(mut connection: Connection<S, T>, on_notice: OnNotice) -> Fault
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        match std::future::poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(notice))) => on_notice(notice.payload()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Fault::from(error),
            None => return Fault::Broken("it was closed".to_owned()),
        }
    }
}
