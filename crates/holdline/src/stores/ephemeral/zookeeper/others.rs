//! Other clients' recipes that use a line's node in their own ways. They would not see our places,
//! so a lock there could be held twice. It is refused, and its holder is warned if such clients
//! come later.

use super::acquire::Attempt;
use super::errors::{ZkError, if_there};
use super::layout::{self, Member, NodeData};
use super::shared::Shared;
use super::ticket_record::{Base, Place, Record, TicketRecord};
use crate::error::{Error, ErrorKind, Result};
use holdline_zookeeper_client::Session;
use std::sync::Weak;
use std::time::Duration;

const CURATOR: &str =
    "a semaphore of Curator (InterProcessSemaphoreV2, InterProcessSemaphoreMutex)";
const KAZOO: &str = "a semaphore of kazoo";

/// The time limit of one check.
const LIMIT: Duration = Duration::from_secs(2);

/// Whether this is a node name of kazoo's semaphores.
fn is_bare(child: &str) -> bool {
    child.len() == 32 && child.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Shared {
    /// The other recipe that uses a line's node, if any. Asks the servers only if a child looks
    /// like one.
    async fn recipe(
        &self,
        session: &Session,
        parent: &str,
        children: &[String],
        time: Duration,
    ) -> Result<Option<&'static str>, ZkError> {
        let client = &session.client;
        let list = async |child: &str| {
            let path = format!("{parent}/{child}");
            if_there(self.ask(session, time, || client.list_children(&path)).await)
        };
        let data = async |path: &str| {
            let data = if_there(self.ask(session, time, || client.get_data(path)).await)?;
            Ok::<_, ZkError>(data.map(|(data, _)| data))
        };
        let has = |name: &str| children.iter().any(|child| child == name);
        // An acquisition has a place in `locks` until its lease exists, so `locks` is listed first.
        // A lock of ours may have either name, too: the data, or the children's names, tell.
        if has("locks")
            && let Some(locks) = list("locks").await?
            && let Some(first) = layout::members(&locks).pop()
            && let Some(data) = data(&format!("{parent}/locks/{}", first.child)).await?
            && NodeData::read(&data).capacity.is_none()
        {
            return Ok(Some(CURATOR));
        }
        if has("leases")
            && let Some(leases) = list("leases").await?
            && leases.iter().any(|lease| lease.contains("-lease-"))
        {
            return Ok(Some(CURATOR));
        }
        // Its limit is in the data of the node itself.
        if children.iter().any(|child| is_bare(child))
            && let Some(data) = data(parent).await?
            && !data.is_empty()
            && data.iter().all(u8::is_ascii_digit)
        {
            return Ok(Some(KAZOO));
        }
        Ok(None)
    }

    /// A member of the line that would not see us, if there is one and we may not wait for it.
    pub(super) fn blind<'a>(&self, members: &'a [Member]) -> Option<&'a Member> {
        let dialect = self.address.dialect;
        let blind = members.iter().find(|member| !dialect.is_seen_by(member.family));
        blind.filter(|_| !self.address.mixed)
    }

    /// Looks for clients that have come to a held lock and would not see it.
    async fn visit(&self, record: &TicketRecord) -> Result<(), ZkError> {
        let (session, parent) = (&record.base.session, &record.base.parent);
        let children = self.ask(session, LIMIT, || session.client.list_children(parent)).await?;
        let members = layout::members(&children);
        let (child, recipe) = match self.blind(&members) {
            Some(member) => (member.child.as_str(), member.family.name()),
            None => match self.recipe(session, parent, &children, LIMIT).await? {
                Some(recipe) => ("", recipe),
                None => return Ok(()),
            },
        };
        if record.with(Place::warns) {
            let token = record.place().token().0;
            tracing::warn!(
                name = %record.line, token, child, recipe,
                "a client has come that does not see this lock: two may hold it"
            );
        }
        Ok(())
    }
}

impl Attempt<'_> {
    /// Refuses a line whose node another recipe uses.
    pub(super) async fn check_recipes(&self, children: &[String]) -> Result<()> {
        let Attempt { store, request, record, .. } = *self;
        let Base { session, parent } = &record.base;
        let found = store.recipe(session, parent, children, request.limit).await;
        let Some(recipe) = found.map_err(|error| store.error(error))? else { return Ok(()) };
        let message = format!(
            "lock \"{}\" is refused: its node {parent} in {} is used by {recipe}, which would not \
             see us, so both would hold; use another name",
            record.line, store.address
        );
        Err(Error::new(ErrorKind::Mismatch, message))
    }
}

/// Checks whether clients that would not see a held lock have come.
pub(super) async fn check(shared: Weak<Shared>, record: Record) {
    let Some(shared) = shared.upgrade() else { return };
    if let Ok(_turn) = shared.cleanup.checks.try_acquire()
        && let Err(error) = shared.visit(&record).await
    {
        tracing::debug!(%error, name = %record.line, "could not look who has come");
    }
}
