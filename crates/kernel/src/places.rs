//! Places in memory: the storage of the memory store, the simulation and tests.
//!
//! They are a deque in order of `seq`. A removed place remains as a gap until the gap reaches an
//! end or gaps outnumber the rest, so removal from the middle of a long line moves nothing. A
//! look-up scans a short line, as nearly every line is; a long one has an index. A line of one
//! place costs no more than that place.

use crate::TicketId;
use crate::Time;
use crate::line::{Place, Places, Seq};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use core::convert::Infallible;

/// The longest line that is scanned; longer ones are indexed.
const SCAN: usize = 16;

/// The places of one line, in memory.
#[derive(Clone, Debug)]
pub struct MemoryPlaces<D> {
    places: VecDeque<Slot<D>>,
    gaps: usize,
    #[allow(clippy::box_collection, reason = "a short line must not pay for the map's header")]
    index: Option<Box<BTreeMap<TicketId, Seq>>>,
}

/// A place, or the gap left by one.
#[derive(Clone, Debug)]
struct Slot<D> {
    place: Place<D>,
    gap: bool,
}

impl<D> Slot<D> {
    fn place(&self) -> Option<&Place<D>> {
        (!self.gap).then_some(&self.place)
    }
}

impl<D> Default for MemoryPlaces<D> {
    fn default() -> Self {
        MemoryPlaces { places: VecDeque::new(), gaps: 0, index: None }
    }
}

impl<D> MemoryPlaces<D> {
    /// All places, front first.
    pub fn iter(&self) -> impl Iterator<Item = &Place<D>> {
        self.places.iter().filter_map(Slot::place)
    }

    fn position(&self, seq: Seq) -> Result<usize, usize> {
        self.places.binary_search_by_key(&seq, |slot| slot.place.seq)
    }

    fn find(&self, id: TicketId) -> Option<&Place<D>> {
        match &self.index {
            Some(index) => {
                let at = self.position(*index.get(&id)?).ok()?;
                self.places[at].place()
            }
            None => self.iter().find(|place| place.id == id),
        }
    }

    fn tidy(&mut self) {
        while self.places.front().is_some_and(|slot| slot.gap) {
            self.places.pop_front();
            self.gaps -= 1;
        }
        while self.places.back().is_some_and(|slot| slot.gap) {
            self.places.pop_back();
            self.gaps -= 1;
        }
        if self.gaps > SCAN && self.gaps > self.places.len() / 2 {
            self.places.retain(|slot| !slot.gap);
            self.gaps = 0;
        }
        if self.places.is_empty() {
            self.index = None;
            self.places.shrink_to(4); // free the memory of a long line
        }
    }
}

impl<D: Clone> Places for MemoryPlaces<D> {
    type Data = D;
    type Error = Infallible;

    fn by_id(&mut self, id: TicketId) -> Result<Option<Place<D>>, Infallible> {
        Ok(self.find(id).cloned())
    }

    fn first_from(&mut self, seq: Seq) -> Result<Option<Place<D>>, Infallible> {
        let (Ok(start) | Err(start)) = self.position(seq);
        Ok(self.places.range(start..).find_map(Slot::place).cloned())
    }

    fn push(&mut self, place: &Place<D>) -> Result<(), Infallible> {
        if self.places.capacity() == 0 {
            self.places.reserve_exact(1); // most lines never have more
        }
        self.places.push_back(Slot { place: place.clone(), gap: false });
        if let Some(index) = &mut self.index {
            index.insert(place.id, place.seq);
        } else if self.places.len() > SCAN {
            self.index = Some(Box::new(self.iter().map(|place| (place.id, place.seq)).collect()));
        }
        Ok(())
    }

    fn update(&mut self, place: &Place<D>) -> Result<(), Infallible> {
        if let Ok(at) = self.position(place.seq) {
            self.places[at].place = place.clone();
        }
        Ok(())
    }

    fn remove(&mut self, seq: Seq) -> Result<(), Infallible> {
        if let Ok(at) = self.position(seq)
            && !self.places[at].gap
        {
            self.places[at].gap = true;
            self.gaps += 1;
            if let Some(index) = &mut self.index {
                index.remove(&self.places[at].place.id);
            }
            self.tidy();
        }
        Ok(())
    }

    fn lapsed(&mut self, now: Time) -> Result<Option<Place<D>>, Infallible> {
        Ok(self.iter().find(|place| place.expires <= now).cloned())
    }

    fn earliest(&mut self) -> Result<Time, Infallible> {
        Ok(self.iter().map(|place| place.expires).min().unwrap_or(Time::NEVER))
    }
}
