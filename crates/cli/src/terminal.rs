//! The capabilities of the terminal.

use rustix::termios::tcgetwinsize;
use std::io::{IsTerminal, stdout};

/// Whether stdout is a terminal whose cursor can be moved.
pub(crate) fn can_move() -> bool {
    let kind = std::env::var_os("TERM").unwrap_or_default();
    stdout().is_terminal() && !kind.is_empty() && kind != "dumb"
}

/// The rows and columns of stdout.
pub(crate) fn size() -> (usize, usize) {
    let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()))
}
