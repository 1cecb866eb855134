//! The permissions of the user, by the server's own check of its access list, without running the
//! commands.

use super::{Fault, Layout, explain, server::Server};
use crate::findings::Findings;
use crate::names::Name;
use crate::stores::queue::redis::keys;
use holdline_redis_client::says;
use redis::FromRedisValue;

/// Asks for each command, with one of our keys or channels, whether it would be allowed. Redis
/// before 7.0 cannot tell.
const SCRIPT: &str = "if not redis.acl_check_cmd then return nil end \
    local refused = {} \
    for _, command in ipairs(ARGV) do \
        local words = {} \
        for word in string.gmatch(command, '%S+') do words[#words + 1] = word end \
        local known, allowed = pcall(redis.acl_check_cmd, unpack(words)) \
        if known and not allowed then refused[#refused + 1] = words[1] end \
    end \
    return refused";

/// The commands of the scripts and of the connections, for each layout.
const LINE: [&str; 23] = [
    "EVALSHA x 1 KEY",
    "GET KEY",
    "GETEX KEY",
    "SET KEY x",
    "SETRANGE KEY 0 x",
    "HGET KEY x",
    "HSET KEY x x",
    "HDEL KEY x",
    "HLEN KEY",
    "HGETALL KEY",
    "EXISTS KEY",
    "DEL KEY",
    "ZADD KEY 1 x",
    "ZREM KEY x",
    "ZCARD KEY",
    "ZRANGE KEY 0 0",
    "ZRANGEBYSCORE KEY 0 0",
    "ZREMRANGEBYSCORE KEY 0 0",
    "ZSCORE KEY x",
    "PEXPIRE KEY 1",
    "TIME",
    "PUBLISH CHANNEL x",
    "SUBSCRIBE CHANNEL",
];
const STRING: [&str; 6] =
    ["EVALSHA x 1 KEY", "GET KEY", "SET KEY x", "DEL KEY", "PTTL KEY", "PEXPIRE KEY 1"];
const REDISSON: [&str; 10] = [
    "EVALSHA x 1 KEY",
    "HEXISTS KEY x",
    "HSET KEY x x",
    "HGETALL KEY",
    "EXISTS KEY",
    "GET KEY",
    "SET KEY x",
    "DEL KEY",
    "PTTL KEY",
    "PEXPIRE KEY 1",
];
const REDISSON_CHANNELS: [&str; 2] =
    ["PUBLISH redisson_lock__channel:{x} x", "SUBSCRIBE redisson_lock__channel:{x}"];
/// In a cluster whose servers have them, as Redisson does.
const REDISSON_SHARDS: [&str; 3] = [
    "SPUBLISH redisson_lock__channel:{x} x",
    "SSUBSCRIBE redisson_lock__channel:{x}",
    "PUBSUB SHARDNUMSUB",
];
/// The commands that wake other libraries' waiters for a string, and what a user may lack.
const SIGNAL_LIST: (&str, &str) =
    ("LPUSH LIST 1", "allow +lpush on the keys of signal_list, else its waiters are not woken");
const SIGNAL_CHANNEL: (&str, &str) = (
    "PUBLISH SIGNAL x",
    "allow +publish on the channels of signal_channel, else its waiters are not woken",
);
/// The command that locks in a cluster need besides: without it, those of a slot that moves fail.
const IN_CLUSTER: &str = "ASKING";
/// The command that only inspection needs.
const LOOKING: &str = "SCAN 0";
/// The command that reads the lines of a batch at once. In a cluster there are no batches.
const BATCHING: &str = "MGET KEY";

