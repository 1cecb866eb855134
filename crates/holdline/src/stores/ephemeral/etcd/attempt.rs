//! Trying: a place at once, or nothing written.

use super::acquire::{Entered, TRIES, put};
use super::beside;
use super::layout;
use super::predecessors::{self, Predecessors};
use super::shared::Shared;
use super::ticket_record::TicketRecord;
use crate::error::Result;
use crate::stores::ephemeral::backend::Request;
use holdline_etcd_client::{
    Lease,
    proto::{Op, RangeAnswer, RequestOp, Txn},
};
use std::sync::Arc;

impl Shared {
    /// Whether a try may succeed, if it would need a new lease: one that fails leaves nothing.
    pub(super) async fn is_worth_a_lease(&self, request: &Request<'_>) -> Result<bool> {
        let ticket = request.ticket;
        let has_lease =
            || self.sessions.living(Lease::seconds_for(ticket.lease), &self.cluster).is_some();
        if self.table.find(ticket.id).is_some() || has_lease() {
            return Ok(true);
        }
        let prefix = layout::prefix(&self.address.prefix, request.line);
        let asked = predecessors::ranges(&prefix, ticket.capacity, ticket.weight, 0);
        let success = asked.iter().map(|range| Op::Range(range.clone()).into()).collect();
        let found = self.txn(&Txn { success, ..Txn::default() }, request.limit).await?;
        let predecessors =
            Predecessors::new(&prefix, ticket.capacity, found.revision, &asked, &found.ranges);
        self.has_room(request, &prefix, predecessors).await
    }

    /// Enters at once or not at all, and writes nothing unless the ticket is admitted: in one round
    /// trip if the line is empty; in a second if there is room beside others and no entry comes in
    /// between.
    pub(super) async fn try_now(
        self: &Arc<Self>,
        request: &Request<'_>,
        record: &Arc<TicketRecord>,
    ) -> Result<Entered> {
        let (key, put) = put(request, record);
        let (prefix, capacity) = (&record.base.prefix, record.capacity);
        let asked = predecessors::ranges(prefix, capacity, request.ticket.weight, 0);
        let own: RequestOp = Op::Range(layout::one(&key)).into();
        let looks = asked.iter().map(|range| Op::Range(range.clone()).into());
        let failure: Vec<_> = [own].into_iter().chain(looks).collect();
        let mut compare = layout::absent(prefix, layout::end(prefix));
        for _ in 0..TRIES {
            let mut txn = Txn {
                compare: vec![compare, layout::absent(&key, Vec::new())],
                success: vec![put.clone()],
                failure: failure.clone(),
            };
            let beside = self.look_beside(record, &mut txn);
            let mut found = self.write(request, record, None, txn).await?;
            if found.succeeded {
                found.ranges = vec![RangeAnswer::default(); asked.len()];
                return self.entered(request, record, &asked, found).await;
            }
            let other = beside.then(|| found.pop());
            let (own, looked) = found.split();
            if let Some(own) = own.and_then(|range| range.kvs.first()) {
                record.place().born(own.create_revision);
                return self.look_ahead(request, record).await;
            }
            if let Some(other) = &other
                && let Err(error) = beside::refuse_other(request.line, other)
            {
                self.drop_unwritten(record);
                return Err(error);
            }
            let predecessors = Predecessors::new(prefix, capacity, found.revision, &asked, looked);
            if !self.has_room(request, prefix, predecessors).await? {
                return Ok(Entered::Not);
            }
            compare = layout::unchanged_since(prefix, found.revision);
        }
        Ok(Entered::Again)
    }
}
