//! Owner information: the note of a holder or waiter about itself, for people and for followers of
//! a leader.

use crate::clock;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};

/// The owner of a ticket, by its own account. For display only: it is never trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OwnerInfo {
    /// The host's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The process id on that host.
    #[serde(skip_serializing_if = "is_zero")]
    pub pid: u32,
    /// When the acquisition began, in milliseconds since 1970 by the owner's clock.
    #[serde(skip_serializing_if = "is_zero")]
    pub since: u64,
    /// The label that the user gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The leader's published value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The reason for breaking a lock, as the user gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero<N: PartialEq + From<u8>>(n: &N) -> bool {
    *n == N::from(0)
}

/// The longest note, in bytes.
const MAX_BYTES: usize = 4096;

impl OwnerInfo {
    /// The information about this process, now.
    pub(crate) fn here(label: Option<String>, value: Option<String>) -> Self {
        static PROCESS: OnceLock<(String, u32)> = OnceLock::new();
        let (host, pid) = PROCESS.get_or_init(|| {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            (host, std::process::id()) // a system call, which each lock would pay
        });
        let since = clock::wall_micros() / 1000;
        OwnerInfo { host: host.clone(), pid: *pid, since, label, value, reason: None }
    }

    /// The eviction note of this process, with this reason.
    pub(crate) fn eviction(reason: &str) -> Self {
        OwnerInfo { reason: Some(reason.to_owned()), ..OwnerInfo::here(None, None) }
    }

    /// Encodes the note for the store; the error is the limit in bytes if it is too long.
    pub(crate) fn write(&self) -> Result<Arc<str>, usize> {
        let text = serde_json::to_string(self).unwrap_or_default();
        if text.len() > MAX_BYTES { Err(MAX_BYTES) } else { Ok(text.into()) }
    }

    /// Parses a note from a store. A note of another program is shown as a label.
    pub(crate) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|_| OwnerInfo {
            label: (!text.is_empty()).then(|| text.to_owned()),
            ..OwnerInfo::default()
        })
    }
}
