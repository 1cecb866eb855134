//! R2: fences rise.

use crate::{MS, event, fails, flush, forgets, held, not_held, passes, renewed, run, undecided};
use holdline_checker::{Event, Expect, Fences, Op, Phase, Rule, Verdict};

#[test]
fn r2_fences_rise_and_stay() {
    let small = Expect::small();
    let pair = |a, b| [held("a", 1, 0, 10, a), held("b", 1, 20, 30, b)];
    passes(Rule::R2, &pair(1, 2), &small);
    fails(Rule::R2, &pair(2, 2), &small);
    fails(Rule::R2, &pair(2, 1), &small);
    passes(Rule::R2, &pair(2, 1), &Expect { fences: Fences::BestEffort, ..Expect::small() });
    let none = Expect { fences: Fences::None, ..Expect::small() };
    assert!(run(&pair(2, 1), &none).ok());

    let renewed = vec![event(5, "a", Op::Renew, Phase::Ok, 1).fence(9)];
    fails(Rule::R2, &[held("a", 1, 0, 10, 1), renewed], &small);

    let mut without = held("a", 1, 0, 10, 1);
    without[1].fence = None;
    undecided(Rule::R2, &[without], &small);
}

#[test]
fn r2_a_rival_that_asked_early_and_was_granted_late_has_the_higher_fence() {
    let mut late = held("b", 1, 30, 40, 1);
    late[0].t = 0;
    fails(Rule::R2, &[held("a", 1, 5, 10, 2), late.clone()], &Expect::small());
    // Two that may hold together are known in any order.
    let shared = Expect { capacity: 2, ..Expect::small() };
    passes(Rule::R2, &[held("a", 1, 5, 10, 2), late.clone()], &shared);
    // If the store may have forgotten the first of them, its answer may come last.
    let overtaken = |at| [held("a", 1, 5, 10, 2), late.clone(), flush(at)];
    passes(Rule::R2, &overtaken(20), &forgets());
    fails(Rule::R2, &overtaken(40), &forgets());
}

#[test]
fn r2_asks_nothing_of_a_store_without_fences() {
    let none = Expect { fences: Fences::None, ..Expect::small() };
    let report = run(&[held("a", 1, 0, 10, 1)], &none);
    assert!(matches!(report.rule(Rule::R2).verdict, Verdict::NotApplicable(_)), "{report}");
}

/// A grant that was asked for at `asked`, and known at `granted`.
fn waited(p: &str, asked: u64, granted: u64, fence: u64) -> Vec<Event> {
    let mut events = held(p, 1, granted - 1, granted + 50, fence);
    events[0].t = asked * MS;
    events
}

/// If many may hold at once, only what was known before the question counts.
#[test]
fn r2_a_later_question_has_a_higher_fence_than_all_that_were_known() {
    let many = Expect { capacity: 10, ..Expect::small() };
    // At the same time is not before.
    passes(Rule::R2, &[waited("a", 0, 6, 2), waited("b", 6, 8, 1)], &many);
    fails(Rule::R2, &[waited("a", 0, 6, 2), waited("b", 7, 8, 1)], &many);
    // The highest counts, not the last.
    let two = || [waited("a", 0, 1, 5), waited("b", 0, 2, 3)].concat();
    fails(Rule::R2, &[two(), waited("c", 10, 11, 4)], &many);
    // One that asked early was not overtaken by those that were granted before it.
    let later = [waited("a", 10, 20, 5), waited("b", 30, 40, 7)].concat();
    passes(Rule::R2, &[later, waited("c", 0, 50, 1)], &many);
}

#[test]
fn r2_a_rival_is_compared_with_the_highest_fence_of_each_weight() {
    let two = Expect { capacity: 2, ..Expect::small() };
    let heavy = || waited("c", 0, 30, 4).into_iter().map(|e| e.weight(2)).collect::<Vec<_>>();
    for (first, second) in [(5, 3), (3, 5)] {
        let light = [waited("a", 0, 5, first), waited("b", 0, 6, second)].concat();
        fails(Rule::R2, &[light, heavy()], &two);
    }
    passes(Rule::R2, &[waited("a", 0, 5, 3), waited("b", 0, 6, 2), heavy()], &two);
}

#[test]
fn r2_a_grant_that_came_after_its_deadline_is_no_rival() {
    let mut late = waited("b", 0, 30, 1);
    late[1].deadline = Some(20 * MS);
    passes(Rule::R2, &[held("a", 1, 5, 10, 2), late], &Expect::small());
}

#[test]
fn r2_a_renewal_without_a_fence_or_without_success_changes_none() {
    let silent = renewed("a", (4, 5), 105);
    passes(Rule::R2, &[held("a", 1, 0, 10, 1), silent], &Expect::small());
    let failed = not_held("a", Op::Renew, (4, 5)).into_iter().map(|e| e.fence(9)).collect();
    passes(Rule::R2, &[held("a", 1, 0, 10, 1), failed], &Expect::small());
}

/// The answer to a repeated request, say.
#[test]
fn r2_an_attempt_that_is_granted_twice_has_two_fences() {
    let again = vec![event(20, "a", Op::Acquire, Phase::Ok, 1).fence(1)];
    let report = fails(Rule::R2, &[held("a", 1, 0, 10, 1), again], &Expect::small());
    assert!(report.to_string().contains("two grants have the fence 1"), "{report}");
}
