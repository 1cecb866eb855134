//! The keys ahead of a ticket, without walking the line.
//!
//! Tickets of weight 1 in lines of a larger capacity (readers, single permits) have keys in a range
//! of their own, behind all others, which can be counted. So a look at a line is a look at the
//! newest few of either range, and a count. From those, nearest first, a ticket takes as many as
//! are needed to keep it out: as long as all of these stay, it need not look again, and when one
//! goes it does. Only if the few do not tell is the whole line read.
//!
//! In a line of capacity 1 a ticket takes a few more of the nearest than that, so that it is let in
//! by the news of a deletion alone. That is proof: the keys that were created before its own are a
//! set that can only lose members, because etcd gives every new key a higher create revision. If it
//! has seen all of them (at a revision at or after its own creation), and has been told of a
//! deletion of each, nobody is ahead, whatever else happened. Its own key is watched on the same
//! stream, and its lease is checked as ever. Where more are ahead than it takes, it looks again
//! when most of those that it took are gone: while others still hold, so that nobody waits for it.

use super::acquire::{Attempt, Entered};
use super::answer::Found;
use super::layout::{self, Member};
use super::shared::Shared;
use super::ticket_record::TicketRecord;
use crate::error::Result;
use crate::store::Ticket;
use crate::stores::ephemeral::backend::Request;
use holdline_etcd_client::proto::{Range, RangeAnswer, RequestOp, Txn};
use holdline_kernel::rule;
use std::collections::HashMap;

/// The number of the newest keys that are looked at, of those that are not light.
const HEAVY: i64 = 16;
/// The number of the nearest keys that are watched in a line of capacity 1; the number that is
/// looked at, to see whether those are all; and the number that is left when it is time to look
/// again.
const NEAREST: usize = 4;
const LOOK: i64 = 5;
pub(super) const SOON: usize = 2;
/// The number of light keys that are looked at, at most: of more only the count is asked for.
const LIGHT: u32 = 1024;

/// What a look at a line shows.
pub(super) struct Predecessors {
    revision: i64,
    /// Newest first.
    members: Vec<Member>,
    /// Whether those are all.
    complete: bool,
    /// The most that they can weigh, if that is known.
    most: Option<u64>,
}

/// The ranges to look at for keys that were created before that revision (0: all).
pub(super) fn ranges(prefix: &[u8], ticket: &Ticket, before: i64) -> Vec<Range> {
    if ticket.capacity == 1 {
        return vec![layout::newest(prefix, before, LOOK)];
    }
    let light = layout::light(prefix);
    let heavy = Range { range_end: light.clone(), ..layout::newest(prefix, before, HEAVY) };
    // With fewer than these none could keep it out; if they are too many, others must.
    let needed = ticket.capacity - ticket.weight + 1;
    let limit = if needed > LIGHT { 1 } else { i64::from(needed) };
    let light = Range { range_end: layout::end(prefix), ..layout::newest(&light, before, limit) };
    vec![heavy, light]
}

/// The questions for the ticket's own key, and for those in these ranges.
pub(super) fn looks(own: &[u8], asked: &[Range]) -> Vec<RequestOp> {
    [layout::one(own)].into_iter().chain(asked.iter().cloned()).map(layout::look).collect()
}

impl Predecessors {
    /// Takes in what [`ranges`] found.
    pub(super) fn new(
        prefix: &[u8],
        ticket: &Ticket,
        asked: &[Range],
        revision: i64,
        found: &[RangeAnswer],
    ) -> Self {
        let mut members = Vec::new();
        let (mut complete, mut most) = (true, Some(0));
        // With nothing found, the line is empty.
        for (at, (asked, found)) in asked.iter().zip(found).enumerate() {
            let these = layout::members(prefix, &found.kvs);
            let all = i64::try_from(found.kvs.len()).is_ok_and(|count| count < asked.limit);
            complete &= all;
            let weight = if all {
                Some(weigh(&these, ticket.capacity))
            } else if at == 1 {
                u64::try_from(found.count).ok() // of weight 1 each, some of them behind us
            } else {
                None
            };
            most = most.zip(weight).map(|(most, weight)| most + weight);
            members.extend(these);
        }
        members.sort_by_key(|member| std::cmp::Reverse(member.create));
        Predecessors { revision, members, complete, most }
    }

