//! What a holder or waiter says about itself, for people and for followers of a leader.

use crate::clock;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};

/// Who stands in a line, in their own words. Never trusted: only shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnerInfo {
    /// The host's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The process's id on that host.
    #[serde(skip_serializing_if = "is_zero")]
    pub pid: u32,
    /// Milliseconds since 1970 when it began to want the lock, by its own clock.
    #[serde(skip_serializing_if = "is_zero")]
    pub since: u64,
    /// What the user called it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// A leader's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Why it broke somebody's lock, in its own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero<N: PartialEq + From<u8>>(n: &N) -> bool {
    *n == N::from(0)
}

/// The most that a note may weigh in the store, in bytes.
const MOST: usize = 4096;

impl OwnerInfo {
    /// This process, now.
    pub(crate) fn here(label: Option<String>, value: Option<String>) -> Self {
        static HOST: OnceLock<String> = OnceLock::new();
        let host =
            HOST.get_or_init(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
        let since = clock::wall_micros() / 1000;
        OwnerInfo { host: host.clone(), pid: std::process::id(), since, label, value, reason: None }
    }

    /// This process, which breaks a lock for this reason.
    pub(crate) fn eviction(reason: &str) -> Self {
        OwnerInfo { reason: Some(reason.to_owned()), ..OwnerInfo::here(None, None) }
    }

    /// The text that a store keeps; or the most bytes that it may have.
    pub(crate) fn write(&self) -> Result<Arc<str>, usize> {
        let text = serde_json::to_string(self).unwrap_or_default();
        if text.len() > MOST { Err(MOST) } else { Ok(text.into()) }
    }

    /// Reads what a store keeps. Somebody else's words are shown as a label.
    pub(crate) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|_| OwnerInfo {
            label: (!text.is_empty()).then(|| text.to_owned()),
            ..OwnerInfo::default()
        })
    }
}
