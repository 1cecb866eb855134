//! `holdline release`: releases a lock that `holdline acquire` has taken.

use crate::background;
use crate::context::Session;
use crate::exit::{Exit, Failure};
use clap::Args;

/// Release a lock that `holdline acquire` holds; 76 if it was lost before
///
/// If the store cannot be reached, the release is not confirmed: that is said, and the exit code is
/// 0, because the lock was held until then. Others get it when its lease is over.
#[derive(Args, Debug)]
pub(crate) struct Release {
    /// The handle that `holdline acquire` printed
    handle: String,
}

impl Release {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        background::release(session, &self.handle).await
    }
}
