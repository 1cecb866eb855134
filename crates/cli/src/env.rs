//! The one list of environment variables.

use crate::{cli, defaults};

/// The store's URL, read by every verb and passed to commands unchanged.
pub(crate) const STORE: &str = "HOLDLINE_STORE";
/// The name of the lock that a command runs under.
pub(crate) const NAME: &str = "HOLDLINE_NAME";
/// Its fencing token.
pub(crate) const TOKEN: &str = "HOLDLINE_TOKEN";
/// The locks held by the programs that this one runs under; see `nested.rs`.
pub(crate) const HELD: &str = "HOLDLINE_HELD";

/// Which of the library's events are shown.
pub(crate) const LOG: &str = "HOLDLINE_LOG";

/// The file of the default store; the library reads it.
const STATE: &str = "HOLDLINE_STATE";

const MEANINGS: &[(&str, &str)] = &[
    (STORE, "the store's URL, unless --store says otherwise; commands get it too"),
    (STATE, "without a URL: the file to use instead of the default one"),
    (LOG, "what the library says: a level (warn, info, debug, trace, off) or TARGET=LEVEL,..."),
    (
        defaults::CONFIG,
        "a file of defaults, instead of ~/.config/holdline/config.toml or /etc/holdline.toml",
    ),
    (
        "HOLDLINE_...",
        "defaults of flags: HOLDLINE_WAIT=30s is --wait 30s; in the file, wait = \"30s\"",
    ),
    (NAME, "set for the command: the lock's name"),
    (TOKEN, "set for the command: the fencing token, higher than every earlier one"),
    (HELD, "set for the command: locks held around it, so that nested runs do not wait"),
];

/// The list, for `--help`.
pub(crate) fn table() -> String {
    let mut text = String::from("Environment:\n");
    for (name, meaning) in MEANINGS {
        text.push_str(&cli::row(name, 18, meaning));
    }
    text
}
