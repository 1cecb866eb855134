//! Warnings about a database that keeps old row versions alive, so that the row of a busy lock
//! becomes slower by the second: a while after a store is opened, and of `doctor`.

use super::session::Session;
use crate::stores::queue::calls::Row;

/// Finds what has kept old row versions alive for a minute, and for how many seconds, worst first,
/// as far as this role may see. It calls functions, because the views over them take a new
/// connection twice as long.
const OLD: &str = "\
    SELECT 'the transaction of process ' || pid || ' (' || application_name || ')', \
        extract(epoch FROM clock_timestamp() - xact_start)::bigint \
    FROM pg_stat_get_activity(NULL) \
    WHERE datid = (SELECT oid FROM pg_database WHERE datname = current_database()) \
        AND pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) \
        AND xact_start < clock_timestamp() - interval '1 minute' \
    UNION ALL \
    SELECT 'the prepared transaction ' || gid, \
        extract(epoch FROM clock_timestamp() - prepared)::bigint \
    FROM pg_prepared_xact() \
    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) \
        AND prepared < clock_timestamp() - interval '1 minute' \
    UNION ALL \
    SELECT 'the replication slot ' || slot_name || ', which nobody reads,', 0 \
    FROM pg_get_replication_slots() WHERE xmin IS NOT NULL AND NOT active \
    ORDER BY 2 DESC LIMIT 3";

/// What to do about it.
pub(super) const ADVICE: &str = "busy locks become slower until it ends; set \
    idle_in_transaction_session_timeout, and drop unused slots";

/// What keeps old row versions alive, each as a sentence; nothing if the server does not say.
pub(super) async fn old(session: &Session) -> Vec<String> {
    let sentence = |row: &Row| {
        let (what, seconds) = (row.text(0).unwrap_or_default(), row.number(1).unwrap_or(0));
        let age = if seconds > 0 { format!(", for {seconds} s now") } else { String::new() };
        format!("{what} keeps old row versions alive{age}")
    };
    session.ask(OLD).await.unwrap_or_default().rows.iter().map(sentence).collect()
}
