//! Watches: over a ticket's own node, and over those that keep it out.
//!
//! A watch is over one node, for one event. It is set again when the connection changes, and the
//! server then tells of what was missed. It ends by itself only with its session, and then so does
//! the ticket that it was for.

use super::errors::ZkError;
use super::layout::REVOKE;
use super::shared::BACKGROUND;
use super::ticket_record::{NodeEntry, TicketRecord, Watching};
use crate::clock;
use crate::stores::ephemeral::ticket::State;
use crate::stores::waiters::LossHandler;
use holdline_zookeeper_client::{Client, Event, Reply};
use std::sync::{Arc, Weak};
use std::time::Duration;

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
    pub(super) fn guard(self: &Arc<Self>, loss: &LossHandler) {
        let unguarded = self.with(|place| {
            let is_there = matches!(place.state, State::Waiting | State::Held);
            let NodeEntry { child, guarded, .. } = &mut place.entry;
            (is_there && guarded != child)
                .then(|| guarded.clone_from(child))
                .map(|()| child.clone())
        });
        if let Some(child) = unguarded {
            let path = self.path(&child);
            BACKGROUND.spawn(own(Arc::downgrade(self), path, child, loss.clone()));
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

/// Watches a node until it goes, and reads what is written into it. `false` if the watch is not
/// wanted any more.
async fn until_gone(record: &Weak<TicketRecord>, path: &str, read: impl Fn(&[u8])) -> bool {
    loop {
        let event = match set(record, |client| client.get_and_watch_data(path)).await {
            Ok((data, watch)) => {
                read(&data);
                watch.changed().await
            }
            Err(event) => event,
        };
        match event {
            Event::Deleted => return true,
            Event::Over => return false,
            Event::Changed => {}
        }
    }
}

/// Watches the node of another ticket until it goes.
async fn other(record: Weak<TicketRecord>, path: String) {
    if until_gone(&record, &path, |_| {}).await
        && let Some(record) = record.upgrade()
    {
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

/// Watches a ticket's own node until it goes, and warns of a request to let go.
async fn own(record: Weak<TicketRecord>, path: String, child: String, loss: LossHandler) {
    let warn = |data: &[u8]| {
        if data == REVOKE
            && let Some(record) = record.upgrade()
        {
            let token = record.place().token().0;
            tracing::warn!(name = %record.line, token, "somebody asks us to let go");
        }
    };
    if !until_gone(&record, &path, warn).await {
        return;
    }
    let Some(record) = record.upgrade() else { return };
    // One that has moved to another node is not gone.
    let (moved, moving) =
        record.with(|place| (place.entry.child != child, place.entry.moving || place.doubtful));
    if moving {
        record.stir();
    } else if !moved {
        record.lose(&loss);
    }
}
