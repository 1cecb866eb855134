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
const LINE: [&str; 24] = [
    "EVALSHA x 1 KEY",
    "GET KEY",
    "GETEX KEY",
    "MGET KEY",
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
const REDISSON: [&str; 12] = [
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
    "PUBLISH redisson_lock__channel:{x} x",
    "SUBSCRIBE redisson_lock__channel:{x}",
];
/// The command that locks in a cluster need besides: without it, those of a slot that moves fail.
const IN_CLUSTER: &str = "ASKING";
/// The commands that only inspection needs.
const LOOKING: [&str; 1] = ["SCAN 0"];

pub(super) async fn examine(server: &mut Server, in_cluster: bool, findings: &mut Findings) {
    let commands: &[&str] = match server.config.layout {
        Layout::Line => &LINE,
        Layout::String => &STRING,
        Layout::Redisson => &REDISSON,
    };
    let commands = [commands, if in_cluster { &[IN_CLUSTER] } else { &[] }].concat();
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
    let (channels, locks): (Vec<String>, Vec<String>) =
        needed.into_iter().partition(|command| command.ends_with("SCRIBE") || command == "PUBLISH");
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
    if refused(server, &LOOKING).await.is_ok_and(|refused| refused.is_some_and(|it| !it.is_empty()))
    {
        let advice = "allow +scan, if this user is to list locks (`holdline status`)";
        findings.advice("rights", "refused: SCAN", advice);
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
    let commands: Vec<String> =
        commands.iter().map(|c| c.replace("CHANNEL", &channel).replace("KEY", &key)).collect();
    // Without keys, so that any node of a cluster can answer.
    let mut words = vec!["EVAL", SCRIPT, "0"];
    words.extend(commands.iter().map(String::as_str));
    let reply = server.ask(&words).await?;
    Ok(Option::<Vec<String>>::from_redis_value(reply).ok().flatten())
}

/// The name of the lock whose key is used in the check. Nothing is written there.
const NAME: &str = "holdline-doctor";
