//! A quorum at chosen times: what a round waits for, what its result is, and which node's place
//! counts at a renewal. The clocks are simulated, and no time passes by itself.

use crate::{name, nodes, quorum, ticket};
use futures_util::FutureExt;
use holdline::clock::simulated;
use holdline::store::{Enter, Seq, Standing, Store, Ticket, TicketId};
use holdline::stores::quorum::Quorum;
use holdline::{ErrorKind, Result};
use holdline_conformance::{Chaos, Fault, Op};
use holdline_kernel::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const HANG: Fault = Fault::HangBefore;
const FAIL: Fault = Fault::FailBefore;

/// The time limit of one node, and how long a lost place is not taken again.
const LIMIT: u64 = 500;
const REPAIR: u64 = 1_000;

const WALL: u64 = 1_800_000_000_000_000;

/// An answer that comes when [`finish`] is called.
const SLOW: Fault = Fault::Stutter(10);

/// The answer of a call that is polled at this time.
fn poll<T>(ms: u64, call: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    let now = Time((1_000_000 + ms) * 1_000_000);
    simulated::at(now, WALL + ms * 1_000, || call.now_or_never()).0
}

/// The same once all answers have come that ever will.
fn finish<T>(ms: u64, call: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    (0..50).find_map(|_| poll(ms, call))
}

/// The same for a call that does not wait.
fn at<T>(ms: u64, call: impl Future<Output = T>) -> T {
    poll(ms, &mut Box::pin(call)).expect("it answers at once")
}

/// Nodes, and a quorum of them that knows their clocks.
struct Setup {
    nodes: Vec<Arc<Chaos>>,
    quorum: Quorum,
}

impl Setup {
    fn new(count: usize) -> Setup {
        let nodes = nodes(count);
        let setup = Setup { quorum: quorum(&nodes), nodes };
        setup.admitted(0, 99);
        assert!(at(0, setup.quorum.leave(&name(), TicketId(99))).expect("it answers"));
        setup
    }

    async fn enter(&self, id: u128, how: Enter) -> Result<Standing> {
        self.quorum.enter(&name(), &ticket(id), &Arc::from(""), how).await
    }

    /// Acquires at this time; the token.
    fn admitted(&self, ms: u64, id: u128) -> Seq {
        match at(ms, self.enter(id, Enter::Try)) {
            Ok(Standing::Admitted(token)) => token,
            other => panic!("{other:?}"),
        }
    }

    fn keep(&self, ms: u64, token: Seq) -> Result<Standing> {
        at(ms, self.enter(1, Enter::Keep(token)))
    }

    /// The node loses the place, as if it had restarted without its data.
    fn forgets(&self, ms: u64, node: usize) {
        assert!(at(ms, self.nodes[node].leave(&name(), TicketId(1))).expect("it answers"));
    }

    /// Another ticket is in on this node.
    fn taken(&self, ms: u64, node: usize, ticket: &Ticket) -> Seq {
        let (name, note) = (name(), Arc::from(""));
        match at(ms, self.nodes[node].enter(&name, ticket, &note, Enter::Try)) {
            Ok(Standing::Admitted(seq)) => seq,
            other => panic!("{other:?}"),
        }
    }

    /// The counter of this node is a minute ahead.
    fn is_ahead(&self, node: usize) {
        let ahead = Ticket { min_token: WALL + 60_000_000, ..ticket(98) };
        self.taken(0, node, &ahead);
        assert!(at(0, self.nodes[node].leave(&name(), TicketId(98))).expect("it answers"));
    }

    /// The tickets on this node.
    fn places(&self, ms: u64, node: usize) -> Vec<u128> {
        let view = at(ms, self.nodes[node].snapshot(&name())).expect("it answers");
        view.places.iter().map(|place| place.id.0).collect()
    }

    fn fault(&self, op: Op, faults: &[(usize, Fault)]) {
        for (node, fault) in faults {
            self.nodes[*node].always(op, *fault);
        }
    }

    fn heal(&self) {
        self.nodes.iter().for_each(|node| node.heal());
    }
}

fn is_kept(standing: Result<Standing>, token: Seq) -> bool {
    standing.expect("a majority answers") == Standing::Admitted(token)
}

