//! The kind of lock: a mutex, a side of a read-write lock, or permits.

use crate::exit::Failure;
use crate::held::HeldLock;
use clap::Args;
use holdline::store;
use holdline::{Backoff, Client, Election, LockInfo, Multi, Mutex, RwLock, Semaphore};
use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

/// The capacity of a read-write lock, which is also its writer's weight.
const WHOLE: u32 = 1 << 30;

/// The flags. The default is a mutex.
#[derive(Args, Clone, Debug)]
pub(crate) struct LockKind {
    /// Share the lock with other --shared holders (read lock)
    ///
    /// A name that is used with --shared must be used with --shared or --exclusive everywhere.
    #[arg(help_heading = "Kind of lock",
          long, short = 's', conflicts_with_all = ["exclusive", "permits"])]
    shared: bool,

    /// Keep --shared holders out as well (write lock)
    #[arg(help_heading = "Kind of lock", long, short = 'x', conflicts_with = "permits")]
    exclusive: bool,

    /// Take k of n permits, so that several may run at a time
    ///
    /// `--permits 1/4` lets four run at a time. All users of a name must give the same n.
    #[arg(help_heading = "Kind of lock", long, value_name = "K/N")]
    permits: Option<Permits>,
}

/// `k/n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Permits {
    take: u32,
    of: u32,
}

impl FromStr for Permits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers =
            text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((take, of)) if (1..=of).contains(&take) && of <= WHOLE => Ok(Permits { take, of }),
            Some(_) => Err("take at least 1 permit, and at most all of them".to_owned()),
            None => Err("write how many of how many, as in 1/4".to_owned()),
        }
    }
}

/// The options that all kinds have.
#[derive(Clone, Debug)]
pub(crate) struct LockOptions {
    pub(crate) lease: Duration,
    /// The margin: how long before another client can be admitted we learn of a loss.
    pub(crate) margin: Duration,
    pub(crate) label: Option<String>,
    /// A candidate's value, if this is an election.
    pub(crate) value: Option<String>,
    /// Whether the lease is renewed.
    pub(crate) renew: bool,
    /// The longest interval between renewals, if given.
    pub(crate) renew_every: Option<Duration>,
    /// Whether a place in the line is kept during the wait.
    pub(crate) fair: bool,
    /// The poll interval, instead of notices.
    pub(crate) poll: Option<Duration>,
}

/// How long to wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    None,
    Within(Duration),
    Endless,
}

/// Waits on a recipe in one of three ways.
macro_rules! take {
    ($wait_limit:expr, $now:expr, $within:expr, $ever:expr) => {
        match $wait_limit {
            WaitLimit::None => $now.await,
            WaitLimit::Within(time) => $within(time).await,
            WaitLimit::Endless => $ever.await.map(Some),
        }
    };
}

/// Sets the options that all recipes have.
macro_rules! on {
    ($recipe:expr, $options:expr) => {{
        let mut recipe = $recipe.margin($options.margin);
        recipe = match $options.renew {
            true => recipe.lease($options.lease),
            false => recipe.fixed_lease($options.lease),
        };
        if let Some(interval) = $options.renew_every {
            recipe = recipe.renew_every(interval);
        }
        if !$options.fair {
            recipe = recipe.unfair();
        }
        if let Some(interval) = $options.poll {
            recipe = recipe.poll(Backoff::fixed(interval));
        }
        match &$options.label {
            Some(label) => recipe.label(label),
            None => recipe,
        }
    }};
}

impl LockKind {
    /// A mutex; an election is one, too.
    pub(crate) const MUTEX: LockKind = LockKind { shared: false, exclusive: false, permits: None };

    /// Weight and capacity.
    pub(crate) fn numbers(&self) -> (u32, u32) {
        match self.permits {
            Some(Permits { take, of }) => (take, of),
            None if self.shared => (1, WHOLE),
            None if self.exclusive => (WHOLE, WHOLE),
            None => (1, 1),
        }
    }

    /// Acquires the lock, or several mutexes as one. `None` if that took too long.
    pub(crate) async fn acquire(
        &self,
        client: &Client,
        names: &BTreeSet<&str>,
        options: &LockOptions,
        wait_limit: WaitLimit,
    ) -> holdline::Result<Option<HeldLock>> {
        let Some(name) = names.first().filter(|_| names.len() == 1) else {
            let locks = on!(Multi::new(client, names), options);
            let within = |time| locks.lock_within(time);
            let guard = take!(wait_limit, locks.try_lock(), within, locks.lock())?;
            return Ok(guard.map(HeldLock::Several));
        };
        if let Some(value) = &options.value {
            let race = on!(Election::new(client, name), options);
            let within = |time| race.campaign_within(value, time);
            let leader = take!(wait_limit, race.try_campaign(value), within, race.campaign(value))?;
            return Ok(leader.map(HeldLock::Leader));
        }
        if let Some(Permits { take, of }) = self.permits {
            let lock = on!(Semaphore::new(client, name, of), options);
            let within = |time| lock.acquire_within(take, time);
            let guard = take!(wait_limit, lock.try_acquire(take), within, lock.acquire(take))?;
            return Ok(guard.map(HeldLock::Plain));
        }
        if self.shared || self.exclusive {
            let lock = on!(RwLock::new(client, name), options);
            if self.shared {
                let within = |time| lock.read_within(time);
                let guard = take!(wait_limit, lock.try_read(), within, lock.read())?;
                return Ok(guard.map(HeldLock::Plain));
            }
            let within = |time| lock.write_within(time);
            let guard = take!(wait_limit, lock.try_write(), within, lock.write())?;
            return Ok(guard.map(HeldLock::Write));
        }
        let lock = on!(Mutex::new(client, name), options);
        let within = |time| lock.lock_within(time);
        let guard = take!(wait_limit, lock.try_lock(), within, lock.lock())?;
        Ok(guard.map(HeldLock::Plain))
    }

    /// Whether it would be acquired at once, according to the store's snapshot.
    pub(crate) fn is_free(&self, client: &Client, info: &LockInfo) -> Result<bool, Failure> {
        let (weight, capacity) = self.numbers();
        client.check_capacity(capacity)?;
        if info.capacity == 0 {
            return Ok(true);
        }
        if info.capacity != capacity {
            return Err(store::mismatch(&info.name, info.capacity, capacity).into());
        }
        let parties = info.holders.iter().chain(&info.waiters);
        let taken: u64 = parties.map(|participant| u64::from(participant.weight)).sum();
        Ok(taken + u64::from(weight) <= u64::from(capacity))
    }
}

#[cfg(test)]
mod tests {
    use super::Permits;

    #[test]
    fn permits_are_some_of_some() {
        assert_eq!("2/3".parse(), Ok(Permits { take: 2, of: 3 }));
        for text in ["0/3", "4/3", "2", "a/b", "1/", "1/99999999999", "1/2000000000"] {
            assert!(text.parse::<Permits>().is_err(), "{text}");
        }
    }
}
