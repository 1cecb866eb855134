//! The trace of a run, as text. Always hashed, so that two runs can be compared; kept only on
//! request.

use std::fmt::{Arguments, Write as _};

/// The trace of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    /// The FNV-1a hash over all lines.
    pub(crate) hash: u64,
    /// The lines, if they are kept.
    pub(crate) lines: Vec<String>,
    keep: bool,
    line: String,
}

impl Trace {
    pub(crate) fn new(keep: bool) -> Self {
        Trace { hash: 0xcbf2_9ce4_8422_2325, lines: Vec::new(), keep, line: String::new() }
    }

    pub(crate) fn note(&mut self, now: u64, what: Arguments<'_>) {
        self.line.clear();
        // Writing to a string cannot fail.
        let _ = write!(self.line, "{:>13.6} ms  {what}", now as f64 / 1e6);
        for byte in self.line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.keep {
            self.lines.push(self.line.clone());
        }
    }
}
