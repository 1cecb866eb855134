//! The fence: the check of fencing tokens at a guarded resource.
//!
//! A lease can expire while its holder is paused in the middle of a step, and no lock can prevent
//! that; but the guarded resource can refuse a holder once a newer one has come. For that it must
//! see the token *before the first read*: a token checked with writes only still loses updates,
//! because an old holder may have read before the new one wrote. So: open with the token, then read
//! and write with it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The highest token that a guarded resource has seen.
///
/// ```
/// use holdline::Fence;
/// let fence = Fence::default();
/// fence.check(7)?; // before reading
/// fence.check(7)?; // and again with the write
/// fence.check(8)?; // a newer holder comes
/// assert!(fence.check(7).is_err()); // and the old one is refused
/// # Ok::<(), holdline::Stale>(())
/// ```
///
/// For a database table, the same in SQL, as the first statement of the section and again with
/// every write: `UPDATE fences SET token = $1 WHERE name = $2 AND token <= $1`, which must find one
/// row.
#[derive(Debug, Default)]
pub struct Fence(AtomicU64);

/// The error for a refused token: a newer holder has been here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The token that was refused.
    pub token: u64,
    /// The newest token seen.
    pub newest: u64,
}

impl Fence {
    /// A fence that has seen this token, for one whose state is stored elsewhere.
    pub fn from_newest(token: u64) -> Self {
        Fence(AtomicU64::new(token))
    }

    /// Accepts a token that is not lower than any before it.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a higher one was accepted before.
    pub fn check(&self, token: u64) -> Result<(), Stale> {
        let newest = self.0.fetch_max(token, Ordering::AcqRel);
        if token < newest { Err(Stale { token, newest }) } else { Ok(()) }
    }

    /// The newest token seen; 0 before the first.
    pub fn newest(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stale { token, newest } = self;
        write!(f, "the fencing token {token} is stale: {newest} has been here; the lock was lost")
    }
}

impl std::error::Error for Stale {}
