//! Local locks: one for each key that a task of this process owns or waits for.

use crate::sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;

/// The locks of the keys that tasks own or wait for. An entry lives as long as one of them does.
#[derive(Debug, Default)]
pub(super) struct LocalLocks(Mutex<HashMap<Arc<[u8]>, Entry>>);

/// The lock of one key, and the number of its permits.
#[derive(Debug)]
struct Entry {
    lock: Arc<LocalLock>,
    permits: usize,
}

#[derive(Debug)]
struct LocalLock {
    hash: u64,
    /// One fair permit.
    turn: Semaphore,
    /// How often the key was lost.
    losses: AtomicU64,
}

/// A task's use of a key's lock, from before it waits. Dropping it admits the next task.
#[derive(Debug)]
pub(super) struct LocalPermit<'a> {
    locks: &'a LocalLocks,
    key: Arc<[u8]>,
    lock: Arc<LocalLock>,
    passed: bool,
}

impl LocalLocks {
    /// The permit for a key with this hash, still to be [waited](LocalPermit::wait) for.
    pub(super) fn of(&self, key: &[u8], hash: u64) -> LocalPermit<'_> {
        let key: Arc<[u8]> = key.into();
        let mut map = self.0.lock();
        let entry = map.entry(Arc::clone(&key)).or_insert_with(|| {
            let lock = LocalLock { hash, turn: Semaphore::new(1), losses: AtomicU64::new(0) };
            Entry { lock: Arc::new(lock), permits: 0 }
        });
        entry.permits += 1;
        LocalPermit { locks: self, key, lock: Arc::clone(&entry.lock), passed: false }
    }

    /// Records the loss of the keys whose hashes match `lost`.
    pub(super) fn lose(&self, lost: impl Fn(u64) -> bool) {
        for entry in self.0.lock().values().filter(|entry| lost(entry.lock.hash)) {
            entry.lock.losses.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl LocalPermit<'_> {
    /// Waits until no other task owns the key.
    pub(super) async fn wait(&mut self) {
        if let Ok(permit) = self.lock.turn.acquire().await {
            permit.forget();
            self.passed = true;
        }
    }

    /// How often the key was lost while tasks used this lock.
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
        if let Some(entry) = map.get_mut(&self.key) {
            entry.permits -= 1;
            if entry.permits == 0 {
                map.remove(&self.key);
            }
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

    #[test]
    fn a_task_that_goes_away_before_its_turn_leaves_the_key_to_its_owner() {
        let locks = LocalLocks::default();
        let (mut one, mut two, mut three) =
            (locks.of(b"a", 1), locks.of(b"a", 1), locks.of(b"a", 1));
        assert_eq!(one.wait().now_or_never(), Some(()));
        assert_eq!(two.wait().now_or_never(), None);
        drop(two);
        assert_eq!(three.wait().now_or_never(), None, "two tasks have one key");
        drop(one);
        assert_eq!(three.wait().now_or_never(), Some(()));
    }

    #[test]
    fn a_key_goes_with_its_last_permit_though_another_thread_has_yet_to_drop_its_lock() {
        let locks = LocalLocks::default();
        let (one, two) = (locks.of(b"a", 1), locks.of(b"a", 1));
        // The lock is dropped after the permit's own `drop`, when the map is no longer locked.
        let kept = Arc::clone(&one.lock);
        drop((one, two));
        assert_eq!(locks.0.lock().len(), 0);
        drop(kept);
    }
}
