//! Fault runs on MariaDB and MySQL: their three schemes, and ShedLock's.

use crate::Case;
use crate::databases::{Holders, Row};
use holdline_testkit::{mysql, wait_until};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts};

pub(crate) const CASES: &[Case] = &[
    ("mariadb_calm", || MARIADB.calm("mariadb_calm")),
    ("mariadb_clients", || MARIADB.clients("mariadb_clients")),
    ("mariadb_mixed", || MARIADB.mixed("mariadb_mixed")),
    ("mariadb_contention", || MARIADB.contend("mariadb_contention")),
    ("mariadb_row_clients", || MARIADB_ROW.clients("mariadb_row_clients")),
    ("mariadb_row_mixed", || MARIADB_ROW.mixed("mariadb_row_mixed")),
    ("mariadb_row_contention", || MARIADB_ROW.contend("mariadb_row_contention")),
    ("mariadb_named_mixed", || MARIADB_NAMED.mixed("mariadb_named_mixed")),
    ("mariadb_named_contention", || MARIADB_NAMED.contend("mariadb_named_contention")),
    ("mariadb_shedlock_clients", || MARIADB_SHEDLOCK.clients("mariadb_shedlock_clients")),
    ("mariadb_shedlock_mixed", || MARIADB_SHEDLOCK.mixed("mariadb_shedlock_mixed")),
    ("mariadb_shedlock_contention", || MARIADB_SHEDLOCK.contend("mariadb_shedlock_contention")),
    ("mysql_mixed", || MYSQL.mixed("mysql_mixed")),
    ("mysql_contention", || MYSQL.contend("mysql_contention")),
    ("mysql_row_mixed", || MYSQL_ROW.mixed("mysql_row_mixed")),
    ("mysql_row_contention", || MYSQL_ROW.contend("mysql_row_contention")),
    ("mysql_named_mixed", || MYSQL_NAMED.mixed("mysql_named_mixed")),
    ("mysql_named_contention", || MYSQL_NAMED.contend("mysql_named_contention")),
    ("mysql_shedlock_mixed", || MYSQL_SHEDLOCK.mixed("mysql_shedlock_mixed")),
    ("mysql_shedlock_contention", || MYSQL_SHEDLOCK.contend("mysql_shedlock_contention")),
];

const MARIADB: Row = Row {
    start: || mysql::start("faults", mysql::mariadb),
    options: "?install=yes",
    end_sessions,
    holders: Holders::Leases,
};

const MARIADB_ROW: Row =
    Row { options: "?install=yes&scheme=row", holders: Holders::Sessions, ..MARIADB };

const MARIADB_NAMED: Row = Row { options: "?install=yes&scheme=named", ..MARIADB_ROW };

const MARIADB_SHEDLOCK: Row =
    Row { options: "?install=yes&scheme=shedlock", holders: Holders::UnqueuedLeases, ..MARIADB };

const MYSQL: Row = Row { start: || mysql::start("faults", mysql::mysql), ..MARIADB };

const MYSQL_ROW: Row = Row { start: MYSQL.start, ..MARIADB_ROW };

const MYSQL_NAMED: Row = Row { start: MYSQL.start, ..MARIADB_NAMED };

const MYSQL_SHEDLOCK: Row = Row { start: MYSQL.start, ..MARIADB_SHEDLOCK };

fn end_sessions(port: u16) {
    const ALL: &str = "SELECT id FROM information_schema.processlist \
                       WHERE db = DATABASE() AND id <> CONNECTION_ID()";
    /// The error if the connection has already ended.
    const GONE: u16 = 1094;
    let url = format!("{}?prefer_socket=false", mysql::url(port));
    let end = async || {
        let mut conn = Conn::new(Opts::from_url(&url).unwrap()).await?;
        let all: Vec<u64> = conn.query(ALL).await?;
        for id in &all {
            match conn.query_drop(format!("KILL CONNECTION {id}")).await {
                Err(Error::Server(error)) if error.code == GONE => {}
                ended => ended?,
            }
        }
        conn.disconnect().await.map(|()| all.len())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // After another fault, no client may be back yet.
    wait_until("there were sessions", || runtime.block_on(end()).unwrap() > 0);
}
