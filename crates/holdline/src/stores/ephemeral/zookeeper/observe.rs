//! Observers: report changes of any node of a line, or below a path.
//!
//! A watch of this kind lasts until its connection ends. It is set again on the next connection,
//! which counts as a change. Servers before 3.6 have no such watches: observers then poll.

use super::errors::ZkError;
use super::path;
use super::release::LIMIT;
use super::shared::{BACKGROUND, Shared};
use super::ticket_record::Watching;
use crate::clock;
use crate::store::{Lines, Notifier, Subscription};
use holdline_zookeeper_client::{Session, State};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The pause before another session or watch is tried.
const PAUSE: Duration = Duration::from_millis(500);

/// An observer that listens on a store's session.
struct Observer {
    shared: Arc<Shared>,
    path: String,
    notifier: Notifier,
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.shared.observers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    pub(super) fn subscribe(&self, lines: &Lines) -> Subscription {
        let path = match lines {
            Lines::Named(line) => Some(path::of(&self.address.root, line)),
            Lines::Prefix(prefix) => self.folder_of(prefix),
        };
        let (Some(path), Some(shared)) = (path, self.observing()) else {
            return Subscription::none();
        };
        let (notifier, subscription) = Subscription::new();
        shared.observers.fetch_add(1, Ordering::AcqRel);
        let path = if path.is_empty() { "/".to_owned() } else { path };
        let task = BACKGROUND.spawn(Observer { shared, path, notifier }.run());
        subscription.complete().keep(Watching(task.abort_handle()))
    }

    /// The store for observers; `None` if the system lacks the resources for it.
    fn observing(&self) -> Option<Arc<Shared>> {
        if let Some(shared) = self.observing.get() {
            return Some(Arc::clone(shared));
        }
        let shared = Shared::new(self.address.clone()).ok()?;
        Some(Arc::clone(self.observing.get_or_init(|| shared)))
    }
}

impl Observer {
    async fn run(self) {
        loop {
            if let Ok(session) = self.shared.session(LIMIT).await {
                let again = self.listen(&session).await;
                self.notifier.end();
                if !again {
                    return;
                }
            }
            clock::pause(PAUSE).await;
        }
    }

    /// Listens on a session while it lasts. `false` if the servers have no such watches.
    async fn listen(&self, session: &Session) -> bool {
        let mut states = session.client.states();
        loop {
            states.mark_unchanged();
            let asked = clock::timeout(LIMIT, session.client.watch_tree(&self.path)).await;
            let mut tree = match asked {
                Some(Ok(tree)) => tree,
                Some(Err(ZkError::Unimplemented)) => return false,
                Some(Err(ZkError::ConnectionLoss)) => {
                    clock::pause(PAUSE / 5).await;
                    continue;
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "an observer cannot listen");
                    return true;
                }
                None => return true,
            };
            self.notifier.begin();
            loop {
                tokio::select! {
                    lasts = tree.changed() => {
                        if !lasts {
                            return true;
                        }
                        self.notifier.changed();
                    }
                    changed = states.changed() => {
                        if changed.is_err() {
                            return true;
                        }
                        break;
                    }
                }
            }
            // Until there is another connection, nothing is reported.
            self.notifier.end();
            let serves = states.wait_for(|state| *state != State::Broken).await;
            if !serves.is_ok_and(|state| *state == State::Serving) {
                return true;
            }
        }
    }
}
