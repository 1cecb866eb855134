//! One ticket's life, step by step: what it asks, when it believes an answer, and how it ends.

use core::time::Duration;
use holdline_kernel::{
    Action, Claim, Enter, Event, Hold, Lease, Manner, Next, Schedule, Seq, Standing, Time,
};

const LEASE: Lease = Lease { length: Duration::from_secs(10), margin: Duration::from_millis(100) };
const POLL: Schedule = Schedule::fixed(Duration::from_millis(50));
const AGAIN: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

fn claim(manner: Manner) -> Claim {
    Claim::new(manner, LEASE, Time::NEVER)
}

fn reply(sent: Time, standing: Standing) -> Event {
    Event::Reply { sent, standing }
}

fn waiting(seq: Option<u64>) -> Standing {
    Standing::Waiting { seq: seq.map(Seq), again: AGAIN }
}

fn admitted(seq: u64) -> Standing {
    Standing::Admitted(Seq(seq))
}

#[test]
fn each_manner_begins_with_its_verb() {
    assert_eq!(claim(Manner::Try).restart(), Action::Send(Enter::Try));
    assert_eq!(claim(Manner::Barge(POLL)).restart(), Action::Send(Enter::Try));
    assert_eq!(claim(Manner::Listen).restart(), Action::Send(Enter::Queue));
    assert_eq!(claim(Manner::Poll(POLL)).restart(), Action::Send(Enter::Queue));
}

#[test]
fn a_fresh_answer_grants_from_when_it_was_asked_for() {
    for manner in [Manner::Try, Manner::Listen, Manner::Poll(POLL), Manner::Barge(POLL)] {
        let action = claim(manner).step(ms(5), 0, reply(ms(1), admitted(7)));
        assert_eq!(action, Action::Grant { seq: Seq(7), sent: ms(1) });
    }
}

/// The answer is too old when the lease that it speaks of may have ended: ask again, about that
/// very place.
#[test]
fn an_old_answer_grants_nothing() {
    let too_late = LEASE.good_until(ms(1));
    let mut claim = claim(Manner::Listen);
    let action = claim.step(too_late, 0, reply(ms(1), admitted(7)));
    assert_eq!(action, Action::Send(Enter::Keep(Seq(7))));
    let just_in_time = Time(too_late.0 - 1);
    let action = claim.step(just_in_time, 0, reply(ms(1), admitted(7)));
    assert_eq!(action, Action::Grant { seq: Seq(7), sent: ms(1) });
}

#[test]
fn an_old_answer_after_the_limit_gives_up() {
    let mut claim = Claim::new(Manner::Listen, LEASE, ms(60_000));
    assert_eq!(claim.step(ms(60_000), 0, reply(ms(1), admitted(7))), Action::GiveUp);
}

/// A fresh answer is not thrown away because the limit passed while it was on its way.
#[test]
fn a_fresh_answer_at_the_limit_is_a_grant() {
    let mut claim = Claim::new(Manner::Listen, LEASE, ms(10));
    let action = claim.step(ms(11), 0, reply(ms(9), admitted(7)));
    assert_eq!(action, Action::Grant { seq: Seq(7), sent: ms(9) });
}

#[test]
fn a_listener_waits_as_long_as_the_line_says_and_keeps_its_place() {
    let mut claim = claim(Manner::Listen);
    let action = claim.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    assert_eq!(action, Action::Wait { until: ms(1_005), seq: Some(Seq(7)) });
    assert_eq!(claim.step(ms(20), 0, Event::Woken), Action::Send(Enter::Keep(Seq(7))));
}

/// A wake-up is a reason to ask, never a grant.
#[test]
fn a_wake_up_is_proved() {
    let mut claim = claim(Manner::Listen);
    claim.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    for now in 6..20 {
        assert_eq!(claim.step(ms(now), 0, Event::Woken), Action::Send(Enter::Keep(Seq(7))));
    }
}

#[test]
fn a_poller_waits_by_its_schedule_but_never_longer_than_its_place_lasts() {
    let schedule = Schedule::exponential(Duration::from_millis(400), Duration::from_secs(9));
    let mut claim = claim(Manner::Poll(schedule));
    for until in [400, 800, 1_000, 1_000] {
        let action = claim.step(ms(0), 0, reply(ms(0), waiting(Some(7))));
        assert_eq!(action, Action::Wait { until: ms(until), seq: Some(Seq(7)) });
    }
}

