//! `sqlite:PATH`: being built.

use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use std::sync::Arc;

pub(crate) fn open(_rest: &str) -> Result<Arc<dyn Store>> {
    Err(Error::new(ErrorKind::Unsupported, "the file store is not there yet"))
}

pub(crate) fn open_default() -> Result<Arc<dyn Store>> {
    open("")
}
