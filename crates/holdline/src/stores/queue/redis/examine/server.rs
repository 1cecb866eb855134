//! One server: its version, role, memory, persistence, replicas, permissions and clock.

use super::clock_check::Clock;
use super::{Config, Connection, Fault, Layout, explain, rights};
use crate::findings::Findings;
use holdline_redis_client::{flags_suffice, too_old};
use redis::{FromRedisValue, Value};

/// A connection to one server.
pub(super) struct Server {
    pub(super) connection: Connection,
    pub(super) config: Config,
}

/// A reply to `INFO`.
struct Info(String);

impl Info {
    fn get(&self, field: &str) -> Option<&str> {
        let lines = self.0.lines();
        lines.filter_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim).next()
    }

    fn number(&self, field: &str) -> u64 {
        self.get(field).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

impl Server {
    /// Sends a command, within the time limit.
    pub(super) async fn ask(&mut self, words: &[&str]) -> Result<Value, Fault> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        self.connection.ask(&command).await
    }

    pub(super) async fn examine(&mut self, in_cluster: bool, findings: &mut Findings) {
        let clock = Clock::read(self).await;
        let info = match self.ask(&["INFO"]).await {
            Ok(value) => Info(String::from_redis_value(value).unwrap_or_default()),
            Err(fault @ Fault::Refused(_)) => {
                let why =
                    explain(fault, &self.config.servers.address(), "its settings").to_string();
                findings.hidden("settings", &why, "allow +info, so that this can be looked at");
                Info(String::new())
            }
            Err(fault) => {
                let error = explain(fault, &self.config.servers.address(), "its settings");
                return findings.error("reachable", &error);
            }
        };
        if !info.0.is_empty() {
            version(&info, findings);
            role(&info, in_cluster, findings);
            memory(&info, findings);
            self.persistence(&info, findings).await;
            self.replicas(&info, findings).await;
        }
        // In a cluster they are always polled.
        if self.config.layout == Layout::String && !in_cluster {
            self.notices(findings).await;
        }
        rights::examine(self, in_cluster, findings).await;
        if let Some(clock) = clock {
            clock.compare(self, findings).await;
        }
    }

    /// A setting of the server, if it reveals it.
    async fn setting(&mut self, name: &str) -> Option<String> {
        let reply = self.ask(&["CONFIG", "GET", name]).await.ok()?;
        let words = match reply {
            Value::Map(pairs) => pairs.into_iter().next().map(|(_, value)| value),
            Value::Array(words) => words.into_iter().nth(1),
            _ => None,
        };
        String::from_redis_value(words?).ok()
    }

    /// Checks what a crash or a restart would lose.
    async fn persistence(&mut self, info: &Info, findings: &mut Findings) {
        let bad = |field: &str| info.get(field).is_some_and(|status| status != "ok");
        if bad("aof_last_write_status") {
            let advice = "give the server room on its disk; until then it refuses locks";
            findings.problem(
                "persistence",
                "its last write to the append-only file failed",
                advice,
            );
        }
        if bad("rdb_last_bgsave_status") {
            let stops = self.setting("stop-writes-on-bgsave-error").await;
            let (found, advice) = ("its last snapshot failed", "see its log; give it room on disk");
            if stops.as_deref() == Some("no") {
                findings.warning("persistence", found, advice);
            } else {
                findings.problem("persistence", format!("{found}, so it refuses writes"), advice);
            }
        }
        if info.get("aof_enabled") != Some("1") {
            return findings.warning(
                "persistence",
                "appendonly no: a crash or restart forgets the locks that are held, and lets \
                 others in",
                "set appendonly yes and appendfsync always; or let what the lock guards check the \
                 token",
            );
        }
        match self.setting("appendfsync").await.as_deref() {
            Some("always") => findings.ok("persistence", "appendonly yes, appendfsync always"),
            Some(other) => findings.warning(
                "persistence",
                format!(
                    "appendonly yes, appendfsync {other}: a crash of the machine forgets the \
                         locks of the last second or more"
                ),
                "set appendfsync always",
            ),
            None => findings.advice(
                "persistence",
                "appendonly yes; appendfsync is not known: CONFIG is refused",
                "see that it is `always`, or allow +config|get",
            ),
        }
    }

    /// Checks what a failover would lose.
    async fn replicas(&mut self, info: &Info, findings: &mut Findings) {
        let count = info.number("connected_slaves");
        let Some(least) = self.setting("min-replicas-to-write").await else {
            if count > 0 {
                let advice = "see that min-replicas-to-write is set, or allow +config|get";
                findings.hidden("replicas", "CONFIG is refused", advice);
            }
            return;
        };
        let least: u64 = least.parse().unwrap_or(0);
        if least > count {
            return findings.problem(
                "replicas",
                format!("{count} replicas, but min-replicas-to-write {least}: it refuses locks"),
                "bring its replicas back",
            );
        }
        match (count, least) {
            (0, _) => findings.ok("replicas", "none: there is no fail-over that forgets locks"),
            (_, 0) => findings.warning(
                "replicas",
                format!(
                    "{count}, and min-replicas-to-write 0: a primary that is cut off goes on \
                         giving out locks beside the new one"
                ),
                "set min-replicas-to-write 1 and min-replicas-max-lag 3; and let what the lock \
                 guards check the token, as replication is asynchronous",
            ),
            _ => findings.advice(
                "replicas",
                format!("{count}, min-replicas-to-write {least}"),
                "replication is asynchronous: a fail-over can forget the newest locks, so let what \
                 they guard check the token",
            ),
        }
    }

    /// Checks whether waiters for locks in the layout `string` are notified of a release.
    async fn notices(&mut self, findings: &mut Findings) {
        let advice = "set notify-keyspace-events to Kgx, if its cost to all users is acceptable";
        match self.setting("notify-keyspace-events").await {
            Some(flags) if flags_suffice(&flags) => {
                findings.ok("notices", format!("notify-keyspace-events {flags}"));
            }
            Some(flags) => {
                let found = format!("notify-keyspace-events \"{flags}\": waiters poll");
                findings.advice("notices", found, advice);
            }
            None => findings.hidden("notices", "CONFIG is refused", "allow +config|get"),
        }
    }
}

