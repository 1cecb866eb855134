//! The store contract, implemented by the engine.

use crate::store::Capabilities;
use std::time::Duration;

/// The capabilities of all stores of this kind; each has its own limits for leases.
pub(super) const CAPABILITIES: Capabilities = Capabilities {
    fair_queue: true,
    fencing_tokens: true,
    notifications: true,
    weighted: true,
    read_write: true,
    token_ranges: false, // no two places can be reserved by one entry
    crash_release: false,
    survives_failover: true,
    survives_restart: true,
    lease_min: Duration::from_secs(1),
    lease_max: Duration::from_secs(24 * 3600),
};

/// Implements the contract for a store whose handles have a `shared` backend that can also look,
/// list, evict and subscribe. A caller's waker that panics harms no task of the store, and no other
/// caller.
macro_rules! serve_by_engine {
    ($store:ident, $capabilities:expr) => {
        impl $crate::store::AsyncStore for $store {
            async fn enter(
                &self,
                line: &Name,
                ticket: &Ticket,
                note: &Arc<str>,
                how: Enter,
            ) -> Result<Standing> {
                $crate::sync::contain_wakers(engine::enter(&self.shared, (line, ticket), note, how))
                    .await
            }

            async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
                $crate::sync::contain_wakers(engine::leave(&self.shared, line, id)).await
            }

            async fn watch(&self, _line: &Name, id: TicketId) -> Result<Option<Seq>> {
                $crate::sync::contain_wakers(engine::watch(&self.shared, id)).await;
                Ok(None)
            }

            async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
                $crate::sync::contain_wakers(self.shared.snapshot(line)).await
            }

            async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
                $crate::sync::contain_wakers(self.shared.list(prefix)).await
            }

            async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
                $crate::sync::contain_wakers(self.shared.evict(line, id, note)).await
            }

            fn subscribe(&self, lines: &Lines) -> Subscription {
                self.shared.subscribe(lines)
            }

            fn capabilities(&self) -> Capabilities {
                let capabilities: fn(&Shared) -> Capabilities = $capabilities;
                capabilities(&self.shared)
            }

            /// The same handle: the sessions are maintained on a thread of their own.
            fn background_handle(&self) -> Self {
                self.clone()
            }

            fn on_loss_hint(&self, loss_hint: LossHint) {
                self.shared.table.loss.set(loss_hint);
            }

            fn address(&self) -> String {
                self.shared.address.to_string()
            }
        }
    };
}
pub(super) use serve_by_engine;