pub(super) async fn examine(server: &mut Server, in_cluster: bool, findings: &mut Findings) {
    let mut commands: Vec<&str> = match server.config.layout {
        Layout::Line => LINE.to_vec(),
        Layout::String => STRING.to_vec(),
        Layout::Redisson => REDISSON.to_vec(),
    };
    commands.extend(in_cluster.then_some(IN_CLUSTER));
    match server.config.layout {
        Layout::Redisson if in_cluster => commands.extend(REDISSON_SHARDS),
        Layout::Redisson => commands.extend(REDISSON_CHANNELS),
        _ => {}
    }
    let needed = match refused(server, &commands).await {
        Ok(Some(refused)) => refused,
        Ok(None) => {
            let advice = "Redis before 7.0 does not tell; the lock below shows it";
            return findings.hidden("rights", "the server cannot be asked", advice);
        }
        Err(fault) => {
            let is_denied = matches!(&fault, Fault::Refused(error) if says(error, "NOPERM"));
            let error = explain(fault, &server.config.servers.address(), "what is allowed");
            return if is_denied {
                let advice = "allow +eval, and the keys of the prefix: see the minimal ACL in the \
                              guide for Redis";
                findings.problem("rights", error.to_string(), advice);
            } else {
                findings.error("rights", &error);
            };
        }
    };
    // Without the channels, waiters only poll more often.
    let of_waiters = ["SUBSCRIBE", "PUBLISH", "SSUBSCRIBE", "SPUBLISH"];
    let (channels, locks): (Vec<String>, Vec<String>) =
        needed.into_iter().partition(|command| of_waiters.contains(&command.as_str()));
    if !locks.is_empty() {
        let found = format!("refused on keys with our prefix: {}", locks.join(", "));
        let advice = "give the user the minimal ACL of the guide for Redis";
        findings.problem("rights", found, advice);
    }
    if !channels.is_empty() {
        let found = format!("refused on our channels: {}", channels.join(", "));
        let advice = "allow them (&PREFIXwake:*), else waiters find out by looking, once a second";
        findings.advice("rights", found, advice);
    }
    if locks.is_empty() && channels.is_empty() {
        findings.ok("rights", "all commands that locks need are allowed");
    }
    let batches = !in_cluster && server.config.layout == Layout::Line;
    let signals = &server.config.signals;
    let useful = [
        (!signals.list.is_empty()).then_some(SIGNAL_LIST),
        (!signals.channel.is_empty()).then_some(SIGNAL_CHANNEL),
        Some((LOOKING, "allow +scan, if this user is to list locks (`holdline status`)")),
        batches.then_some((BATCHING, "allow +mget: many simultaneous locks then cost less")),
    ];
    for (command, advice) in useful.into_iter().flatten() {
        if let Ok(Some(refused)) = refused(server, &[command]).await
            && let [refused] = &refused[..]
        {
            findings.advice("rights", format!("refused: {refused}"), advice);
        }
    }
}

/// The commands among these that are refused; `None` if the server cannot tell.
async fn refused(server: &mut Server, commands: &[&str]) -> Result<Option<Vec<String>>, Fault> {
    let Ok(name) = Name::new(NAME) else { return Ok(None) };
    let prefix = server.config.prefix.clone();
    let key = match server.config.layout {
        Layout::Line => keys::line(&prefix, &name),
        Layout::String | Layout::Redisson => format!("{prefix}{NAME}"),
    };
    let channel = format!("{prefix}wake:0");
    let signals = &server.config.signals;
    let (list, signal) = (format!("{}{NAME}", signals.list), format!("{}{key}", signals.channel));
    let whole = |command: &&str| {
        let words = command.split(' ').map(|word| match word {
            "CHANNEL" => &channel,
            "KEY" => &key,
            "LIST" => &list,
            "SIGNAL" => &signal,
            word => word,
        });
        words.collect::<Vec<&str>>().join(" ")
    };
    let commands: Vec<String> = commands.iter().map(whole).collect();
    // Without keys, so that any node of a cluster can answer.
    let mut words = vec!["EVAL", SCRIPT, "0"];
    words.extend(commands.iter().map(String::as_str));
    let reply = server.ask(&words).await?;
    Ok(Option::<Vec<String>>::from_redis_value(reply).ok().flatten())
}

/// The name of the lock whose key is used in the check. Nothing is written there.
const NAME: &str = "holdline-doctor";