fn role(info: &Info, in_cluster: bool, findings: &mut Findings) {
    let mode = info.get("redis_mode").or(info.get("server_mode")).unwrap_or("standalone");
    match (mode, info.get("role")) {
        ("sentinel", _) => findings.problem(
            "role",
            "it is a sentinel",
            "use a URL that begins with redis+sentinel: and ends with the service's name",
        ),
        ("cluster", _) if !in_cluster => findings.problem(
            "role",
            "it is a node of a cluster",
            "use a URL that begins with redis+cluster:",
        ),
        (_, Some("active-replica")) => findings.problem(
            "role",
            "it is an active replica (KeyDB): its peers give out its locks, too",
            "use a server without active-replica",
        ),
        (_, Some("slave" | "replica")) => findings.problem(
            "role",
            "it is a replica, which takes no locks",
            "name the primary, or let sentinels name it (redis+sentinel:)",
        ),
        (mode, role) => {
            let role = if role == Some("master") { "primary" } else { "server" };
            findings.ok("role", format!("{role}, {mode}"));
        }
    }
    if info.get("loading") == Some("1") {
        findings.warning("role", "it is loading its data", "wait until it is done");
    }
}

fn version(info: &Info, findings: &mut Findings) {
    let redis = info.get("redis_version").unwrap_or("?");
    let found = match (info.get("server_name"), info.get("valkey_version")) {
        (Some("valkey"), Some(version)) => format!("Valkey {version}"),
        _ => format!("Redis {redis}"),
    };
    if too_old(redis) {
        findings.problem("version", found, "Redis 6.2 or later, or Valkey, is needed");
    } else {
        findings.ok("version", found);
    }
}

fn memory(info: &Info, findings: &mut Findings) {
    let (limit, used) = (info.number("maxmemory"), info.number("used_memory"));
    let policy = info.get("maxmemory_policy").unwrap_or("noeviction");
    let advice = "set maxmemory-policy noeviction; share no server with a cache";
    if policy != "noeviction" && limit > 0 {
        let found =
            format!("maxmemory-policy {policy}: out of memory, it drops locks that are held");
        findings.problem("eviction", found, advice);
    } else if policy != "noeviction" {
        let found = format!("maxmemory-policy {policy}, which drops locks once maxmemory is set");
        findings.warning("eviction", found, advice);
    } else {
        findings.ok("eviction", "maxmemory-policy noeviction");
    }
    if limit > 0 && used > limit / 10 * 9 {
        let found = format!("{} of {} MB are used", used >> 20, limit >> 20);
        findings.warning("memory", found, "give it more: without memory new locks are refused");
    }
}