    /// Takes in a whole line, as far as it is ahead. Oldest first.
    fn whole(capacity: u32, revision: i64, mut members: Vec<Member>) -> Self {
        members.reverse();
        let most = Some(weigh(&members, capacity));
        Predecessors { revision, members, complete: true, most }
    }

    /// Notes in the record which keys keep the ticket out, or that none does. `false` if that is
    /// not clear.
    fn tell(self, record: &TicketRecord) -> bool {
        let mut place = record.place();
        let fits = |ahead| rule::fits(ahead, place.weight, record.capacity);
        let (count, mut weight) = (self.members.len(), 0);
        let mut ahead = HashMap::new();
        for member in self.members {
            let part = member.weight(record.capacity);
            weight += u64::from(part);
            ahead.insert(member.key, part);
            if !fits(weight) && (record.capacity > 1 || ahead.len() >= NEAREST) {
                break;
            }
        }
        let (kept_out, none) = (!fits(weight), self.most.is_some_and(fits));
        if kept_out || self.complete {
            let all = self.complete && ahead.len() == count;
            place.see(self.revision, ahead, all);
            true
        } else if none {
            place.see(self.revision, HashMap::new(), true);
            true
        } else {
            false
        }
    }
}

fn weigh(members: &[Member], capacity: u32) -> u64 {
    members.iter().map(|member| u64::from(member.weight(capacity))).sum()
}

impl Shared {
    /// Whether a ticket that is not there would be admitted at once.
    pub(super) async fn has_room(
        &self,
        request: &Request<'_>,
        prefix: &[u8],
        ahead: Predecessors,
    ) -> Result<bool> {
        let ticket = request.ticket;
        if let Err(error) =
            request.check_capacity(ahead.members.iter().filter_map(Member::capacity))
        {
            if let Some(record) = self.table.find(ticket.id) {
                self.drop_unwritten(&record);
            }
            return Err(error);
        }
        let room = u64::from(ticket.capacity - ticket.weight);
        let seen = weigh(&ahead.members, ticket.capacity);
        if ahead.complete || seen > room || ahead.most.is_some_and(|most| most <= room) {
            return Ok(seen <= room);
        }
        let (_, answer) = self.range(&layout::all(prefix), request.limit).await?;
        Ok(weigh(&layout::members(prefix, &answer.kvs), ticket.capacity) <= room)
    }
}

impl Attempt<'_> {
    /// Takes in the keys ahead of one that is written.
    pub(super) async fn take(&self, asked: &[Range], found: &Found) -> Result<Entered> {
        let Attempt { store, request, record } = *self;
        let prefix = &record.base.prefix;
        let ahead = Predecessors::new(prefix, request.ticket, asked, found.revision, &found.ranges);
        if let Err(error) =
            request.check_capacity(ahead.members.iter().filter_map(Member::capacity))
        {
            self.take_back().await?;
            return Err(error);
        }
        if !ahead.tell(record) {
            let (revision, answer) = store.range(&layout::all(prefix), request.limit).await?;
            let (_, create) = record.key();
            let mut members = layout::members(prefix, &answer.kvs);
            members.retain(|member| member.create < create);
            Predecessors::whole(record.capacity, revision, members).tell(record);
        }
        Ok(Entered::There)
    }

    /// Asks for the keys ahead of one that is there, and whether it is.
    pub(super) async fn look_ahead(&self) -> Result<Entered> {
        let (key, create) = self.record.key();
        let asked = ranges(&self.record.base.prefix, self.request.ticket, create);
        let txn = Txn { success: looks(&key, &asked), ..Txn::default() };
        let found = self.store.txn(&txn, self.request.limit).await?;
        self.compare(&asked, found).await
    }

    /// Takes in the answer to a question for the own key, and for those ahead.
    pub(super) async fn compare(&self, asked: &[Range], mut found: Found) -> Result<Entered> {
        let (_, create) = self.record.key();
        if found.first().is_none_or(|own| own.create_revision != create) {
            self.record.lose(&self.store.table.loss);
            return Ok(Entered::There);
        }
        self.take(asked, &found).await
    }
}
