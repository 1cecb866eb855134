//! The keys ahead of a ticket, without walking the line.
//!
//! Light tickets (of weight 1 in lines of a larger capacity: readers, single permits) have keys in
//! a range of their own, which can be counted. So a look at a line reads the newest few keys of
//! that range and of those on either side of it, and a count. `view.rs` says what follows from
//! that. The whole line is read only if these do not suffice.

use super::acquire::{Attempt, Entered};
use super::answer::Found;
use super::layout::{self, Member};
use super::shared::Shared;
use crate::error::Result;
use crate::store::Ticket;
use crate::stores::ephemeral::backend::Request;
use crate::stores::ephemeral::view::Look;
use holdline_etcd_client::proto::{Range, RequestOp, Txn};
use std::sync::Arc;

/// How many of the newest heavy keys are read.
const HEAVY: i64 = 16;
/// How many keys are read in a line of capacity 1, and of light keys at least: one more than are
/// needed, to see whether those are all.
const LOOK: i64 = 5;
/// The most light keys that are read; if there are more, only the count is requested.
const LIGHT: u32 = 1024;

/// The ranges to read for keys created before that revision (0: all).
pub(super) fn ranges(prefix: &[u8], ticket: &Ticket, before: i64) -> Vec<Range> {
    if ticket.capacity == 1 {
        return vec![layout::newest(prefix, before, LOOK)];
    }
    let (light, light_end) = (layout::light(prefix), layout::light_end(prefix));
    let before_light = Range { range_end: light.clone(), ..layout::newest(prefix, before, HEAVY) };
    // Only other clients have names that sort there.
    let after_light = Range { key: light_end.clone(), ..layout::newest(prefix, before, HEAVY) };
    // Fewer than these cannot block it; if they are too many, others must.
    let needed = ticket.capacity - ticket.weight + 1;
    let limit = if needed > LIGHT { 1 } else { i64::from(needed).max(LOOK) };
    let light = Range { range_end: light_end, ..layout::newest(&light, before, limit) };
    vec![before_light, light, after_light]
}

/// The requests for the ticket's own key, and for those in these ranges.
pub(super) fn looks(own: Range, asked: &[Range]) -> Vec<RequestOp> {
    [own].into_iter().chain(asked.iter().cloned()).map(layout::look).collect()
}

/// Parses the result of [`ranges`], in a line whose places all agree with the ticket's capacity.
pub(super) fn read(
    request: &Request<'_>,
    prefix: &[u8],
    asked: &[Range],
    found: &Found,
) -> Result<Look<Vec<u8>>> {
    let mut all = Vec::new();
    let (mut complete, mut most) = (true, Some(0));
    // If nothing was found, the line is empty.
    for (at, (asked, found)) in asked.iter().zip(&found.ranges).enumerate() {
        let these = layout::members(prefix, &found.kvs);
        let is_all = i64::try_from(found.kvs.len()).is_ok_and(|count| count < asked.limit);
        complete &= is_all;
        let weights = these.iter().map(|member| u64::from(member.weight(request.ticket.capacity)));
        let weight = if is_all {
            Some(weights.sum())
        } else if at == 1 {
            u64::try_from(found.count).ok() // of weight 1 each, some of them behind us
        } else {
            None
        };
        most = most.zip(weight).map(|(most, weight)| most + weight);
        all.extend(these);
    }
    request.check_capacity(all.iter().filter_map(Member::capacity))?;
    Ok(look(request.ticket, found.revision, all, (complete, most)))
}

/// The look at the places ahead of a ticket that these results give.
fn look(
    ticket: &Ticket,
    revision: i64,
    mut members: Vec<Member>,
    (complete, most): (bool, Option<u64>),
) -> Look<Vec<u8>> {
    members.sort_by_key(|member| std::cmp::Reverse(member.create));
    let share = |member: Member| {
        let weight = member.weight(ticket.capacity);
        (member.key, weight)
    };
    let ahead = members.into_iter().map(share).collect();
    Look { revision, ahead, complete, most }
}

impl Shared {
    /// Reads the whole line, or the part of it created before that revision.
    async fn whole(
        &self,
        request: &Request<'_>,
        prefix: &[u8],
        before: i64,
    ) -> Result<Look<Vec<u8>>> {
        let (revision, answer) = self.range(&layout::all(prefix), request.limit).await?;
        let mut members = layout::members(prefix, &answer.kvs);
        members.retain(|member| member.create < before);
        Ok(look(request.ticket, revision, members, (true, None)))
    }

    /// Whether a ticket without a place would be admitted at once.
    pub(super) async fn has_room(
        self: &Arc<Self>,
        request: &Request<'_>,
        prefix: &[u8],
        asked: &[Range],
        found: &Found,
    ) -> Result<bool> {
        let Ticket { id, weight, capacity, .. } = *request.ticket;
        let look = read(request, prefix, asked, found).inspect_err(|_| {
            if let Some(record) = self.table.find(id) {
                self.drop_unwritten(&record, false);
            }
        })?;
        if let Some(admits) = look.admits(weight, capacity) {
            return Ok(admits);
        }
        let whole = self.whole(request, prefix, i64::MAX).await?;
        Ok(whole.admits(weight, capacity) == Some(true))
    }
}

impl Attempt<'_> {
    /// Applies the keys ahead of a key that was just written.
    pub(super) async fn take(&self, asked: &[Range], found: &Found) -> Result<Entered> {
        let Attempt { store, request, record, missed } = *self;
        let (prefix, capacity) = (&record.base.prefix, record.capacity);
        let look = match read(request, prefix, asked, found) {
            Ok(look) => look,
            Err(error) => {
                self.take_back().await?;
                return Err(error);
            }
        };
        if !record.with(|place| place.see(look, capacity, missed)) {
            let (_, create) = record.key();
            let whole = store.whole(request, prefix, create).await?;
            record.with(|place| place.see(whole, capacity, missed));
        }
        Ok(Entered::There)
    }

    /// Reads the keys ahead of an existing key, and whether it exists.
    pub(super) async fn look_ahead(&self) -> Result<Entered> {
        let (key, create) = self.record.key();
        let asked = ranges(&self.record.base.prefix, self.request.ticket, create);
        let txn = Txn { success: looks(layout::one(&key), &asked), ..Txn::default() };
        let found = self.store.txn(&txn, self.request.limit).await?;
        self.compare(&asked, found).await
    }

    /// Applies the answer to a request for the own key and those ahead.
    pub(super) async fn compare(&self, asked: &[Range], mut found: Found) -> Result<Entered> {
        let (_, create) = self.record.key();
        if found.first().is_none_or(|own| own.create_revision != create) {
            self.record.lose(&self.store.table.loss);
            return Ok(Entered::There);
        }
        self.take(asked, &found).await
    }
}
