//! Locks inside a process, one for each key that a task has or waits for.

use crate::sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;

/// The keys that tasks of this process have or wait for. A key is in it as long as that.
#[derive(Debug, Default)]
pub(super) struct LocalLocks(Mutex<HashMap<Box<[u8]>, Arc<LocalLock>>>);

#[derive(Debug)]
struct LocalLock {
    hash: u64,
    /// One permit, first come, first served.
    turn: Semaphore,
    /// How often the key was lost.
    losses: AtomicU64,
}

/// A task's use of the lock of one key, from before it waits. Dropping it lets the next task pass.
#[derive(Debug)]
pub(super) struct LocalPermit<'a> {
    locks: &'a LocalLocks,
    key: Box<[u8]>,
    lock: Arc<LocalLock>,
    passed: bool,
}

impl LocalLocks {
    /// The lock of a key with this hash, to be [waited](LocalPermit::wait) for.
    pub(super) fn of(&self, key: &[u8], hash: u64) -> LocalPermit<'_> {
        let new =
            || Arc::new(LocalLock { hash, turn: Semaphore::new(1), losses: AtomicU64::new(0) });
        let mut map = self.0.lock();
        let lock = match map.get(key) {
            Some(lock) => Arc::clone(lock),
            None => Arc::clone(map.entry(key.into()).or_insert_with(new)),
        };
        LocalPermit { locks: self, key: key.into(), lock, passed: false }
    }

    /// Notes the loss of the keys whose hash is `lost`.
    pub(super) fn lose(&self, lost: impl Fn(u64) -> bool) {
        for lock in self.0.lock().values().filter(|lock| lost(lock.hash)) {
            lock.losses.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl LocalPermit<'_> {
    /// Waits until no other task has the key.
    pub(super) async fn wait(&mut self) {
        if let Ok(permit) = self.lock.turn.acquire().await {
            permit.forget();
            self.passed = true;
        }
    }

    /// How often the key was lost while somebody used this lock.
    pub(super) fn losses(&self) -> u64 {
        self.lock.losses.load(Ordering::Acquire)
    }

    pub(super) fn hash(&self) -> u64 {
        self.lock.hash
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }
}

impl Drop for LocalPermit<'_> {
    fn drop(&mut self) {
        if self.passed {
            self.lock.turn.add_permits(1);
        }
        let mut map = self.locks.0.lock();
        // The map's, and this one: nobody else can come while the map is locked.
        if Arc::strong_count(&self.lock) == 2 {
            map.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_key_is_in_it_as_long_as_somebody_uses_it() {
        let locks = LocalLocks::default();
        let len = || locks.0.lock().len();
        let (mut one, mut two) = (locks.of(b"a", 1), locks.of(b"a", 1));
        assert_eq!(one.wait().now_or_never(), Some(()));
        assert_eq!(two.wait().now_or_never(), None, "two tasks have one key");
        let mut other = locks.of(b"b", 2);
        assert_eq!((other.wait().now_or_never(), len()), (Some(()), 2));
        locks.lose(|hash| hash == 2);
        assert_eq!((one.losses(), other.losses()), (0, 1));
        drop(one);
        assert_eq!(two.wait().now_or_never(), Some(()));
        drop((two, other));
        assert_eq!(len(), 0);
    }
}
