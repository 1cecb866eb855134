//! The mark of a session: a setting with a random value, by which a statement finds out whether a
//! proxy had another session carry it out.
//!
//! Advisory locks belong to sessions of the server. A proxy that pools transactions lets two
//! clients share a session, both of which would then hold one lock. So a session is used only if it
//! is new, that is without a mark, and each statement about a lock is carried out only by the
//! session with this client's mark. Then no session is used by two clients: the second finds it
//! marked, or comes to it later with a mark of its own that is not there. No number of statements
//! that compare process ids could prove that, because it is the proxy that chooses the session.
//! The process is part of the mark for proxies that carry settings along.

use super::session::Session;
use crate::error::ErrorKind;
use crate::names;
use crate::stores::queue::sql::Fault;

/// A marked session.
pub(super) struct Mark {
    /// The condition that this session carries out a statement.
    pub(super) condition: String,
    /// The server's process.
    pub(super) process: i32,
}

impl Mark {
    /// Marks a new session. Refuses one that has a mark.
    pub(super) async fn set(session: &Session) -> Result<Mark, Fault> {
        let value = format!("{:032x}", names::random()?);
        let sql = format!(
            "SELECT pg_backend_pid(), set_config('holdline.session', '{value}', false) \
             WHERE coalesce(current_setting('holdline.session', true), '') = ''"
        );
        let process = session.ask(&sql).await?.number().ok_or_else(shared)?;
        let condition = format!(
            "current_setting('holdline.session', true) = '{value}' AND pg_backend_pid() = {process}"
        );
        Ok(Mark { condition, process })
    }
}

/// The fault when a proxy hands out sessions that other clients use.
pub(super) fn shared() -> Fault {
    let message = "scheme=advisory needs sessions of its own, but a proxy here pools transactions, \
                   or does not reset its sessions: two clients would hold one lock. Name the \
                   server itself, or a pool of sessions; or use scheme=table, which needs no \
                   session";
    Fault::Ours(ErrorKind::Unsupported, message.to_owned())
}
