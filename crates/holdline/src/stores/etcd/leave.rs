//! Leaving, and what is done to places by their keys: looking, listing, evicting.

use super::enter::{limit, token};
use super::house::House;
use super::line::{self, Member};
use super::proto::{self, LeaseId, LiveAnswer, RangeAnswer, TxnAnswer};
use super::record::Record;
use super::swap::Exit;
use crate::clock;
use crate::error::Result;
use crate::names::Name;
use crate::store::{Seq, Standee, TicketId, View};
use futures_util::future::join_all;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// How long one member may take over what is not about a lease of ours.
const LIMIT: Duration = Duration::from_secs(1);
/// So many leases of others are asked about at most when somebody looks at a line.
const LEASES: usize = 32;
/// So many keys are listed at a time.
const PAGE: i64 = 1000;

impl House {
    pub(super) async fn leave(self: &Arc<Self>, line: &Name, id: TicketId) -> Result<bool> {
        let Some(record) = self.find(id) else {
            // Not one of ours, or not any more.
            let Some((member, _)) = self.find_member(line, id).await? else { return Ok(false) };
            return self.delete(&member).await.map(|done| done.is_some());
        };
        let key = {
            let mut place = record.place();
            place.leaving = true;
            place.key.clone()
        };
        let mut back = Back { record: &record, left: false };
        let (time, create, doubtful) = {
            let place = record.place();
            (limit(place.lease), place.create, place.doubtful)
        };
        let exit = self.exit(&record);
        let company = match &exit {
            Some(exit) => exit.company().await,
            None => None,
        };
        let answer = if let Some(companion) = company {
            self.leave_with(companion, &key, create, time).await?
        } else {
            let delete = line::delete(&key, create);
            self.wire.call::<_, TxnAnswer>(proto::TXN, &delete, time).await?
        };
        back.left = true;
        if doubtful || record.place().doubtful {
            self.haunt(&key, answer.body.header.unwrap_or_default().revision + 1);
        }
        let was_there = {
            let place = record.place();
            let first_did_it = answer.repeated && place.create != 0;
            !place.gone && (line::has_deleted(&answer.body) || first_did_it)
        };
        self.forget(&record);
        Ok(was_there)
    }

    /// What lets the next one come along, if a holder leaves who has the lock for himself.
    fn exit(&self, record: &Record) -> Option<Exit<'_>> {
        let place = record.place();
        let alone = record.capacity == 1 && place.admitted && !place.gone && !place.doubtful;
        alone.then(|| self.exits.open(&record.prefix))
    }

    pub(super) async fn evict(
        self: &Arc<Self>,
        line: &Name,
        id: TicketId,
        reason: &str,
    ) -> Result<Option<Seq>> {
        let Some((member, next)) = self.find_member(line, id).await? else { return Ok(None) };
        let Some(revision) = self.delete(&member).await? else { return Ok(None) };
        tracing::warn!(name = %line, token = member.create, reason, "place removed by force");
        if let Some(record) = self.find(id) {
            record.lose(&self.alarm.0);
        }
        Ok(Some(token(next.unwrap_or(revision))))
    }

    /// Deletes somebody's key, unless it is not the same any more. The revision at which it went.
    async fn delete(&self, member: &Member) -> Result<Option<i64>> {
        let txn = line::delete(&member.key, member.create);
        let answer = self.wire.call::<_, TxnAnswer>(proto::TXN, &txn, LIMIT).await?;
        let revision = answer.body.header.unwrap_or_default().revision;
        Ok((answer.body.succeeded || answer.repeated).then_some(revision))
    }

    /// Somebody in a line, and the place of the next one.
    async fn find_member(
        &self,
        line: &Name,
        id: TicketId,
    ) -> Result<Option<(Member, Option<i64>)>> {
        let members = self.members(line).await?;
        let Some(at) = members.iter().position(|member| member.id == id) else { return Ok(None) };
        let next = members.get(at + 1).map(|next| next.create);
        Ok(Some((members[at].clone(), next)))
    }

    async fn members(&self, line: &Name) -> Result<Vec<Member>> {
        let prefix = line::prefix(&self.wire.address.prefix, line);
        let all = line::all(&prefix);
        let answer = self.wire.call::<_, RangeAnswer>(proto::RANGE, &all, LIMIT).await?;
        Ok(line::members(&prefix, &answer.body.kvs))
    }

    pub(super) async fn look(&self, line: &Name) -> Result<View> {
        let members = self.members(line).await?;
        let others = members.iter().filter(|member| self.find(member.id).is_none());
        let leases: BTreeSet<i64> = others.map(|member| member.lease).collect();
        let left = join_all(leases.into_iter().take(LEASES).map(|lease| self.time_left(lease)));
        let left: HashMap<i64, Duration> = left.await.into_iter().flatten().collect();
        let known = members.iter().find(|member| member.weights.is_some());
        let Some(capacity) = known.or(members.first()).map(Member::capacity) else {
            return Ok(View::default());
        };
        let (now, mut ahead) = (clock::now(), 0);
        let places = members.into_iter().map(|member| {
            let weight = member.weight(capacity);
            ahead += u64::from(weight);
            let expires_in = match self.find(member.id) {
                Some(record) => now.until(record.place().due),
                None => left.get(&member.lease).copied().unwrap_or_default(),
            };
            Standee {
                id: member.id,
                seq: token(member.create),
                weight,
                admitted: ahead <= u64::from(capacity),
                expires_in,
                note: member.note,
            }
        });
        Ok(View { capacity, places: places.collect(), evictions: Vec::new() })
    }

    /// How long a lease lasts if nobody renews it.
    async fn time_left(&self, lease: i64) -> Option<(i64, Duration)> {
        let id = LeaseId { id: lease };
        let answer = self.wire.call::<_, LiveAnswer>(proto::TIME_TO_LIVE, &id, LIMIT).await.ok()?;
        let left = u64::try_from(answer.body.ttl).unwrap_or(0);
        Some((lease, Duration::from_secs(left)))
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let root = &self.wire.address.prefix;
        let start = format!("{root}{prefix}").into_bytes();
        let range_end = line::end(&start);
        let mut page = proto::Range {
            key: if start.is_empty() { vec![0] } else { start },
            range_end,
            limit: PAGE,
            keys_only: true,
            ..proto::Range::default()
        };
        let mut names = BTreeSet::new();
        loop {
            let answer = self.wire.call::<_, RangeAnswer>(proto::RANGE, &page, LIMIT).await?.body;
            let found = answer.kvs.iter().filter_map(|kv| line::name_of(root, kv));
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

/// Takes the intention to leave back if that did not work.
struct Back<'a> {
    record: &'a Record,
    left: bool,
}

impl Drop for Back<'_> {
    fn drop(&mut self) {
        if !self.left {
            self.record.place().leaving = false;
        }
    }
}
