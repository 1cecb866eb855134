//! Placeholder.
use super::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use std::sync::Arc;

pub(super) async fn open(_: Config) -> Result<Arc<dyn Store>> {
    Err(Error::new(ErrorKind::Unsupported, "not yet"))
}