fn is_not_now(standing: Option<Result<Standing>>) -> bool {
    standing.is_some_and(|it| it.is_ok_and(|it| matches!(it, Standing::Waiting { seq: None, .. })))
}

fn is_unavailable<T>(result: Option<Result<T>>) -> bool {
    result.is_some_and(|result| result.is_err_and(|e| e.kind() == ErrorKind::Unavailable))
}

#[test]
fn a_ticket_keeps_its_token_and_no_other() {
    let setup = Setup::new(3);
    let token = setup.admitted(0, 1);
    assert_eq!(setup.keep(1, Seq(token.0 - 1)).expect("it answers"), Standing::Lost);
    assert!(is_kept(setup.keep(1, token), token));
    assert_eq!(setup.admitted(60, 1), token, "it asks again, and has its place already");
    setup.forgets(70, 0);
    assert_eq!(setup.admitted(71, 1), token, "no node gives it a higher one");
    (1..3).for_each(|node| setup.forgets(72, node));
    // Nothing is left of it. It is not tried again: what is under way for it might come later.
    assert_eq!(at(80, setup.enter(1, Enter::Try)).expect("it answers"), Standing::Lost);
    let again = at(80, setup.enter(1, Enter::Try)).expect("it answers");
    assert!(matches!(again, Standing::Waiting { seq: None, .. }), "the reply was lost: {again:?}");
    assert!(setup.admitted(80, 2) > token);
}

/// Its caller was never told that it held, so what a minority still has keeps nobody out.
#[test]
fn a_ticket_that_is_found_lost_when_it_asks_again_is_on_no_node() {
    let setup = Setup::new(3);
    setup.admitted(0, 1);
    (0..2).for_each(|node| setup.forgets(1, node));
    assert_eq!(setup.places(1, 2), [1]);
    assert_eq!(at(2, setup.enter(1, Enter::Try)).expect("it answers"), Standing::Lost);
    assert!(setup.places(2, 2).is_empty());
}

/// A lock that is being removed by force, node by node, does not come back behind that.
#[test]
fn a_lost_place_is_taken_again_later_and_counts_from_the_next_renewal_on() {
    let setup = Setup::new(3);
    let token = setup.admitted(0, 1);
    setup.forgets(1, 0);
    assert!(is_kept(setup.keep(2, token), token));
    let asked = setup.nodes[0].count(Op::Enter);
    assert!(is_kept(setup.keep(1 + REPAIR, token), token));
    assert_eq!(setup.nodes[0].count(Op::Enter), asked, "it is not asked again so soon");
    assert!(is_kept(setup.keep(2 + REPAIR, token), token));
    assert_eq!(setup.places(2 + REPAIR, 0), [1]);
    setup.forgets(3 + REPAIR, 1);
    assert!(is_kept(setup.keep(3 + REPAIR, token), token), "by the first and the third");
}

#[test]
fn no_majority_is_gathered_piece_by_piece() {
    for (second, repairs) in [(2 + REPAIR, true), (100, false)] {
        let setup = Setup::new(3);
        let token = setup.admitted(0, 1);
        setup.forgets(1, 0);
        assert!(is_kept(setup.keep(2, token), token));
        setup.forgets(second, 1);
        assert_eq!(setup.keep(second, token).expect("it answers"), Standing::Lost, "{repairs}");
        assert_eq!(setup.places(second, 2), [1], "it leaves when its holder knows");
        assert_eq!(setup.keep(second, token).expect("it answers"), Standing::Lost);
    }
}

#[test]
fn a_place_is_not_taken_again_where_another_ticket_is_in() {
    let setup = Setup::new(3);
    let token = setup.admitted(0, 1);
    setup.forgets(1, 0);
    assert!(is_kept(setup.keep(2, token), token));
    setup.taken(3, 0, &ticket(2));
    assert!(is_kept(setup.keep(2 + REPAIR, token), token));
    assert_eq!(setup.places(2 + REPAIR, 0), [2], "nor does it queue there");
}

