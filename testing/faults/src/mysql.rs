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
    ("mariadb_crowd", || MARIADB.crowd("mariadb_crowd")),
    ("mariadb_row_clients", || MARIADB_ROW.clients("mariadb_row_clients")),
    ("mariadb_row_mixed", || MARIADB_ROW.mixed("mariadb_row_mixed")),
    ("mariadb_row_crowd", || MARIADB_ROW.crowd("mariadb_row_crowd")),
    ("mariadb_named_mixed", || MARIADB_NAMED.mixed("mariadb_named_mixed")),
    ("mariadb_named_crowd", || MARIADB_NAMED.crowd("mariadb_named_crowd")),
    ("mariadb_shedlock_clients", || MARIADB_SHEDLOCK.clients("mariadb_shedlock_clients")),
    ("mariadb_shedlock_mixed", || MARIADB_SHEDLOCK.mixed("mariadb_shedlock_mixed")),
    ("mariadb_shedlock_crowd", || MARIADB_SHEDLOCK.crowd("mariadb_shedlock_crowd")),
    ("mysql_mixed", || MYSQL.mixed("mysql_mixed")),
    ("mysql_crowd", || MYSQL.crowd("mysql_crowd")),
    ("mysql_row_mixed", || MYSQL_ROW.mixed("mysql_row_mixed")),
    ("mysql_row_crowd", || MYSQL_ROW.crowd("mysql_row_crowd")),
    ("mysql_named_mixed", || MYSQL_NAMED.mixed("mysql_named_mixed")),
    ("mysql_named_crowd", || MYSQL_NAMED.crowd("mysql_named_crowd")),
    ("mysql_shedlock_mixed", || MYSQL_SHEDLOCK.mixed("mysql_shedlock_mixed")),
    ("mysql_shedlock_crowd", || MYSQL_SHEDLOCK.crowd("mysql_shedlock_crowd")),
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
