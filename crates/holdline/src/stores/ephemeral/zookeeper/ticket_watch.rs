//! WatchRegistry: over a ticket's own node, and over those that keep it out.
//!
//! A watch is over one node, for one event. It is set again when the connection changes, and the
//! server then tells of what was missed. It ends by itself only with its session, and then so does
//! the ticket that it was for.

use super::errors;
use super::layout::REVOKE;
use super::shared::spawn;
use super::ticket_record::{TicketRecord, Watching};
use super::watch_registry::Event;
use crate::store::LossHint;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// So many nodes are watched one by one. More, and the whole line is.
const FEW: usize = 16;

impl TicketRecord {
    /// WatchRegistry those that keep a ticket out.
    pub(super) fn listen(self: &Arc<Self>) {
        let paths: Vec<_> = {
            let mut place = self.place();
            if place.listens || place.create == 0 || place.gone || place.blockers.is_empty() {
                return;
            }
            place.listens = true;
            place.blockers.iter().map(|member| self.path(&member.child)).collect()
        };
        let watches = if paths.len() > FEW {
            vec![Watching(spawn(anybody(Arc::downgrade(self))).abort_handle())]
        } else {
            let watch = |path| Watching(spawn(other(Arc::downgrade(self), path)).abort_handle());
            paths.into_iter().map(watch).collect()
        };
        let ended = std::mem::replace(&mut self.place().watches, watches);
        drop(ended);
    }

    /// WatchRegistry a ticket's own node, so that its loss is known. The watch ends with the node.
    pub(super) fn guard(self: &Arc<Self>, loss_hint: &Arc<OnceLock<LossHint>>) {
        let child = {
            let mut place = self.place();
            if place.guarded == place.child || place.create == 0 || place.gone {
                return;
            }
            let child = place.child.clone();
            place.guarded.clone_from(&child);
            child
        };
        spawn(own(Arc::downgrade(self), child, Arc::clone(loss_hint)));
    }
}

/// How a request to watch ended.
enum Set<T> {
    Done(T),
    Gone,
    /// Nothing will come of it any more.
    Over,
    /// The connection broke.
    Again,
}

fn set<T>(outcome: Result<T, errors::ZkError>) -> Set<T> {
    match outcome {
        Ok(watch) => Set::Done(watch),
        Err(errors::ZkError::NoNode) => Set::Gone,
        Err(error) if errors::is_over(&error) => Set::Over,
        Err(error) => {
            tracing::debug!(%error, "a watch could not be set");
            Set::Again
        }
    }
}

const SOON: Duration = Duration::from_millis(100);

/// WatchRegistry somebody else's node until it goes.
async fn other(record: Weak<TicketRecord>, path: String) {
    loop {
        let Some(session) = record.upgrade().map(|record| Arc::clone(&record.session)) else {
            return;
        };
        match set(session.client.get_and_watch_data(&path).await) {
            Set::Done((_, watch)) => {
                drop(session);
                match watch.changed().await {
                    Event::Deleted => break,
                    Event::Over => return,
                    Event::Changed => {}
                }
            }
            Set::Gone => break,
            Set::Over => return,
            Set::Again => tokio::time::sleep(SOON).await,
        }
    }
    if let Some(record) = record.upgrade() {
        record.stir();
    }
}

/// WatchRegistry a whole line until anybody comes or goes.
async fn anybody(record: Weak<TicketRecord>) {
    loop {
        let Some((session, parent)) =
            record.upgrade().map(|record| (Arc::clone(&record.session), record.parent.clone()))
        else {
            return;
        };
        match set(session.client.watch_children(&parent).await) {
            Set::Done(watch) => {
                // What came in between is not known: look once more now.
                if let Some(record) = record.upgrade() {
                    record.stir();
                }
                drop(session);
                if watch.changed().await == Event::Over {
                    return;
                }
            }
            Set::Gone | Set::Over => return,
            Set::Again => tokio::time::sleep(SOON).await,
        }
    }
}

/// WatchRegistry a ticket's own node until it goes, and reads what others write into it.
async fn own(record: Weak<TicketRecord>, child: String, loss_hint: Arc<OnceLock<LossHint>>) {
    loop {
        let Some((session, path)) =
            record.upgrade().map(|record| (Arc::clone(&record.session), record.path(&child)))
        else {
            return;
        };
        match set(session.client.get_and_watch_data(&path).await) {
            Set::Done((data, watch)) => {
                if data == REVOKE
                    && let Some(record) = record.upgrade()
                {
                    let token = record.place().token().0;
                    tracing::warn!(name = %record.line, token, "somebody asks us to let go");
                }
                drop(session);
                match watch.changed().await {
                    Event::Deleted => break,
                    Event::Over => return,
                    Event::Changed => {}
                }
            }
            Set::Gone => break,
            Set::Over => return,
            Set::Again => tokio::time::sleep(SOON).await,
        }
    }
    let Some(record) = record.upgrade() else { return };
    // One that has moved to another node is not gone.
    let (moved, moving) = {
        let place = record.place();
        (place.child != child, place.moving || place.doubtful)
    };
    if moving {
        record.stir();
    } else if !moved {
        record.lose(&loss_hint);
    }
}