/// A node that gave no vote gets the token when it is asked again, as those that did.
#[test]
fn a_place_that_is_taken_later_raises_its_node_to_the_token() {
    let setup = Setup::new(3);
    setup.is_ahead(2);
    setup.fault(Op::Enter, &[(0, FAIL)]);
    let token = setup.admitted(0, 1);
    assert!(token.0 > WALL + 60_000_000);
    setup.heal();
    let asked = setup.nodes[0].count(Op::Enter);
    assert!(is_kept(setup.keep(REPAIR - 1, token), token));
    assert_eq!(setup.nodes[0].count(Op::Enter), asked, "its first request may be late");
    assert!(is_kept(setup.keep(REPAIR, token), token));
    assert!(at(REPAIR, setup.quorum.leave(&name(), TicketId(1))).expect("it answers"));
    assert!(setup.taken(REPAIR, 0, &ticket(2)) > token);
}

/// A renewal whose future is not polled for a while does not undo what others recorded meanwhile.
#[test]
fn a_renewal_that_ends_late_undoes_nothing() {
    for forgotten in [1, 11] {
        let setup = Setup::new(5);
        let token = setup.admitted(0, 1);
        let may_forget = |ms| (ms == forgotten).then(|| setup.forgets(ms, 1));
        may_forget(1);
        setup.fault(Op::Enter, &[(4, SLOW)]);
        let mut late = Box::pin(setup.enter(1, Enter::Keep(token)));
        assert!(poll(10, &mut late).is_none(), "one is slow");
        setup.heal();
        may_forget(11);
        assert!(is_kept(setup.keep(12, token), token));
        assert!(is_kept(setup.keep(12 + REPAIR, token), token));
        assert_eq!(setup.places(12 + REPAIR, 1), [1], "it has a new place");
        setup.fault(Op::Enter, &[(1, FAIL)]); // it is not asked for another
        assert!(is_kept(finish(13 + REPAIR, &mut late).expect("enough"), token));
        setup.heal();
        setup.fault(Op::Enter, &[(0, FAIL), (2, FAIL)]);
        assert!(is_kept(setup.keep(14 + REPAIR, token), token), "forgotten at {forgotten}");
    }
}

#[test]
fn a_node_that_is_not_heard_keeps_its_place() {
    let setup = Setup::new(3);
    let token = setup.admitted(0, 1);
    setup.fault(Op::Enter, &[(1, FAIL)]);
    assert!(is_kept(setup.keep(1, token), token));
    setup.heal();
    setup.forgets(2, 0);
    assert!(is_kept(setup.keep(2, token), token), "by the second and the third");
}

/// An error is no refusal.
#[test]
fn a_lock_is_lost_if_a_majority_says_so() {
    let setup = Setup::new(3);
    let token = setup.admitted(0, 1);
    setup.fault(Op::Enter, &[(0, FAIL), (1, FAIL)]);
    assert!(is_unavailable(Some(setup.keep(1, token))));
    setup.heal();
    assert!(is_kept(setup.keep(2, token), token));
    setup.forgets(3, 0);
    setup.fault(Op::Enter, &[(1, FAIL)]);
    assert!(is_unavailable(Some(setup.keep(3, token))), "one of them may have it");
    setup.forgets(4, 2);
    assert_eq!(setup.keep(4, token).expect("two say so"), Standing::Lost);
}

#[test]
fn a_renewal_waits_a_while_for_all_nodes() {
    let setup = Setup::new(3);
    let token = setup.admitted(0, 1);
    for (faults, begins, answers, ends) in [
        (vec![(2, SLOW)], 10, 110, 110),
        (vec![(2, HANG)], 1_000, 1_000, 1_250),
        // At most for the time limit of a node.
        (vec![(1, SLOW), (2, HANG)], 2_000, 2_400, 2_000 + LIMIT),
    ] {
        setup.fault(Op::Enter, &faults);
        let mut renewal = Box::pin(setup.enter(1, Enter::Keep(token)));
        assert!(poll(begins, &mut renewal).is_none());
        if answers < ends {
            assert!(finish(answers, &mut renewal).is_none());
        }
        assert!(poll(ends - 1, &mut renewal).is_none(), "not before {ends}");
        assert!(is_kept(finish(ends, &mut renewal).expect("not after that"), token));
        setup.heal();
    }
}

