//! The examination of an ensemble's servers for the problems that the guide warns of. It uses the
//! four-letter words that they allow (`srvr` by default), and a session.

use super::address::Address;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::findings::Findings;
use futures_util::future::join_all;
use holdline_base::net;
use holdline_base::probe::{self, Found};
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
    let (mut modes, mut voters, mut asked_some) = (Vec::new(), 0, false);
    for (host, answer) in hosts.iter().zip(asked) {
        findings.about(host);
        match answer {
            Ok(seen) => {
                asked_some = true;
                modes.extend(examine_server(&seen, findings));
                voters = voters.max(voters_in(&seen.conf));
            }
            Err(error) => {
                let kind =
                    if is_silence(&error) { ErrorKind::Unavailable } else { ErrorKind::Invalid };
                let error = Error::new(kind, format!("it could not be asked: {error}"));
                findings.unreachable(&error, hosts.len(), "start it, or take it out of the URL");
            }
        }
    }
    findings.about_all();
    if !asked_some {
        return Ok(());
    }
    ensemble(hosts.len(), voters, &modes, findings);
    session(&address, findings).await;
    Ok(())
}

async fn ask(address: &Address, host: &str) -> std::io::Result<Seen> {
    let srvr = say(address, host, "srvr").await?;
    if let Some(found) = foreign(&srvr) {
        let advice = "name ZooKeeper's client port, which is 2181 unless configured otherwise";
        return Err(std::io::Error::other(format!("{found} answers; {advice}")));
    }
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

/// Whether nothing listens there, or answers in time.
fn is_silence(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    [ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut].contains(&error.kind())
}

/// The server that gave this reply to `srvr`, if it is no ZooKeeper.
fn foreign(srvr: &str) -> Option<Found> {
    let ours = ["Zookeeper version", "ZooKeeper instance", "is not executed because"];
    let is_ours = srvr.is_empty() || ours.iter().any(|words| srvr.contains(words));
    (!is_ours).then(|| probe::recognise(srvr.as_bytes()))
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
    let mode = field(&seen.srvr, "Mode").map(str::to_owned);
    version(&seen.srvr, mode.as_deref(), findings);
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
    let differs = field(&seen.mntr, "zk_digest_mismatches_count").and_then(|it| it.parse().ok());
    if let Some(count @ 1_u64..) = differs {
        let found = format!("its data differed from its leader's {count} times since it started");
        findings.problem("data", found, "stop it, empty its dataDir, and let it fetch the data");
    }
    let waiting = field(&seen.srvr, "Outstanding").and_then(|it| it.parse().ok());
    if let Some(waiting @ 1000_u64..) = waiting {
        let found = format!("{waiting} requests wait in it");
        findings.warning("load", found, "it receives more requests than it can handle");
    }
    mode
}

/// The first version whose members keep in an election what they have confirmed, as far as is
/// known (ZOOKEEPER-4394, 4785, 4925).
const KEEPS: [u32; 3] = [3, 9, 4];

fn version(srvr: &str, mode: Option<&str>, findings: &mut Findings) {
    let Some(text) = field(srvr, "Zookeeper version") else { return };
    let number = text.split(['-', ',']).next().unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
    let version = [(); 3].map(|()| parts.next().unwrap_or(0));
    let found = format!("ZooKeeper {number}");
    if version < [3, 5, 0] {
        findings.problem("version", found, "3.5 or later is needed");
    } else if version < KEEPS && matches!(mode, Some("leader" | "follower")) {
        let found = format!("{found}: in an election it may lose what it has confirmed");
        findings.warning("version", found, "an ensemble should have 3.9.4 or later");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found about a server of a version, with this in its `mntr`, in this mode.
    fn found(version: &str, mode: &str, mntr: &str) -> String {
        let srvr = format!("Zookeeper version: {version}-1, built on 2024-12-29\nMode: {mode}\n");
        let mut findings = Findings::default();
        let seen = Seen { srvr, conf: String::new(), mntr: mntr.to_owned() };
        assert_eq!(examine_server(&seen, &mut findings).as_deref(), Some(mode));
        format!("{findings:?}")
    }

    #[test]
    fn members_of_versions_that_lose_data_are_found() {
        let loses = |version, mode| found(version, mode, "").contains("may lose");
        for version in ["3.5.0", "3.8.0", "3.9.3"] {
            assert!(loses(version, "leader") && loses(version, "follower"), "{version}");
            assert!(!loses(version, "standalone"), "{version}");
        }
        for version in ["3.9.4", "3.9.10", "3.10.0", "4.0.0"] {
            assert!(!loses(version, "leader"), "{version}");
        }
        assert!(found("3.4.14", "leader", "").contains("3.5 or later"));
    }

    #[test]
    fn another_kind_of_server_is_recognized() {
        assert_eq!(foreign("J\0\0\0\n11.8.6-MariaDB\0"), Some(Found::MySql));
        assert_eq!(foreign("-ERR unknown command 'srvr'\r\n"), Some(Found::Redis));
        for ours in ["Zookeeper version: 3.9.4", "This ZooKeeper instance is not serving", ""] {
            assert_eq!(foreign(ours), None, "{ours}");
        }
    }

    #[test]
    fn a_server_with_data_of_its_own_is_found() {
        let differs = |count| found("3.9.4", "follower", count).contains("differed");
        assert!(differs("zk_digest_mismatches_count\t2\n"));
        assert!(!differs("zk_digest_mismatches_count\t0\n") && !differs(""));
    }
}
