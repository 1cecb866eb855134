//! Fault runs on PostgreSQL: its three schemes, and ShedLock's.

use crate::Case;
use crate::databases::{Holders, Row};
use holdline_testkit::{postgres, wait_until};
use tokio_postgres::NoTls;

pub(crate) const CASES: &[Case] = &[
    ("postgres_calm", || TABLE.calm("postgres_calm")),
    ("postgres_clients", || TABLE.clients("postgres_clients")),
    ("postgres_mixed", || TABLE.mixed("postgres_mixed")),
    ("postgres_row_clients", || ROW.clients("postgres_row_clients")),
    ("postgres_row_mixed", || ROW.mixed("postgres_row_mixed")),
    ("postgres_advisory_mixed", || ADVISORY.mixed("postgres_advisory_mixed")),
    ("postgres_contention", || TABLE.contend("postgres_contention")),
    ("postgres_row_contention", || ROW.contend("postgres_row_contention")),
    ("postgres_advisory_contention", || ADVISORY.contend("postgres_advisory_contention")),
    ("postgres_shedlock_clients", || SHEDLOCK.clients("postgres_shedlock_clients")),
    ("postgres_shedlock_mixed", || SHEDLOCK.mixed("postgres_shedlock_mixed")),
    ("postgres_shedlock_contention", || SHEDLOCK.contend("postgres_shedlock_contention")),
];

const TABLE: Row = Row {
    start: || postgres::start("faults"),
    options: "?install=yes",
    end_sessions,
    holders: Holders::Leases,
};

const ROW: Row = Row { options: "?install=yes&scheme=row", holders: Holders::Sessions, ..TABLE };

/// The scheme `advisory`. The server does not know the holder, only the session.
const ADVISORY: Row =
    Row { options: "?scheme=advisory", holders: Holders::SessionsUnnamed, ..TABLE };

const SHEDLOCK: Row =
    Row { options: "?install=yes&scheme=shedlock", holders: Holders::UnqueuedLeases, ..TABLE };

fn end_sessions(port: u16) {
    const END: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE application_name LIKE 'holdline%'";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let end = async || {
        let (client, connection) = tokio_postgres::connect(&postgres::url(port), NoTls).await?;
        tokio::spawn(connection);
        client.query_one(END, &[]).await.map(|row| row.get::<_, i64>(0))
    };
    // After another fault, no client may be back yet.
    wait_until("there were sessions", || runtime.block_on(end()).unwrap() > 0);
}