/// A try ends as soon as the other answers cannot change its result, and no sooner.
#[test]
fn a_try_ends_when_it_is_decided() {
    let is_in = |standing| matches!(standing, Some(Ok(Standing::Admitted(_))));
    let begin = |faults: &[(usize, Fault)], rivals: &[usize]| {
        let setup = Setup::new(3);
        setup.fault(Op::Enter, faults);
        for node in rivals {
            setup.taken_now(*node);
        }
        setup
    };
    let setup = begin(&[(2, HANG)], &[]);
    assert!(is_in(poll(0, &mut Box::pin(setup.enter(1, Enter::Try)))), "two are in");

    // One says no, or fails; the others are slow.
    for (faults, rivals) in [(vec![(0, FAIL)], vec![]), (vec![], vec![0])] {
        let slow = [(1, SLOW), (2, SLOW)];
        let setup = begin(&[&faults[..], &slow[..]].concat(), &rivals);
        let mut entering = Box::pin(setup.enter(1, Enter::Try));
        assert!(poll(0, &mut entering).is_none(), "{faults:?} {rivals:?}");
        assert!(is_in(finish(20, &mut entering)), "{faults:?} {rivals:?}");
    }

    // Two fail: the third does not matter. Two are silent: that is known at the limit.
    let setup = begin(&[(0, FAIL), (1, FAIL), (2, HANG)], &[]);
    assert!(is_unavailable(poll(0, &mut Box::pin(setup.enter(1, Enter::Try)))));
    let setup = begin(&[(1, HANG), (2, HANG)], &[]);
    let mut entering = Box::pin(setup.enter(1, Enter::Try));
    assert!(poll(0, &mut entering).is_none() && poll(LIMIT - 1, &mut entering).is_none());
    assert!(is_unavailable(poll(LIMIT, &mut entering)));

    // One says no and two fail: what those have done is not known.
    let setup = begin(&[(1, FAIL), (2, FAIL)], &[0]);
    assert!(is_unavailable(poll(0, &mut Box::pin(setup.enter(1, Enter::Try)))));

    // One says no, one fails, and one says yes, late: none may keep what it has.
    let setup = begin(&[(1, FAIL), (2, SLOW)], &[0]);
    let mut entering = Box::pin(setup.enter(1, Enter::Try));
    assert!(poll(0, &mut entering).is_none());
    assert!(is_not_now(finish(20, &mut entering)));
    assert!(setup.places(20, 2).is_empty());
}

impl Setup {
    /// A rival is in on this node.
    fn taken_now(&self, node: usize) -> Seq {
        self.taken(0, node, &ticket(50 + node as u128))
    }
}

/// Two say no, so it is over; the third has a moment to confirm that nothing is left there.
#[test]
fn a_refused_try_leaves_and_does_not_wait_for_long() {
    let setup = Setup::new(3);
    setup.taken_now(0);
    setup.taken_now(1);
    setup.fault(Op::Enter, &[(2, HANG)]);
    setup.fault(Op::Leave, &[(2, HANG)]);
    let mut entering = Box::pin(setup.enter(1, Enter::Try));
    assert!(poll(0, &mut entering).is_none());
    assert!(poll(24, &mut entering).is_none());
    assert!(is_not_now(poll(25, &mut entering)));
    setup.heal();
    for node in 0..2 {
        at(30, setup.nodes[node].leave(&name(), TicketId(50 + node as u128))).expect("works");
    }
    setup.admitted(30, 1); // nothing is in doubt
}

/// The token is announced when a majority has been raised to it.
#[test]
fn a_lift_that_fails_is_no_grant() {
    let lifting = || {
        let setup = Setup::new(3);
        setup.is_ahead(2);
        setup
    };
    // The first gives no vote, and the second cannot be raised.
    let setup = lifting();
    setup.fault(Op::Enter, &[(0, FAIL)]);
    setup.nodes[1].calls(Op::Enter, 1, 1, FAIL);
    assert!(is_unavailable(poll(0, &mut Box::pin(setup.enter(1, Enter::Try)))));
    // The second has forgotten the place by then.
    let setup = lifting();
    setup.fault(Op::Enter, &[(0, FAIL)]);
    setup.nodes[1].calls(Op::Enter, 1, 1, SLOW);
    let mut entering = Box::pin(setup.enter(1, Enter::Try));
    assert!(poll(0, &mut entering).is_none());
    setup.forgets(10, 1);
    assert!(is_unavailable(finish(20, &mut entering)));
    // It is raised.
    let setup = lifting();
    setup.fault(Op::Enter, &[(0, FAIL)]);
    let token = setup.admitted(0, 1);
    setup.forgets(1, 1);
    assert!(setup.taken_now(1) > token);
}

