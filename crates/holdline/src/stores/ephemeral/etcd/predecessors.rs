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

use super::acquire::Entered;
use super::answer::Found;
use super::layout::{self, Member};
use super::shared::Shared;
use super::ticket_record::TicketRecord;
use crate::error::Result;
use crate::store::Refusal;
use crate::stores::ephemeral::backend::Request;
use crate::stores::ephemeral::engine;
use holdline_etcd_client::proto::{Op, Range, RangeAnswer, Txn};
use holdline_kernel::rule;
use std::collections::HashMap;
use std::sync::Arc;

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
pub(super) fn ranges(prefix: &[u8], capacity: u32, weight: u32, before: i64) -> Vec<Range> {
    if capacity == 1 {
        return vec![layout::newest(prefix, before, LOOK)];
    }
    let light = layout::light(prefix);
    let heavy = Range { range_end: light.clone(), ..layout::newest(prefix, before, HEAVY) };
    // With fewer than these none could keep it out; if they are too many, others must.
    let needed = capacity - weight + 1;
    let limit = if needed > LIGHT { 1 } else { i64::from(needed) };
    let light = Range { range_end: layout::end(prefix), ..layout::newest(&light, before, limit) };
    vec![heavy, light]
}

impl Predecessors {
    /// Takes in what [`ranges`] found.
    pub(super) fn new(
        prefix: &[u8],
        capacity: u32,
        revision: i64,
        asked: &[Range],
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
                Some(these.iter().map(|member| weight_of(member, capacity)).sum())
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
        let most = Some(members.iter().map(|member| weight_of(member, capacity)).sum());
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
            weight += weight_of(&member, record.capacity);
            let part = member.weight(record.capacity);
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

/// All users of a name must agree on its capacity.
pub(super) fn check_capacity(request: &Request<'_>, others: &[Member]) -> Result<()> {
    let known = others.iter().filter(|member| member.weights.is_some());
    let ours = request.ticket.capacity;
    match known.map(Member::capacity).find(|capacity| *capacity != ours) {
        None => Ok(()),
        Some(line) => Err(request.refuse(Refusal::Capacity { line })),
    }
}

fn weight_of(member: &Member, capacity: u32) -> u64 {
    u64::from(member.weight(capacity))
}

impl Shared {
    /// Takes in the keys ahead of one that is written.
    pub(super) async fn take(
        self: &Arc<Self>,
        request: &Request<'_>,
        record: &Arc<TicketRecord>,
        predecessors: Predecessors,
    ) -> Result<Entered> {
        if let Err(error) = check_capacity(request, &predecessors.members) {
            engine::take_back(self, record, request.limit).await?;
            return Err(error);
        }
        if predecessors.tell(record) {
            return Ok(Entered::There);
        }
        let all = layout::all(&record.base.prefix);
        let (revision, answer) = self.range(&all, request.limit).await?;
        let (_, create) = record.key();
        let mut members = layout::members(&record.base.prefix, &answer.kvs);
        members.retain(|member| member.create < create);
        Predecessors::whole(record.capacity, revision, members).tell(record);
        Ok(Entered::There)
    }

    /// Whether a ticket that is not there would be admitted at once.
    pub(super) async fn has_room(
        &self,
        request: &Request<'_>,
        prefix: &[u8],
        predecessors: Predecessors,
    ) -> Result<bool> {
        let ticket = request.ticket;
        if let Err(error) = check_capacity(request, &predecessors.members) {
            if let Some(record) = self.table.find(ticket.id) {
                self.drop_unwritten(&record);
            }
            return Err(error);
        }
        let weigh = |members: &[Member]| -> u64 {
            members.iter().map(|member| weight_of(member, ticket.capacity)).sum()
        };
        let room = u64::from(ticket.capacity) - u64::from(ticket.weight);
        let seen = weigh(&predecessors.members);
        if predecessors.complete
            || seen > room
            || predecessors.most.is_some_and(|most| most <= room)
        {
            return Ok(seen <= room);
        }
        let (_, answer) = self.range(&layout::all(prefix), request.limit).await?;
        Ok(weigh(&layout::members(prefix, &answer.kvs)) <= room)
    }

    /// Asks for the keys ahead of one that is there, and whether it is.
    pub(super) async fn look_ahead(
        self: &Arc<Self>,
        request: &Request<'_>,
        record: &Arc<TicketRecord>,
    ) -> Result<Entered> {
        let ((key, create), weight) = (record.key(), request.ticket.weight);
        let asked = ranges(&record.base.prefix, record.capacity, weight, create);
        let mut success = vec![Op::Range(layout::one(&key)).into()];
        success.extend(asked.iter().map(|range| Op::Range(range.clone()).into()));
        let found = self.txn(&Txn { success, ..Txn::default() }, request.limit).await?;
        self.compare(request, record, &asked, &found).await
    }

    /// Takes in the answer to a question for the own key, and for those ahead.
    pub(super) async fn compare(
        self: &Arc<Self>,
        request: &Request<'_>,
        record: &Arc<TicketRecord>,
        asked: &[Range],
        found: &Found,
    ) -> Result<Entered> {
        let (_, create) = record.key();
        let (own, ahead) = found.split();
        let own = own.and_then(|range| range.kvs.first());
        if own.is_none_or(|own| own.create_revision != create) {
            record.lose(&self.table.loss);
            return Ok(Entered::There);
        }
        let (prefix, capacity) = (&record.base.prefix, record.capacity);
        let predecessors = Predecessors::new(prefix, capacity, found.revision, asked, ahead);
        self.take(request, record, predecessors).await
    }
}
