//! Channels of locks, each followed while somebody here waits for what it tells.
//!
//! A channel is subscribed to when the first ticket asks for it, and given up some time after the
//! last has gone: whoever contends for a lock comes back soon, and then need not subscribe again.

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
    /// Something is to be subscribed to.
    wanted: Notify,
    /// Something has been.
    settled: watch::Sender<()>,
}

struct Topic {
    /// Whom to tell, and when they were last heard of.
    tickets: HashMap<TicketId, Time>,
    stage: Stage,
    /// Since when nobody is to be told.
    idle: Time,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Wanted,
    Asked,
    On,
}

/// A channel that nobody needs is kept for so long.
const LINGER: Duration = Duration::from_secs(5);
/// A ticket that waits is heard of every second; after so long without, it waits no more. (One that
/// was told to wait and gives up then need not leave, since it has no place.)
const FORGOTTEN: Duration = Duration::from_secs(5);

impl Channels {
    fn map(&self) -> MutexGuard<'_, HashMap<String, Topic>> {
        self.map.lock()
    }

    /// Lets a ticket be told, if the channel is subscribed to already; and says whether it is.
    pub(super) fn join(&self, channel: &str, id: TicketId) -> bool {
        let mut map = self.map();
        let Some(topic) = map.get_mut(channel) else { return false };
        topic.tickets.insert(id, clock::now());
        topic.stage == Stage::On
    }

    /// Lets a ticket be told, and sees to it that the channel is subscribed to.
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

    /// A ticket waits no more.
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

    /// To learn of channels that come to be subscribed to.
    pub(super) fn settled(&self) -> watch::Receiver<()> {
        self.settled.subscribe()
    }

    /// Whom a channel tells.
    pub(super) fn tickets(&self, channel: &str) -> Vec<TicketId> {
        self.map()
            .get(channel)
            .map_or_else(Vec::new, |topic| topic.tickets.keys().copied().collect())
    }
}

/// For the one who subscribes.
impl Channels {
    /// Waits until something is to be subscribed to.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// What is to be subscribed to now.
    pub(super) fn ask(&self) -> Vec<String> {
        let mut map = self.map();
        let wanted = map.iter_mut().filter(|(_, topic)| topic.stage == Stage::Wanted);
        let asked = wanted.map(|(channel, topic)| {
            topic.stage = Stage::Asked;
            channel.clone()
        });
        asked.collect()
    }

    /// It was.
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

    /// One channel is subscribed to no more, though nobody asked for that.
    pub(super) fn lost(&self, channel: &str) {
        if let Some(topic) = self.map().get_mut(channel) {
            topic.stage = Stage::Wanted;
            self.wanted.notify_one();
        }
    }

    /// The connection is gone, and every subscription with it.
    pub(super) fn down(&self) {
        for topic in self.map().values_mut() {
            topic.stage = Stage::Wanted;
        }
        self.settled.send_replace(());
    }

    /// Forgets what nobody needs any more, and says what to unsubscribe from.
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