#[test]
fn a_release_says_whether_the_lock_was_there() {
    let left =
        |setup: &Setup, ms| poll(ms, &mut Box::pin(setup.quorum.leave(&name(), TicketId(1))));
    let is = |left: Option<Result<bool>>, there| left.expect("at once").expect("enough") == there;
    let setup = Setup::new(3);
    assert!(is(left(&setup, 0), false));
    let token = setup.admitted(0, 1);
    assert!(is(left(&setup, 1), true));
    assert_eq!(setup.keep(1, token).expect("it answers"), Standing::Lost);
    assert!(is(left(&setup, 2), false));
    // It is on one of them only.
    setup.admitted(60, 1);
    setup.forgets(61, 0);
    setup.forgets(61, 1);
    assert!(is(left(&setup, 62), false));
    // Two answer, or one.
    setup.admitted(120, 1);
    setup.fault(Op::Leave, &[(0, FAIL)]);
    assert!(is(left(&setup, 121), true));
    setup.fault(Op::Leave, &[(1, FAIL)]);
    assert!(is_unavailable(left(&setup, 122)));
    // One has it, one does not, and the third decides.
    let (setup, name) = (Setup::new(3), name());
    setup.admitted(0, 1);
    setup.forgets(1, 1);
    setup.forgets(1, 2);
    setup.fault(Op::Leave, &[(2, SLOW)]);
    let mut left = setup.quorum.leave(&name, TicketId(1));
    assert!(poll(2, &mut left).is_none());
    assert!(is(finish(2, &mut left), false));
}

#[test]
fn a_loss_on_any_node_is_hinted_at() {
    let setup = Setup::new(3);
    let hints = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&hints);
    setup.quorum.on_loss_hint(Arc::new(move |id| {
        assert_eq!(id, TicketId(1));
        count.fetch_add(1, Ordering::Relaxed);
    }));
    setup.nodes.iter().for_each(|node| node.hint(TicketId(1)));
    assert_eq!(hints.load(Ordering::Relaxed), 3);
}

/// A holder is on a majority; what a few nodes have is on its way in or out.
#[test]
fn a_view_shows_what_a_majority_has() {
    let setup = Setup::new(3);
    setup.is_ahead(2);
    let note = |text: &str| Arc::from(text);
    let enter = |node: usize, id, note: &Arc<str>| {
        let (name, ticket) = (name(), ticket(id));
        at(0, setup.nodes[node].enter(&name, &ticket, note, Enter::Queue)).expect("it answers");
    };
    let look = || at(0, setup.quorum.snapshot(&name())).expect("it answers");
    let names = || at(0, setup.quorum.list("")).expect("it answers").len();
    assert_eq!((look().capacity, names()), (0, 0));
    enter(0, 1, &note("old"));
    enter(0, 2, &note(""));
    enter(1, 2, &note(""));
    assert_eq!((look().places.len(), names()), (0, 1), "each holds on one node only");
    at(0, setup.nodes[1].leave(&name(), TicketId(2))).expect("works");
    assert_eq!(names(), 0);
    enter(1, 1, &note("new"));
    enter(2, 1, &note("new"));
    let view = look();
    assert_eq!((view.capacity, names()), (1, 1));
    let places: Vec<_> = view.places.iter().map(|it| (it.id.0, it.admitted, &*it.note)).collect();
    assert_eq!(places, [(1, true, "new")]);
    assert!(view.places[0].seq.0 > WALL + 60_000_000, "the highest number is nearest the token");
    // With one node away, one that answers may be enough; with two away, none is.
    at(0, setup.nodes[1].leave(&name(), TicketId(1))).expect("works");
    setup.fault(Op::Snapshot, &[(0, FAIL)]);
    assert_eq!(look().places.len(), 1);
    setup.fault(Op::Snapshot, &[(1, FAIL)]);
    assert!(is_unavailable(Some(at(0, setup.quorum.snapshot(&name())))));
}
