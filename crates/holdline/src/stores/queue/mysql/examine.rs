//! Checks of a MySQL or MariaDB server for what the guide warns of. They write and install nothing.

use super::config::{Config, Scheme};
use super::connection::{ask, bare};
use super::errors::is_read_only;
use super::opts;
use crate::clock::{self, within};
use crate::error::Result;
use crate::findings::Findings;
use crate::stores::queue::calls::Row;
use crate::stores::queue::sql::{Fault, clock_of, connections, unasked};
use mysql_async::Conn;
use std::collections::HashMap;

/// The query. Variables that a server does not have are missing from its answer.
const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', \
    'version_comment', 'read_only', 'super_read_only', 'innodb_flush_log_at_trx_commit', \
    'innodb_read_only', 'sync_binlog', 'log_bin', 'binlog_format', 'wsrep_on', \
    'group_replication_group_name', 'max_connections', 'innodb_doublewrite')";
const STATUS: &str = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected', \
    'wsrep_cluster_size', 'wsrep_ready', 'wsrep_cluster_status')";
const CLOCK: &str = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";

/// The names and values of variables, in lower case.
type Variables = HashMap<String, String>;

/// Examines the server of a URL; `rest` is what follows the colon.
pub(crate) async fn examine(rest: &str, findings: &mut Findings) -> Result<()> {
    let config = Config::read(rest)?;
    let options = opts::of(&config)?;
    findings.about(config.to_string());
    let work = async {
        let mut conn = bare(&options).await?;
        let variables = read(&mut conn, VARIABLES).await?;
        let status = read(&mut conn, STATUS).await?;
        examine_server(&config, &variables, &status, findings);
        let asked = async { ask(&mut conn, CLOCK).await.ok()?.number() };
        clock_of(&config, asked, findings).await;
        Ok(())
    };
    let done = within(clock::now().after(config.timeout * 2), Box::pin(work)).await;
    if let Err(fault) = done.unwrap_or(Err(Fault::Silence)) {
        let hosts = [(config.host.clone(), config.port)];
        findings.unreachable(&unasked(fault, &config, "MySQL", &hosts).await, hosts.len(), "");
    }
    Ok(())
}

async fn read(conn: &mut Conn, sql: &str) -> Result<Variables, Fault> {
    let answer = ask(conn, sql).await?;
    let pair = |row: &Row| Some((row.text(0)?.to_lowercase(), row.text(1)?.to_owned()));
    Ok(answer.rows.iter().filter_map(pair).collect())
}

fn examine_server(
    config: &Config,
    variables: &Variables,
    status: &Variables,
    findings: &mut Findings,
) {
    let get = |name: &str| variables.get(name).map_or("", String::as_str);
    let is_on = |name: &str| ["ON", "1", "TRUE"].contains(&get(name).to_uppercase().as_str());
    version(get("version"), findings);
    let read_only = variables.get("read_only").is_some_and(|value| is_read_only(value));
    if read_only || is_on("super_read_only") || is_on("innodb_read_only") {
        let advice = "name the primary, or set read_only to OFF";
        findings.problem("role", "read_only is on: it takes no locks", advice);
    } else {
        findings.ok("role", "takes writes");
    }
    let flush = get("innodb_flush_log_at_trx_commit");
    if flush == "1" {
        findings.ok("durability", "innodb_flush_log_at_trx_commit 1");
    } else if matches!(config.scheme, Scheme::Table | Scheme::Shedlock) {
        findings.warning(
            "durability",
            format!(
                "innodb_flush_log_at_trx_commit {flush}: a crash forgets the locks of the last \
                     second, and lets others in"
            ),
            "set it to 1; or let what the lock guards check the token",
        );
    }
    if is_on("log_bin") && get("sync_binlog") == "0" {
        let advice = "set sync_binlog to 1, if a replica may take its place";
        findings.advice("durability", "sync_binlog 0", advice);
    }
    if get("binlog_format") == "STATEMENT" {
        let advice = "use ROW or MIXED: replicas would count leases by their own clocks";
        findings.warning("replicas", "binlog_format STATEMENT", advice);
    }
    several(is_on("wsrep_on"), get("group_replication_group_name"), status, findings);
    let number =
        |text: Option<&String>| text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let (most, used) =
        (number(variables.get("max_connections")), number(status.get("threads_connected")));
    connections(used, most, "raise max_connections", findings);
}

fn version(version: &str, findings: &mut Findings) {
    let is_mariadb = version.to_lowercase().contains("mariadb");
    let mut parts = version.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    let number = (part(), part(), part());
    let (name, oldest) = if is_mariadb { ("MariaDB", (10, 6, 0)) } else { ("MySQL", (8, 0, 29)) };
    let found = format!("{name} {}", version.split('-').next().unwrap_or_default());
    if number < oldest {
        let advice = "MySQL 8.0.29 or later, or MariaDB 10.6 or later, is needed";
        findings.problem("version", found, advice);
    } else {
        findings.ok("version", found);
    }
}

/// Checks for a cluster whose servers all take writes.
fn several(is_galera: bool, group: &str, status: &Variables, findings: &mut Findings) {
    let get = |name: &str| status.get(name).map_or("", String::as_str);
    if is_galera {
        if get("wsrep_ready") == "OFF" || get("wsrep_cluster_status").starts_with("non-") {
            let advice = "bring the majority of the cluster back";
            return findings.problem("cluster", "this Galera node is without a majority", advice);
        }
        let found = format!("Galera, {} nodes", get("wsrep_cluster_size"));
        let advice = "let all clients use one node at a time: see docs/faults/mysql.md";
        findings.warning("cluster", found, advice);
    } else if !group.is_empty() {
        let advice = "use single-primary mode, and name the primary: see docs/faults/mysql.md";
        findings.warning("cluster", "group replication", advice);
    }
}
