//! The acquisition, step by step: which requests it sends, when it accepts a reply, and how it
//! ends.

use core::time::Duration;
use holdline_kernel::{
    Acquisition, Action, Backoff, Enter, Event, Lease, LeaseTimer, Next, Seq, Standing, Time,
    WaitMode,
};

const LEASE: Lease = Lease { length: Duration::from_secs(10), margin: Duration::from_millis(100) };
const POLL: Backoff = Backoff::fixed(Duration::from_millis(50));
const AGAIN: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

fn acquisition(mode: WaitMode) -> Acquisition {
    Acquisition::new(mode, LEASE, Time::NEVER)
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
fn each_wait_mode_begins_with_its_request() {
    assert_eq!(acquisition(WaitMode::Try).restart(), Action::Send(Enter::Try));
    assert_eq!(acquisition(WaitMode::Barge(POLL)).restart(), Action::Send(Enter::Try));
    assert_eq!(acquisition(WaitMode::Listen).restart(), Action::Send(Enter::Queue));
    assert_eq!(acquisition(WaitMode::Poll(POLL)).restart(), Action::Send(Enter::Queue));
}

#[test]
fn a_fresh_answer_grants_from_when_it_was_asked_for() {
    for mode in [WaitMode::Try, WaitMode::Listen, WaitMode::Poll(POLL), WaitMode::Barge(POLL)] {
        let action = acquisition(mode).step(ms(5), 0, reply(ms(1), admitted(7)));
        assert_eq!(action, Action::Grant { seq: Seq(7), sent: ms(1) });
    }
}

/// A reply is too old when the lease that it speaks of may have ended: the same place is asked
/// about again.
#[test]
fn an_old_answer_grants_nothing() {
    let too_late = LEASE.good_until(ms(1));
    let mut acquisition = acquisition(WaitMode::Listen);
    let action = acquisition.step(too_late, 0, reply(ms(1), admitted(7)));
    assert_eq!(action, Action::Send(Enter::Keep(Seq(7))));
    let just_in_time = Time(too_late.0 - 1);
    let action = acquisition.step(just_in_time, 0, reply(ms(1), admitted(7)));
    assert_eq!(action, Action::Grant { seq: Seq(7), sent: ms(1) });
}

/// The place that an old reply names is kept: if the next request fails, the same place is asked
/// about, and no new one is taken.
#[test]
fn an_old_answer_still_names_the_place() {
    for mode in [WaitMode::Try, WaitMode::Listen, WaitMode::Poll(POLL), WaitMode::Barge(POLL)] {
        let mut acquisition = acquisition(mode);
        let too_late = LEASE.good_until(ms(1));
        acquisition.step(too_late, 0, reply(ms(1), admitted(7)));
        let Action::Wait { until, seq } =
            acquisition.step(too_late, 0, Event::Failed { sent: too_late })
        else {
            panic!("a failure is retried")
        };
        assert_eq!(seq, Some(Seq(7)), "{mode:?}");
        let action = acquisition.step(until, 0, Event::Woken);
        assert_eq!(action, Action::Send(Enter::Keep(Seq(7))), "{mode:?}");
    }
}

#[test]
fn an_old_answer_after_the_limit_gives_up() {
    let mut acquisition = Acquisition::new(WaitMode::Listen, LEASE, ms(60_000));
    assert_eq!(acquisition.step(ms(60_000), 0, reply(ms(1), admitted(7))), Action::GiveUp);
}

/// A fresh reply is accepted although the limit passed while it was on its way.
#[test]
fn a_fresh_answer_at_the_limit_is_a_grant() {
    let mut acquisition = Acquisition::new(WaitMode::Listen, LEASE, ms(10));
    let action = acquisition.step(ms(11), 0, reply(ms(9), admitted(7)));
    assert_eq!(action, Action::Grant { seq: Seq(7), sent: ms(9) });
}

#[test]
fn a_listener_waits_as_long_as_the_line_says_and_keeps_its_place() {
    let mut acquisition = acquisition(WaitMode::Listen);
    let action = acquisition.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    assert_eq!(action, Action::Wait { until: ms(1_005), seq: Some(Seq(7)) });
    assert_eq!(acquisition.step(ms(20), 0, Event::Woken), Action::Send(Enter::Keep(Seq(7))));
}

/// A wake-up leads to a request, never to a grant.
#[test]
fn a_wake_up_is_proved() {
    let mut acquisition = acquisition(WaitMode::Listen);
    acquisition.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    for now in 6..20 {
        assert_eq!(acquisition.step(ms(now), 0, Event::Woken), Action::Send(Enter::Keep(Seq(7))));
    }
}

#[test]
fn a_poller_waits_by_its_schedule_but_never_longer_than_its_place_lasts() {
    let schedule = Backoff::exponential(Duration::from_millis(400), Duration::from_secs(9));
    let mut acquisition = acquisition(WaitMode::Poll(schedule));
    for until in [400, 800, 1_000, 1_000] {
        let action = acquisition.step(ms(0), 0, reply(ms(0), waiting(Some(7))));
        assert_eq!(action, Action::Wait { until: ms(until), seq: Some(Seq(7)) });
    }
}

/// Without a place, the wait is by the schedule alone, and the next attempt has a new ticket if the
/// last request was answered; if not, the same ticket is asked about again.
#[test]
fn a_barger_keeps_no_place() {
    let mut acquisition = acquisition(WaitMode::Barge(Backoff::fixed(Duration::from_secs(5))));
    let action = acquisition.step(ms(0), 0, reply(ms(0), waiting(None)));
    assert_eq!(action, Action::Wait { until: ms(5_000), seq: None });
    assert_eq!(acquisition.step(ms(5_000), 0, Event::Woken), Action::Restart);
    assert_eq!(acquisition.restart(), Action::Send(Enter::Try));
    let Action::Wait { until, .. } =
        acquisition.step(ms(5_000), 0, Event::Failed { sent: ms(5_000) })
    else {
        panic!("a failure is retried")
    };
    assert_eq!(acquisition.step(until, 0, Event::Woken), Action::Send(Enter::Try));
}

/// A try never asks for a place in the line, also after failures.
#[test]
fn a_try_writes_nothing() {
    let mut try_once = acquisition(WaitMode::Try);
    assert_eq!(try_once.restart(), Action::Send(Enter::Try));
    let Action::Wait { until, seq: None } = try_once.step(ms(0), 0, Event::Failed { sent: ms(0) })
    else {
        panic!("a failure is retried")
    };
    assert_eq!(try_once.step(until, 0, Event::Woken), Action::Send(Enter::Try));
    assert_eq!(try_once.step(until, 0, reply(until, waiting(None))), Action::GiveUp);
}

/// That a ticket is lost does not mean that the lock is taken. The next ticket is told, if it is
/// answered in time; a few in a row that are lost are a failure, as are errors in between.
#[test]
fn a_try_whose_ticket_is_lost_tries_again() {
    let lost = |at| reply(at, Standing::Lost);
    let mut try_once = acquisition(WaitMode::Try);
    assert_eq!(try_once.step(ms(0), 0, lost(ms(0))), Action::Restart);
    assert_eq!(try_once.restart(), Action::Send(Enter::Try));
    let action = try_once.clone().step(ms(1), 0, reply(ms(1), admitted(7)));
    assert_eq!(action, Action::Grant { seq: Seq(7), sent: ms(1) });
    assert_eq!(try_once.clone().step(ms(1), 0, reply(ms(1), waiting(None))), Action::GiveUp);
    assert!(matches!(try_once.step(ms(1), 0, Event::Failed { sent: ms(1) }), Action::Wait { .. }));
    for _ in 0..2 {
        assert_eq!(try_once.step(ms(2), 0, lost(ms(2))), Action::Restart);
    }
    assert_eq!(try_once.step(ms(2), 0, lost(ms(2))), Action::Fail, "the fifth in a row");
    let mut late = Acquisition::new(WaitMode::Try, LEASE, ms(20));
    assert_eq!(late.step(ms(20), 0, lost(ms(19))), Action::Fail, "nobody said that it is taken");
}

/// After an unknown outcome the same request is sent again, with the same ticket and place.
#[test]
fn a_failure_keeps_the_ticket_and_the_place() {
    let mut new = acquisition(WaitMode::Listen);
    let Action::Wait { until, seq: None } = new.step(ms(0), 9, Event::Failed { sent: ms(0) })
    else {
        panic!("a failure is retried")
    };
    assert_eq!(new.step(until, 0, Event::Woken), Action::Send(Enter::Queue));
    new.step(until, 0, reply(until, waiting(Some(7))));
    let Action::Wait { until, seq } = new.step(until, 9, Event::Failed { sent: until }) else {
        panic!("a failure is retried")
    };
    assert_eq!(seq, Some(Seq(7)));
    assert_eq!(new.step(until, 0, Event::Woken), Action::Send(Enter::Keep(Seq(7))));
}

#[test]
fn failures_back_off_and_end_after_five_in_a_row() {
    let mut acquisition = acquisition(WaitMode::Listen);
    for pause in [50, 100, 200, 400] {
        // A random number in the middle of the jitter's range gives the plain pause.
        let random = pause * 500_000;
        let action = acquisition.step(ms(0), random, Event::Failed { sent: ms(0) });
        assert_eq!(action, Action::Wait { until: ms(pause), seq: None });
    }
    assert_eq!(acquisition.step(ms(0), 0, Event::Failed { sent: ms(0) }), Action::Fail);
}

#[test]
fn an_answer_forgives_the_failures_before_it() {
    let mut acquisition = acquisition(WaitMode::Listen);
    for _ in 0..10 {
        for _ in 0..4 {
            assert!(matches!(
                acquisition.step(ms(0), 0, Event::Failed { sent: ms(0) }),
                Action::Wait { .. }
            ));
        }
        acquisition.step(ms(0), 0, reply(ms(0), waiting(Some(7))));
    }
}

/// A waiter whose place is gone restarts with a new ticket, and so with a new place.
#[test]
fn lost_while_waiting_begins_again() {
    let mut acquisition = acquisition(WaitMode::Listen);
    acquisition.step(ms(0), 0, reply(ms(0), waiting(Some(7))));
    assert_eq!(acquisition.step(ms(5), 0, reply(ms(4), Standing::Lost)), Action::Restart);
    assert_eq!(acquisition.restart(), Action::Send(Enter::Queue));
    let action = acquisition.step(ms(6), 0, reply(ms(5), waiting(Some(9))));
    assert_eq!(action, Action::Wait { until: ms(1_006), seq: Some(Seq(9)) });
}

#[test]
fn no_wait_outlasts_the_limit() {
    for mode in [WaitMode::Listen, WaitMode::Poll(POLL), WaitMode::Barge(POLL)] {
        let mut acquisition = Acquisition::new(mode, LEASE, ms(20));
        let action = acquisition.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
        let Action::Wait { until, .. } = action else { panic!("{mode:?} does not wait") };
        assert_eq!(until, ms(20), "{mode:?}");
        assert_eq!(acquisition.step(ms(20), 0, Event::Woken), Action::GiveUp, "{mode:?}");
        let action = acquisition.step(ms(20), 0, reply(ms(19), waiting(Some(7))));
        assert_eq!(action, Action::GiveUp, "{mode:?}");
        let action = acquisition.step(ms(20), 0, reply(ms(19), Standing::Lost));
        assert_eq!(action, Action::GiveUp, "{mode:?}");
        // The last reply said to wait; a call that the limit cut off does not change that.
        assert_eq!(
            acquisition.step(ms(20), 0, Event::Failed { sent: ms(20) }),
            Action::GiveUp,
            "{mode:?}"
        );
        let mut unanswered = Acquisition::new(mode, LEASE, ms(20));
        assert_eq!(
            unanswered.step(ms(20), 0, Event::Failed { sent: ms(20) }),
            Action::Fail,
            "{mode:?}"
        );
    }
}

/// After a reply that said to wait: one failed call is no outage, be it the last or the last but
/// one; two are.
#[test]
fn a_call_that_the_limit_cuts_off_is_no_failure() {
    for (failures, end) in [(0, Action::GiveUp), (1, Action::GiveUp), (2, Action::Fail)] {
        let mut acquisition =
            Acquisition::new(WaitMode::Listen, LEASE, ms(1_000)).outlasting(FOR_EVER, true);
        acquisition.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
        for _ in 0..failures {
            assert!(matches!(
                acquisition.step(ms(10), 0, Event::Failed { sent: ms(10) }),
                Action::Wait { .. }
            ));
        }
        assert_eq!(acquisition.clone().step(ms(1_000), 0, Event::Woken), end, "{failures}");
        assert_eq!(
            acquisition.step(ms(1_000), 0, Event::Failed { sent: ms(1_000) }),
            end,
            "{failures}"
        );
    }
}

#[test]
fn a_failure_near_the_limit_waits_no_longer_than_it() {
    let mut acquisition = Acquisition::new(WaitMode::Listen, LEASE, ms(20));
    let action = acquisition.step(ms(19), u64::MAX, Event::Failed { sent: ms(19) });
    assert_eq!(action, Action::Wait { until: ms(20), seq: None });
}

/// Fails every request from `now` on, until the acquisition ends or `most` tries were made. Returns
/// the number of tries, the time of the last failure, and the last action.
fn fail_on(acquisition: &mut Acquisition, mut now: Time, most: u32) -> (u32, Time, Action) {
    for tries in 1..=most {
        match acquisition.step(now, 0, Event::Failed { sent: now }) {
            Action::Wait { until, .. } => now = until,
            end => return (tries, now, end),
        }
        match acquisition.step(now, 0, Event::Woken) {
            Action::Send(_) => {}
            end => return (tries, now, end),
        }
    }
    (most, now, Action::Send(Enter::Try))
}

const FOR_EVER: Duration = Duration::MAX;
const WAITING: [WaitMode; 3] = [WaitMode::Listen, WaitMode::Poll(POLL), WaitMode::Barge(POLL)];

#[test]
fn a_store_that_never_answered_is_given_up_after_a_few_tries() {
    for mode in WAITING {
        let mut acquisition = acquisition(mode).outlasting(FOR_EVER, false);
        let (tries, _, end) = fail_on(&mut acquisition, ms(1), 100);
        assert_eq!((tries, end), (5, Action::Fail), "{mode:?}");
    }
}

/// G24: whether the client was answered before, or this very acquisition was.
#[test]
fn waiters_outlast_an_outage() {
    for mode in WAITING {
        // The store answered this client before, or this acquisition.
        let before = acquisition(mode).outlasting(FOR_EVER, true);
        let mut within = acquisition(mode).outlasting(FOR_EVER, false);
        within.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
        for mut acquisition in [before, within] {
            let (_, now, end) = fail_on(&mut acquisition, ms(10), 10_000);
            assert!(matches!(end, Action::Send(_)), "{mode:?}: {end:?}");
            assert!(now > ms(3_600_000), "{mode:?}: it asks every {now:?} / 10,000");
            // The store is back, and has kept the place or lost it.
            let action = acquisition.clone().step(now, 0, reply(now, Standing::Lost));
            assert_eq!(action, Action::Restart, "{mode:?}");
            let action = acquisition.step(now, 0, reply(now, admitted(9)));
            assert_eq!(action, Action::Grant { seq: Seq(9), sent: now }, "{mode:?}");
        }
    }
}

#[test]
fn a_try_outlasts_nothing() {
    let mut acquisition = acquisition(WaitMode::Try).outlasting(FOR_EVER, true);
    let (tries, _, end) = fail_on(&mut acquisition, ms(1), 100);
    assert_eq!((tries, end), (5, Action::Fail));
}

/// The bound counts from the first failure; the first few tries are made in any case.
#[test]
fn an_outage_that_is_longer_than_the_bound_ends_the_wait() {
    for mode in WAITING {
        let bound = Duration::from_secs(60);
        let mut bounded = acquisition(mode).outlasting(bound, true);
        let (_, now, end) = fail_on(&mut bounded, ms(10), 10_000);
        assert_eq!(end, Action::Fail, "{mode:?}");
        assert!((ms(60_010)..ms(62_000)).contains(&now), "{mode:?}: {now:?}");
        // A reply in between resets the count.
        let mut bounded = acquisition(mode).outlasting(bound, true);
        let (_, now, _) = fail_on(&mut bounded, ms(10), 40);
        bounded.step(now, 0, reply(now, waiting(Some(7))));
        let (_, end_of_it, end) = fail_on(&mut bounded, now, 10_000);
        assert_eq!(end, Action::Fail, "{mode:?}");
        assert!(now.until(end_of_it) >= bound, "{mode:?}: {:?}", now.until(end_of_it));
        let mut none = acquisition(mode).outlasting(Duration::ZERO, true);
        assert_eq!(fail_on(&mut none, ms(1), 100).0, 5, "{mode:?}");
    }
}

/// The bound is exact: it begins when the first request that failed was sent, and has ended when it
/// is over.
#[test]
fn the_bound_of_an_outage_begins_with_the_first_request_that_fails() {
    let bound = Duration::from_secs(60);
    let mut bounded = acquisition(WaitMode::Listen).outlasting(bound, true);
    assert_eq!(bounded.patience(), Time::NEVER);
    for now in [1_000, 1_100, 1_200, 1_300, 60_899] {
        let action = bounded.step(ms(now), 0, Event::Failed { sent: ms(now - 100) });
        assert!(matches!(action, Action::Wait { .. }), "{now}: {action:?}");
        assert_eq!(bounded.patience(), ms(60_900));
    }
    assert_eq!(bounded.step(ms(60_900), 0, Event::Failed { sent: ms(60_899) }), Action::Fail);
}

/// A reply that was lost is no outage, however long it was waited for.
#[test]
fn one_failure_is_no_outage() {
    let bound = Duration::from_secs(3);
    let mut bounded = acquisition(WaitMode::Listen).outlasting(bound, true);
    let once = bounded.step(ms(3_300), 0, Event::Failed { sent: ms(0) });
    assert!(matches!(once, Action::Wait { .. }), "{once:?}");
    assert_eq!(bounded.step(ms(3_400), 0, Event::Failed { sent: ms(3_350) }), Action::Fail);
}

/// The limit ends the wait during an outage, with an error.
#[test]
fn a_limit_ends_an_outage_with_an_error() {
    for mode in WAITING {
        for limit in [100, 1_000, 7_777] {
            let mut acquisition =
                Acquisition::new(mode, LEASE, ms(limit)).outlasting(FOR_EVER, true);
            acquisition.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
            let (_, now, end) = fail_on(&mut acquisition, ms(10), 10_000);
            assert_eq!((now, end), (ms(limit), Action::Fail), "{mode:?}");
        }
    }
}

fn trusting(mode: WaitMode) -> Acquisition {
    acquisition(mode).trusting(Duration::from_secs(3))
}

/// A grant by notice lasts as long as the last reply promised: a wait lease of 3 s less 32 ms of
/// drift and the margin, from when that request was sent.
#[test]
fn a_notice_is_a_grant_for_what_is_left_of_the_wait_lease() {
    let mut acquisition = trusting(WaitMode::Listen);
    acquisition.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    let grant = acquisition.clone().step(ms(20), 0, Event::AdmittedByNotice(Seq(7)));
    assert_eq!(grant, Action::GrantOnNotice { seq: Seq(7), until: ms(1 + 3_000 - 32 - 100) });
    // With less than a second of it left, a request is sent instead.
    assert_last_grant(acquisition, ms(2_869 - 1_000));
}

/// Asserts that a notice grants before this instant, and from then on is confirmed by a request.
fn assert_last_grant(mut acquisition: Acquisition, last: Time) {
    assert!(matches!(
        acquisition.clone().step(Time(last.0 - 1), 0, Event::AdmittedByNotice(Seq(7))),
        Action::GrantOnNotice { .. }
    ));
    assert_eq!(
        acquisition.step(last, 0, Event::AdmittedByNotice(Seq(7))),
        Action::Send(Enter::Keep(Seq(7)))
    );
}

#[test]
fn of_a_long_wait_lease_a_quarter_must_be_left_for_a_notice() {
    let mut acquisition = acquisition(WaitMode::Listen).trusting(Duration::from_secs(8));
    acquisition.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    // 8 s less 82 ms of drift and the margin.
    assert_last_grant(
        acquisition,
        Time(ms(1 + 7_818).0 - Duration::from_millis(7_818).as_nanos() as u64 / 4),
    );
}

/// A wait lease of less than a second is never enough: the lock begins with a whole lease.
#[test]
fn a_notice_on_a_short_wait_lease_is_confirmed() {
    let mut acquisition = acquisition(WaitMode::Listen).trusting(Duration::from_secs(1));
    acquisition.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    let confirm = acquisition.step(ms(6), 0, Event::AdmittedByNotice(Seq(7)));
    assert_eq!(confirm, Action::Send(Enter::Keep(Seq(7))));
    let grant = acquisition.step(ms(8), 0, reply(ms(6), Standing::Admitted(Seq(7))));
    assert_eq!(grant, Action::Grant { seq: Seq(7), sent: ms(6) });
}

#[test]
fn a_notice_is_not_taken_when_the_outcome_of_a_request_is_open() {
    // By acquisitions that do not accept notices.
    let mut without_notices = acquisition(WaitMode::Listen);
    without_notices.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    assert_eq!(
        without_notices.step(ms(20), 0, Event::AdmittedByNotice(Seq(7))),
        Action::Send(Enter::Keep(Seq(7)))
    );
    // After a request of unknown outcome.
    let mut acquisition = trusting(WaitMode::Listen);
    acquisition.step(ms(5), 0, reply(ms(1), waiting(Some(7))));
    acquisition.step(ms(6), 0, Event::Woken);
    acquisition.step(ms(500), 0, Event::Failed { sent: ms(500) });
    assert_eq!(
        acquisition.step(ms(600), 0, Event::AdmittedByNotice(Seq(7))),
        Action::Send(Enter::Keep(Seq(7)))
    );
    // About another place: the ticket lost that one and got a new one.
    let mut acquisition = trusting(WaitMode::Listen);
    acquisition.step(ms(5), 0, reply(ms(1), waiting(Some(8))));
    assert_eq!(
        acquisition.step(ms(6), 0, Event::AdmittedByNotice(Seq(7))),
        Action::Send(Enter::Keep(Seq(8)))
    );
    // Without a place.
    let mut acquisition = trusting(WaitMode::Barge(POLL));
    acquisition.step(ms(5), 0, reply(ms(1), waiting(None)));
    assert_eq!(acquisition.step(ms(6), 0, Event::AdmittedByNotice(Seq(7))), Action::Restart);
}

#[test]
fn a_lock_taken_on_trust_is_renewed_in_time_and_ends_in_time() {
    let mut hold = LeaseTimer::trusted(LEASE, ms(100), ms(2_100));
    assert_eq!(hold.next(ms(100)), Next::Sleep(ms(600)));
    assert_eq!(hold.next(ms(600)), Next::Renew);
    hold.renewed(LEASE, ms(600));
    assert_eq!(hold.until(), LEASE.good_until(ms(600)));
    let mut hold = LeaseTimer::trusted(LEASE, ms(100), ms(2_100));
    assert_eq!(hold.next(ms(2_100)), Next::Lose);
}
