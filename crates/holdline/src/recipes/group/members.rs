//! The members of a group, in one snapshot.

use super::rendezvous;
use crate::client::LockInfo;
use crate::store::TicketId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A snapshot of a group's members, and of which member owns each key.
///
/// It may be outdated by the time it is read: it is a hint where to send a request. Only a member
/// itself knows whether a key is its own, by [`Member::route`](super::Member::route).
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// One entry for each address, in the order of addresses.
    list: Vec<Entry>,
    /// The number of entries replaced by a later one with the same address.
    replaced: usize,
}

impl PartialEq for Members {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Eq for Members {}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its place in the line.
    pub(super) id: TicketId,
    pub(super) address: Arc<str>,
    token: u64,
    hash: u64,
}

impl Members {
    /// Collects the places that carry an address. Of several with the same address, the last one
    /// counts: it is the same server, restarted.
    pub(super) fn seen(info: &LockInfo) -> Self {
        let places = info.holders.iter().filter_map(|holder| {
            let address = holder.note.value.as_deref()?;
            Some((holder.id, holder.token, Arc::from(address)))
        });
        Members::from_places(places)
    }

    pub(super) fn from_places(places: impl Iterator<Item = (TicketId, u64, Arc<str>)>) -> Self {
        let mut list: BTreeMap<Arc<str>, Entry> = BTreeMap::new();
        let mut all = 0;
        for (id, token, address) in places {
            all += 1;
            let hash = rendezvous::of_member(&address);
            let entry = Entry { id, address: Arc::clone(&address), token, hash };
            match list.get(&address) {
                Some(other) if other.token > token => {}
                _ => drop(list.insert(address, entry)),
            }
        }
        Members { replaced: all - list.len(), list: list.into_values().collect() }
    }

    /// Builds a list of members from addresses, which need not be in any store, with the same hash.
    pub fn of<'a>(addresses: impl IntoIterator<Item = &'a str>) -> Self {
        let places = addresses.into_iter().map(|address| (TicketId(0), 0, Arc::from(address)));
        Members::from_places(places)
    }

    /// The address of the member that owns a key; `None` if there are no members.
    pub fn owner(&self, key: impl AsRef<[u8]>) -> Option<&str> {
        self.owner_of(rendezvous::of_key(key.as_ref())).map(|owner| &*owner.address)
    }

    /// The owner of a key with this hash.
    pub(super) fn owner_of(&self, key: u64) -> Option<&Entry> {
        // Of equal members the last one is the maximum, so the list is walked from its end.
        self.list.iter().rev().max_by_key(|member| rendezvous::score(member.hash, key))
    }

    /// All addresses, in order.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|member| &*member.address)
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether there is another member than this one, perhaps at the same address.
    pub(super) fn has_others_than(&self, id: TicketId) -> bool {
        self.replaced > 0 || self.list.iter().any(|member| member.id != id)
    }

    /// Whether a member of `before` is missing.
    pub(super) fn lacks_some_of(&self, before: &Members) -> bool {
        let is_there = |id| self.list.iter().any(|member| member.id == id);
        before.list.iter().any(|member| !is_there(member.id))
    }
}
