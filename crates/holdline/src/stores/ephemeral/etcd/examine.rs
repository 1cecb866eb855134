//! The examination of a cluster's members for the problems that the guide warns of.

use super::address::Address;
use crate::error::{ErrorKind, Result};
use crate::findings::Findings;
use crate::stores::servers::Servers;
use futures_util::future::join_all;
use holdline_etcd_client::maintenance::{
    ALARM, Alarm, Alarms, MEMBERS, Member, Members, Nothing, STATUS, Status,
};
use holdline_etcd_client::{Answer, Cluster};
use std::collections::BTreeSet;
use std::time::Duration;

/// The time limit of one request, after which it is retried.
const LIMIT: Duration = Duration::from_millis(700);
/// The default quota of a database.
const USUAL_QUOTA: i64 = 2 << 30;

/// The status of one member.
struct Seen {
    status: Status,
    alarms: Vec<Alarm>,
    members: Vec<Member>,
}

/// Examines the members named in a URL of this scheme; `rest` follows the colon.
pub(crate) async fn examine(scheme: &str, rest: &str, findings: &mut Findings) -> Result<()> {
    let address = Address::read(scheme, rest)?;
    address.tls()?;
    let hosts = &address.servers.hosts;
    let asked = join_all(hosts.iter().map(|host| Box::pin(ask(&address, host)))).await;
    let mut seen = Vec::new();
    for (host, answer) in hosts.iter().zip(asked) {
        findings.about(host);
        match answer {
            Ok(member) => {
                examine_member(&member.status, findings);
                seen.push(member);
            }
            Err(error) if error.kind() == ErrorKind::Denied => {
                let advice = "nothing, if the lock below is taken; only root may ask";
                findings.hidden("member", &error.to_string(), advice);
            }
            Err(error) => {
                let advice = "start it, or take it out of the URL and the cluster";
                findings.unreachable(&error, hosts.len(), advice);
            }
        }
    }
    findings.about_all();
    whole(hosts.len(), &seen, findings);
    Ok(())
}

async fn ask(address: &Address, host: &str) -> Result<Seen> {
    let servers = Servers { hosts: vec![host.to_owned()], ..address.servers.clone() };
    let name = format!("etcd at {host}");
    let member = Cluster::new(servers, address.tls()?, name)?;
    let Answer { body: status, .. } = member.call(STATUS, &Nothing {}, LIMIT).await?;
    let alarms: Option<Answer<Alarms>> = member.call(ALARM, &Nothing {}, LIMIT).await.ok();
    let members: Option<Answer<Members>> = member.call(MEMBERS, &Nothing {}, LIMIT).await.ok();
    Ok(Seen {
        status,
        alarms: alarms.map(|answer| answer.body.alarms).unwrap_or_default(),
        members: members.map(|answer| answer.body.members).unwrap_or_default(),
    })
}

fn examine_member(status: &Status, findings: &mut Findings) {
    let mut parts = status.version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    let version = (part(), part(), part());
    let found = format!("etcd {}", status.version);
    match version {
        (0..=2, ..) | (3, 0..=3, _) => findings.problem("version", found, "3.4 or later is needed"),
        (3, 4, 0..=29) | (3, 5, 0..=12) => findings.advice(
            "version",
            found,
            "use 3.4.30, 3.5.13 or later: before, a leader that was stalled revokes live leases, \
             and locks are lost (etcd#15247)",
        ),
        _ => findings.ok("version", found),
    }
    if status.learner {
        let advice = "take it out of the URL: it serves no locks";
        findings.warning("role", "it is a learner", advice);
    } else if status.leader == 0 {
        findings.problem("role", "it has no leader", "start the other members, see their logs");
    } else {
        let leads = status.header.is_some_and(|header| header.member_id == status.leader);
        findings.ok("role", if leads { "leader" } else { "follower" });
    }
    room(status, findings);
    for error in &status.errors {
        findings.warning("errors", format!("it says: {error}"), "see its log");
    }
}

/// Checks how full the database is: when it is full, etcd refuses all writes.
fn room(status: &Status, findings: &mut Findings) {
    let (quota, known) = if status.quota > 0 {
        (status.quota, "")
    } else {
        (USUAL_QUOTA, " (if that was not changed)")
    };
    let megabytes = |bytes: i64| bytes >> 20;
    let found = format!(
        "{} MB of a quota of {} MB{known}, {} MB in use",
        megabytes(status.size),
        megabytes(quota),
        megabytes(status.in_use)
    );
    if status.size > quota / 10 * 8 {
        let advice = "compact its history (--auto-compaction-retention), then defragment";
        findings.warning("size", found, advice);
    } else {
        findings.ok("size", found);
    }
}

/// Compares the members' statuses.
fn whole(named: usize, seen: &[Seen], findings: &mut Findings) {
    for kind in
        seen.iter().flat_map(|member| &member.alarms).map(|it| it.kind).collect::<BTreeSet<_>>()
    {
        match kind {
            1 => findings.problem(
                "alarm",
                "NOSPACE: the database is full, and every write is refused",
                "compact, defragment, then `etcdctl alarm disarm`",
            ),
            2 => findings.problem(
                "alarm",
                "CORRUPT: members have different data",
                "remove the member that differs, and add it again without its data",
            ),
            _ => findings.warning("alarm", "an alarm is on", "see `etcdctl alarm list`"),
        }
    }
    let clusters: BTreeSet<u64> = seen
        .iter()
        .filter_map(|member| member.status.header)
        .map(|header| header.cluster_id)
        .collect();
    if clusters.len() > 1 {
        let advice = "name members of one cluster: a lock in one is not seen in another";
        findings.problem("cluster", "the hosts belong to different clusters", advice);
    }
    let Some(members) = seen.iter().map(|seen| &seen.members).max_by_key(|members| members.len())
    else {
        return;
    };
    if members.is_empty() {
        return findings.hidden("members", "the list is refused", "nothing, if locks are taken");
    }
    count(members.iter().filter(|member| !member.learner).count(), named, seen.len(), findings);
}

fn count(voters: usize, named: usize, answer: usize, findings: &mut Findings) {
    let members = if voters == 1 { "member" } else { "members" };
    let found = format!("{voters} {members}, of which the URL names {named} and {answer} answered");
    if voters == 1 {
        let advice = "three survive the loss of one; one alone is as available as its machine";
        findings.warning("members", found, advice);
    } else {
        findings.majority("members", found, voters, named, answer);
    }
}
