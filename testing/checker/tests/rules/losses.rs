//! R5, R11 and R12: deadlines, and how losses are told.

use crate::{
    MS, call, event, fails, fault, grant, held, killed, not_held, passes, renewed, run, tolerates,
};
use holdline_checker::{Event, Expect, FaultKind, Op, Phase, Reason, Rule, Verdict};

#[test]
fn r5_a_holder_is_told_before_a_rival_is_in() {
    let small = Expect::small();
    let heir = || held("b", 1, 120, 130, 2);
    let told = |at| vec![event(at, "a", Op::Lost, Phase::Info, 1)];
    passes(Rule::R5, &[grant("a", 1, 0, 1), told(99), heir()], &small);
    fails(Rule::R5, &[grant("a", 1, 0, 1), told(140), heir()], &small);
    fails(Rule::R5, &[grant("a", 1, 0, 1), heir()], &small);
    fails(Rule::R5, &[grant("a", 1, 0, 1), told(300)], &small);
    let silent = Expect { tells_loss: false, ..Expect::small() };
    assert!(!run(&[grant("a", 1, 0, 1), heir()], &silent).failed(Rule::R5));

    let fault = |kind: FaultKind| {
        let start = event(50, "f", Op::Fault, Phase::Ok, 1).fault(kind).target("a");
        vec![start, event(140, "f", Op::Heal, Phase::Ok, 1)]
    };
    let late = |kind| [grant("a", 1, 0, 1), told(140), heir(), fault(kind)];
    passes(Rule::R5, &late(FaultKind::Pause), &small);
    fails(Rule::R5, &late(FaultKind::Partition), &small);
    passes(Rule::R5, &[grant("a", 1, 0, 1), heir(), fault(FaultKind::Kill)], &small);
}

#[test]
fn r5_renewals_may_be_hidden_if_the_last_deadline_is_told() {
    let hidden = Expect { renewals_recorded: false, ..Expect::small() };
    let lost =
        |deadline: u64| vec![event(500, "a", Op::Lost, Phase::Info, 1).deadline(deadline * MS)];
    passes(Rule::R5, &[grant("a", 1, 0, 1), lost(490)], &hidden);
    fails(Rule::R5, &[grant("a", 1, 0, 1), lost(400)], &hidden);
    let silent = vec![event(500, "a", Op::Lost, Phase::Info, 1)];
    passes(Rule::R5, &[grant("a", 1, 0, 1), silent], &hidden);
    // And the claim reaches up to that deadline.
    fails(Rule::R1, &[grant("a", 1, 0, 1), lost(490), held("b", 1, 450, 460, 2)], &hidden);
}

#[test]
fn r5_nobody_claims_after_the_deadline() {
    let sample = |at| {
        vec![event(at, "a", Op::Claim, Phase::Invoke, 1), event(at, "a", Op::Claim, Phase::Ok, 1)]
    };
    passes(Rule::R5, &[held("a", 1, 0, 120, 1), sample(90)], &Expect::small());
    fails(Rule::R5, &[held("a", 1, 0, 120, 1), sample(101)], &Expect::small());
}

#[test]
fn r11_a_deadline_counts_from_the_sending() {
    let renewed = |deadline: u64| {
        vec![
            event(50, "a", Op::Renew, Phase::Invoke, 1),
            event(60, "a", Op::Renew, Phase::Ok, 1).deadline(deadline * MS),
        ]
    };
    passes(Rule::R11, &[held("a", 1, 0, 70, 1), renewed(150)], &Expect::small());
    fails(Rule::R11, &[held("a", 1, 0, 70, 1), renewed(151)], &Expect::small());
}

#[test]
fn r12_a_live_holder_keeps_its_lock() {
    let keeps = Expect { keeps_leases: true, ..Expect::small() };
    let lost = || vec![event(99, "a", Op::Lost, Phase::Info, 1)];
    passes(Rule::R12, &[held("a", 1, 0, 70, 1)], &keeps);
    fails(Rule::R12, &[grant("a", 1, 0, 1), lost()], &keeps);
    let refused = |t| vec![event(t, "a", Op::Renew, Phase::Fail, 1).reason(Reason::NotHeld)];
    passes(Rule::R12, &[held("a", 1, 0, 70, 1), refused(71)], &keeps);
    fails(Rule::R12, &[held("a", 1, 0, 70, 1), refused(69)], &keeps);
    let fault = event(50, "f", Op::Fault, Phase::Ok, 1).fault(FaultKind::Partition).target("a");
    passes(Rule::R12, &[grant("a", 1, 0, 1), lost(), vec![fault]], &keeps);
}

/// A holder that was asked whether its lock is valid, and said so.
fn claims(times: (u64, u64)) -> Vec<Event> {
    call("a", Op::Claim, 1, times, Phase::Ok)
}

