//! The causes of a loss, as data.

use crate::owner_info::OwnerInfo;
use holdline_kernel::TicketId;
use std::fmt;

/// The cause of a lock's loss. [`Display`](fmt::Display) is a clause for people, as in "lock \"x\"
/// was lost: it was broken by force".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The lease expired before a renewal was confirmed: the store did not answer, could not be
    /// reached or refused, this process was paused, or the lease was a fixed one. (The lock may
    /// have been broken meanwhile.)
    Expired,
    /// The store no longer has the place: the lease expired there, the session that held it was
    /// ended, or the data was deleted.
    Gone,
    /// The lock was broken by force, as [`force_unlock`](crate::Client::force_unlock) does.
    Broken {
        /// The process that broke the lock, by its own account.
        by: OwnerInfo,
        /// The reason that its user gave.
        reason: Option<String>,
    },
    /// The renewer thread of this process ended because of a bug.
    Unrenewed,
}

/// A place that was recently removed by force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evicted {
    /// The id of the ticket that had the place.
    pub id: TicketId,
    /// The process that broke the lock, by its own account.
    pub by: OwnerInfo,
    /// The reason that its user gave.
    pub reason: Option<String>,
}

impl Evicted {
    /// Parses an eviction from a store.
    pub(crate) fn read(id: TicketId, note: &str) -> Self {
        let mut by = OwnerInfo::read(note);
        Evicted { id, reason: by.reason.take(), by }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Expired => f.write_str(
                "its lease ran out before a renewal was confirmed: the store was silent or \
                 refused, this process was stopped, or the lease was a fixed one",
            ),
            Loss::Gone => f.write_str(
                "the store no longer has it: its lease ran out there, its session was ended, or \
                 it was deleted",
            ),
            Loss::Unrenewed => f.write_str(
                "the thread that renews locks ended because of a bug in this library; report it",
            ),
            Loss::Broken { by, reason } => {
                f.write_str("it was broken by force")?;
                match (by.pid, by.host.as_str()) {
                    (0, "") => {}
                    (0, host) => write!(f, " from host {host:?}")?,
                    (pid, "") => write!(f, " by process {pid}")?,
                    (pid, host) => write!(f, " by process {pid} on host {host:?}")?,
                }
                if let Some(label) = &by.label {
                    write!(f, " ({label:?})")?;
                }
                match reason.as_deref().filter(|reason| !reason.is_empty()) {
                    // Quoted, so that another program's text cannot be taken for this message's.
                    Some(reason) => write!(f, ", for this reason: {reason:?}"),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_lock_says_by_whom_and_why() {
        let note = OwnerInfo {
            host: "h".into(),
            pid: 7,
            label: Some("ops".into()),
            ..OwnerInfo::default()
        };
        let shown = |by: &OwnerInfo, reason: Option<&str>| {
            Loss::Broken { by: by.clone(), reason: reason.map(str::to_owned) }.to_string()
        };
        assert_eq!(
            shown(&note, Some("stuck\u{202e}\n")),
            "it was broken by force by process 7 on host \"h\" (\"ops\"), \
             for this reason: \"stuck\\u{202e}\\n\""
        );
        assert_eq!(shown(&OwnerInfo::default(), None), "it was broken by force");
        assert_eq!(shown(&OwnerInfo::default(), Some("")), "it was broken by force");
    }
}
