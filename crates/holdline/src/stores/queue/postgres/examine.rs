//! Checks of PostgreSQL servers for what the guide warns of. They write and install nothing.

use super::address::{Address, Listen, Scheme};
use super::session::Session;
use crate::clock::{self, within};
use crate::error::Result;
use crate::findings::Findings;
use crate::stores::queue::sql::{Fault, clock_of, connections};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, Row};

/// A transaction that has been open for longer than this keeps dead rows from being removed.
const LONG: f64 = 300.0;

/// Examines the hosts of a URL; `rest` is what follows the colon.
pub(crate) async fn examine(rest: &str, findings: &mut Findings) -> Result<()> {
    let address = Address::read(rest)?;
    let mut primaries = 0;
    for (host, port) in &address.hosts {
        let name = format!("{host}:{port}");
        findings.about(&name);
        let alone = Address { hosts: vec![(host.clone(), *port)], ..address.clone() };
        match Session::open(&alone, Arc::new(|_: &str| {})).await {
            Ok(session) => {
                let server = Server { client: &session.client, limit: address.timeout };
                primaries += usize::from(server.examine(&address, *port, findings).await);
            }
            Err(fault) => {
                let error = fault.explain(&alone, "the server");
                let advice = "start it, or take it out of the URL";
                findings.warning("reachable", format!("{error:#}"), advice);
            }
        }
    }
    findings.about_all();
    match (primaries, address.hosts.len()) {
        (0, _) => findings.problem("primary", "no host takes writes", "name the primary, too"),
        (1, _) => {}
        (count, _) => findings.problem(
            "primary",
            format!("{count} hosts take writes"),
            "name servers of one primary: a lock in one is not seen in another",
        ),
    }
    Ok(())
}

struct Server<'a> {
    client: &'a Client,
    limit: Duration,
}

/// The query for every server. Settings that a version does not have are NULL.
const SETTINGS: &str = "SELECT current_setting('server_version'), \
    current_setting('server_version_num')::int, \
    pg_is_in_recovery(), \
    current_setting('fsync'), current_setting('full_page_writes'), \
    current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), \
    current_setting('idle_in_transaction_session_timeout'), \
    current_setting('max_connections')::int, \
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int, \
    inet_server_port()";
/// The age of the oldest transaction that this role may see, and the numbers of replication slots
/// without a reader and of standbys.
const OLD: &str = "SELECT \
    (SELECT extract(epoch FROM max(clock_timestamp() - xact_start)) FROM pg_stat_activity \
      WHERE pid <> pg_backend_pid())::float8, \
    (SELECT count(*) FROM pg_replication_slots WHERE NOT active)::int, \
    (SELECT count(*) FROM pg_stat_replication)::int";
const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8";

impl Server<'_> {
    async fn ask(&self, sql: &str) -> Result<Row, Fault> {
        let asked = within(clock::now().after(self.limit), self.client.query_typed_one(sql, &[]));
        Ok(asked.await.ok_or(Fault::Silence)??)
    }

    /// Returns whether the server takes writes.
    async fn examine(&self, address: &Address, port: u16, findings: &mut Findings) -> bool {
        let row = match self.ask(SETTINGS).await {
            Ok(row) => row,
            Err(fault) => {
                findings.error("settings", &fault.explain(address, "its settings"));
                return false;
            }
        };
        let number: i32 = get(&row, 1).unwrap_or(0);
        let version = format!("PostgreSQL {}", get::<String>(&row, 0).unwrap_or_default());
        if number < 130_000 {
            findings.problem("version", version, "PostgreSQL 13 or later is needed");
        } else {
            findings.ok("version", version);
        }
        let is_standby = get(&row, 2).unwrap_or(false);
        if is_standby {
            let advice = "nothing, if the URL names its primary too";
            findings.advice("role", "a standby, which takes no locks", advice);
            return false;
        }
        findings.ok("role", "primary");
        durability(&row, findings);
        let number = |at| get::<i32>(&row, at).unwrap_or(0).unsigned_abs().into();
        let advice = "raise max_connections, or put a pooler before it";
        connections(number(9), number(8), advice, findings);
        pooler(&row, address, port, findings);
        self.old(&row, address, findings).await;
        let asked = async { get(&self.ask(CLOCK).await.ok()?, 0) };
        clock_of(address, asked, findings).await;
        true
    }

    /// Checks what makes a busy lock slower by the second, and what a failover costs.
    async fn old(&self, row: &Row, address: &Address, findings: &mut Findings) {
        let Ok(old) = self.ask(OLD).await else { return };
        let text = |at: usize| get::<String>(row, at).unwrap_or_default();
        if let Some(age) = get::<f64>(&old, 0).filter(|age| *age > LONG) {
            let advice = "end it (pg_stat_activity, xact_start); set \
                          idle_in_transaction_session_timeout";
            let found = format!("a transaction has been open for {age:.0} s");
            findings.warning("old transactions", found, advice);
        } else if text(7) == "0" {
            findings.advice(
                "old transactions",
                "idle_in_transaction_session_timeout is 0",
                "set it (5min, say): a transaction that is left open makes busy locks slower",
            );
        } else {
            findings.ok("old transactions", "none is older than 5 minutes, as far as we may see");
        }
        if let Some(slots @ 1..) = get::<i32>(&old, 1) {
            let advice = "drop those that nobody will read (pg_replication_slots)";
            findings.warning(
                "slots",
                format!("{slots} replication slots that nobody reads"),
                advice,
            );
        }
        let replicas = get::<i32>(&old, 2).unwrap_or(0);
        let synchronous = text(6);
        let has_leases = matches!(address.scheme, Scheme::Table | Scheme::Shedlock);
        if replicas > 0 && synchronous.is_empty() && has_leases {
            findings.warning(
                "replicas",
                format!("{replicas}, none of them synchronous: a fail-over can forget locks"),
                "set synchronous_standby_names; or let what the lock guards check the token",
            );
        } else if !synchronous.is_empty() {
            findings.ok("replicas", format!("synchronous_standby_names {synchronous}"));
        }
    }
}

/// A value of a column; `None` if it is NULL or of another type.
fn get<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Option<T> {
    row.try_get::<_, Option<T>>(at).ok().flatten()
}

/// Checks what a crash costs.
fn durability(row: &Row, findings: &mut Findings) {
    let is_off = |at: usize| get::<String>(row, at).is_some_and(|value| value == "off");
    if is_off(3) || is_off(4) {
        findings.problem(
            "durability",
            "fsync or full_page_writes is off: a crash of the machine can forget locks, or damage \
             the database",
            "set both to on",
        );
    } else {
        let commit = get::<String>(row, 5).unwrap_or_default();
        let note = if commit == "off" { "; locks set it to on by themselves" } else { "" };
        findings.ok("durability", format!("fsync on, synchronous_commit {commit}{note}"));
    }
}

/// Checks whether the server listens on another port than the URL names: then it is most likely
/// behind a pooler, through which no notices come.
fn pooler(row: &Row, address: &Address, port: u16, findings: &mut Findings) {
    let Some(own) = get::<i32>(row, 10).filter(|own| *own != i32::from(port)) else { return };
    let found = format!("the server listens on port {own}, and the URL names {port}");
    if matches!(address.listen, Listen::Here) {
        let advice = "if a pooler is between, give the notices a way around it: listen=URL, or \
                      listen=off";
        findings.advice("pooler", found, advice);
    } else {
        findings.ok("pooler", found);
    }
}
