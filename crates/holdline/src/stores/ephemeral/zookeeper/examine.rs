//! The examination of an ensemble's servers for the problems that the guide warns of. It uses the
//! four-letter words that they allow (`srvr` by default), and a session.

use super::address::Address;
use crate::clock;
use crate::error::Result;
use crate::findings::Findings;
use futures_util::future::join_all;
use holdline_base::net;
use holdline_zookeeper_client::{Past, Session, longest_lease};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The time limit of one reply.
const LIMIT: Duration = Duration::from_millis(1500);
/// The most bytes that are read of one reply.
const LONGEST: u64 = 64 * 1024;

/// The replies of one server.
struct Seen {
    srvr: String,
    /// Empty if it is not allowed, which is the default.
    conf: String,
    mntr: String,
}

/// Examines the servers named in a URL of this scheme; `rest` follows the colon.
pub(crate) async fn examine(scheme: &str, rest: &str, findings: &mut Findings) -> Result<()> {
    let address = Address::read(scheme, rest)?;
    address.config()?;
    let hosts = &address.servers.hosts;
    let asked = join_all(hosts.iter().map(|host| Box::pin(ask(&address, host)))).await;
    let (mut modes, mut voters) = (Vec::new(), 0);
    for (host, answer) in hosts.iter().zip(asked) {
        findings.about(host);
        match answer {
            Ok(seen) => {
                modes.extend(examine_server(&seen, findings));
                voters = voters.max(voters_in(&seen.conf));
            }
            Err(error) => findings.warning(
                "reachable",
                format!("it could not be asked: {error}"),
                "start it, or take it out of the URL",
            ),
        }
    }
    findings.about_all();
    ensemble(hosts.len(), voters, &modes, findings);
    session(&address, findings).await;
    Ok(())
}

async fn ask(address: &Address, host: &str) -> std::io::Result<Seen> {
    let srvr = say(address, host, "srvr").await?;
    let (conf, mntr) = (say(address, host, "conf").await, say(address, host, "mntr").await);
    let told = |answer: std::io::Result<String>| {
        answer.ok().filter(|text| !is_refused(text)).unwrap_or_default()
    };
    Ok(Seen { srvr, conf: told(conf), mntr: told(mntr) })
}

/// The reply to a four-letter word.
async fn say(address: &Address, host: &str, word: &str) -> std::io::Result<String> {
    let tls = address.config().map_err(std::io::Error::other)?.tls;
    let talk = async {
        let socket = net::dial(host, LIMIT).await?;
        let mut socket = net::wrap(tls.as_ref(), host, socket).await?;
        socket.write_all(word.as_bytes()).await?;
        let mut answer = Vec::new();
        socket.take(LONGEST).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let late = || Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it did not answer"));
    clock::within(clock::now().after(LIMIT), talk).await.unwrap_or_else(late)
}

fn is_refused(answer: &str) -> bool {
    answer.contains("is not executed because")
}

/// The value of a name, in the forms `name: value`, `name=value` and `name<TAB>value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix([':', '=', '\t']);
    text.lines().find_map(value).map(str::trim)
}

/// The number of voting members in a server's configuration; 0 if unknown.
fn voters_in(conf: &str) -> usize {
    conf.lines().filter(|line| line.starts_with("server.") && !line.contains(":observer")).count()
}

/// Examines one server. Returns its mode, if it serves.
fn examine_server(seen: &Seen, findings: &mut Findings) -> Option<String> {
    if is_refused(&seen.srvr) {
        let advice = "allow it (4lw.commands.whitelist=srvr, conf, mntr), so that servers can be \
                      looked at";
        findings.hidden("mode", "it does not answer the word `srvr`", advice);
        return None;
    }
    version(&seen.srvr, findings);
    let mode = field(&seen.srvr, "Mode").map(str::to_owned);
    match mode.as_deref() {
        None => findings.warning(
            "mode",
            "it does not serve: it has no leader, or is still starting",
            "start the other members; see its log",
        ),
        Some("read-only") => {
            let advice = "bring the majority back; a server that is cut off takes no locks";
            findings.problem("mode", "read-only: it is cut off from the majority", advice);
            return None;
        }
        Some("standalone") => findings.warning(
            "mode",
            "standalone: one server, whose loss ends all locks until it is back",
            "three servers survive the loss of one",
        ),
        Some(mode) => findings.ok("mode", mode),
    }
    let slow = field(&seen.mntr, "zk_fsync_threshold_exceed_count").and_then(|it| it.parse().ok());
    if let Some(count @ 1_u64..) = slow {
        let found = format!("writing to its log was slow {count} times since it started");
        findings.warning("disk", found, "give dataLogDir a disk of its own");
    }
    let waiting = field(&seen.srvr, "Outstanding").and_then(|it| it.parse().ok());
    if let Some(waiting @ 1000_u64..) = waiting {
        let found = format!("{waiting} requests wait in it");
        findings.warning("load", found, "it receives more requests than it can handle");
    }
    mode
}

fn version(srvr: &str, findings: &mut Findings) {
    let Some(text) = field(srvr, "Zookeeper version") else { return };
    let number = text.split(['-', ',']).next().unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = format!("ZooKeeper {number}");
    if (parts.next(), parts.next()) < (Some(3), Some(5)) {
        findings.problem("version", found, "3.5 or later is needed");
    } else {
        findings.ok("version", found);
    }
}

fn ensemble(named: usize, voters: usize, modes: &[String], findings: &mut Findings) {
    let leaders = modes.iter().filter(|mode| *mode == "leader").count();
    let alone = modes.iter().filter(|mode| *mode == "standalone").count();
    let all = voters.max(named);
    if alone > 0 && named > 1 {
        let advice = "name members of one ensemble: a lock in one is not seen in another";
        return findings.problem("ensemble", "one of several servers is standalone", advice);
    }
    if leaders > 1 {
        let advice = "name members of one ensemble: a lock in one is not seen in another";
        return findings.problem("ensemble", "the hosts belong to different ensembles", advice);
    }
    if all < 2 {
        return;
    }
    let found = format!("{} of the {named} servers that the URL names serve", modes.len());
    findings.majority("ensemble", found, all, named, modes.len());
}

/// Examines the session timeout that the servers grant, which limits leases.
async fn session(address: &Address, findings: &mut Findings) {
    let wanted = address.session;
    let Ok(config) = address.config() else { return };
    let given = match Session::open(&config, Past::default()).await {
        Ok(session) => session,
        Err(error) => {
            let advice = "a majority of the servers must run, and take our login";
            return findings.problem("session", format!("none is given: {error:#}"), advice);
        }
    };
    let longest = longest_lease(given.length);
    let found = format!("{:?}, so leases are {longest:?} at most", given.length);
    if given.length < wanted {
        let found = format!("{wanted:?} was asked for, and {found}");
        findings.warning("session", found, "raise maxSessionTimeout (20 ticks unless set)");
    } else {
        findings.ok("session", found);
    }
    let user = address.servers.user.is_some();
    if !user {
        let advice = "give it a user, if others reach it: without one anybody may remove locks";
        findings.advice("rights", "the URL has no user, so nodes are open to all", advice);
    }
}
