//! The network, which loses, delays, duplicates and reorders messages, but never changes them.

use crate::plan::SLOWEST;
use crate::world::{Event, World};
use std::time::Duration;

impl World {
    /// Sends a message between a client and a server, in either direction.
    pub(crate) fn post(&mut self, client: usize, server: usize, event: Event) {
        if self.is_calm() {
            let delay = self.rng.millis(0, 5);
            self.after(delay, event);
            return;
        }
        let network_faults = self.plan.network_faults;
        let cut = self.cut.get(&(client, server)).is_some_and(|until| *until > self.now);
        let copies = 1 + u64::from(self.rng.chance(network_faults.doubled));
        for _ in 0..copies {
            if cut || self.rng.chance(network_faults.lost) {
                self.note(format_args!("  lost: {event}"));
                continue;
            }
            let delay = self.delay(network_faults.slow);
            self.after(delay, event.clone());
        }
    }

    /// A random delay: mostly short, sometimes long enough to be overtaken, or to outlast a lease.
    fn delay(&mut self, slow: u64) -> Duration {
        if !self.rng.chance(slow) {
            return self.rng.millis(0, 5);
        }
        let most = self.rng.pick(&[50, 400, 400, SLOWEST.as_millis() as u64]);
        self.rng.millis(5, most)
    }
}