/// A barger has no place to lose, so it waits by its schedule alone, and asks to enter at once, as
/// somebody new: its last ticket has been answered. One that was not answered is asked about again.
#[test]
fn a_barger_keeps_no_place() {
    let mut claim = claim(Manner::Barge(Schedule::fixed(Duration::from_secs(5))));
    let action = claim.step(ms(0), 0, reply(ms(0), waiting(None)));
    assert_eq!(action, Action::Wait { until: ms(5_000), seq: None });
    assert_eq!(claim.step(ms(5_000), 0, Event::Woken), Action::Restart);
    assert_eq!(claim.restart(), Action::Send(Enter::Try));
    let Action::Wait { until, .. } = claim.step(ms(5_000), 0, Event::Failed) else {
        panic!("a failure is retried")
    };
    assert_eq!(claim.step(until, 0, Event::Woken), Action::Send(Enter::Try));
}

/// Whatever happens to a try, it never asks for a place in the line.
#[test]
fn a_try_writes_nothing() {
    let mut try_once = claim(Manner::Try);
    assert_eq!(try_once.restart(), Action::Send(Enter::Try));
    let Action::Wait { until, seq: None } = try_once.step(ms(0), 0, Event::Failed) else {
        panic!("a failure is retried")
    };
    assert_eq!(try_once.step(until, 0, Event::Woken), Action::Send(Enter::Try));
    assert_eq!(try_once.step(until, 0, reply(until, waiting(None))), Action::GiveUp);
    assert_eq!(claim(Manner::Try).step(ms(0), 0, reply(ms(0), Standing::Lost)), Action::GiveUp);
}

/// The outcome is unknown: the same question again, about the same ticket and the same place.
#[test]
fn a_failure_keeps_the_ticket_and_the_place() {
    let mut new = claim(Manner::Listen);
    let Action::Wait { until, seq: None } = new.step(ms(0), 9, Event::Failed) else {
        panic!("a failure is retried")
    };
    assert_eq!(new.step(until, 0, Event::Woken), Action::Send(Enter::Queue));
    new.step(until, 0, reply(until, waiting(Some(7))));
    let Action::Wait { until, seq } = new.step(until, 9, Event::Failed) else {
        panic!("a failure is retried")
    };
    assert_eq!(seq, Some(Seq(7)));
    assert_eq!(new.step(until, 0, Event::Woken), Action::Send(Enter::Keep(Seq(7))));
}

#[test]
fn failures_back_off_and_end_after_five_in_a_row() {
    let mut claim = claim(Manner::Listen);
    for pause in [50, 100, 200, 400] {
        // In the middle of its jitter: with half the spread added, the plain pause.
        let random = pause * 500_000;
        let action = claim.step(ms(0), random, Event::Failed);
        assert_eq!(action, Action::Wait { until: ms(pause), seq: None });
    }
    assert_eq!(claim.step(ms(0), 0, Event::Failed), Action::Fail);
}

#[test]
fn an_answer_forgives_the_failures_before_it() {
    let mut claim = claim(Manner::Listen);
    for _ in 0..10 {
        for _ in 0..4 {
            assert!(matches!(claim.step(ms(0), 0, Event::Failed), Action::Wait { .. }));
        }
        claim.step(ms(0), 0, reply(ms(0), waiting(Some(7))));
    }
}

/// A waiter whose place is gone begins again; with a new ticket, and so with a new place.
#[test]
fn lost_while_waiting_begins_again() {
    let mut claim = claim(Manner::Listen);
    claim.step(ms(0), 0, reply(ms(0), waiting(Some(7))));
    assert_eq!(claim.step(ms(5), 0, reply(ms(4), Standing::Lost)), Action::Restart);
    assert_eq!(claim.restart(), Action::Send(Enter::Queue));
    let action = claim.step(ms(6), 0, reply(ms(5), waiting(Some(9))));
    assert_eq!(action, Action::Wait { until: ms(1_006), seq: Some(Seq(9)) });
}

