//! Watches on a ticket's own node, and on those that block it.
//!
//! A watch is on one node, for one event. It is set again when the connection changes, and the
//! server then reports any missed event. It ends by itself only with its session, and so does its
//! ticket.

use super::dialect;
use super::errors::ZkError;
use super::layout::REVOKE;
use super::shared::{BACKGROUND, Shared};
use super::ticket_record::{Ahead, NodeEntry, TicketRecord, Watching};
use crate::clock;
use crate::stores::ephemeral::ticket::State;
use crate::sync::contained;
use holdline_zookeeper_client::{Client, Event, Listener, Reply};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

impl TicketRecord {
    /// Watches the nodes that block a ticket, as far as they are not watched yet.
    pub(super) fn listen(self: &Arc<Self>) {
        let mut place = self.place();
        if place.state != State::Waiting {
            return;
        }
        for watched in place.to_watch() {
            if place.watches.iter().any(|watch| watch.watched == watched) {
                continue;
            }
            let record = Arc::downgrade(self);
            let task = match &watched {
                Some(child) => BACKGROUND.spawn(other(record, self.path(child))),
                None => BACKGROUND.spawn(anybody(record, self.base.parent.clone())),
            };
            place.watches.push(Ahead { watched, _task: Watching(task.abort_handle()) });
        }
    }

    /// Watches a ticket's own node, to notice its loss. The watch ends with the node.
    pub(super) fn guard(self: &Arc<Self>, listener: &Listener) {
        let unguarded = self.with(|place| {
            let is_there = matches!(place.state, State::Waiting | State::Held);
            let NodeEntry { child, guarded, .. } = &mut place.entry;
            (is_there && !std::mem::replace(guarded, true)).then(|| child.clone())
        });
        if let Some(child) = unguarded {
            let path = self.path(&child);
            BACKGROUND.spawn(own(Arc::downgrade(self), path, listener.clone()));
        }
    }
}

/// The pause before a failed watch is set again.
const SOON: Duration = Duration::from_millis(100);

/// Sets a watch, repeatedly if the connection breaks. An error means that the node does not exist,
/// or that retrying is useless: then the ticket is polled only.
async fn set<T>(
    record: &Weak<TicketRecord>,
    path: &str,
    ask: impl Fn(&Client) -> Reply<T>,
) -> Result<T, Event> {
    loop {
        let Some(session) = record.upgrade().map(|record| Arc::clone(&record.base.session)) else {
            return Err(Event::Over);
        };
        match ask(&session.client).await {
            Ok(watch) => return Ok(watch),
            Err(ZkError::NoNode) => return Err(Event::Deleted),
            Err(error) if error.is_over() => return Err(Event::Over),
            Err(error @ (ZkError::NoAuth | ZkError::InvalidAcl)) => {
                contained(|| {
                    tracing::warn!(%error, path, "a node may not be watched, and is only polled");
                });
                return Err(Event::Over);
            }
            Err(error) => contained(|| tracing::debug!(%error, "a watch could not be set")),
        }
        drop(session);
        clock::pause(SOON).await;
    }
}

/// Watches another ticket's node until it is deleted.
async fn other(record: Weak<TicketRecord>, path: String) {
    loop {
        let event = match set(&record, &path, |client| client.get_and_watch_data(&path)).await {
            Ok((_, watch)) => watch.changed().await,
            Err(event) => event,
        };
        match event {
            Event::Changed => {}
            Event::Over => return,
            Event::Deleted => break,
        }
    }
    if let Some(record) = record.upgrade() {
        record.stir();
    }
}

/// Watches a whole line until any node is created or deleted.
async fn anybody(record: Weak<TicketRecord>, parent: String) {
    while let Ok(watch) = set(&record, &parent, |client| client.watch_children(&parent)).await {
        // Events in between are unknown: look once more now.
        if let Some(record) = record.upgrade() {
            record.stir();
        }
        if watch.changed().await == Event::Over {
            return;
        }
    }
}

/// Subscribes the store to the events of a ticket's own node, and warns of a request to let go. The
/// task only sets the watch: a held lock has no task.
async fn own(record: Weak<TicketRecord>, path: String, listener: Listener) {
    match set(&record, &path, |client| client.get_and_tell_data(&path, &listener)).await {
        Ok(data) => {
            if data == REVOKE
                && let Some(record) = record.upgrade()
            {
                let token = record.place().token().0;
                tracing::warn!(name = %record.line, token, "somebody asks us to let go");
            }
        }
        Err(Event::Deleted) => drop(listener.send((path, Event::Deleted))),
        Err(Event::Over | Event::Changed) => {
            if let Some(record) = record.upgrade() {
                record.place().entry.guarded = false; // renewals ask for it
            }
        }
    }
}

/// Handles the events of the tickets' own nodes until the store is dropped.
pub(super) async fn handle_events(
    store: Weak<Shared>,
    mut events: UnboundedReceiver<(String, Event)>,
) {
    while let Some((path, event)) = events.recv().await {
        let Some(store) = store.upgrade() else { return };
        store.handle(path, event);
    }
}

impl Shared {
    /// Handles an event of a ticket's own node, whose name identifies the ticket.
    fn handle(&self, path: String, event: Event) {
        let child = path.rsplit('/').next().unwrap_or_default();
        let id = dialect::guid(child).map(|(id, _)| id);
        let Some(record) = id.and_then(|id| self.table.find(id)) else { return };
        if event == Event::Changed {
            BACKGROUND.spawn(own(Arc::downgrade(&record), path, self.listener.clone()));
            return;
        }
        // A ticket that has moved to another node is not gone.
        let (moved, moving) =
            record.with(|place| (place.entry.child != child, place.entry.moving || place.doubtful));
        if moving {
            record.stir();
        } else if !moved {
            record.lose(&self.table.loss);
        }
    }
}
