//! The members of a group, as one look at the store shows them.

use super::rendezvous;
use crate::client::LockInfo;
use crate::store::TicketId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The members of a group as one look saw them, and which of them each key belongs to.
///
/// By the time it is read it may be out of date: a hint where to send a request. Only the member
/// itself knows whether a key is its own, by [`Member::route`](super::Member::route).
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// One for each address, in the order of addresses.
    list: Vec<Entry>,
    /// How many there are besides, whose address a later one has.
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
    /// The places in a line that carry an address. Of several with the same address the last to
    /// come counts: it is the same server, which was started again.
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

    /// The members at these addresses, which need not be in any store: a list from elsewhere, by
    /// the same hash.
    pub fn of<'a>(addresses: impl IntoIterator<Item = &'a str>) -> Self {
        let places = addresses.into_iter().map(|address| (TicketId(0), 0, Arc::from(address)));
        Members::from_places(places)
    }

    /// The address of the member that a key belongs to; `None` if there are no members.
    pub fn owner(&self, key: impl AsRef<[u8]>) -> Option<&str> {
        self.owner_of(rendezvous::of_key(key.as_ref())).map(|owner| &*owner.address)
    }

    /// The owner of a key with this hash.
    pub(super) fn owner_of(&self, key: u64) -> Option<&Entry> {
        // The last of equals is the greatest, so the list is walked from its end.
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

    /// Whether somebody else than this member is there, perhaps at the same address.
    pub(super) fn has_others_than(&self, id: TicketId) -> bool {
        self.replaced > 0 || self.list.iter().any(|member| member.id != id)
    }

    /// Whether somebody who is in `before` is not in this one.
    pub(super) fn lacks_some_of(&self, before: &Members) -> bool {
        let is_there = |id| self.list.iter().any(|member| member.id == id);
        before.list.iter().any(|member| !is_there(member.id))
    }
}
