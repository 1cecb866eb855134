//! The places in memory against a plain map: short lines that are scanned, long ones that are
//! indexed, gaps in the middle, and lines that grow and shrink over and over.

use core::convert::Infallible;
use holdline_kernel::{MemoryPlaces, Place, Places, Seq, TicketId, Time};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    Push { id: u128, gap: u64, expires: u64 },
    Update { pick: usize, expires: u64, weight: u32 },
    Remove { pick: usize },
    RemoveAbsent(u64),
    Lapse(u64),
    Look { id: u128, seq: u64 },
}

fn step(growing: u32) -> impl Strategy<Value = Step> {
    prop_oneof![
        growing => (0..500_u128, 1..4_u64, 0..100_u64)
            .prop_map(|(id, gap, expires)| Step::Push { id, gap, expires }),
        3 => (any::<usize>(), 0..100_u64, 1..9_u32)
            .prop_map(|(pick, expires, weight)| Step::Update { pick, expires, weight }),
        6 => any::<usize>().prop_map(|pick| Step::Remove { pick }),
        1 => (0..1000_u64).prop_map(Step::RemoveAbsent),
        1 => (0..30_u64).prop_map(Step::Lapse),
        4 => (0..500_u128, 0..1000_u64).prop_map(|(id, seq)| Step::Look { id, seq }),
    ]
}

#[derive(Default)]
struct Both {
    places: MemoryPlaces<u64>,
    map: BTreeMap<Seq, Place<u64>>,
    last: u64,
    longest: usize,
}

fn infallible<T>(result: Result<T, Infallible>) -> T {
    let Ok(value) = result;
    value
}

impl Both {
    fn pick(&self, pick: usize) -> Option<Place<u64>> {
        let at = pick.checked_rem(self.map.len())?;
        self.map.values().nth(at).cloned()
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Push { id, gap, expires } => {
                let id = TicketId(id);
                if self.map.values().any(|place| place.id == id) {
                    return;
                }
                self.last += gap;
                let (seq, expires) = (Seq(self.last), Time(expires));
                let place = Place { id, seq, weight: 1, expires, data: self.last };
                infallible(self.places.push(&place));
                self.map.insert(seq, place);
            }
            Step::Update { pick, expires, weight } => {
                let Some(place) = self.pick(pick) else { return };
                let place = Place { expires: Time(expires), weight, data: expires, ..place };
                infallible(self.places.update(&place));
                self.map.insert(place.seq, place);
            }
            Step::Remove { pick } => {
                let Some(place) = self.pick(pick) else { return };
                infallible(self.places.remove(place.seq));
                self.map.remove(&place.seq);
            }
            Step::RemoveAbsent(seq) => {
                if !self.map.contains_key(&Seq(seq)) {
                    infallible(self.places.remove(Seq(seq)));
                }
            }
            Step::Lapse(now) => {
                while let Some(place) = infallible(self.places.lapsed(Time(now))) {
                    assert!(place.expires <= Time(now));
                    assert_eq!(self.map.remove(&place.seq), Some(place.clone()));
                    infallible(self.places.remove(place.seq));
                }
                assert!(self.map.values().all(|place| place.expires > Time(now)));
            }
            Step::Look { id, seq } => self.look(TicketId(id), Seq(seq)),
        }
        self.longest = self.longest.max(self.map.len());
        self.agree();
    }

    fn look(&mut self, id: TicketId, seq: Seq) {
        let by_id = self.map.values().find(|place| place.id == id).cloned();
        assert_eq!(infallible(self.places.by_id(id)), by_id);
        let first = self.map.range(seq..).next().map(|(_, place)| place.clone());
        assert_eq!(infallible(self.places.first_from(seq)), first);
    }

    fn agree(&mut self) {
        assert!(self.places.iter().eq(self.map.values()));
        let earliest = self.map.values().map(|place| place.expires).min();
        assert_eq!(infallible(self.places.earliest()), earliest.unwrap_or(Time::NEVER));
        if let Some(place) = self.pick(self.last as usize) {
            self.look(place.id, place.seq);
            self.look(place.id, Seq(place.seq.0 + 1));
        }
        self.look(TicketId(u128::MAX), Seq::END);
    }
}

fn runs(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(runs(200))]

    #[test]
    fn agrees_with_a_map_while_short(steps in prop::collection::vec(step(6), 1..200)) {
        let mut both = Both::default();
        for step in &steps {
            both.take(step);
        }
    }

    #[test]
    fn agrees_with_a_map_while_growing(steps in prop::collection::vec(step(30), 300..500)) {
        let mut both = Both::default();
        for step in &steps {
            both.take(step);
        }
        prop_assert!(both.longest > 16, "the index was never used");
    }
}

/// Nothing is left after removals from the front, the back and the middle, and the line can be
/// filled again.
#[test]
fn fills_and_empties_over_and_over() {
    let mut both = Both::default();
    for round in 0..6_usize {
        for id in 0..100 {
            both.take(&Step::Push { id, gap: 1 + round as u64 % 2, expires: 50 });
        }
        assert_eq!(both.map.len(), 100);
        while !both.map.is_empty() {
            let pick = [0, both.map.len() - 1, both.map.len() / 2][round % 3];
            both.take(&Step::Remove { pick });
        }
    }
    assert_eq!(both.places.iter().count(), 0);
}

/// A line that is never empty, and always changes, takes no more memory than its places need: of
/// the places that were removed few remain as gaps. The text of `Debug` shows all that is kept.
#[test]
fn a_line_in_use_keeps_few_gaps() {
    let push = |places: &mut MemoryPlaces<()>, seq: u64| {
        let (id, seq) = (TicketId(u128::from(seq)), Seq(seq));
        infallible(places.push(&Place { id, seq, weight: 1, expires: Time(9), data: () }));
    };
    let size = |places: &MemoryPlaces<()>| format!("{places:?}").matches("Place {").count();
    for stays in [0, 1, 40] {
        let mut places = MemoryPlaces::default();
        for seq in 1..=stays + 1 {
            push(&mut places, seq);
        }
        // The next enters before the last leaves.
        for seq in stays + 2..2_000 {
            push(&mut places, seq);
            infallible(places.remove(Seq(seq - 1)));
            let (kept, used) = (size(&places), places.iter().count());
            assert!(kept <= 2 * used + 17, "{kept} places are kept for {used}");
        }
        // The last of them leave from the back, and nothing is kept for them.
        infallible(places.remove(Seq(1_999)));
        assert_eq!(size(&places) as u64, stays);
    }
}