#[test]
fn no_wait_outlasts_the_limit() {
    for manner in [Manner::Listen, Manner::Poll(POLL), Manner::Barge(POLL)] {
        let mut claim = Claim::new(manner, LEASE, ms(20));
        let action = claim.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
        let Action::Wait { until, .. } = action else { panic!("{manner:?} does not wait") };
        assert_eq!(until, ms(20), "{manner:?}");
        assert_eq!(claim.step(ms(20), 0, Event::Woken), Action::GiveUp, "{manner:?}");
        let action = claim.step(ms(20), 0, reply(ms(19), waiting(Some(7))));
        assert_eq!(action, Action::GiveUp, "{manner:?}");
        let action = claim.step(ms(20), 0, reply(ms(19), Standing::Lost));
        assert_eq!(action, Action::GiveUp, "{manner:?}");
        // It has been told to wait, and one answer that the limit cut off does not change that.
        assert_eq!(claim.step(ms(20), 0, Event::Failed), Action::GiveUp, "{manner:?}");
        assert_eq!(claim.step(ms(20), 0, Event::Failed), Action::Fail, "{manner:?}");
        let mut unheard = Claim::new(manner, LEASE, ms(20));
        assert_eq!(unheard.step(ms(20), 0, Event::Failed), Action::Fail, "{manner:?}");
    }
}

#[test]
fn a_failure_near_the_limit_waits_no_longer_than_it() {
    let mut claim = Claim::new(Manner::Listen, LEASE, ms(20));
    let action = claim.step(ms(19), u64::MAX, Event::Failed);
    assert_eq!(action, Action::Wait { until: ms(20), seq: None });
}

/// Fails again and again from `now` on, each time when the pause is over, until it is given up or
/// `most` tries were made. Says how often it tried, when the last failure was, and the end.
fn fail_on(claim: &mut Claim, mut now: Time, most: u32) -> (u32, Time, Action) {
    for tries in 1..=most {
        match claim.step(now, 0, Event::Failed) {
            Action::Wait { until, .. } => now = until,
            end => return (tries, now, end),
        }
        match claim.step(now, 0, Event::Woken) {
            Action::Send(_) => {}
            end => return (tries, now, end),
        }
    }
    (most, now, Action::Send(Enter::Try))
}

const FOR_EVER: Duration = Duration::MAX;
const WAITING: [Manner; 3] = [Manner::Listen, Manner::Poll(POLL), Manner::Barge(POLL)];

#[test]
fn a_store_that_never_answered_is_given_up_after_a_few_tries() {
    for manner in WAITING {
        let mut claim = claim(manner).outlasting(FOR_EVER, false);
        let (tries, _, end) = fail_on(&mut claim, ms(1), 100);
        assert_eq!((tries, end), (5, Action::Fail), "{manner:?}");
    }
}

#[test]
fn an_outage_is_outlasted_by_those_who_wait() {
    for manner in WAITING {
        // The client was answered before; or this very claim was.
        let before = claim(manner).outlasting(FOR_EVER, true);
        let mut within = claim(manner).outlasting(FOR_EVER, false);
        within.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
        for mut claim in [before, within] {
            let (_, now, end) = fail_on(&mut claim, ms(10), 10_000);
            assert!(matches!(end, Action::Send(_)), "{manner:?}: {end:?}");
            assert!(now > ms(3_600_000), "{manner:?}: it asks every {now:?} / 10,000");
            // The store is back, and has kept the place or not.
            let action = claim.clone().step(now, 0, reply(now, Standing::Lost));
            assert_eq!(action, Action::Restart, "{manner:?}");
            let action = claim.step(now, 0, reply(now, admitted(9)));
            assert_eq!(action, Action::Grant { seq: Seq(9), sent: now }, "{manner:?}");
        }
    }
}

#[test]
fn a_try_outlasts_nothing() {
    let mut claim = claim(Manner::Try).outlasting(FOR_EVER, true);
    let (tries, _, end) = fail_on(&mut claim, ms(1), 100);
    assert_eq!((tries, end), (5, Action::Fail));
}

