//! The subscriptions to the channels of locks, each kept while tickets of this process wait.
//!
//! A channel is subscribed to when the first ticket needs it, and unsubscribed from some time after
//! the last has gone: a process that contends for a lock comes back soon, and then need not
//! subscribe again.

use crate::clock;
use crate::store::TicketId;
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::collections::HashMap;
use std::sync::MutexGuard;
use std::time::Duration;
use tokio::sync::{Notify, watch};

#[derive(Default)]
pub(super) struct Channels {
    map: Mutex<HashMap<String, Topic>>,
    /// Notified when there are channels to subscribe to.
    wanted: Notify,
    /// Notified when subscriptions have changed.
    settled: watch::Sender<()>,
}

struct Topic {
    /// The tickets to wake, and when each last asked.
    tickets: HashMap<TicketId, Time>,
    stage: Stage,
    /// Since when there is no ticket to wake.
    idle: Time,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Wanted,
    Asked,
    On,
}

/// How long a subscription is kept after its last ticket.
const LINGER: Duration = Duration::from_secs(5);
/// A waiting ticket asks again every second; after so long without, it is removed. (A ticket that
/// gives up need not leave, since it has no place.)
const FORGOTTEN: Duration = Duration::from_secs(5);

impl Channels {
    fn map(&self) -> MutexGuard<'_, HashMap<String, Topic>> {
        self.map.lock()
    }

    /// Adds a ticket to a channel that is known already. Returns whether it is subscribed to.
    pub(super) fn join(&self, channel: &str, id: TicketId) -> bool {
        let mut map = self.map();
        let Some(topic) = map.get_mut(channel) else { return false };
        topic.tickets.insert(id, clock::now());
        topic.stage == Stage::On
    }

    /// Adds a ticket to a channel, and requests the subscription if there is none.
    pub(super) fn want(&self, channel: &str, id: TicketId) {
        let now = clock::now();
        let mut map = self.map();
        let topic = map.entry(channel.to_owned()).or_insert_with(|| Topic {
            tickets: HashMap::new(),
            stage: Stage::Wanted,
            idle: now,
        });
        topic.tickets.insert(id, now);
        if topic.stage == Stage::Wanted {
            self.wanted.notify_one();
        }
    }

    /// Removes a ticket from a channel.
    pub(super) fn part(&self, channel: &str, id: TicketId) {
        if let Some(topic) = self.map().get_mut(channel) {
            topic.tickets.remove(&id);
            topic.idle = clock::now();
        }
    }

    /// Whether the channel is subscribed to.
    pub(super) fn is_on(&self, channel: &str) -> bool {
        self.map().get(channel).is_some_and(|topic| topic.stage == Stage::On)
    }

    /// A receiver that is notified when subscriptions have changed.
    pub(super) fn settled(&self) -> watch::Receiver<()> {
        self.settled.subscribe()
    }

    /// The tickets of a channel.
    pub(super) fn tickets(&self, channel: &str) -> Vec<TicketId> {
        self.map()
            .get(channel)
            .map_or_else(Vec::new, |topic| topic.tickets.keys().copied().collect())
    }
}

/// The part for the task that owns the connection.
impl Channels {
    /// Waits until there are channels to subscribe to.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Takes the channels to subscribe to now.
    pub(super) fn ask(&self) -> Vec<String> {
        let mut map = self.map();
        let wanted = map.iter_mut().filter(|(_, topic)| topic.stage == Stage::Wanted);
        let asked = wanted.map(|(channel, topic)| {
            topic.stage = Stage::Asked;
            channel.clone()
        });
        asked.collect()
    }

    /// Records that channels were subscribed to.
    pub(super) fn on(&self, channels: &[String]) {
        let mut map = self.map();
        for channel in channels {
            if let Some(topic) = map.get_mut(channel).filter(|topic| topic.stage == Stage::Asked) {
                topic.stage = Stage::On;
            }
        }
        drop(map);
        self.settled.send_replace(());
    }

    /// Records that the server ended a subscription.
    pub(super) fn lost(&self, channel: &str) {
        if let Some(topic) = self.map().get_mut(channel) {
            topic.stage = Stage::Wanted;
            self.wanted.notify_one();
        }
    }

    /// Records that the connection broke, and with it all subscriptions.
    pub(super) fn down(&self) {
        for topic in self.map().values_mut() {
            topic.stage = Stage::Wanted;
        }
        self.settled.send_replace(());
    }

    /// Removes channels that are not needed any more. Returns those to unsubscribe from.
    pub(super) fn sweep(&self) -> Vec<String> {
        let now = clock::now();
        let mut given_up = Vec::new();
        self.map().retain(|channel, topic| {
            topic.tickets.retain(|_, heard| heard.until(now) < FORGOTTEN);
            let keep = !topic.tickets.is_empty() || topic.idle.until(now) < LINGER;
            if !keep && topic.stage == Stage::On {
                given_up.push(channel.clone());
            }
            keep
        });
        given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_asked_for_once_and_again_after_a_break() {
        let (channels, one, two) = (Channels::default(), TicketId(1), TicketId(2));
        assert!(!channels.join("a", one), "nobody follows it");
        assert!(channels.ask().is_empty());
        channels.want("a", one);
        channels.want("a", two);
        assert_eq!(channels.ask(), ["a"]);
        assert!(channels.ask().is_empty());
        assert!(!channels.join("a", one), "it is only asked for");
        channels.on(&["a".to_owned()]);
        assert!(channels.join("a", two));
        assert_eq!(channels.tickets("a").len(), 2);
        channels.part("a", one);
        assert_eq!(channels.tickets("a"), [two]);
        channels.down();
        assert!(!channels.is_on("a"));
        assert_eq!(channels.ask(), ["a"]);
        channels.part("a", two);
        assert!(channels.sweep().is_empty(), "it lingers");
    }
}
