//! Entering: creates a node and lists the line, at once; or only the node, where its number tells
//! that nobody else is in the line.
//!
//! The client sends requests in order, without waiting for replies, and the server carries out a
//! session's requests in that order: a list requested right after the creation of a node includes
//! that node.

use super::errors::{self, ZkError};
use super::layout::{self, Member};
use super::path;
use super::shared::Shared;
use super::ticket_record::{Base, Doubt, NodeEntry, Record, TicketRecord};
use super::uncontended::Plan;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Enter, Standing};
use crate::stores::ephemeral::backend::{self, Acquire, Joined, Request};
use futures_util::future::OptionFuture;
use holdline_zookeeper_client::Mode;
use std::sync::Arc;

/// The number of attempts if other clients come in between or the connection breaks.
const TRIES: usize = 5;

pub(super) type Attempt<'a> = backend::Attempt<'a, Shared>;

impl Acquire<NodeEntry> for Shared {
    async fn join(self: &Arc<Self>, request: &Request<'_>) -> Result<Joined<NodeEntry>> {
        let mut tries = 0;
        loop {
            tries += 1;
            let Some(record) = self.record(request).await? else {
                // Its earlier requests are being undone: it needs a new ticket.
                return Ok(Joined::Not(Standing::Lost));
            };
            let attempt = Attempt::new(self, request, &record);
            let joined = match request.how {
                Enter::Try => attempt.try_now().await,
                Enter::Queue | Enter::Keep(_) => attempt.queue().await.map(|()| true),
            };
            match joined {
                Ok(true) => return Ok(Joined::There(record)),
                Ok(false) => return Ok(Joined::Not(request.waiting(None))),
                Err(error) => {
                    let retired = record.place().retire();
                    if retired {
                        self.table.forget(&record);
                    }
                    if !record.base.session.is_lost() || tries >= TRIES {
                        return Err(error);
                    } // else on to a new session
                }
            }
        }
    }
}

impl Shared {
    /// The record of a ticket that has no place yet. `None` if the ticket was given up: a node may
    /// have been created for it, or may yet be, and is removed by its id. So a new request with the
    /// same id would create a second node, or lose its only one.
    async fn record(self: &Arc<Self>, request: &Request<'_>) -> Result<Option<Record>> {
        let Request { ticket, began, .. } = *request;
        let due = began.after(ticket.wait_lease.max(ticket.lease));
        let known = self.table.find(ticket.id);
        if known.is_some() || self.table.lapsed.contains(ticket.id) {
            self.table.entered.remove(ticket.id); // its node may be there, or come yet
        }
        if let Some(record) = known {
            let wanted = !record.base.session.is_lost() && record.place().want(due);
            return Ok(wanted.then_some(record));
        }
        if self.table.lapsed.contains(ticket.id) {
            return Ok(None);
        }
        let over = began.after(request.limit);
        let session = self.session(request.limit).await?;
        self.check_lease(&session, ticket.lease)?;
        let permit = Arc::clone(&self.table.entering).acquire_owned();
        let Some(Ok(permit)) = clock::within(over, permit).await else {
            return Err(errors::busy(&self.address));
        };
        let parent = path::of(&self.address.root, request.line);
        let record = TicketRecord::of(request.line, parent, ticket, request.note, session, due);
        record.place().permit = Some(permit);
        let record = Arc::new(record);
        // Its record may be forgotten while its node is in transit.
        self.table.entered.remove(ticket.id);
        self.table.insert(&record);
        Ok(Some(record))
    }
}

