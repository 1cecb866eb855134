//! Silences of a store: on a busy machine a server may answer nobody for as long as a lease,
//! without a plan, while all its clients have time. The checker treats that as a fault of the
//! store: a lease that could not be renewed meanwhile, or a waiter's place, is not the library's
//! fault.
//!
//! A silence is read from the history: requests of several processes wait, and none is answered.

use holdline_checker::{Event, FaultKind, History, Op, Phase};
use std::collections::HashMap;

/// The shortest silence to record: a third of the leases here.
const SHORTEST: u64 = 200_000_000;
/// The longest time that a request counts as waiting: the end of one that was dropped is not told.
const LONGEST_WAIT: u64 = 1_000_000_000;

/// Whether such a call always asks the store, and does not wait for its turn.
fn asks(op: Op) -> bool {
    matches!(op, Op::TryAcquire | Op::Renew | Op::Release)
}

fn is_answer(event: &Event) -> bool {
    let answered = matches!(event.ph, Phase::Ok | Phase::Fail);
    answered && (asks(event.op) || matches!(event.op, Op::Acquire | Op::Enqueue))
}

/// The silences of the store, in nanoseconds.
pub(crate) fn all(events: &[Event]) -> Vec<(u64, u64)> {
    let (mut silences, mut answered) = (Vec::new(), 0);
    let mut waiting: HashMap<&str, HashMap<_, u64>> = HashMap::new();
    for event in events {
        let (process, call) = (event.process.as_str(), (event.op, event.n, event.k));
        if is_answer(event) {
            let from = both_wait_since(&waiting, event.t).map(|since| since.max(answered));
            let long = from.filter(|from| event.t.saturating_sub(*from) > SHORTEST);
            silences.extend(long.map(|from| (from, event.t)));
            answered = event.t;
        }
        if asks(event.op) {
            let calls = waiting.entry(process).or_default();
            match event.ph {
                Phase::Invoke => _ = calls.insert(call, event.t),
                _ => _ = calls.remove(&call),
            }
        }
        if event.op == Op::Fault
            && let Some(target) = &event.target
        {
            waiting.remove(target.as_str()); // it is killed or stopped, and waits for nothing
        }
    }
    silences
}

/// Since when requests of a second process wait at this time: one process alone may be cut off.
fn both_wait_since<C>(waiting: &HashMap<&str, HashMap<C, u64>>, now: u64) -> Option<u64> {
    let first = |calls: &HashMap<C, u64>| {
        calls.values().copied().filter(|since| now.saturating_sub(*since) < LONGEST_WAIT).min()
    };
    let mut since: Vec<u64> = waiting.values().filter_map(first).collect();
    since.sort_unstable();
    since.get(1).copied()
}

/// Records the silences as faults that began and ended.
pub(crate) fn settle(history: &mut History) {
    let mut faults = Vec::new();
    for (n, (from, to)) in (1..).zip(all(&history.events)) {
        let kind = FaultKind::Other("silent".to_owned());
        let event = |op, t| Event {
            process: "the store's silences".to_owned(),
            t,
            ..Event::new(op, Phase::Ok, n)
        };
        faults.extend([event(Op::Fault, from).fault(kind), event(Op::Heal, to)]);
    }
    history.events.extend(faults);
    history.events.sort_by_key(|e| e.t);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(ms: u64, process: &str, op: Op, ph: Phase, n: u64) -> Event {
        Event { process: process.to_owned(), t: ms * 1_000_000, ..Event::new(op, ph, n) }
    }

    /// Two renewals from 0 and 50 ms on, of which the first is answered at `ms`.
    fn renewals(ms: u64) -> Vec<Event> {
        vec![
            event(0, "a", Op::Renew, Phase::Invoke, 1),
            event(50, "b", Op::Renew, Phase::Invoke, 1),
            event(ms, "a", Op::Renew, Phase::Ok, 1),
        ]
    }

    #[test]
    fn a_silence_is_long_and_of_several_processes() {
        assert_eq!(all(&renewals(260)), [(50_000_000, 260_000_000)]);
        assert!(all(&renewals(240)).is_empty());
        let mut alone = renewals(900);
        alone.remove(1);
        assert!(all(&alone).is_empty());
    }

    #[test]
    fn an_answer_to_another_request_ends_it() {
        let mut events = renewals(500);
        events.insert(2, event(280, "c", Op::Enqueue, Phase::Ok, 4));
        assert_eq!(all(&events), [(50_000_000, 280_000_000), (280_000_000, 500_000_000)]);
        let mut events = renewals(300);
        events.insert(2, event(150, "c", Op::Acquire, Phase::Ok, 4));
        assert!(all(&events).is_empty());
    }

    #[test]
    fn a_process_that_is_killed_or_gives_up_waits_for_nothing() {
        let kill = event(60, "injector", Op::Fault, Phase::Ok, 1).target("b");
        let given_up = event(60, "b", Op::Renew, Phase::Info, 1);
        for end in [kill, given_up] {
            let mut events = renewals(900);
            events.insert(2, end);
            assert!(all(&events).is_empty());
        }
    }
}
