//! The id of a ticket, and its text form.

use core::fmt;
use core::str::FromStr;

/// The id of one attempt to acquire. Random and never reused, so that every operation may be
/// retried blindly and a late message can only concern the attempt that sent it.
///
/// Its text form, printed and parsed, is 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u128);

/// The error for text that is not a [`TicketId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTicketId(());

/// The number of digits in the text form.
const DIGITS: usize = 32;

impl fmt::Display for TicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TicketId({self})")
    }
}

impl FromStr for TicketId {
    type Err = BadTicketId;

    /// Parses the text form, in either case.
    fn from_str(text: &str) -> Result<Self, BadTicketId> {
        // The standard library's parser would accept a sign.
        let digits = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u128::from_str_radix(text, 16) {
            Ok(id) if digits => Ok(TicketId(id)),
            _ => Err(BadTicketId(())),
        }
    }
}

impl fmt::Display for BadTicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the id of a holder or waiter has exactly {DIGITS} hexadecimal digits")
    }
}

impl core::error::Error for BadTicketId {}