#[test]
fn r5_a_claim_counts_from_its_question_and_by_what_was_known_then() {
    let small = Expect::small();
    let a = || held("a", 1, 0, 300, 1);
    passes(Rule::R5, &[a(), claims((100, 110))], &small);
    passes(Rule::R5, &[a(), call("a", Op::Claim, 1, (120, 121), Phase::Fail)], &small);
    passes(Rule::R5, &[a(), renewed("a", (80, 81), 180), claims((120, 121))], &small);
    fails(Rule::R5, &[a(), claims((120, 121)), renewed("a", (130, 131), 230)], &small);
    let lost = vec![event(50, "a", Op::Lost, Phase::Info, 1)];
    fails(Rule::R5, &[grant("a", 1, 0, 1), lost, claims((60, 61))], &small);
    // Of two questions on their way the answer is that to the later.
    fails(Rule::R5, &[a(), claims((90, 400))[..1].to_vec(), claims((101, 102))], &small);
    let later = claims((120, 121)).into_iter().map(|e| e.deadline(200 * MS)).collect();
    passes(Rule::R5, &[a(), later], &small);
}

#[test]
fn r5_is_about_what_happens_after_a_deadline() {
    let small = Expect::small();
    passes(Rule::R5, &[held("a", 1, 0, 90, 1), held("b", 1, 50, 60, 2)], &small);
    fails(Rule::R5, &[grant("a", 1, 0, 1), held("b", 1, 99, 110, 2)], &small);
    passes(Rule::R5, &[grant("a", 1, 0, 1), killed("a", 110), held("b", 1, 120, 130, 2)], &small);
    fails(Rule::R5, &[grant("a", 1, 0, 1), killed("a", 125), held("b", 1, 120, 130, 2)], &small);
}

/// Only a process that could not act when its deadline passed is excused.
#[test]
fn r5_excuses_those_that_were_stopped_at_their_deadline() {
    let small = Expect::small();
    let late = |target, times| {
        let told = vec![event(140, "a", Op::Lost, Phase::Info, 1)];
        let pause = fault(FaultKind::Pause, Some(target), times);
        [grant("a", 1, 0, 1), told, held("b", 1, 120, 130, 2), pause]
    };
    passes(Rule::R5, &late("a", (50, 140)), &small);
    fails(Rule::R5, &late("a", (20, 40)), &small);
    fails(Rule::R5, &late("a", (105, 140)), &small);
    fails(Rule::R5, &late("c", (50, 140)), &small);
}

/// A request for a lock may be repeated, so its deadline counts from the answer at the latest.
#[test]
fn r11_the_deadline_of_a_grant_counts_from_its_answer_at_the_latest() {
    let small = Expect::small();
    let granted = |at, deadline| {
        let mut events = grant("a", 1, 0, 1);
        (events[1].t, events[1].deadline) = (at * MS, Some(deadline * MS));
        events
    };
    passes(Rule::R11, &[granted(50, 150)], &small);
    fails(Rule::R11, &[granted(50, 151)], &small);
    // Without its request nothing is known.
    tolerates(Rule::R11, &[vec![granted(50, 500)[1].clone().ttl_ms(100)]], &small);
}

#[test]
fn r11_an_answer_belongs_to_its_own_request() {
    let small = Expect::small();
    let a = || held("a", 1, 0, 95, 1);
    let ask = |k: Option<u64>, at| {
        let mut asked = event(at, "a", Op::Renew, Phase::Invoke, 1);
        asked.k = k;
        asked
    };
    let answer = |k: Option<u64>, at, deadline: u64| {
        let mut answer = event(at, "a", Op::Renew, Phase::Ok, 1).deadline(deadline * MS);
        answer.k = k;
        answer
    };
    let numbered =
        |deadline| vec![ask(Some(1), 40), ask(Some(2), 60), answer(Some(1), 70, deadline)];
    passes(Rule::R11, &[a(), numbered(140)], &small);
    fails(Rule::R11, &[a(), numbered(141)], &small);
    // Without a number, to the latest before it.
    let two = vec![ask(None, 40), ask(None, 60), answer(None, 65, 160), answer(None, 70, 155)];
    passes(Rule::R11, &[a(), two], &small);
    let early = vec![ask(None, 40), answer(None, 50, 145), ask(None, 60)];
    fails(Rule::R11, &[a(), early], &small);
    // One that is answered already has no second answer.
    let twice = vec![ask(None, 40), answer(None, 50, 140), answer(None, 60, 200)];
    passes(Rule::R11, &[a(), twice], &small);
}

#[test]
fn r12_a_lock_is_kept_where_that_is_promised_or_nothing_is_broken() {
    let lost = || [grant("a", 1, 0, 1), vec![event(99, "a", Op::Lost, Phase::Info, 1)]];
    fails(Rule::R12, &lost(), &Expect { calm: true, ..Expect::small() });
    let report = run(&lost(), &Expect::small());
    assert!(matches!(report.rule(Rule::R12).verdict, Verdict::NotApplicable(_)), "{report}");
    let keeps = Expect { keeps_leases: true, ..Expect::small() };
    let released = [grant("a", 1, 0, 1), not_held("a", Op::Release, (70, 71))];
    fails(Rule::R12, &released, &keeps);
}

#[test]
fn r5_a_loss_that_is_told_again_was_told_before() {
    let told = |at| vec![event(at, "a", Op::Lost, Phase::Info, 1)];
    let small = Expect::small();
    fails(Rule::R5, &[grant("a", 1, 0, 1), told(50), claims((60, 60)), told(70)], &small);
    passes(Rule::R5, &[grant("a", 1, 0, 1), told(90), told(300)], &small);
}
