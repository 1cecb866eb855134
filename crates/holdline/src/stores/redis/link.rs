//! The connection that commands go over: one, shared by all calls of a store, made when it is first
//! needed and again when it breaks.
//!
//! It lives on the runtime of whoever made it, which is why the keeper's [twin] has one of its own.
//! Every call has a time limit, connecting included. A connection that has given no answer for a
//! second although it was asked is given up too: it may be cut somewhere without either end
//! knowing.
//!
//! [twin]: crate::store::Store::twin

use super::config::Config;
use super::dial::{self, Conn};
use super::fault::{Fault, no_script, says};
use crate::clock::{self, within};
use crate::error::{Error, ErrorKind};
use holdline_kernel::Time;
use redis::{Cmd, FromRedisValue, Value};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A connection that has been silent for so long, though asked, is given up.
const SILENCE: Duration = Duration::from_secs(1);

pub(super) struct Link {
    config: Arc<Config>,
    slot: Mutex<Slot>,
    /// Held by the one who connects; the others wait for it.
    dialing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Slot {
    conn: Option<Conn>,
    /// Counts the connections that there were.
    number: u64,
    /// Since when questions have gone unanswered.
    silent: Option<Time>,
}

/// One of the scripts, as text and as the name by which the server knows it.
pub(super) struct Script {
    text: &'static str,
    hash: LazyLock<String>,
}

macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(super) static $name: Script = Script {
            text: concat!($(include_str!(concat!("lua/", $file)), "\n"),+),
            hash: LazyLock::new(|| redis::Script::new($name.text).get_hash().to_owned()),
        };
    };
}

script!(ENTER, "enter_one.lua", "many.lua", "enter.lua");
script!(LEAVE, "leave_one.lua", "many.lua", "leave.lua");
script!(EVICT, "leave_one.lua", "many.lua", "evict.lua");
script!(BUSY, "busy.lua");
script!(LOOK, "look.lua");
script!(STRING_ENTER, "string_enter.lua");
script!(STRING_LEAVE, "string_leave.lua");
script!(STRING_LOOK, "string_look.lua");

impl Script {
    #[cfg(test)]
    pub(super) fn text(&self) -> &'static str {
        self.text
    }

    /// A call of it, by name or, if the server does not know that, by its text.
    fn call(&self, by_name: bool, size: usize, fill: &(dyn Fn(&mut Cmd) + Sync)) -> Cmd {
        let mut command = Cmd::with_capacity(18, size + 64);
        if by_name {
            command.arg("EVALSHA").arg(self.hash.as_str());
        } else {
            command.arg("EVAL").arg(self.text);
        }
        fill(&mut command);
        command
    }
}

impl Link {
    pub(super) fn new(config: Arc<Config>) -> Self {
        Link { config, slot: Mutex::default(), dialing: tokio::sync::Mutex::new(()) }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a script: one round trip, or two if the server has forgotten it. `fill` adds the number
    /// of keys, the keys and the arguments.
    pub(super) async fn run(
        &self,
        script: &Script,
        size: usize,
        fill: &(dyn Fn(&mut Cmd) + Sync),
    ) -> Result<Value, Fault> {
        match self.ask(&script.call(true, size, fill)).await {
            Err(Fault::Refused(error)) if no_script(&error) => {
                self.ask(&script.call(false, size + script.text.len(), fill)).await
            }
            other => other,
        }
    }

    /// Asks, within the time limit.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Fault> {
        let limit = clock::now().after(self.config.timeout);
        within(limit, self.converse(command)).await.unwrap_or(Err(Fault::Silence))
    }

    async fn converse(&self, command: &Cmd) -> Result<Value, Fault> {
        let (mut conn, number) = self.conn().await?;
        let mut question = Question { link: self, number, answered: false };
        let reply = conn.ask(command).await.map_err(Fault::from);
        question.answered = !matches!(reply, Err(Fault::Broken(..)));
        drop(question);
        if let Err(fault) = &reply
            && fault.breaks()
        {
            self.discard(number);
        }
        reply
    }

    /// The connection, after a check that it answers; or a new one.
    async fn conn(&self) -> Result<(Conn, u64), Fault> {
        if let Some(found) = self.usable() {
            return Ok(found);
        }
        let _alone = self.dialing.lock().await;
        if let Some(found) = self.usable() {
            return Ok(found); // made by somebody else in the meantime
        }
        let conn = dial::commands(&self.config).await?;
        let mut slot = self.slot();
        slot.number += 1;
        slot.silent = None;
        slot.conn = Some(conn.clone());
        Ok((conn, slot.number))
    }

    fn usable(&self) -> Option<(Conn, u64)> {
        let mut slot = self.slot();
        if slot.silent.is_some_and(|since| since.until(clock::now()) > SILENCE) {
            slot.conn = None;
            slot.silent = None;
        }
        slot.conn.clone().map(|conn| (conn, slot.number))
    }

    /// Gives a connection up; those who still wait for answers over it may get them.
    fn discard(&self, number: u64) {
        let mut slot = self.slot();
        if slot.number == number {
            slot.conn = None;
            slot.silent = None;
        }
    }
}

impl Link {
    /// Every key that fits the pattern, on every server; some perhaps twice.
    pub(super) async fn scan(&self, pattern: &str) -> Result<Vec<String>, Fault> {
        let limit = clock::now().after(self.config.timeout * 5);
        let scanning = async {
            let (conn, _) = self.conn().await?;
            conn.scan(pattern).await
        };
        within(limit, scanning).await.unwrap_or(Err(Fault::Silence))
    }

    /// Makes sure that the server can be used: that it lets us in, is new enough, and will not drop
    /// locks to make room. A server that does not say is trusted.
    pub(super) async fn check(&self, address: &str) -> Result<(), Error> {
        let mut info = redis::cmd("INFO");
        let text = match self.ask(info.arg("default")).await {
            Ok(value) => String::from_redis_value(value).unwrap_or_default(),
            Err(Fault::Refused(error)) if says(&error, "NOPERM") => return Ok(()),
            Err(fault) => return Err(fault.explain(address, "its version")),
        };
        let of = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.map(str::trim)
        };
        if let Some(version) = of("redis_version") {
            let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
            if (parts.next(), parts.next()) < (Some(6), Some(2)) {
                let message = format!(
                    "{address} runs version {version}; Redis 6.2 or later, or Valkey, is needed"
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        }
        let policy = of("maxmemory_policy").unwrap_or("noeviction");
        if policy != "noeviction" {
            tracing::warn!(
                "{address} has maxmemory-policy {policy}: when it runs out of memory it drops \
                 locks, and lets others in; set it to noeviction"
            );
        }
        Ok(())
    }
}

/// Notes whether a question was answered, also if its future is dropped.
struct Question<'a> {
    link: &'a Link,
    number: u64,
    answered: bool,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut slot = self.link.slot();
        if slot.number != self.number {
            return;
        }
        if self.answered {
            slot.silent = None;
        } else if slot.silent.is_none() {
            slot.silent = Some(clock::now());
        }
    }
}
