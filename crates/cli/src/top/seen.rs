//! A look at the store, for `holdline top`.

use crate::participant;
use holdline::store::TicketId;
use holdline::{Client, LockInfo, Participant};
use std::time::Duration;
use tokio::task::JoinSet;

/// The most locks of one look.
const MOST: usize = 1_000;
/// The most concurrent requests to the store.
const AT_ONCE: usize = 16;

/// A lock as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lock {
    pub(super) name: String,
    pub(super) capacity: u32,
    pub(super) holders: Vec<Party>,
    /// Next first.
    pub(super) waiters: Vec<Party>,
    /// The tickets whose places were removed by force, as far as the store tells.
    pub(super) evicted: Vec<TicketId>,
}

/// A holder or a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Party {
    pub(super) id: TicketId,
    pub(super) token: Option<u64>,
    pub(super) weight: u32,
    pub(super) who: String,
    /// The time since it began to wait, by its own clock.
    pub(super) age: Option<Duration>,
    /// The time until its lease ends, unless renewed.
    pub(super) left: Option<Duration>,
}

impl Lock {
    pub(super) fn of(info: &LockInfo) -> Self {
        Lock {
            name: info.name.as_str().to_owned(),
            capacity: info.capacity,
            holders: info.holders.iter().map(Party::of).collect(),
            waiters: info.waiters.iter().map(Party::of).collect(),
            evicted: info.evictions.iter().map(|eviction| eviction.id).collect(),
        }
    }

    /// The same lock without holders or waiters.
    pub(super) fn emptied(self) -> Self {
        Lock { name: self.name, capacity: self.capacity, ..Lock::default() }
    }

    pub(super) fn is_used(&self) -> bool {
        !self.holders.is_empty() || !self.waiters.is_empty()
    }

    /// The holders, then the waiters; each with whether it holds.
    pub(super) fn parties(&self) -> impl Iterator<Item = (bool, &Party)> {
        let holders = self.holders.iter().map(|party| (true, party));
        holders.chain(self.waiters.iter().map(|party| (false, party)))
    }
}

impl Party {
    fn of(participant: &Participant) -> Self {
        Party {
            id: participant.id,
            token: participant::token(participant),
            weight: participant.weight,
            who: participant::who(participant),
            age: participant::age(participant),
            left: participant::left(participant),
        }
    }
}

/// The locks, and the number of further ones.
pub(super) type Look = (Vec<Lock>, usize);

/// Looks at all locks whose names begin with the prefix.
pub(super) async fn look(client: &Client, prefix: &str) -> holdline::Result<Look> {
    let names = client.list(prefix).await?;
    let unseen = names.len().saturating_sub(MOST);
    let (mut locks, mut asked) = (Vec::new(), JoinSet::new());
    for name in names.into_iter().take(MOST) {
        if asked.len() >= AT_ONCE
            && let Some(Ok(answer)) = asked.join_next().await
        {
            locks.push(answer?);
        }
        let client = client.clone();
        asked.spawn(async move { client.inspect(name.as_str()).await.map(|it| Lock::of(&it)) });
    }
    while let Some(answer) = asked.join_next().await {
        if let Ok(answer) = answer {
            locks.push(answer?);
        }
    }
    Ok((locks, unseen))
}
