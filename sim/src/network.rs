//! The network, which may do anything to a message but change it.

use crate::plan::SLOWEST;
use crate::world::{Event, World};
use std::time::Duration;

impl World {
    /// Sends something between a client and a server, in whichever direction.
    pub(crate) fn post(&mut self, client: usize, server: usize, event: Event) {
        if self.is_calm() {
            let delay = self.rng.millis(0, 5);
            self.after(delay, event);
            return;
        }
        let weather = self.plan.weather;
        let cut = self.cut.get(&(client, server)).is_some_and(|until| *until > self.now);
        let copies = 1 + u64::from(self.rng.chance(weather.doubled));
        for _ in 0..copies {
            if cut || self.rng.chance(weather.lost) {
                self.note(format_args!("  lost: {event}"));
                continue;
            }
            let delay = self.delay(weather.slow);
            self.after(delay, event);
        }
    }

    /// Mostly short; sometimes long enough to be overtaken, or to outlive a lease.
    fn delay(&mut self, slow: u64) -> Duration {
        if !self.rng.chance(slow) {
            return self.rng.millis(0, 5);
        }
        let most = self.rng.pick(&[50, 400, 400, SLOWEST.as_millis() as u64]);
        self.rng.millis(5, most)
    }
}
