//! Fairness, first come, first served: the admitted places are the front of the line, by the rule
//! computed from scratch; a place keeps its number; no grant overtakes an earlier waiter.

use super::{Fact, Invariant, Line, PlaceView};
use holdline_kernel::{Seq, TicketId};
use std::collections::BTreeMap;

/// The last state of each line.
#[derive(Debug)]
pub(crate) struct Fairness {
    /// Whether there is a queue. A quorum has none: the first at a majority is admitted.
    queues: bool,
    lines: BTreeMap<Line, Vec<PlaceView>>,
}

impl Fairness {
    pub(crate) fn new(queues: bool) -> Self {
        Fairness { queues, lines: BTreeMap::new() }
    }
}

fn rule(capacity: u32, places: &[PlaceView]) -> Result<(), String> {
    let mut ahead = 0;
    for place in places {
        ahead += u64::from(place.weight);
        if place.admitted != (ahead <= u64::from(capacity)) {
            return Err(format!("{:?} stands wrong in {places:?}", place.seq));
        }
    }
    if !places.is_sorted_by(|a, b| a.seq < b.seq) {
        return Err(format!("the numbers do not rise: {places:?}"));
    }
    Ok(())
}

fn kept(before: &[PlaceView], places: &[PlaceView]) -> Result<(), String> {
    let old: BTreeMap<TicketId, Seq> = before.iter().map(|place| (place.id, place.seq)).collect();
    let last = before.last().map_or(Seq(0), |place| place.seq);
    for place in places {
        match old.get(&place.id) {
            Some(seq) if *seq == place.seq => {}
            _ if place.seq > last => {}
            _ => return Err(format!("{:?} pushed in before {last:?}", place.seq)),
        }
    }
    Ok(())
}

impl Invariant for Fairness {
    fn name(&self) -> &'static str {
        "fairness"
    }

    fn see(&mut self, _now: u64, fact: &Fact<'_>) -> Result<(), String> {
        match *fact {
            Fact::Line { line, capacity, places } => {
                let before = self.lines.insert(line, places.to_vec()).unwrap_or_default();
                rule(capacity, places)?;
                kept(&before, places)
            }
            Fact::Granted { lock, seq, .. } if self.queues => {
                let mut places =
                    self.lines.range((lock, 0)..=(lock, usize::MAX)).flat_map(|(_, line)| line);
                match places.find(|place| place.seq < seq && !place.admitted) {
                    Some(first) => Err(format!("{seq:?} was granted past {:?}", first.seq)),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