/// The bound counts from the first failure; and a few tries are made in any case.
#[test]
fn an_outage_that_is_longer_than_the_bound_ends_the_wait() {
    for manner in WAITING {
        let bound = Duration::from_secs(60);
        let mut bounded = claim(manner).outlasting(bound, true);
        let (_, now, end) = fail_on(&mut bounded, ms(10), 10_000);
        assert_eq!(end, Action::Fail, "{manner:?}");
        assert!((ms(60_010)..ms(62_000)).contains(&now), "{manner:?}: {now:?}");
        // An answer in between begins a new count.
        let mut bounded = claim(manner).outlasting(bound, true);
        let (_, now, _) = fail_on(&mut bounded, ms(10), 40);
        bounded.step(now, 0, reply(now, waiting(Some(7))));
        let (_, end_of_it, end) = fail_on(&mut bounded, now, 10_000);
        assert_eq!(end, Action::Fail, "{manner:?}");
        assert!(now.until(end_of_it) >= bound, "{manner:?}: {:?}", now.until(end_of_it));
        let mut none = claim(manner).outlasting(Duration::ZERO, true);
        assert_eq!(fail_on(&mut none, ms(1), 100).0, 5, "{manner:?}");
    }
}

/// The limit ends an outage too, and the end says that the store could not be asked.
#[test]
fn a_limit_ends_an_outage_with_an_error() {
    for manner in WAITING {
        for limit in [100, 1_000, 7_777] {
            let mut claim = Claim::new(manner, LEASE, ms(limit)).outlasting(FOR_EVER, true);
            claim.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
            let (_, now, end) = fail_on(&mut claim, ms(10), 10_000);
            assert_eq!((now, end), (ms(limit), Action::Fail), "{manner:?}");
        }
    }
}

fn trusting(manner: Manner) -> Claim {
    claim(manner).trusting(Duration::from_secs(3))
}

/// The line's own word is worth what its last answer was: 3 s of patience less 32 ms of drift and
/// the margin, from when that was asked for.
#[test]
fn the_lines_word_is_a_grant_for_what_is_left_of_the_patience() {
    let mut claim = trusting(Manner::Listen);
    claim.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    let word = claim.clone().step(ms(20), 0, Event::Told(Seq(7)));
    assert_eq!(word, Action::Trust { seq: Seq(7), until: ms(1 + 3_000 - 32 - 100) });
    // With less than a quarter of it left the line is asked.
    let last = ms(2_869 - 717);
    assert!(matches!(
        claim.clone().step(Time(last.0 - 1), 0, Event::Told(Seq(7))),
        Action::Trust { .. }
    ));
    assert_eq!(claim.step(last, 0, Event::Told(Seq(7))), Action::Send(Enter::Keep(Seq(7))));
}

#[test]
fn the_lines_word_is_not_taken_when_something_is_open() {
    // By those who did not say that they would.
    let mut wary = claim(Manner::Listen);
    wary.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    assert_eq!(wary.step(ms(20), 0, Event::Told(Seq(7))), Action::Send(Enter::Keep(Seq(7))));
    // After a request whose fate is unknown.
    let mut claim = trusting(Manner::Listen);
    claim.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    claim.step(ms(6), 0, Event::Woken);
    claim.step(ms(500), 0, Event::Failed);
    assert_eq!(claim.step(ms(600), 0, Event::Told(Seq(7))), Action::Send(Enter::Keep(Seq(7))));
    // About another place: that one lapsed, and the ticket came back.
    let mut claim = trusting(Manner::Listen);
    claim.step(ms(5), 0, reply(ms(1), waiting(Some(8))));
    assert_eq!(claim.step(ms(6), 0, Event::Told(Seq(7))), Action::Send(Enter::Keep(Seq(8))));
    // Without a place.
    let mut claim = trusting(Manner::Barge(POLL));
    claim.step(ms(5), 0, reply(ms(1), waiting(None)));
    assert_eq!(claim.step(ms(6), 0, Event::Told(Seq(7))), Action::Restart);
}

#[test]
fn a_lock_taken_on_trust_is_renewed_in_time_and_ends_in_time() {
    let mut hold = Hold::trusted(LEASE, ms(100), ms(2_100));
    assert_eq!(hold.next(ms(100)), Next::Sleep(ms(600)));
    assert_eq!(hold.next(ms(600)), Next::Renew);
    hold.renewed(LEASE, ms(600));
    assert_eq!(hold.until(), LEASE.good_until(ms(600)));
    let mut hold = Hold::trusted(LEASE, ms(100), ms(2_100));
    assert_eq!(hold.next(ms(2_100)), Next::Lose);
}
