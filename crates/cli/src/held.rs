//! The lock that a command runs under: our own, or one that an outer program holds.

use crate::nested::Inherited;
use holdline::store::TicketId;
use holdline::{Guard, Leader, Loss, MultiGuard, WriteGuard};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::sleep;

/// A held lock of any kind.
#[derive(Debug)]
pub(crate) enum HeldLock {
    Plain(Guard),
    Write(WriteGuard),
    Leader(Leader),
    Several(MultiGuard),
    Inherited(Box<Inherited>),
}

/// A reference to our own lock or locks, or to the inherited one.
enum LockRef<'a> {
    Own(&'a Guard),
    Several(&'a MultiGuard),
    Inherited(&'a Inherited),
}

impl HeldLock {
    fn which(&self) -> LockRef<'_> {
        match self {
            HeldLock::Plain(guard) => LockRef::Own(guard),
            HeldLock::Write(guard) => LockRef::Own(guard),
            HeldLock::Leader(leader) => LockRef::Own(leader),
            HeldLock::Several(guards) => LockRef::Several(guards),
            HeldLock::Inherited(inherited) => LockRef::Inherited(inherited),
        }
    }

    /// Whether an outer program holds it.
    pub(crate) fn is_inherited(&self) -> bool {
        matches!(self, HeldLock::Inherited(_))
    }

    /// The names that are held, each with its ticket and its fencing token.
    pub(crate) fn entries(&self) -> Vec<(&str, TicketId, u64)> {
        fn entry(guard: &Guard) -> (&str, TicketId, u64) {
            (guard.name().as_str(), guard.ticket(), guard.token())
        }
        match self.which() {
            LockRef::Own(guard) => vec![entry(guard)],
            LockRef::Several(guards) => guards.guards().iter().map(entry).collect(),
            LockRef::Inherited(inherited) => vec![inherited.entry()],
        }
    }

    /// The id that `status` shows, and the fencing token.
    pub(crate) fn entry(&self, name: &str) -> (TicketId, u64) {
        let entries = self.entries();
        let found = entries.iter().find(|(of, ..)| *of == name).unwrap_or(&entries[0]);
        (found.1, found.2)
    }

    /// The fencing token of this name.
    pub(crate) fn token(&self, name: &str) -> u64 {
        self.entry(name).1
    }

    /// Whether the lock is certainly still held.
    pub(crate) fn is_valid(&self) -> bool {
        match self.which() {
            LockRef::Own(guard) => guard.is_valid(),
            LockRef::Several(guards) => guards.is_valid(),
            LockRef::Inherited(inherited) => inherited.is_valid(),
        }
    }

    /// Resolves when it is lost, even if the thread that renews it and reports losses hangs.
    pub(crate) async fn lost(&self) {
        let notice = async {
            match self.which() {
                LockRef::Own(guard) => guard.lost().await,
                LockRef::Several(guards) => guards.lost().await,
                LockRef::Inherited(inherited) => inherited.lost().await,
            }
        };
        tokio::select! {
            () = notice => {}
            () = self.deadline() => {}
        }
    }

    /// Resolves when its time is over. Renewals put that off.
    async fn deadline(&self) {
        while self.is_valid() {
            sleep(self.remaining()).await;
        }
    }

    /// How long it is certainly held without a further renewal. An inherited lock is looked at
    /// instead.
    fn remaining(&self) -> Duration {
        match self.which() {
            LockRef::Own(guard) => guard.remaining(),
            LockRef::Several(guards) => {
                let times = guards.guards().iter().map(Guard::remaining);
                times.min().unwrap_or_default()
            }
            LockRef::Inherited(_) => Duration::MAX,
        }
    }

    /// The cause of the loss, for people and for machines. May ask the store, for a second at most.
    pub(crate) async fn loss(&self) -> (String, Value) {
        let loss = match self.which() {
            LockRef::Own(guard) => guard.loss().await,
            LockRef::Several(guards) => guards.loss().await,
            LockRef::Inherited(_) => {
                let why = "the holdline around this one no longer holds it";
                return (why.to_owned(), json!({ "cause": "gone" }));
            }
        };
        let fields = match &loss {
            Some(Loss::Expired) => json!({ "cause": "expired" }),
            Some(Loss::Broken { by, reason }) => json!({
                "cause": "broken",
                "by": { "host": by.host, "pid": by.pid, "label": by.label },
                "reason": reason,
            }),
            Some(Loss::Unrenewed) => json!({ "cause": "unrenewed" }),
            _ => json!({ "cause": "gone" }),
        };
        (loss.map_or_else(String::new, |loss| loss.to_string()), fields)
    }

    /// Asks the store whether it is still held, and notices if it is not: a lock that was broken by
    /// force is otherwise valid until its next renewal. An inherited lock is left to its holder.
    pub(crate) async fn confirm(&self) -> holdline::Result<()> {
        let guards = match self.which() {
            LockRef::Own(guard) => std::slice::from_ref(guard),
            LockRef::Several(guards) => guards.guards(),
            LockRef::Inherited(_) => &[],
        };
        for guard in guards {
            guard.extend(Duration::ZERO).await?; // never shortens the lease
        }
        Ok(())
    }

    /// The time until another client can be admitted.
    pub(crate) fn time_to_stop(&self) -> Duration {
        match self.which() {
            LockRef::Own(guard) => guard.time_to_stop(),
            LockRef::Several(guards) => {
                let times = guards.guards().iter().map(Guard::time_to_stop);
                times.min().unwrap_or_default()
            }
            LockRef::Inherited(_) => Duration::ZERO,
        }
    }

    /// Releases it. An inherited lock is left to its holder.
    pub(crate) async fn release(self) -> holdline::Result<()> {
        match self {
            HeldLock::Plain(guard) => guard.unlock().await,
            HeldLock::Write(guard) => guard.unlock().await,
            HeldLock::Leader(leader) => leader.resign().await,
            HeldLock::Several(guards) => guards.unlock().await,
            HeldLock::Inherited(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdline::store::{
        AsyncStore, Capabilities, Enter, LossHint, QueueSnapshot, Seq, Standing, Ticket,
    };
    use holdline::stores::memory::Memory;
    use holdline::{Client, Mutex, Name, Result};
    use std::sync::Arc;

    /// A store whose renewals hang, and with them the thread that makes them.
    #[derive(Clone, Debug)]
    struct Hanging(Memory, bool);

    impl AsyncStore for Hanging {
        async fn enter(
            &self,
            line: &Name,
            ticket: &Ticket,
            note: &Arc<str>,
            how: Enter,
        ) -> Result<Standing> {
            if self.1 {
                loop {
                    std::thread::park();
                }
            }
            AsyncStore::enter(&self.0, line, ticket, note, how).await
        }

        async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
            AsyncStore::leave(&self.0, line, id).await
        }

        async fn watch(&self, line: &Name, id: TicketId) -> Result<Option<Seq>> {
            AsyncStore::watch(&self.0, line, id).await
        }

        async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
            AsyncStore::snapshot(&self.0, line).await
        }

        async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
            AsyncStore::list(&self.0, prefix).await
        }

        async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
            AsyncStore::evict(&self.0, line, id, note).await
        }

        fn capabilities(&self) -> Capabilities {
            AsyncStore::capabilities(&self.0)
        }

        fn background_handle(&self) -> Self {
            Hanging(self.0.clone(), true)
        }

        fn on_loss_hint(&self, loss_hint: LossHint) {
            AsyncStore::on_loss_hint(&self.0, loss_hint);
        }

        fn address(&self) -> String {
            AsyncStore::address(&self.0)
        }
    }

    /// The thread that renews is this process's, and hangs from here on: no other unit test of the
    /// program has a lock renewed. G4.
    #[tokio::test]
    async fn a_lock_is_lost_when_its_time_is_over_though_nobody_says_so() {
        let client = Client::new(Arc::new(Hanging(Memory::new(), false)));
        let lease = Duration::from_millis(400);
        let guard = Mutex::new(&client, "x").lease(lease).lock().await.unwrap();
        let held = HeldLock::Plain(guard);
        tokio::time::timeout(Duration::from_secs(30), held.lost()).await.expect("it is over");
        assert!(!held.is_valid());
    }
}
