//! The names of locks, and random ids.

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use holdline_kernel::Time;
use std::fmt;
use std::sync::Arc;

/// The name of a lock: 1 to 512 bytes of UTF-8 without control characters. Cheap to clone.
///
/// Stores compare names byte by byte. A store that cannot use a name as is escapes or hashes it,
/// without collisions; except for layouts of other libraries: ShedLock's table in MySQL may ignore
/// case, and keys of advisory locks have 64 bits, or 32.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The longest name, in bytes.
    pub const MAX: usize = 512;

    /// Validates a name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is empty, too long, or has control characters.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        let problem = if name.is_empty() {
            "it is empty".to_owned()
        } else if name.len() > Self::MAX {
            format!("it has {} bytes; at most {} are allowed", name.len(), Self::MAX)
        } else if let Some(c) = name.chars().find(|c| c.is_control()) {
            format!("it contains the control character {c:?}")
        } else {
            return Ok(Name(name.into()));
        };
        let shown: String = name.chars().take(40).flat_map(char::escape_default).collect();
        Err(Error::new(
            ErrorKind::Invalid,
            format!("the lock name \"{shown}\" is refused: {problem}"),
        ))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// 128 random bits, for unique ids and names.
pub(crate) fn random() -> Result<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = "the system provided no random numbers, without which no lock is safe";
        Error::because(ErrorKind::Denied, message, error)
    })?;
    Ok(apart(u128::from_be_bytes(bytes), clock::now(), clock::wall_micros()))
}

/// Random bits of the system, with the time in them. The copies of a virtual machine get the same
/// bits from their kernels if these are not told of the copy, but hardly at the same nanosecond.
/// With the same id, a store would take one's request for the other's, and both would hold.
fn apart(bits: u128, now: Time, wall_micros: u64) -> u128 {
    bits ^ (u128::from(wall_micros) << 64 | u128::from(now.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copies_of_a_machine_have_different_ids() {
        let ids = [(1, 1), (2, 1), (1, 2)].map(|(now, wall)| apart(7, Time(now), wall));
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
    }
}
