//! Watches: over a ticket's own node, and over those that keep it out.
//!
//! A watch is over one node, for one event. It is set again when the connection changes, and the
//! server then tells of what was missed. It ends by itself only with its session, and then so does
//! the ticket that it was for.

use super::dialect;
use super::errors::ZkError;
use super::layout::REVOKE;
use super::shared::{BACKGROUND, Shared};
use super::ticket_record::{NodeEntry, TicketRecord, Watching};
use crate::clock;
use crate::stores::ephemeral::ticket::State;
use holdline_zookeeper_client::{Client, Event, Listener, Reply};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// The number of nodes that are watched one by one. Of more, the whole line is watched.
const FEW: usize = 16;

impl TicketRecord {
    /// Watches those that keep a ticket out.
    pub(super) fn listen(self: &Arc<Self>) {
        let mut place = self.place();
        if place.state != State::Waiting || !place.watches.is_empty() {
            return;
        }
        let blockers = &place.entry.blockers;
        let watch = |task| Watching(BACKGROUND.spawn(task).abort_handle());
        place.watches = if blockers.len() > FEW {
            let parent = self.base.parent.clone();
            let task = BACKGROUND.spawn(anybody(Arc::downgrade(self), parent));
            vec![Watching(task.abort_handle())]
        } else {
            let paths = blockers.iter().map(|member| self.path(&member.child));
            paths.map(|path| watch(other(Arc::downgrade(self), path))).collect()
        };
    }

    /// Watches a ticket's own node, so that its loss is known. The watch ends with the node.
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

/// The pause before a watch is set again that could not be.
const SOON: Duration = Duration::from_millis(100);

/// Sets a watch, again and again if the connection breaks. The error says that there is no such
/// node, or that nothing will come of it any more.
async fn set<T>(
    record: &Weak<TicketRecord>,
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
            Err(error) => tracing::debug!(%error, "a watch could not be set"),
        }
        drop(session);
        clock::pause(SOON).await;
    }
}

/// Watches the node of another ticket until it goes.
async fn other(record: Weak<TicketRecord>, path: String) {
    loop {
        let event = match set(&record, |client| client.get_and_watch_data(&path)).await {
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

/// Watches a whole line until any node comes or goes.
async fn anybody(record: Weak<TicketRecord>, parent: String) {
    while let Ok(watch) = set(&record, |client| client.watch_children(&parent)).await {
        // What came in between is not known: look once more now.
        if let Some(record) = record.upgrade() {
            record.stir();
        }
        if watch.changed().await == Event::Over {
            return;
        }
    }
}

/// Has the store told of what becomes of a ticket's own node, and warns of a request to let go. A
/// task for setting the watch alone: a held lock has none.
async fn own(record: Weak<TicketRecord>, path: String, listener: Listener) {
    match set(&record, |client| client.get_and_tell_data(&path, &listener)).await {
        Ok(data) => {
            if data == REVOKE
                && let Some(record) = record.upgrade()
            {
                let token = record.place().token().0;
                tracing::warn!(name = %record.line, token, "somebody asks us to let go");
            }
        }
        Err(Event::Deleted) => drop(listener.send((path, Event::Deleted))),
        Err(Event::Over | Event::Changed) => {}
    }
}

/// Takes in what becomes of the tickets' own nodes, until the store is dropped.
pub(super) async fn hear(store: Weak<Shared>, mut told: UnboundedReceiver<(String, Event)>) {
    while let Some((path, event)) = told.recv().await {
        let Some(store) = store.upgrade() else { return };
        // It wakes foreign tasks, and all other tickets need this one.
        if catch_unwind(AssertUnwindSafe(|| store.take_in(path, event))).is_err() {
            tracing::error!("a task that was told of a lock panicked");
        }
    }
}

impl Shared {
    /// Takes in what has become of a ticket's own node. The node's name tells the ticket.
    fn take_in(&self, path: String, event: Event) {
        let child = path.rsplit('/').next().unwrap_or_default();
        let id = dialect::guid(child).map(|(id, _)| id);
        let Some(record) = id.and_then(|id| self.table.find(id)) else { return };
        if event == Event::Changed {
            BACKGROUND.spawn(own(Arc::downgrade(&record), path, self.listener.clone()));
            return;
        }
        // One that has moved to another node is not gone.
        let (moved, moving) =
            record.with(|place| (place.entry.child != child, place.entry.moving || place.doubtful));
        if moving {
            record.stir();
        } else if !moved {
            record.lose(&self.table.loss);
        }
    }
}
