//! Leaving, and operations on places by their keys: looking, listing, evicting.
//!
//! A place is deleted by its key alone, without a transaction that compares its create revision:
//! before a writing transaction, etcd 3.4 copies all that it has not yet committed to disk, which
//! is most of the transaction's cost. So a deletion must never arrive when the key is another
//! ticket's. It does not, because the key's slot is free again only after every deletion of it was
//! answered, once, and a forgotten ticket deletes only a key that was created for it.

use super::answer::Found;
use super::beside;
use super::layout::{self, Member};
use super::shared::Shared;
use super::ticket_record::{KeyEntry, Record, TicketRecord};
use super::transfer::Departure;
use crate::clock;
use crate::error::Result;
use crate::names::Name;
use crate::store::{EVICTION_TIME, QueueSnapshot, Seq, TicketId};
use crate::stores::ephemeral::backend::Release;
use crate::stores::ephemeral::engine::{self, Seen};
use crate::stores::ephemeral::ticket::{State, token};
use futures_util::future::join_all;
use holdline_etcd_client::proto::{self, KeyValue, LeaseAnswer, LeaseId, Op, RangeAnswer, Txn};
use holdline_etcd_client::{Lease, is_full};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The time limit of one member for requests that are not about one of our leases.
const LIMIT: Duration = Duration::from_secs(1);
/// The most leases of other processes that a snapshot of a line looks up.
const LEASES: usize = 32;
/// The number of keys that are listed at a time.
const PAGE: i64 = 1000;

/// The state of a line, and the keys beside it.
struct Survey {
    prefix: Vec<u8>,
    members: Vec<Member>,
    /// Keys among the places that are no places.
    strays: Vec<Member>,
    /// The notes of places that were removed by force.
    notes: Vec<KeyValue>,
    /// The lock of this name of another kind of client, if any.
    other: RangeAnswer,
}

impl Survey {
    fn find(&self, id: TicketId) -> Option<&Member> {
        self.members.iter().chain(&self.strays).find(|member| member.id == id)
    }
}

impl Release<KeyEntry> for Shared {
    /// Deletes the key, together with the entry of the next task if there is one.
    async fn give_up(self: &Arc<Self>, record: &Record, limit: Duration) -> Result<bool> {
        record.land().await;
        let exit = self.departure(record);
        let joined = async { exit.as_ref()?.joining().await };
        let Some(joining) = joined.await else { return self.remove(record, limit).await };
        let (key, create) = record.key();
        match self.leave_with(joining, &key, create, limit).await {
            // A deletion alone needs no space. If it finds nothing, the request was carried out.
            Err(error) if is_full(&error) => self.remove(record, limit).await.map(|_| true),
            outcome => outcome.map(|found| found.deleted || found.repeated),
        }
    }

    /// Deletes the key of a released ticket for good. Does nothing if no key was ever written.
    async fn remove(self: &Arc<Self>, record: &Record, limit: Duration) -> Result<bool> {
        record.land().await;
        let (lapsed, sent) =
            record.with(|place| (place.state == State::Lapsed, place.entry.sent.is_some()));
        if lapsed {
            self.departures.close(&record.base.prefix);
        }
        if !sent {
            return Ok(false);
        }
        // Without a turn if others do not end theirs, because nobody polls them.
        let turn = clock::timeout(limit, self.leaving.acquire()).await;
        let (own, flights) = record.with(|place| {
            let entry = &mut place.entry;
            let own = entry.slot.is_some() || record.base.leads;
            entry.removals += u32::from(own);
            // Written by a second attempt, and the first has no answer yet; or nobody reads it.
            entry.doubts.extend(&entry.flights);
            place.doubtful |= !entry.flights.is_empty();
            (own, entry.flights.clone())
        });
        // The late key is watched as long as they last.
        let late = flights.iter().filter_map(|lease| self.sessions.find(*lease));
        late.for_each(|session| session.taint());
        let (key, create) = record.key();
        let found = match (own, create) {
            (true, _) => self.delete(&layout::removal(&key), limit).await?,
            // Forgotten: another ticket may have the key.
            (false, 0) => return Ok(false),
            (false, _) => self.txn(&layout::delete(&key, create), limit).await?,
        };
        drop(turn);
        let late = record.with(|place| {
            place.entry.removals -= u32::from(own && !found.repeated);
            !place.entry.doubts.is_empty()
        });
        if late {
            self.watch_late(record, found.revision + 1);
        }
        // An earlier attempt deleted it.
        let repeated = found.repeated && create != 0;
        Ok(found.deleted || repeated)
    }

    /// The other places move to a new lease, and the old one ends when it is no longer used.
    fn leave_to_session(&self, record: &Record) -> bool {
        record.place().entry.session.end_soon();
        true
    }

    async fn remove_unknown(self: &Arc<Self>, line: &Name, id: TicketId) -> Result<bool> {
        let survey = self.survey(line).await?;
        let Some(member) = survey.find(id) else { return Ok(false) };
        let found = self.txn(&layout::delete(&member.key, member.create), LIMIT).await?;
        Ok(found.succeeded || found.repeated)
    }
}

