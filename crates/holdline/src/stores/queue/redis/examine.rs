//! The examination of Redis servers for the problems that the guide warns of.

mod clock_check;
mod rights;
mod server;

use super::config::{Config, Layout};
use super::errors::explain;
use crate::clock;
use crate::error::Result;
use crate::findings::Findings;
use crate::stores::url::join;
use holdline_redis_client as client;
use holdline_redis_client::{Connection, Fault, Kind, ask_sentinel, says, what_answers};
use server::Server;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Examines the servers of the store at a URL of this scheme; `rest` follows the colon.
pub(crate) async fn examine(scheme: &str, rest: &str, findings: &mut Findings) -> Result<()> {
    let config = Config::read(scheme, rest)?;
    match &config.servers.kind {
        Kind::Single | Kind::Unix(_) => {
            one(&config, &config.servers.address(), false, findings).await;
        }
        Kind::Sentinel(service) => {
            sentinels(&config, service, findings).await;
            one(&config, &format!("the primary of {service}"), false, findings).await;
        }
        Kind::Cluster => cluster(&config, findings).await,
    }
    Ok(())
}

/// Examines one data server, called `name` in findings.
async fn one(config: &Config, name: &str, in_cluster: bool, findings: &mut Findings) {
    findings.about(name);
    if let Some(mut server) = connect_to(config, findings).await {
        server.examine(in_cluster, findings).await;
    }
}

/// Connects to a server; if that fails, adds a finding.
async fn connect_to(config: &Config, findings: &mut Findings) -> Option<Server> {
    let connection = Connection::new(Arc::clone(&config.servers), String::new());
    match Box::pin(connection.ask(&redis::cmd("PING"))).await {
        Ok(_) => Some(Server { connection, config: config.clone() }),
        // Missing permissions get a detailed finding later.
        Err(Fault::Refused(error)) if says(&error, "NOPERM") => {
            Some(Server { connection, config: config.clone() })
        }
        Err(fault) => {
            let limit = clock::now().after(config.servers.timeout);
            let other = clock::within(limit, what_answers(&config.servers)).await.flatten();
            let error = match other {
                Some(error) => error.into(),
                None => explain(fault, &config.servers.address(), "it"),
            };
            findings.error("reachable", &error);
            None
        }
    }
}

/// The same store on one server alone.
fn alone(config: &Config, host: &str, port: u16) -> Config {
    let hosts = vec![(host.to_owned(), port)];
    let servers = client::Config { kind: Kind::Single, hosts, ..(*config.servers).clone() };
    Config { servers: Arc::new(servers), ..config.clone() }
}

/// Checks whether the sentinels answer, agree, and are enough.
async fn sentinels(config: &Config, service: &str, findings: &mut Findings) {
    let (mut primaries, mut answer) = (BTreeSet::new(), 0);
    for (host, port) in &config.servers.hosts {
        let name = join(host, *port);
        findings.about(format!("sentinel {name}"));
        let limit = clock::now().after(config.servers.timeout);
        let asked = Box::pin(ask_sentinel(&config.servers, (host, *port), service));
        match clock::within(limit, asked).await.unwrap_or(Err(Fault::Silence)) {
            Ok(primary) => {
                answer += 1;
                primaries.insert(primary.clone());
                findings.ok("reachable", format!("names {primary} as the primary"));
            }
            Err(fault) => {
                let error = explain(fault, &format!("redis://{name}"), "the primary");
                findings.warning("reachable", format!("{error:#}"), "bring it back");
            }
        }
    }
    findings.about_all();
    let count = config.servers.hosts.len();
    let found = format!("{answer} of {count} sentinels that the URL names answer");
    if answer == 0 {
        findings.problem("sentinels", found, "nobody can find the primary");
    } else if primaries.len() > 1 {
        let names: Vec<&str> = primaries.iter().map(String::as_str).collect();
        let found = format!("sentinels name different primaries: {}", names.join(", "));
        let advice = "wait until a failover is over; if it stays so, two servers give out locks";
        findings.problem("sentinels", found, advice);
    } else if count < 3 {
        let advice = "run three or more, and name all: one that fails must not decide";
        findings.warning("sentinels", found, advice);
    } else {
        findings.ok("sentinels", found);
    }
}

/// Examines each primary of a cluster, and the hosts in the URL.
async fn cluster(config: &Config, findings: &mut Findings) {
    let mut primaries: BTreeSet<(String, u16)> = BTreeSet::new();
    for (host, port) in &config.servers.hosts {
        findings.about(join(host, *port));
        let Some(mut server) = connect_to(&alone(config, host, *port), findings).await else {
            continue;
        };
        match server.ask(&["CLUSTER", "SLOTS"]).await {
            Ok(slots) => {
                findings.ok("reachable", "answers");
                primaries.extend(client::primaries(&slots, host));
            }
            Err(fault) => {
                let error = explain(fault, &config.servers.address(), "the cluster");
                findings.error("cluster", &error);
            }
        }
    }
    for (host, port) in &primaries {
        let name = format!("primary {}", join(host, *port));
        one(&alone(config, host, *port), &name, true, findings).await;
    }
    findings.about_all();
    if primaries.is_empty() {
        let advice = "name nodes of a cluster that runs";
        findings.problem("cluster", "no host in the URL knows the cluster", advice);
    } else if primaries.len() < 3 {
        let found = format!("{} primaries", primaries.len());
        findings.warning("cluster", found, "a cluster needs three to survive the loss of one");
    } else {
        findings.ok("cluster", format!("{} primaries", primaries.len()));
    }
}
