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
//!
//! The statements are prepared in the session, under names with the mark in them: another session
//! does not know the names, and the server has less to do than for the same statements as text.

use super::session::Session;
use crate::error::ErrorKind;
use crate::names;
use crate::stores::queue::calls::Row;
use crate::stores::queue::sql::Fault;

/// The error of the guard of [`Mark::prepare`].
const NOT_HERE: [&str; 1] = ["22P02"];
/// The error when there is no prepared statement of a name.
const NOT_PREPARED: [&str; 1] = ["26000"];

/// A marked session.
pub(super) struct Mark {
    value: String,
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
        Ok(Mark { value, process })
    }

    /// The condition that this session carries out a statement.
    fn condition(&self) -> String {
        let Mark { value, process } = self;
        format!(
            "current_setting('holdline.session', true) = '{value}' AND pg_backend_pid() = {process}"
        )
    }

    /// Carries out these statements, and prepares the queries of these names for
    /// [`select`](Self::select); all in this session, or nothing.
    pub(super) async fn prepare(
        &self,
        session: &Session,
        first: &str,
        queries: &[(String, String)],
    ) -> Result<(), Fault> {
        let (here, value) = (self.condition(), &self.value);
        // The server carries out no statement after one that fails.
        let guard = format!("SELECT (CASE WHEN {here} THEN '1' ELSE 'another' END)::int");
        let mut statements = vec![guard, first.to_owned()];
        statements.extend(queries.iter().map(|(name, query)| {
            format!("PREPARE holdline_{value}_{name} AS {query} WHERE {here}")
        }));
        match session.answers(&statements.join("; ")).await {
            Err(fault) if fault.is(&NOT_HERE) => Err(shared()),
            answers => answers.map(drop),
        }
    }

    /// Carries out a prepared query with these constants. `None` if another session got it, which
    /// did nothing.
    pub(super) async fn select(
        &self,
        session: &Session,
        name: &str,
        constants: &str,
    ) -> Result<Option<Row>, Fault> {
        let query = format!("EXECUTE holdline_{}_{name}({constants})", self.value);
        match session.ask(&query).await {
            Err(fault) if fault.is(&NOT_PREPARED) => Ok(None),
            answer => Ok(answer?.rows.into_iter().next()),
        }
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
