//! Nodes of our session that belong to no ticket of ours.
//!
//! There should be none: a node is made for a ticket that has a record, and the record is kept
//! until the servers have confirmed that the node is gone. But an answer that was spoiled on the
//! way, or a mistake of ours, would leave a node behind that keeps all others out for as long as
//! this process lives. So the servers are asked from time to time which nodes our session has; it
//! is one request to one server, whatever the number of lines. What was without a record twice
//! goes.

use super::errors::ZkError;
use super::layout::Member;
use super::path;
use super::shared::{BACKGROUND, Shared};
use super::ticket_record::TicketRecord;
use crate::clock;
use crate::store::TicketId;
use crate::stores::ephemeral::engine;
use crate::sync::Mutex;
use holdline_kernel::Time;
use holdline_zookeeper_client::Session;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a look may take.
const LIMIT: Duration = Duration::from_secs(2);
/// Before it is looked again at what seemed to be without a record: our server may have been
/// behind, and have shown what we had just removed.
const AGAIN: Duration = Duration::from_millis(500);

/// How often it is looked for nodes of which nothing is known; or more rarely, if there are so many
/// nodes that this takes longer.
const LOOK: Duration = Duration::from_secs(10);
const LOOK_EACH: Duration = Duration::from_millis(2);

/// When to look next whether the session has nodes of which nothing is known.
#[derive(Debug, Default)]
pub(super) struct Looks(Mutex<Option<Time>>);

impl Looks {
    /// A session has begun.
    pub(super) fn begin(&self) {
        self.done(0);
    }

    /// Whether to look now. None is due again until this one is done.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.0.lock().take_if(|due| *due <= now).is_some()
    }

    /// That was done, and the session has so many nodes.
    fn done(&self, nodes: usize) {
        let pause = LOOK.max(LOOK_EACH * u32::try_from(nodes).unwrap_or(u32::MAX));
        *self.0.lock() = Some(clock::now().after(pause));
    }
}

/// A node of which nothing is known.
#[derive(PartialEq, Eq)]
struct Orphan {
    parent: String,
    child: String,
    id: TicketId,
}

impl Shared {
    /// The nodes of a session of which nothing is known, and the number of all.
    async fn orphans(&self, session: &Session) -> Result<(Vec<Orphan>, usize), ZkError> {
        let paths = self.ask(session, LIMIT, || session.client.list_ephemerals()).await?;
        let orphans = paths.iter().filter_map(|path| {
            let (parent, child) = path.rsplit_once('/')?;
            let id = Member::read(child)?.id()?;
            let known = self.table.find(id).is_some_and(|record| !record.place().disowns(child));
            let (parent, child) = (parent.to_owned(), child.to_owned());
            (!known).then_some(Orphan { parent, child, id })
        });
        Ok((orphans.collect(), paths.len()))
    }

    /// Sees to it that a node goes which belongs to no ticket.
    async fn remove_orphan(self: &Arc<Self>, session: &Arc<Session>, orphan: Orphan) {
        let Orphan { parent, child, id } = orphan;
        let path = format!("{parent}/{child}");
        if let Some(record) = self.table.find(id) {
            if record.place().disowns(&child)
                && let Err(error) = self.remove_double(&record, &path, LIMIT).await
            {
                tracing::debug!(%error, path, "a second node is still there");
            }
            return;
        }
        let Some(line) = path::name(&self.address.root, &parent) else { return };
        let record = Arc::new(TicketRecord::orphan(id, &line, parent, Arc::clone(session)));
        if !self.table.insert(&record) {
            return; // it is asked for just now
        }
        tracing::warn!(path, "a node of ours that belongs to no ticket is removed");
        BACKGROUND.spawn(engine::sweep(Arc::downgrade(self), record));
    }
}

/// Looks for nodes of a session of which nothing is known, and removes them.
pub(super) async fn look(shared: Weak<Shared>, session: Arc<Session>) {
    let Some(shared) = shared.upgrade() else { return };
    let work = async {
        let (suspects, nodes) = shared.orphans(&session).await?;
        if suspects.is_empty() {
            return Ok(nodes);
        }
        clock::pause(AGAIN).await;
        let (orphans, nodes) = shared.orphans(&session).await?;
        for orphan in orphans.into_iter().filter(|orphan| suspects.contains(orphan)) {
            shared.remove_orphan(&session, orphan).await;
        }
        Ok(nodes)
    };
    match work.await {
        Ok(nodes) => shared.looks.done(nodes),
        // Servers before 3.6: what they keep for us goes with the session.
        Err(ZkError::Unimplemented) => {}
        Err(error) => {
            tracing::debug!(%error, "could not look for nodes without a ticket");
            shared.looks.done(0);
        }
    }
}
