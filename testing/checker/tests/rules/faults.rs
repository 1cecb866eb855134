//! Which faults excuse what: their kind, their target and their time.

use crate::{event, fails, fault, flush, forgets, grant, held, killed, not_held, passes, release};
use holdline_checker::{Event, Expect, FaultKind, Op, Phase, Rule, Unpromised};

fn keeps() -> Expect {
    Expect { keeps_leases: true, ..Expect::small() }
}

/// A grant that is lost 99 ms after it was asked for, without a cause so far.
fn loses(n: u64, from: u64) -> Vec<Event> {
    [grant("a", n, from, n), vec![event(from + 99, "a", Op::Lost, Phase::Info, n)]].concat()
}

#[test]
fn a_fault_is_felt_by_its_target_and_for_a_while() {
    let cut = |target, times| fault(FaultKind::Partition, Some(target), times);
    passes(Rule::R12, &[loses(1, 100), cut("a", (5, 10))], &keeps());
    fails(Rule::R12, &[loses(1, 100), cut("b", (5, 10))], &keeps());
    fails(Rule::R12, &[loses(1, 100), cut("a", (205, 210))], &keeps());
    passes(Rule::R12, &[loses(1, 100), fault(FaultKind::Slow, None, (150, 160))], &keeps());
    let brief = Expect { settle_ns: 0, ..keeps() };
    fails(Rule::R12, &[loses(1, 100), cut("a", (5, 10))], &brief);
}

/// Another process by the same name is as good as any.
#[test]
fn a_death_does_not_excuse_the_next_process_for_long() {
    passes(Rule::R12, &[killed("a", 5), loses(1, 500)], &keeps());
    fails(Rule::R12, &[killed("a", 5), loses(1, 2_000)], &keeps());
}

#[test]
fn only_the_named_rules_are_excused_and_only_under_the_named_fault() {
    let overlap = || [held("a", 1, 20, 40, 1), held("b", 1, 25, 50, 2)].concat();
    passes(Rule::R1, &[overlap(), flush(10)], &forgets());
    fails(Rule::R1, &[overlap(), flush(10)], &Expect { settle_ns: 0, ..forgets() });
    fails(Rule::R1, &[overlap(), fault(FaultKind::StoreRestart, None, (10, 22))], &forgets());
    let thrown = [grant("a", 1, 20, 1), not_held("a", Op::Renew, (50, 51))].concat();
    fails(Rule::R4, &[thrown, flush(30)], &forgets());
}

/// A loss that is told 40 ms after the deadline at 100 ms, with a rival in between.
#[test]
fn a_fault_that_excuses_its_target_excuses_no_other_process() {
    let stalled = || FaultKind::Other("stalled".to_owned());
    let expect =
        |unpromised| Expect { unpromised: vec![unpromised], settle_ns: 0, ..Expect::small() };
    let of_target = expect(Unpromised::to_its_target(stalled(), [Rule::R5]));
    let of_all = expect(Unpromised::to_all(stalled(), [Rule::R5]));
    let late = |target| {
        let told = vec![event(140, "a", Op::Lost, Phase::Info, 1)];
        [grant("a", 1, 0, 1), told, held("b", 1, 120, 130, 2), fault(stalled(), target, (105, 140))]
    };
    passes(Rule::R5, &late(Some("a")), &of_target);
    passes(Rule::R5, &late(None), &of_target);
    fails(Rule::R5, &late(Some("b")), &of_target);
    passes(Rule::R5, &late(Some("b")), &of_all);
}

/// What is shown of a violation goes on after it: until the holder was told.
#[test]
fn a_fault_excuses_nothing_that_was_complete_before_it() {
    let overlap = || [grant("a", 1, 0, 1), held("b", 1, 20, 60, 2), release("a", 1, 90)].concat();
    let expect = Expect { settle_ns: 0, ..forgets() };
    passes(Rule::R1, &[overlap(), flush(15)], &expect);
    fails(Rule::R1, &[overlap(), flush(50)], &expect);
    let unpromised = vec![Unpromised::to_all(FaultKind::StoreFlush, [Rule::R5])];
    let expect = Expect { unpromised, settle_ns: 0, ..Expect::small() };
    let late = |at| {
        let told = vec![event(140, "a", Op::Lost, Phase::Info, 1)];
        [grant("a", 1, 0, 1), told, held("b", 1, 120, 130, 2), flush(at)]
    };
    passes(Rule::R5, &late(110), &expect);
    fails(Rule::R5, &late(90), &expect);
    fails(Rule::R5, &late(130), &expect);
}
