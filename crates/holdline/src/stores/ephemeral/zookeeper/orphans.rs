//! Orphans: nodes of our session that belong to none of our tickets.
//!
//! There should be none: a node is created for a ticket with a record, and the record is kept until
//! the servers have confirmed that the node is gone. But a garbled reply, or a bug, could leave a
//! node behind that blocks all others for as long as this process lives. So the servers are asked
//! from time to time which nodes our session has, with one request to one server, whatever the
//! number of lines. A node found twice without a record is removed.

use super::errors::ZkError;
use super::layout::Member;
use super::path;
use super::shared::{BACKGROUND, Shared};
use super::ticket_record::TicketRecord;
use crate::clock;
use crate::store::TicketId;
use crate::stores::ephemeral::engine;
use crate::sync::Mutex;
use futures_util::FutureExt;
use holdline_kernel::Time;
use holdline_zookeeper_client::Session;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time limit of one check.
const LIMIT: Duration = Duration::from_secs(2);
/// The delay before nodes that seem to have no record are checked again: our server may have been
/// behind, and have shown a node that we had just removed.
const AGAIN: Duration = Duration::from_millis(500);

/// The interval of checks for orphans; longer if there are so many nodes that a check takes longer.
const LOOK: Duration = Duration::from_secs(10);
const LOOK_EACH: Duration = Duration::from_millis(2);

/// When to check the session for orphans next.
#[derive(Debug, Default)]
pub(super) struct Looks(Mutex<Next>);

#[derive(Debug, Default)]
enum Next {
    /// When a session begins, or the present check is done.
    #[default]
    Unplanned,
    At(Time),
    /// The servers do not support it.
    Never,
}

impl Looks {
    /// Records that a session has begun.
    pub(super) fn begin(&self) {
        self.done(0);
    }

    /// Whether a check is due now. None is due again until this one is done.
    pub(super) fn is_due(&self, now: Time) -> bool {
        let mut next = self.0.lock();
        let is_due = matches!(*next, Next::At(due) if due <= now);
        if is_due {
            *next = Next::Unplanned;
        }
        is_due
    }

    /// Records that a check is done, and how many nodes the session has.
    fn done(&self, nodes: usize) {
        let pause = LOOK.max(LOOK_EACH * u32::try_from(nodes).unwrap_or(u32::MAX));
        let mut next = self.0.lock();
        if !matches!(*next, Next::Never) {
            *next = Next::At(clock::now().after(pause));
        }
    }

    /// Records that the servers do not support such checks.
    fn stop(&self) {
        *self.0.lock() = Next::Never;
    }
}

/// A node without a record.
#[derive(PartialEq, Eq)]
struct Orphan {
    parent: String,
    child: String,
    id: TicketId,
}

impl Shared {
    /// The orphans of a session, and the number of all its nodes.
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

    /// Removes a node that belongs to no ticket.
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
        BACKGROUND.spawn(engine::sweep(Arc::downgrade(self), record));
        tracing::warn!(path, "a node of ours that belongs to no ticket is removed");
    }
}

/// Checks a session for orphans, and removes them.
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
    // It may panic, say in a subscriber.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(nodes)) => shared.looks.done(nodes),
        // Servers before 3.6, which close the connection with that: they are not asked again, and
        // our nodes there go with the session.
        Ok(Err(ZkError::Unimplemented)) => shared.looks.stop(),
        failed => {
            shared.looks.done(0);
            if let Ok(Err(error)) = failed {
                tracing::debug!(%error, "could not look for nodes without a ticket");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::tests::opened;
    use super::*;
    use crate::names::Name;
    use crate::store::{Enter, Ticket};
    use crate::stores::ephemeral::ticket::tests::ticket;
    use holdline_testkit::{soon, until};
    use holdline_zookeeper_client::Mode;

    /// A node without a ticket, and a second one of a ticket; not the ticket's own.
    #[tokio::test]
    async fn nodes_that_no_ticket_owns_are_removed_and_no_others() {
        let Some(servers) = holdline_testkit::zookeeper::start(1) else { return };
        let shared = opened(&servers.url());
        let (line, ticket, note) = (Name::new("x").expect("good"), ticket(1, 1), Arc::from(""));
        let ticket = Ticket { lease: Duration::from_secs(5), ..ticket };
        let enter = || engine::enter(&shared, (&line, &ticket), &note, Enter::Queue);
        until("a place", async || soon("an answer", enter()).await.is_ok()).await;
        let record = shared.table.find(ticket.id).expect("it is known");
        let session = Arc::clone(&record.base.session);
        let own = record.own().expect("a node");
        let (mode, acl) = (Mode::EphemeralSequential, shared.acl());
        let second = record.stem(shared.address.dialect, &ticket);
        let nobodys = record.stem(shared.address.dialect, &Ticket { id: TicketId(9), ..ticket });
        let mut strays = Vec::new();
        for stem in [second, nobodys] {
            let create = || session.client.create(&stem, &[], mode, acl);
            strays.push(soon("a node", create()).await.expect("works").0);
        }
        let is_there = async |path: &str| {
            let stat = soon("an answer", session.client.check_stat(path)).await;
            stat.expect("works").is_some()
        };
        until("removed", async || {
            look(Arc::downgrade(&shared), Arc::clone(&session)).await;
            !is_there(&strays[0]).await && !is_there(&strays[1]).await
        })
        .await;
        // As if the list were older than the ticket's last move.
        let child = record.place().entry.child.clone();
        let parent = record.base.parent.clone();
        shared.remove_orphan(&session, Orphan { parent, child, id: ticket.id }).await;
        assert!(is_there(&own).await);
    }

    #[test]
    fn servers_that_do_not_know_the_request_are_asked_once() {
        let (looks, later) = (Looks::default(), clock::now().after(LOOK * 2));
        assert!(!looks.is_due(later), "there is no session");
        looks.begin();
        assert!(looks.is_due(later) && !looks.is_due(later), "one at a time");
        looks.done(0);
        assert!(looks.is_due(later));
        looks.stop();
        looks.begin();
        assert!(!looks.is_due(later), "not on another session either");
    }
}
