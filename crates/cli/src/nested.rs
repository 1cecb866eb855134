//! Re-entrancy across processes: a command under a lock may run `holdline run` with the same name
//! again, without waiting for itself.
//!
//! The environment lists the locks of the outer programs, one `TICKET NAME` per line. An entry is
//! only a hint: the store is asked whether that ticket holds. Ticket ids are random and never
//! reused, so a ticket that holds here is the right lock, however the URL was spelled.

use crate::env;
use crate::exit::Failure;
use crate::held::HeldLock;
use crate::lock_kind::LockKind;
use holdline::store::TicketId;
use holdline::{Client, Participant, clock};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The poll interval for an inherited lock. It can be long, because the outer holder learns of a
/// loss at once, and stops us.
const LOOK: Duration = Duration::from_secs(1);

/// The locks of the outer programs, from the environment.
#[derive(Debug, Default)]
pub(crate) struct EnclosingLocks {
    list: String,
    /// The name and the fencing token of the innermost of them.
    innermost: (String, u64),
}

impl EnclosingLocks {
    /// Reads the environment.
    pub(crate) fn read() -> Self {
        let read = |name| std::env::var(name).unwrap_or_default();
        let token = read(env::TOKEN).parse().unwrap_or(0);
        EnclosingLocks { list: read(env::HELD), innermost: (read(env::NAME), token) }
    }

    /// The fencing token of this participant, which is one of them: as the store says or, where it
    /// does not know the tokens of others, as the program around this one does.
    fn token(&self, name: &str, participant: &Participant) -> u64 {
        let (of, token) = &self.innermost;
        let is_innermost = of == name && self.tickets(name).next() == Some(participant.id);
        if participant.token == 0 && is_innermost { *token } else { participant.token }
    }

    /// The tickets listed for this name, innermost first.
    fn tickets<'a>(&'a self, name: &'a str) -> impl Iterator<Item = TicketId> + 'a {
        let entries = self.list.lines().rev().filter_map(|line| line.split_once(' '));
        entries.filter(move |(_, of)| *of == name).filter_map(|(id, _)| id.parse().ok())
    }

    /// Whether a lock of this name is listed.
    pub(crate) fn lists(&self, name: &str) -> bool {
        self.tickets(name).next().is_some()
    }

    /// The list with our own locks added, for the command's environment.
    pub(crate) fn with(&self, hold: &HeldLock) -> String {
        let mut list = self.list.clone();
        for (name, id, _) in hold.entries() {
            if !self.tickets(name).any(|listed| listed == id) {
                if !list.is_empty() && !list.ends_with('\n') {
                    list.push('\n');
                }
                let _ = write!(list, "{id} {name}");
            }
        }
        list
    }

    /// The lock of this name that an outer program holds, if the store confirms it.
    pub(crate) async fn find(
        &self,
        client: &Client,
        name: &str,
        lock_kind: &LockKind,
    ) -> Result<Option<HeldLock>, Failure> {
        if !self.lists(name) {
            return Ok(None);
        }
        let sent = clock::now();
        let info = client.inspect(name).await?;
        let holds = |id| info.holders.iter().find(|participant| participant.id == id);
        let Some(participant) = self.tickets(name).find_map(holds) else { return Ok(None) };
        let (weight, capacity) = lock_kind.numbers();
        if info.capacity != capacity || participant.weight < weight {
            return Err(Failure::usage(format!(
                "lock \"{name}\" is held by the holdline around this one (pid {}) in another way \
                 than asked for here, and would wait for itself; ask for it in the same way in \
                 both",
                participant.note.pid
            )));
        }
        let mut participant = participant.clone();
        participant.token = self.token(name, &participant);
        let until = sent.after(participant.expires_in);
        Ok(Some(HeldLock::Inherited(Box::new(Inherited {
            client: client.clone(),
            name: name.to_owned(),
            participant,
            until: AtomicU64::new(until.0),
            gone: AtomicBool::new(false),
        }))))
    }
}

/// A lock that an outer program holds and renews.
#[derive(Debug)]
pub(crate) struct Inherited {
    client: Client,
    name: String,
    participant: Participant,
    /// The end of its lease by the store's last answer, in nanoseconds of the library's clock.
    until: AtomicU64,
    gone: AtomicBool,
}

impl Inherited {
    /// Its name, ticket and fencing token.
    pub(crate) fn entry(&self) -> (&str, TicketId, u64) {
        (&self.name, self.participant.id, self.participant.token)
    }

    pub(crate) fn is_valid(&self) -> bool {
        !self.gone.load(Ordering::Relaxed)
    }

    /// Resolves when the lock is lost, by polling. The outer holder stops us when it loses the
    /// lock; this is for a command that has outlived it.
    pub(crate) async fn lost(&self) {
        while self.is_valid() {
            tokio::time::sleep(LOOK).await;
            let sent = clock::now();
            let look = tokio::time::timeout(LOOK, self.client.inspect(&self.name)).await;
            match look {
                Ok(Ok(info)) => {
                    let there = info
                        .holders
                        .iter()
                        .find(|participant| participant.id == self.participant.id);
                    match there {
                        Some(participant) => {
                            self.until
                                .store(sent.after(participant.expires_in).0, Ordering::Relaxed);
                        }
                        None => self.gone.store(true, Ordering::Relaxed),
                    }
                }
                Ok(Err(_)) | Err(_) if clock::now().0 >= self.until.load(Ordering::Relaxed) => {
                    self.gone.store(true, Ordering::Relaxed);
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
}
