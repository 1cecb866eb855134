//! holdline itself.

use crate::{Failure, LEASE, Library};
use holdline::{Client, Guard, Mutex};
use std::time::Duration;

pub(crate) struct Ours {
    client: Client,
    handoff: bool,
}

impl Ours {
    pub(crate) async fn open(url: &str, handoff: bool) -> Result<Self, Failure> {
        Ok(Ours { client: holdline::open(url).await?, handoff })
    }
}

impl Library for Ours {
    type Lock = Mutex;
    type Held = Guard;

    async fn lock(&self, name: &str) -> Result<Mutex, Failure> {
        let mutex = Mutex::new(&self.client, name).lease(LEASE);
        Ok(if self.handoff { mutex.handoff(64, Duration::from_millis(50)) } else { mutex })
    }

    async fn acquire(&self, lock: &mut Mutex) -> Result<Guard, Failure> {
        Ok(lock.lock().await?)
    }

    async fn release(&self, _: &mut Mutex, held: Guard) -> Result<(), Failure> {
        Ok(held.unlock().await?)
    }
}