impl Attempt<'_> {
    /// Creates the node and lists the line, in one round trip.
    async fn queue(&self) -> Result<()> {
        let Attempt { store, request, record, .. } = *self;
        let over = clock::now().after(request.limit);
        for _ in 0..TRIES {
            let doubtful = record.place().doubtful;
            if doubtful && store.find_own(record, request.limit).await? {
                return self.look_ahead().await;
            }
            match clock::within(over, self.create()).await {
                None => return Err(store.error(ZkError::Timeout)),
                Some(Ok((member, children))) => {
                    self.check_number(&member).await?;
                    if children.contains(&member.child) {
                        return self.take(&children).await;
                    }
                    return self.look_ahead().await;
                }
                Some(Err(ZkError::NoNode)) => self.make_parents().await?,
                // Whether it was created is found out once the client has another connection.
                Some(Err(error)) if errors::is_cut(&error) => {}
                Some(Err(error)) => return Err(store.failure(&record.base.session, error)),
            }
        }
        Err(store.error(ZkError::ConnectionLoss))
    }

    /// Creates the node and lists the line, together. The list is left out where the number tells.
    /// Without children, the line must be looked at.
    async fn create(&self) -> Result<(Member, Vec<String>), ZkError> {
        let Attempt { store, request, record, .. } = *self;
        let Base { session, parent } = &record.base;
        let (client, line) = (&session.client, (parent.as_str(), session.id));
        let stem = record.stem(store.address.dialect, request.ticket);
        let data = layout::data(request.ticket, None, request.note);
        let doubt = Doubt::new(record);
        let plan = store.uncontended.plan(line);
        let watched = (plan == Plan::Watch).then(|| client.watch_connected(parent));
        let made = client.create(&stem, &data, Mode::EphemeralSequential, store.acl());
        let listed = (!matches!(plan, Plan::After(_))).then(|| client.list_children(parent));
        let (watched, listed) = (OptionFuture::from(watched), OptionFuture::from(listed));
        let (watched, made, listed) = futures_util::future::join3(watched, made, listed).await;
        let (path, stat) = match made {
            Ok(made) => made,
            Err(error) => {
                if !errors::is_cut(&error) {
                    doubt.settle(); // refused, so it was not made
                }
                return Err(error);
            }
        };
        let child = path.strip_prefix(&stem).and_then(|_| path.rsplit('/').next());
        let member = child.and_then(Member::read).ok_or(ZkError::Garbled)?;
        record.born(&member, stat.czxid);
        doubt.settle();
        let children = match (plan, listed) {
            (Plan::After(last), _) if store.uncontended.is_first(line, last, &member) => {
                vec![member.child.clone()]
            }
            // A missing list is no reason to create another node.
            (_, listed) => listed.and_then(Result::ok).unwrap_or_default(),
        };
        let only = children == [member.child.as_str()];
        store.uncontended.created(line, &member, only, watched.and_then(Result::ok));
        Ok((member, children))
    }

    /// Checks whether the numbers of a line are used up.
    async fn check_number(&self, member: &Member) -> Result<()> {
        if member.is_exhausted() {
            self.take_back().await?;
            return Err(self.exhausted());
        }
        if member.warns() {
            tracing::warn!(
                name = %self.record.line, number = member.seq,
                "the sequence numbers of a lock will soon be used up: delete its empty node"
            );
        }
        Ok(())
    }

    pub(super) fn exhausted(&self) -> Error {
        let (parent, address) = (&self.record.base.parent, &self.store.address);
        let message = format!(
            "the sequence numbers of the node {parent} in {address} are used up, and with them the \
             order of those who wait; delete the node when nobody stands there"
        );
        Error::new(ErrorKind::Corrupt, message)
    }

    /// Creates the node for a line, as a container: the servers remove it some time after it is
    /// empty.
    async fn make_parents(&self) -> Result<()> {
        let Attempt { store, request, record, .. } = *self;
        let (client, root) = (&record.base.session.client, &store.address.root);
        let work = async {
            if !root.is_empty() {
                client.mkdir(root, Mode::Persistent, store.acl()).await?;
            }
            client.mkdir(&record.base.parent, Mode::Container, store.acl()).await
        };
        match clock::timeout(request.limit, work).await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if errors::is_cut(&error) => Ok(()), // the next try tells
            Some(Err(error)) => Err(store.failure(&record.base.session, error)),
            None => Err(store.error(ZkError::Timeout)),
        }
    }

    /// Enters at once or not at all. Lists the line first, so that nothing is written unless the
    /// ticket would be admitted; if another ticket comes in between, deletes the node again. So it
    /// does with a node that an earlier request has created behind others.
    async fn try_now(&self) -> Result<bool> {
        let Attempt { store, request, record, .. } = *self;
        let doubtful = record.place().doubtful;
        if doubtful && store.find_own(record, request.limit).await? {
            self.look_ahead().await?;
        } else {
            let free = self.has_room().await;
            if !matches!(free, Ok(true)) {
                store.table.forget(record);
                return free;
            }
            self.queue().await?;
        }
        let admitted = record.place().entry.blockers.is_empty();
        if !admitted {
            self.take_back().await?;
        }
        Ok(admitted)
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::tests::opened;
    use super::*;
    use crate::names::Name;
    use crate::store::{Ticket, TicketId};
    use crate::stores::ephemeral::backend::Backend;
    use crate::stores::ephemeral::engine;
    use crate::stores::ephemeral::ticket::tests::ticket;
    use holdline_testkit::{free_port, soon, until};
    use std::time::Duration;

    /// A ticket with a lease that a session of 15 s can keep.
    fn short(id: u128) -> Ticket {
        let lease = Duration::from_secs(5);
        Ticket { id: TicketId(id), lease, wait_lease: lease, ..ticket(1, 1) }
    }

    /// An error would be retried with the same ticket, for ever.
    #[tokio::test]
    async fn a_ticket_that_was_given_up_is_lost_to_every_request() {
        let shared = opened(&format!("zookeeper://127.0.0.1:{}", free_port()));
        let (line, ticket, note) = (Name::new("x").expect("good"), short(5), Arc::from(""));
        shared.table.lapsed.insert(ticket.id);
        for how in [Enter::Try, Enter::Queue] {
            let entered = engine::enter(&shared, (&line, &ticket), &note, how).await;
            assert_eq!(entered.expect("it is known here"), Standing::Lost, "{how:?}");
        }
    }

    /// G15: nor does one that is sent once more, after an answer that was lost.
    #[tokio::test]
    async fn a_repeated_try_writes_nothing_while_others_hold() {
        let Some(servers) = holdline_testkit::zookeeper::start(1) else { return };
        let [holder, shared] = [0, 1].map(|_| opened(&servers.url()));
        let (line, note) = (Name::new("x").expect("good"), Arc::from(""));
        let (held, tried) = (short(1), short(2));
        let enter = || engine::enter(&holder, (&line, &held), &note, Enter::Queue);
        until("the lock", async || soon("an answer", enter()).await.is_ok()).await;
        let began = clock::now();
        let limit = <Shared as Backend>::limit(tried.lease) * 10;
        let request =
            Request { line: &line, ticket: &tried, note: &note, how: Enter::Try, began, limit };
        let record = soon("a session", shared.record(&request)).await.expect("it is there");
        let record = record.expect("it is new");
        record.place().doubtful = true;
        let changed = async || {
            let stat = soon("an answer", record.base.session.client.check_stat("/x")).await;
            stat.expect("works").expect("it is there").pzxid
        };
        let before = changed().await;
        let again = engine::enter(&shared, (&line, &tried), &note, Enter::Try);
        let standing = soon("an answer", again).await.expect("works");
        assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
        assert_eq!(changed().await, before, "a node was created, and removed again");
    }
}
