//! Checks of PostgreSQL servers for what the guide warns of. They write and install nothing.

use super::address::{Address, Listen, Scheme};
use super::session::Session;
use super::warnings;
use crate::error::Result;
use crate::findings::Findings;
use crate::stores::queue::calls::Row;
use crate::stores::queue::sql::{clock_of, connections, unasked};

/// Examines the hosts of a URL; `rest` is what follows the colon.
pub(crate) async fn examine(rest: &str, findings: &mut Findings) -> Result<()> {
    let address = Address::read(rest)?;
    let (mut primaries, mut asked) = (0, 0);
    for (host, port) in &address.hosts {
        let name = format!("{host}:{port}");
        findings.about(&name);
        let alone = Address { hosts: vec![(host.clone(), *port)], ..address.clone() };
        match Session::open(&alone, None).await {
            Ok(session) => {
                asked += 1;
                primaries += usize::from(server(&session, &address, *port, findings).await);
            }
            Err(fault) => {
                let error = unasked(fault, &alone, "PostgreSQL", &alone.hosts).await;
                let advice = "start it, or take it out of the URL";
                findings.unreachable(&error, address.hosts.len(), advice);
            }
        }
    }
    findings.about_all();
    if asked == 0 {
        return Ok(()); // whether one takes writes is not known
    }
    match primaries {
        0 => findings.problem("primary", "no host takes writes", "name the primary, too"),
        1 => {}
        count => findings.problem(
            "primary",
            format!("{count} hosts take writes"),
            "name servers of one primary: a lock in one is not seen in another",
        ),
    }
    Ok(())
}

/// The query for every server, with the numbers of connections, of replication slots without a
/// reader and of standbys, and how full the queue of notices is, in percent. Settings that a
/// version does not have are NULL.
const SETTINGS: &str = "SELECT current_setting('server_version'), \
    current_setting('server_version_num'), \
    pg_is_in_recovery(), \
    current_setting('fsync'), current_setting('full_page_writes'), \
    current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), \
    current_setting('idle_in_transaction_session_timeout'), \
    current_setting('max_connections'), \
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), \
    inet_server_port(), \
    (SELECT count(*) FROM pg_replication_slots WHERE NOT active), \
    (SELECT count(*) FROM pg_stat_replication), \
    (pg_notification_queue_usage() * 100)::int8";
const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8";

/// Examines one server. Returns whether it takes writes.
async fn server(session: &Session, address: &Address, port: u16, findings: &mut Findings) -> bool {
    let row = match session.ask(SETTINGS).await {
        Ok(answer) => answer.first(),
        Err(fault) => {
            findings.error("settings", &fault.explain(address, "its settings"));
            return false;
        }
    };
    let version = format!("PostgreSQL {}", row.text(0).unwrap_or_default());
    if row.number(1).unwrap_or(0) < 130_000 {
        findings.problem("version", version, "PostgreSQL 13 or later is needed");
    } else {
        findings.ok("version", version);
    }
    if row.truth(2) == Some(true) {
        let advice = "nothing, if the URL names its primary too";
        findings.advice("role", "a standby, which takes no locks", advice);
        return false;
    }
    findings.ok("role", "primary");
    durability(&row, findings);
    let number = |at| row.number(at).unwrap_or(0);
    let advice = "raise max_connections, or put a pooler before it";
    connections(number(9), number(8), advice, findings);
    pooler(&row, address, port, findings);
    old(session, &row, findings).await;
    notices(&row, findings);
    replicas(&row, address, findings);
    let asked = async { session.ask(CLOCK).await.ok()?.number() };
    clock_of(address, asked, findings).await;
    true
}

/// Checks what makes a busy lock slower by the second.
async fn old(session: &Session, row: &Row, findings: &mut Findings) {
    let old = warnings::old(session).await;
    let (none, unlimited) = (old.is_empty(), row.text(7) == Some("0"));
    for found in old {
        findings.warning("old transactions", found, warnings::ADVICE);
    }
    if none && unlimited {
        findings.advice(
            "old transactions",
            "idle_in_transaction_session_timeout is 0",
            "set it (5min, say): a transaction that is left open makes busy locks slower",
        );
    } else if none {
        findings.ok("old transactions", "none is older than a minute, as far as we may see");
    }
    if let Some(slots @ 1..) = row.number::<u64>(11) {
        let advice = "drop those that nobody will read (pg_replication_slots)";
        findings.warning("slots", format!("{slots} replication slots that nobody reads"), advice);
    }
}

/// Checks whether a session keeps notices in their queue, which is one for the whole server, and
/// otherwise empty.
fn notices(row: &Row, findings: &mut Findings) {
    match row.number::<u64>(13) {
        Some(0) => findings.ok("notices", "their queue has room"),
        Some(percent) => findings.warning(
            "notices",
            format!("their queue is {percent}% full; with a full one no unlock wakes a waiter"),
            "end the session that listens and stays in a transaction: the server's log names it \
             once the queue is half full",
        ),
        None => {}
    }
}

/// Checks what a failover costs.
fn replicas(row: &Row, address: &Address, findings: &mut Findings) {
    let (standbys, synchronous) = (row.number(12).unwrap_or(0), row.text(6).unwrap_or_default());
    let has_leases = matches!(address.scheme, Scheme::Table | Scheme::Shedlock);
    if standbys > 0 && synchronous.is_empty() && has_leases {
        findings.warning(
            "replicas",
            format!("{standbys}, none of them synchronous: a fail-over can forget locks"),
            "set synchronous_standby_names; or let what the lock guards check the token",
        );
    } else if !synchronous.is_empty() {
        findings.ok("replicas", format!("synchronous_standby_names {synchronous}"));
    }
}

/// Checks what a crash costs.
fn durability(row: &Row, findings: &mut Findings) {
    if [3, 4].iter().any(|at| row.text(*at) == Some("off")) {
        findings.problem(
            "durability",
            "fsync or full_page_writes is off: a crash of the machine can forget locks, or damage \
             the database",
            "set both to on",
        );
    } else {
        let commit = row.text(5).unwrap_or_default();
        let note = if commit == "off" { "; locks set it to on by themselves" } else { "" };
        findings.ok("durability", format!("fsync on, synchronous_commit {commit}{note}"));
    }
}

/// Checks whether the server listens on another port than the URL names: then it is most likely
/// behind a pooler, through which no notices come, nor, if it is pgpool-II, the ends of sessions.
fn pooler(row: &Row, address: &Address, port: u16, findings: &mut Findings) {
    let Some(own) = row.number(10).filter(|own: &u16| *own != port) else { return };
    let found = format!("the server listens on port {own}, and the URL names {port}");
    let mut advice = Vec::new();
    if matches!(address.listen, Listen::Here) {
        advice.push("give the notices a way around it (listen=URL, or listen=off)");
    }
    if matches!(address.scheme, Scheme::Row | Scheme::Advisory(_)) {
        advice.push("go around pgpool-II, which does not tell a holder that its session ended");
    }
    if advice.is_empty() {
        findings.ok("pooler", found);
    } else {
        let advice = format!("if a pooler is between, {}", advice.join("; "));
        findings.advice("pooler", found, advice);
    }
}