impl Shared {
    /// The departure that the next task may join, if the lock is exclusive and was held.
    fn departure(&self, record: &TicketRecord) -> Option<Departure<'_>> {
        let known = record.with(|place| place.was_held() && !place.is_gone() && place.is_settled());
        (known && record.capacity == 1).then(|| self.departures.open(&record.base.prefix))
    }

    pub(super) async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let survey = self.survey(line).await?;
        let Some(member) = survey.find(id) else { return Ok(None) };
        let found = self.remove_by_force(member, &survey, note).await?;
        if !(found.succeeded || found.repeated) {
            return Ok(None);
        }
        tracing::warn!(name = %line, token = member.create, note, "place removed by force");
        self.table.lose(id);
        // The places behind it were created later, those too that the survey does not show.
        Ok(Some(token(member.create + 1)))
    }

    /// Deletes a member's key, unless it has changed, and leaves a note in the same transaction if
    /// possible.
    async fn remove_by_force(&self, member: &Member, survey: &Survey, note: &str) -> Result<Found> {
        let delete = layout::delete(&member.key, member.create);
        let length = EVICTION_TIME.as_secs() + 1;
        let grant = async || Lease::grant(&self.cluster, length, &survey.prefix, LIMIT).await.ok();
        let lease = if self.sees_beside() { grant().await } else { None };
        if let Some(lease) = lease {
            let mut both = delete.clone();
            let Survey { prefix, notes, .. } = survey;
            both.success.extend(beside::keep_note(prefix, member.id, note, lease.id(), notes));
            match self.txn(&both, LIMIT).await {
                Err(error) if !error.retryable() || is_full(&error) => {}
                outcome => return outcome,
            }
        }
        self.txn(&delete, LIMIT).await
    }

    async fn survey(&self, line: &Name) -> Result<Survey> {
        let prefix = layout::prefix(&self.address.prefix, line);
        loop {
            let beside = self.sees_beside();
            let mut ranges = vec![layout::all(&prefix)];
            if beside {
                ranges.extend([beside::notes(&prefix), beside::other(&prefix)]);
            }
            let success = ranges.into_iter().map(|range| Op::Range(range).into()).collect();
            match self.txn(&Txn { success, ..Txn::default() }, LIMIT).await {
                Ok(found) => {
                    let mut found = found.ranges.into_iter();
                    let mut next = || found.next().unwrap_or_default();
                    let (line, notes, other) = (next().kvs, next().kvs, next());
                    let members = layout::members(&prefix, &line);
                    let strays = layout::strays(&prefix, &line);
                    return Ok(Survey { prefix, members, strays, notes, other });
                }
                Err(error) if self.narrow_down(&error, beside) => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let Survey { prefix, members, strays, notes, other } = self.survey(line).await?;
        beside::refuse_other(line, &other)?;
        let others = members.iter().filter(|member| self.table.find(member.id).is_none());
        let leases: BTreeSet<i64> = others.map(|member| member.lease).collect();
        let left = join_all(leases.into_iter().take(LEASES).map(|lease| self.time_left(lease)));
        let left: HashMap<i64, Duration> = left.await.into_iter().flatten().collect();
        let known = members.iter().find_map(Member::capacity);
        let capacity = known.unwrap_or(u32::from(!members.is_empty()));
        let seen = members.into_iter().chain(strays).map(|member| Seen {
            id: member.id,
            create: member.create,
            weight: member.weight(capacity),
            expires_in: left.get(&member.lease).copied().unwrap_or_default(),
            note: member.note,
        });
        let places = engine::places(&self.table, capacity, seen);
        let evictions = beside::evictions(&prefix, &notes);
        Ok(QueueSnapshot { capacity, places, evictions })
    }

    /// The remaining time of a lease.
    async fn time_left(&self, lease: i64) -> Option<(i64, Duration)> {
        let id = LeaseId { id: lease };
        let answer =
            self.cluster.call::<_, LeaseAnswer>(proto::TIME_TO_LIVE, &id, LIMIT).await.ok()?;
        let left = u64::try_from(answer.body.ttl).unwrap_or(0);
        Some((lease, Duration::from_secs(left)))
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let root = &self.address.prefix;
        let start = format!("{root}{prefix}").into_bytes();
        let range_end = layout::end(&start);
        let mut page = proto::Range {
            key: if start.is_empty() { vec![0] } else { start },
            range_end,
            limit: PAGE,
            keys_only: true,
            ..proto::Range::default()
        };
        let mut names = BTreeSet::new();
        loop {
            let (_, answer) = self.range(&page, LIMIT).await?;
            let found = answer.kvs.iter().filter_map(|kv| layout::name_of(root, kv));
            names.extend(found.filter(|name| name.as_str().starts_with(prefix)));
            match answer.kvs.last().filter(|_| answer.more) {
                None => return Ok(names.into_iter().collect()),
                Some(last) => {
                    page.key.clone_from(&last.key);
                    page.key.push(0);
                }
            }
        }
    }
}
