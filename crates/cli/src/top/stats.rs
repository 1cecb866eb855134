//! The statistics of one lock over several looks. Changes that are undone between two looks are not
//! seen.

use super::seen::{Lock, Party};
use holdline::store::TicketId;
use std::collections::HashMap;
use std::time::Duration;

/// The counts of one lock.
#[derive(Clone, Debug, Default)]
pub(super) struct Stats {
    /// How often it was acquired.
    pub(super) taken: u64,
    /// How many holders were removed by force, or did not renew in time.
    pub(super) lost: u64,
    /// The most waiters seen at once.
    pub(super) most_waiting: usize,
    holders: HashMap<TicketId, Hold>,
    ended: u32,
    ended_time: Duration,
}

/// An observed hold.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// Its start, if that was seen.
    since: Option<Duration>,
    /// When its lease would end without a renewal.
    lapses: Option<Duration>,
    /// The time left of its lease at the last look, and the most at any look.
    left: Duration,
    most_left: Duration,
}

impl Hold {
    /// Whether it ended without a renewal, as far as it was seen: a holder that renews has at least
    /// half of its lease left, so one that was seen with more may as well have released the lock.
    fn was_not_renewed(&self, now: Duration) -> bool {
        self.lapses.is_some_and(|lapses| lapses <= now) && self.left < self.most_left / 2
    }
}

impl Stats {
    /// Applies a look. Returns how many times the lock was acquired since the last one. `looked` is
    /// whether there was an earlier look.
    pub(super) fn update(&mut self, now: Duration, lock: &Lock, looked: bool) -> u64 {
        self.most_waiting = self.most_waiting.max(lock.waiters.len());
        let mut before = std::mem::take(&mut self.holders);
        let mut taken = 0;
        for holder in &lock.holders {
            let lapses = holder.left.map(|left| now + left);
            let left = holder.left.unwrap_or_default();
            let (since, most_left) = match before.remove(&holder.id) {
                Some(hold) => (hold.since, hold.most_left.max(left)),
                // It held already at the first look: only the holder itself knows since when.
                None if !looked => (None, left),
                None => {
                    taken += 1;
                    (Some(now), left)
                }
            };
            self.holders.insert(holder.id, Hold { since, lapses, left, most_left });
        }
        for (id, hold) in before {
            if let Some(since) = hold.since {
                self.ended += 1;
                self.ended_time += now.saturating_sub(since);
            }
            if hold.was_not_renewed(now) || lock.evicted.contains(&id) {
                self.lost += 1;
            }
        }
        self.taken += taken;
        taken
    }

    /// How long this holder has held. If it held already at the first look, this is how long it has
    /// held and waited, by its own account.
    pub(super) fn held(&self, now: Duration, holder: &Party) -> Option<Duration> {
        let since = self.holders.get(&holder.id).and_then(|hold| hold.since);
        since.map(|since| now.saturating_sub(since)).or(holder.age)
    }

    /// The mean duration of the holds whose end was seen.
    pub(super) fn mean_hold(&self) -> Option<Duration> {
        (self.ended > 0).then(|| self.ended_time / self.ended)
    }
}
