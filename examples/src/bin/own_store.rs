//! A custom store: a single key for each lock, which has one holder or none, and no queue. The
//! table in memory could be a row of a database, or an object with conditional writes.
//! `Table::enter` makes the decisions; the rest reports the contents and the capabilities.
//!
//! `cargo run -p holdline-examples --bin own_store`; and the suite that every store must pass:
//! `cargo test -p holdline-examples --bin own_store`.

use holdline::store::{
    AsyncStore, Capabilities, EVICTIONS_KEPT, Enter, Eviction, LossHint, QueueEntry, QueueSnapshot,
    Seq, Standing, Ticket, TicketId,
};
use holdline::{Client, Mutex, Name, Result};
use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::sync::{Arc, Mutex as Local, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Default)]
struct SingleKey(Arc<Local<Table>>);

#[derive(Debug, Default)]
struct Table {
    holders: BTreeMap<Name, Holder>,
    /// The highest token given out for any lock, so that tokens rise even if a lock was free
    /// meanwhile.
    last: u64,
    /// Newest first.
    evictions: VecDeque<(Name, Eviction)>,
}

/// The most evictions that are kept, of all locks together.
const EVICTIONS: usize = 1024;

#[derive(Debug)]
struct Holder {
    id: TicketId,
    seq: Seq,
    expires: Instant,
    note: Arc<str>,
}

impl Table {
    /// Takes, renews or refuses a place, in one step by the store's own clock.
    fn enter(&mut self, line: &Name, ticket: &Ticket, note: &Arc<str>, how: Enter) -> Standing {
        let (now, id, note) = (Instant::now(), ticket.id, Arc::clone(note));
        match (self.holders.get_mut(line), how) {
            // Not its place, or no place: keeping a place never takes one.
            (Some(held), Enter::Keep(seq)) if held.id != id || held.seq != seq => Standing::Lost,
            (None, Enter::Keep(_)) => Standing::Lost,
            // A renewal, or a request that is repeated because its reply was lost.
            (Some(held), _) if held.id == id => {
                held.expires = held.expires.max(now + ticket.lease); // never shorter
                held.note = note;
                Standing::Admitted(held.seq)
            }
            (Some(held), _) => Standing::Waiting { seq: None, again: held.expires - now },
            (None, _) => {
                self.last = (self.last + 1).max(ticket.min_token);
                let (seq, expires) = (Seq(self.last), now + ticket.lease);
                self.holders.insert(line.clone(), Holder { id, seq, expires, note });
                Standing::Admitted(seq)
            }
        }
    }

    /// Removes this ticket's place. A wrong id removes nothing.
    fn remove(&mut self, line: &Name, id: TicketId) -> bool {
        let there = self.holders.get(line).is_some_and(|held| held.id == id);
        there && self.holders.remove(line).is_some()
    }
}

impl SingleKey {
    /// The table, without expired holders.
    fn table(&self) -> MutexGuard<'_, Table> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        table.holders.retain(|_, held| held.expires > now);
        table
    }
}

impl AsyncStore for SingleKey {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        Ok(self.table().enter(line, ticket, note, how))
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        Ok(self.table().remove(line, id))
    }

    async fn watch(&self, _line: &Name, _id: TicketId) -> Result<Option<Seq>> {
        pending().await // it promises no notices: those who wait ask again
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let table = self.table();
        let places = table.holders.get(line).into_iter().map(|held| QueueEntry {
            id: held.id,
            seq: held.seq,
            weight: 1,
            admitted: true,
            expires_in: held.expires - Instant::now(),
            note: Arc::clone(&held.note),
        });
        let places: Vec<_> = places.collect();
        let of_line = table.evictions.iter().filter(|(name, _)| name == line);
        let mut evictions: Vec<_> = of_line.take(EVICTIONS_KEPT).map(|e| e.1.clone()).collect();
        evictions.reverse();
        Ok(QueueSnapshot { capacity: u32::from(!places.is_empty()), places, evictions })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let ours = |name: &&Name| name.as_str().starts_with(prefix);
        Ok(self.table().holders.keys().filter(ours).cloned().collect())
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let mut table = self.table();
        if !table.remove(line, id) {
            return Ok(None);
        }
        // By this the removed holder learns which process broke its lock, and why.
        table.evictions.push_front((line.clone(), Eviction { id, note: note.into() }));
        table.evictions.truncate(EVICTIONS);
        Ok(Some(Seq(table.last + 1))) // it fences the victim, and not the next holder
    }

    /// Promises no more than it keeps. Recipes refuse what is not promised here, and the suite
    /// skips it.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair_queue: false,
            fencing_tokens: true,
            notifications: false,
            weighted: false,
            read_write: false,
            token_ranges: false,
            crash_release: false,
            survives_failover: false,
            survives_restart: false,
            lease_min: Duration::from_millis(100),
            lease_max: Duration::from_secs(24 * 3600),
        }
    }

    fn background_handle(&self) -> Self {
        self.clone() // with connections, it would have its own
    }

    fn on_loss_hint(&self, _loss_hint: LossHint) {} // renewals find out

    fn address(&self) -> String {
        "own:".to_owned()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> holdline::Result<()> {
    let store = SingleKey::default();
    let (one, two) = (Client::new(Arc::new(store.clone())), Client::new(Arc::new(store)));
    let guard = Mutex::new(&one, "report").lock().await?;
    println!("held, with token {}", guard.token());
    let refused = Mutex::new(&two, "report").try_lock().await?.is_none();
    println!("refused to another client: {refused}");
    guard.unlock().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdline::store::Async;
    use holdline_conformance::{self as conformance, Outcome, Subject, Verdict};
    use std::future::ready;

    impl Subject for SingleKey {
        fn name(&self) -> String {
            self.address()
        }

        fn client(&self) -> Async<'_, Client> {
            Box::pin(ready(Ok(Client::new(Arc::new(self.clone())))))
        }

        /// A URL for other processes, if they can open the store; then the suite starts some.
        fn url(&self) -> Option<String> {
            None
        }

        fn lease(&self) -> Duration {
            Duration::from_secs(2)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_passes_the_suite() {
        let outcomes = conformance::run(Arc::new(SingleKey::default()), "").await;
        let mut passed = 0;
        for outcome in &outcomes {
            println!("{outcome} ({:.1?})", outcome.took);
            passed += usize::from(outcome.verdict == Verdict::Passed);
        }
        let failed = |outcome: &&Outcome| matches!(outcome.verdict, Verdict::Failed(_));
        let failed: Vec<_> = outcomes.iter().filter(failed).map(Outcome::to_string).collect();
        assert!(failed.is_empty(), "{}", failed.join("\n"));
        assert!(passed > outcomes.len() / 3, "only {passed} of {} cases apply", outcomes.len());
    }
}
