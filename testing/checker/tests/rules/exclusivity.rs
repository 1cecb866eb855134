//! R1: claims do not overlap.

use crate::{
    MS, because, call, event, fails, flush, forgets, grant, held, killed, not_held, passes, release,
};
use holdline_checker::{Event, Expect, Op, Phase, Reason, Rule};

#[test]
fn r1_claims_do_not_overlap() {
    let small = Expect::small();
    passes(Rule::R1, &[held("a", 1, 0, 10, 1), held("b", 1, 2, 30, 2)[..1].to_vec()], &small);
    passes(Rule::R1, &[held("a", 1, 0, 10, 1), held("b", 1, 9, 30, 2)], &small);
    let report = fails(Rule::R1, &[held("a", 1, 0, 10, 1), held("b", 1, 5, 30, 2)], &small);
    assert!(report.to_string().contains("L: weight 2 of 1 claimed from 6.000 ms on"), "{report}");
}

#[test]
fn r1_a_claim_ends_at_its_deadline_unless_it_was_renewed() {
    let small = Expect::small();
    let zombie = || held("a", 1, 0, 200, 1);
    let heir = || held("b", 1, 120, 130, 2);
    passes(Rule::R1, &[zombie(), heir()], &small);
    fails(Rule::R1, &[zombie(), heir()], &Expect { calm: true, ..Expect::small() });
    let renewed = vec![
        event(80, "a", Op::Renew, Phase::Invoke, 1),
        event(81, "a", Op::Renew, Phase::Ok, 1).deadline(180 * MS),
    ];
    fails(Rule::R1, &[zombie(), renewed.clone(), heir()], &small);
    let lost = vec![event(110, "a", Op::Lost, Phase::Info, 1)];
    passes(Rule::R1, &[zombie(), renewed, lost, heir()], &small);
}

#[test]
fn r1_what_was_refused_before_the_grant_does_not_end_the_claim() {
    let refused = vec![event(0, "a", Op::Renew, Phase::Fail, 1).reason(Reason::NotHeld)];
    let grant = held("a", 1, 0, 10, 1);
    let events = [grant[..1].to_vec(), refused, grant[1..].to_vec(), held("b", 1, 5, 30, 2)];
    fails(Rule::R1, &events, &Expect::small());
}

#[test]
fn r1_weights_fill_a_capacity() {
    let weigh = |events: Vec<Event>, w| events.into_iter().map(|e| e.weight(w)).collect::<Vec<_>>();
    let expect = Expect { capacities: [("L".to_owned(), 3)].into(), ..Expect::small() };
    let one = || weigh(held("a", 1, 0, 50, 1), 1);
    let two = || weigh(held("b", 1, 5, 50, 2), 2);
    passes(Rule::R1, &[one(), two()], &expect);
    fails(Rule::R1, &[one(), two(), weigh(held("c", 1, 10, 20, 3), 1)], &expect);
    passes(Rule::R1, &[one(), two(), weigh(held("c", 1, 50, 60, 3), 3)], &expect);
}

#[test]
fn r1_excuses_only_what_the_store_does_not_promise() {
    let overlap = |at| [held("a", 1, 0, 10, 1), held("b", 1, 5, 30, 2), flush(at)];
    passes(Rule::R1, &overlap(4), &forgets());
    fails(Rule::R1, &overlap(4), &Expect::small());
    fails(Rule::R1, &overlap(50), &forgets());
}

#[test]
fn r1_a_claim_ends_when_its_holder_knows_better_or_is_dead() {
    let small = Expect::small();
    let heir = || held("b", 1, 60, 70, 2);
    passes(Rule::R1, &[grant("a", 1, 0, 1), not_held("a", Op::Renew, (49, 50)), heir()], &small);
    passes(Rule::R1, &[grant("a", 1, 0, 1), killed("a", 50), heir()], &small);
    fails(Rule::R1, &[grant("a", 1, 0, 1), killed("a", 65), heir()], &small);
    // Others' deaths, and that of an earlier process of the same name, do not end it.
    fails(Rule::R1, &[grant("a", 1, 40, 1), killed("c", 50), heir()], &small);
    fails(Rule::R1, &[grant("a", 1, 40, 1), killed("a", 20), heir()], &small);
}

#[test]
fn r1_a_renewal_that_fails_makes_no_claim_longer() {
    let failed = call("a", Op::Renew, 1, (80, 81), Phase::Fail);
    let failed = because(failed, Reason::Timeout).into_iter().map(|e| e.deadline(180 * MS));
    let events = [grant("a", 1, 0, 1), failed.collect(), held("b", 1, 120, 130, 2)];
    passes(Rule::R1, &events, &Expect::small());
}

#[test]
fn r1_a_second_release_makes_no_claim_longer() {
    let again = release("a", 1, 50);
    let events = [held("a", 1, 0, 10, 1), again, held("b", 1, 20, 30, 2)];
    passes(Rule::R1, &events, &Expect::small());
}

/// A writer that records answers only.
#[test]
fn r1_grants_without_their_requests_count() {
    let answers = |p, from, fence| grant(p, 1, from, fence)[1..].to_vec();
    let events = [answers("a", 0, 1), answers("b", 50, 2)];
    fails(Rule::R1, &events, &Expect::small());
}
