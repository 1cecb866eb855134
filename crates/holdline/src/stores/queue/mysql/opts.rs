//! The client's options for a configuration, TLS included.

use super::config::Config;
use super::text;
use crate::error::Error;
use mysql_async::{Opts, OptsBuilder};
use std::time::Duration;

/// The client's options.
pub(super) fn of(config: &Config) -> Result<Opts, Error> {
    let builder = OptsBuilder::default()
        .ip_or_hostname(config.host.clone())
        .tcp_port(config.port)
        .user(Some(config.user.clone()))
        .pass(config.password.as_ref().map(|password| password.0.clone()))
        .db_name(Some(config.database.clone()))
        // A renewal counts even if it changes nothing.
        .client_found_rows(true)
        .tcp_keepalive(Some(Duration::from_secs(10)))
        .tcp_nodelay(true)
        // Otherwise the client would query these and a socket's path when it connects.
        .prefer_socket(false)
        .max_allowed_packet(Some(16 * 1024 * 1024))
        .wait_timeout(Some(28_800))
        // The prepared statements of `text.rs`, cached by each connection.
        .stmt_cache_size(text::PREPARED);
    if config.tls { tls::on(config, builder) } else { Ok(builder.into()) }
}

#[cfg(feature = "mysql-tls")]
mod tls {
    use super::{Config, Error, Opts, OptsBuilder};
    use mysql_async::{ClientIdentity, SslOpts};

    /// The options with TLS: with the authorities of the URL, or else the system's.
    pub(super) fn on(config: &Config, builder: OptsBuilder) -> Result<Opts, Error> {
        crate::stores::tls_provider::choose();
        let options = &config.tls_options;
        let roots = if let Some(pem) = &options.ca {
            vec![pem.read("CA certificate", config)?.into()]
        } else {
            let system = rustls_native_certs::load_native_certs().certs;
            system.into_iter().map(|cert| cert.as_ref().to_vec().into()).collect()
        };
        let identity = match (&options.cert, &options.key) {
            (Some(cert), Some(key)) => Some(ClientIdentity::new(
                cert.read("certificate", config)?.into(),
                key.read("key", config)?.into(),
            )),
            _ => None,
        };
        let ssl = SslOpts::default()
            .with_root_certs(roots)
            .with_disable_built_in_roots(true)
            .with_client_identity(identity);
        Ok(builder.ssl_opts(Some(ssl)).into())
    }
}

#[cfg(not(feature = "mysql-tls"))]
mod tls {
    use super::{Config, Error, Opts, OptsBuilder};
    use crate::error::ErrorKind;

    pub(super) fn on(_: &Config, _: OptsBuilder) -> Result<Opts, Error> {
        let message = "TLS to MySQL is not in this build; build with the feature \"mysql-tls\"";
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}
