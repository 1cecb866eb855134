//! Subscriptions to the channels of locks, each kept while tickets of this process wait.
//!
//! A channel is subscribed to when the first ticket needs it, and unsubscribed from some time after
//! the last ticket has gone: a process that contends for a lock comes back soon, and then need not
//! subscribe again.

use crate::clock;
use crate::store::TicketId;
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::Notify;

#[derive(Default)]
pub(in crate::stores) struct Channels {
    map: Mutex<HashMap<String, Subscription>>,
    /// Notified when there are channels to subscribe to.
    wanted: Notify,
}

struct Subscription {
    /// The tickets to wake, and when each last asked.
    tickets: HashMap<TicketId, Time>,
    stage: Stage,
    /// Since when there is no ticket to wake.
    idle: Time,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Wanted,
    Requested,
    Subscribed,
}

/// How long a subscription is kept after its last ticket.
const KEEP_IDLE: Duration = Duration::from_secs(5);
/// A waiting ticket asks again every second; after this long without a request, it is removed. (A
/// ticket that gives up need not leave, since it has no place.)
const TICKET_TIMEOUT: Duration = Duration::from_secs(5);

impl Channels {
    /// Adds a ticket to a known channel. Returns whether the channel is subscribed to.
    pub(in crate::stores) fn join(&self, channel: &str, id: TicketId) -> bool {
        let mut map = self.map.lock();
        let Some(subscription) = map.get_mut(channel) else { return false };
        subscription.tickets.insert(id, clock::now());
        subscription.stage == Stage::Subscribed
    }

    /// Adds a ticket to a channel, and requests the subscription if there is none. Returns whether
    /// it is subscribed to.
    pub(in crate::stores) fn add_ticket(&self, channel: &str, id: TicketId) -> bool {
        let now = clock::now();
        let mut map = self.map.lock();
        let subscription = map.entry(channel.to_owned()).or_insert_with(|| Subscription {
            tickets: HashMap::new(),
            stage: Stage::Wanted,
            idle: now,
        });
        subscription.tickets.insert(id, now);
        if subscription.stage == Stage::Wanted {
            self.wanted.notify_one();
        }
        subscription.stage == Stage::Subscribed
    }

    /// Removes a ticket from a channel.
    pub(in crate::stores) fn remove_ticket(&self, channel: &str, id: TicketId) {
        if let Some(subscription) = self.map.lock().get_mut(channel) {
            subscription.tickets.remove(&id);
            subscription.idle = clock::now();
        }
    }

    /// Whether a channel is subscribed to.
    pub(in crate::stores) fn is_subscribed(&self, channel: &str) -> bool {
        let map = self.map.lock();
        map.get(channel).is_some_and(|subscription| subscription.stage == Stage::Subscribed)
    }

    /// The tickets of a channel.
    pub(in crate::stores) fn tickets(&self, channel: &str) -> Vec<TicketId> {
        self.map
            .lock()
            .get(channel)
            .map_or_else(Vec::new, |subscription| subscription.tickets.keys().copied().collect())
    }

    /// Whether there are no channels.
    #[cfg(test)]
    pub(super) fn are_none(&self) -> bool {
        self.map.lock().is_empty()
    }
}

/// The methods for the task that owns the connection.
impl Channels {
    /// Waits until there are channels to subscribe to.
    pub(in crate::stores) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Takes the channels to subscribe to now.
    pub(in crate::stores) fn take_wanted(&self) -> Vec<String> {
        let mut map = self.map.lock();
        let wanted = map.iter_mut().filter(|(_, subscription)| subscription.stage == Stage::Wanted);
        let asked = wanted.map(|(channel, subscription)| {
            subscription.stage = Stage::Requested;
            channel.clone()
        });
        asked.collect()
    }

    /// Records that channels were subscribed to.
    pub(in crate::stores) fn subscribed(&self, channels: &[String]) {
        let mut map = self.map.lock();
        for channel in channels {
            if let Some(subscription) =
                map.get_mut(channel).filter(|subscription| subscription.stage == Stage::Requested)
            {
                subscription.stage = Stage::Subscribed;
            }
        }
    }

    /// Records that the server ended a subscription.
    pub(in crate::stores) fn lost(&self, channel: &str) {
        if let Some(subscription) = self.map.lock().get_mut(channel) {
            subscription.stage = Stage::Wanted;
            self.wanted.notify_one();
        }
    }

    /// Records that the connection broke, and with it all subscriptions.
    pub(in crate::stores) fn disconnected(&self) {
        for subscription in self.map.lock().values_mut() {
            subscription.stage = Stage::Wanted;
        }
    }

    /// Removes channels that are no longer needed. Returns those to unsubscribe from.
    pub(in crate::stores) fn sweep(&self) -> Vec<String> {
        let now = clock::now();
        let mut given_up = Vec::new();
        self.map.lock().retain(|channel, subscription| {
            subscription.tickets.retain(|_, heard| heard.until(now) < TICKET_TIMEOUT);
            let keep = !subscription.tickets.is_empty() || subscription.idle.until(now) < KEEP_IDLE;
            if !keep && subscription.stage == Stage::Subscribed {
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
        assert!(channels.take_wanted().is_empty());
        assert!(!channels.add_ticket("a", one) && !channels.add_ticket("a", two));
        assert_eq!(channels.take_wanted(), ["a"]);
        assert!(channels.take_wanted().is_empty());
        assert!(!channels.join("a", one), "it is only asked for");
        channels.subscribed(&["a".to_owned()]);
        assert!(channels.join("a", two));
        assert_eq!(channels.tickets("a").len(), 2);
        channels.remove_ticket("a", one);
        assert_eq!(channels.tickets("a"), [two]);
        channels.disconnected();
        assert_eq!(channels.take_wanted(), ["a"]);
        channels.remove_ticket("a", two);
        assert!(channels.sweep().is_empty(), "it lingers");
    }
}
