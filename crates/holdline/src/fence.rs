//! The fence: checks fencing tokens at a guarded resource.
//!
//! A lease can expire while its holder is paused between two steps, and no lock can prevent that.
//! But the guarded resource can reject a holder once a newer one has come. For that it must see the
//! token *before the first read*: if only writes are checked, updates are still lost, because an
//! old holder may have read before the new one wrote. So open the resource with the token, then
//! read and write with it.

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
/// In a database table, do the same in SQL, as the first statement of the critical section and
/// again with every write: `UPDATE fences SET token = $1 WHERE name = $2 AND token <= $1`, which
/// must update one row. (MySQL does not count a row that has this token already: see its guide.)
///
/// A store without tokens gives the token 0 to every holder. It would fence nothing, and is always
/// refused. In SQL of your own, refuse it too, or have the lock refuse such a store: see
/// [`Mutex::fenced`](crate::Mutex::fenced).
#[derive(Debug, Default)]
pub struct Fence(AtomicU64);

/// The error for a refused token: a newer holder has been here, or the store has no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The rejected token; 0 if the store has none.
    pub token: u64,
    /// The newest token seen.
    pub newest: u64,
}

impl Fence {
    /// Creates a fence that has already seen `token`, to restore one whose state is stored
    /// elsewhere.
    pub fn from_newest(token: u64) -> Self {
        Fence(AtomicU64::new(token))
    }

    /// Accepts a token unless a higher one has been accepted before.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a higher token was accepted before, or if this one is 0: then the lock's store
    /// has no tokens.
    pub fn check(&self, token: u64) -> Result<(), Stale> {
        let newest = self.0.fetch_max(token, Ordering::AcqRel);
        if token < newest || token == 0 { Err(Stale { token, newest }) } else { Ok(()) }
    }

    /// The highest token seen; 0 before the first.
    pub fn newest(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stale { token, newest } = self;
        if *token == 0 {
            return f.write_str("the fencing token is 0: the lock's store has no tokens");
        }
        write!(f, "the fencing token {token} is stale: {newest} has been here; the lock was lost")
    }
}

impl std::error::Error for Stale {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a move to a store without tokens would turn the check off, unnoticed.
    #[test]
    fn the_token_of_a_store_without_tokens_is_refused() {
        let fence = Fence::default();
        let error = fence.check(0).expect_err("it fences nothing");
        assert!(error.to_string().contains("has no tokens"), "{error}");
        fence.check(1).expect("the first");
        assert_eq!(fence.check(0), Err(Stale { token: 0, newest: 1 }));
    }
}
