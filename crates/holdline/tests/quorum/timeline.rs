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
struct Scene {
    nodes: Vec<Arc<Chaos>>,
    quorum: Quorum,
}

impl Scene {
    fn new(count: usize) -> Scene {
        let nodes = nodes(count);
        let scene = Scene { quorum: quorum(&nodes), nodes };
        scene.admitted(0, 99);
        assert!(at(0, scene.quorum.leave(&name(), TicketId(99))).expect("it answers"));
        scene
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
    let scene = Scene::new(3);
    let token = scene.admitted(0, 1);
    assert_eq!(scene.keep(1, Seq(token.0 - 1)).expect("it answers"), Standing::Lost);
    assert!(is_kept(scene.keep(1, token), token));
    assert_eq!(scene.admitted(60, 1), token, "it asks again, and has its place already");
    scene.forgets(70, 0);
    assert_eq!(scene.admitted(71, 1), token, "no node gives it a higher one");
    (1..3).for_each(|node| scene.forgets(72, node));
    // Nothing is left of it. It is not tried again: what is under way for it might come later.
    assert_eq!(at(80, scene.enter(1, Enter::Try)).expect("it answers"), Standing::Lost);
    let again = at(80, scene.enter(1, Enter::Try)).expect("it answers");
    assert!(matches!(again, Standing::Waiting { seq: None, .. }), "the reply was lost: {again:?}");
    assert!(scene.admitted(80, 2) > token);
}

/// A lock that is being removed by force, node by node, does not come back behind that.
#[test]
fn a_lost_place_is_taken_again_later_and_counts_from_the_next_renewal_on() {
    let scene = Scene::new(3);
    let token = scene.admitted(0, 1);
    scene.forgets(1, 0);
    assert!(is_kept(scene.keep(2, token), token));
    let asked = scene.nodes[0].count(Op::Enter);
    assert!(is_kept(scene.keep(1 + REPAIR, token), token));
    assert_eq!(scene.nodes[0].count(Op::Enter), asked, "it is not asked again so soon");
    assert!(is_kept(scene.keep(2 + REPAIR, token), token));
    assert_eq!(scene.places(2 + REPAIR, 0), [1]);
    scene.forgets(3 + REPAIR, 1);
    assert!(is_kept(scene.keep(3 + REPAIR, token), token), "by the first and the third");
}

#[test]
fn no_majority_is_gathered_piece_by_piece() {
    for (second, repairs) in [(2 + REPAIR, true), (100, false)] {
        let scene = Scene::new(3);
        let token = scene.admitted(0, 1);
        scene.forgets(1, 0);
        assert!(is_kept(scene.keep(2, token), token));
        scene.forgets(second, 1);
        assert_eq!(scene.keep(second, token).expect("it answers"), Standing::Lost, "{repairs}");
        assert_eq!(scene.places(second, 2), [1], "it leaves when its holder knows");
        assert_eq!(scene.keep(second, token).expect("it answers"), Standing::Lost);
    }
}

#[test]
fn a_place_is_not_taken_again_where_another_ticket_is_in() {
    let scene = Scene::new(3);
    let token = scene.admitted(0, 1);
    scene.forgets(1, 0);
    assert!(is_kept(scene.keep(2, token), token));
    scene.taken(3, 0, &ticket(2));
    assert!(is_kept(scene.keep(2 + REPAIR, token), token));
    assert_eq!(scene.places(2 + REPAIR, 0), [2], "nor does it queue there");
}

/// A node that gave no vote gets the token when it is asked again, as those that did.
#[test]
fn a_place_that_is_taken_later_raises_its_node_to_the_token() {
    let scene = Scene::new(3);
    scene.is_ahead(2);
    scene.fault(Op::Enter, &[(0, FAIL)]);
    let token = scene.admitted(0, 1);
    assert!(token.0 > WALL + 60_000_000);
    scene.heal();
    let asked = scene.nodes[0].count(Op::Enter);
    assert!(is_kept(scene.keep(REPAIR - 1, token), token));
    assert_eq!(scene.nodes[0].count(Op::Enter), asked, "its first request may be late");
    assert!(is_kept(scene.keep(REPAIR, token), token));
    assert!(at(REPAIR, scene.quorum.leave(&name(), TicketId(1))).expect("it answers"));
    assert!(scene.taken(REPAIR, 0, &ticket(2)) > token);
}

/// A renewal whose future is not polled for a while does not undo what others recorded meanwhile.
#[test]
fn a_renewal_that_ends_late_undoes_nothing() {
    for forgotten in [1, 11] {
        let scene = Scene::new(5);
        let token = scene.admitted(0, 1);
        let may_forget = |ms| (ms == forgotten).then(|| scene.forgets(ms, 1));
        may_forget(1);
        scene.fault(Op::Enter, &[(4, SLOW)]);
        let mut late = Box::pin(scene.enter(1, Enter::Keep(token)));
        assert!(poll(10, &mut late).is_none(), "one is slow");
        scene.heal();
        may_forget(11);
        assert!(is_kept(scene.keep(12, token), token));
        assert!(is_kept(scene.keep(12 + REPAIR, token), token));
        assert_eq!(scene.places(12 + REPAIR, 1), [1], "it has a new place");
        scene.fault(Op::Enter, &[(1, FAIL)]); // it is not asked for another
        assert!(is_kept(finish(13 + REPAIR, &mut late).expect("enough"), token));
        scene.heal();
        scene.fault(Op::Enter, &[(0, FAIL), (2, FAIL)]);
        assert!(is_kept(scene.keep(14 + REPAIR, token), token), "forgotten at {forgotten}");
    }
}

#[test]
fn a_node_that_is_not_heard_keeps_its_place() {
    let scene = Scene::new(3);
    let token = scene.admitted(0, 1);
    scene.fault(Op::Enter, &[(1, FAIL)]);
    assert!(is_kept(scene.keep(1, token), token));
    scene.heal();
    scene.forgets(2, 0);
    assert!(is_kept(scene.keep(2, token), token), "by the second and the third");
}

/// An error is no refusal.
#[test]
fn a_lock_is_lost_if_a_majority_says_so() {
    let scene = Scene::new(3);
    let token = scene.admitted(0, 1);
    scene.fault(Op::Enter, &[(0, FAIL), (1, FAIL)]);
    assert!(is_unavailable(Some(scene.keep(1, token))));
    scene.heal();
    assert!(is_kept(scene.keep(2, token), token));
    scene.forgets(3, 0);
    scene.fault(Op::Enter, &[(1, FAIL)]);
    assert!(is_unavailable(Some(scene.keep(3, token))), "one of them may have it");
    scene.forgets(4, 2);
    assert_eq!(scene.keep(4, token).expect("two say so"), Standing::Lost);
}

#[test]
fn a_renewal_waits_a_while_for_all_nodes() {
    let scene = Scene::new(3);
    let token = scene.admitted(0, 1);
    for (faults, begins, answers, ends) in [
        (vec![(2, SLOW)], 10, 110, 110),
        (vec![(2, HANG)], 1_000, 1_000, 1_250),
        // At most for the time limit of a node.
        (vec![(1, SLOW), (2, HANG)], 2_000, 2_400, 2_000 + LIMIT),
    ] {
        scene.fault(Op::Enter, &faults);
        let mut renewal = Box::pin(scene.enter(1, Enter::Keep(token)));
        assert!(poll(begins, &mut renewal).is_none());
        if answers < ends {
            assert!(finish(answers, &mut renewal).is_none());
        }
        assert!(poll(ends - 1, &mut renewal).is_none(), "not before {ends}");
        assert!(is_kept(finish(ends, &mut renewal).expect("not after that"), token));
        scene.heal();
    }
}

/// A try ends as soon as the other answers cannot change its result, and no sooner.
#[test]
fn a_try_ends_when_it_is_decided() {
    let is_in = |standing| matches!(standing, Some(Ok(Standing::Admitted(_))));
    let begin = |faults: &[(usize, Fault)], rivals: &[usize]| {
        let scene = Scene::new(3);
        scene.fault(Op::Enter, faults);
        for node in rivals {
            scene.taken_now(*node);
        }
        scene
    };
    let scene = begin(&[(2, HANG)], &[]);
    assert!(is_in(poll(0, &mut Box::pin(scene.enter(1, Enter::Try)))), "two are in");

    // One says no, or fails; the others are slow.
    for (faults, rivals) in [(vec![(0, FAIL)], vec![]), (vec![], vec![0])] {
        let slow = [(1, SLOW), (2, SLOW)];
        let scene = begin(&[&faults[..], &slow[..]].concat(), &rivals);
        let mut entering = Box::pin(scene.enter(1, Enter::Try));
        assert!(poll(0, &mut entering).is_none(), "{faults:?} {rivals:?}");
        assert!(is_in(finish(20, &mut entering)), "{faults:?} {rivals:?}");
    }

    // Two fail: the third does not matter. Two are silent: that is known at the limit.
    let scene = begin(&[(0, FAIL), (1, FAIL), (2, HANG)], &[]);
    assert!(is_unavailable(poll(0, &mut Box::pin(scene.enter(1, Enter::Try)))));
    let scene = begin(&[(1, HANG), (2, HANG)], &[]);
    let mut entering = Box::pin(scene.enter(1, Enter::Try));
    assert!(poll(0, &mut entering).is_none() && poll(LIMIT - 1, &mut entering).is_none());
    assert!(is_unavailable(poll(LIMIT, &mut entering)));

    // One says no and two fail: what those have done is not known.
    let scene = begin(&[(1, FAIL), (2, FAIL)], &[0]);
    assert!(is_unavailable(poll(0, &mut Box::pin(scene.enter(1, Enter::Try)))));

    // One says no, one fails, and one says yes, late: none may keep what it has.
    let scene = begin(&[(1, FAIL), (2, SLOW)], &[0]);
    let mut entering = Box::pin(scene.enter(1, Enter::Try));
    assert!(poll(0, &mut entering).is_none());
    assert!(is_not_now(finish(20, &mut entering)));
    assert!(scene.places(20, 2).is_empty());
}

impl Scene {
    /// A rival is in on this node.
    fn taken_now(&self, node: usize) -> Seq {
        self.taken(0, node, &ticket(50 + node as u128))
    }
}

/// Two say no, so it is over; the third has a moment to confirm that nothing is left there.
#[test]
fn a_refused_try_leaves_and_does_not_wait_for_long() {
    let scene = Scene::new(3);
    scene.taken_now(0);
    scene.taken_now(1);
    scene.fault(Op::Enter, &[(2, HANG)]);
    scene.fault(Op::Leave, &[(2, HANG)]);
    let mut entering = Box::pin(scene.enter(1, Enter::Try));
    assert!(poll(0, &mut entering).is_none());
    assert!(poll(24, &mut entering).is_none());
    assert!(is_not_now(poll(25, &mut entering)));
    scene.heal();
    for node in 0..2 {
        at(30, scene.nodes[node].leave(&name(), TicketId(50 + node as u128))).expect("works");
    }
    scene.admitted(30, 1); // nothing is in doubt
}

/// The token is announced when a majority has been raised to it.
#[test]
fn a_lift_that_fails_is_no_grant() {
    let lifting = || {
        let scene = Scene::new(3);
        scene.is_ahead(2);
        scene
    };
    // The first gives no vote, and the second cannot be raised.
    let scene = lifting();
    scene.fault(Op::Enter, &[(0, FAIL)]);
    scene.nodes[1].calls(Op::Enter, 1, 1, FAIL);
    assert!(is_unavailable(poll(0, &mut Box::pin(scene.enter(1, Enter::Try)))));
    // The second has forgotten the place by then.
    let scene = lifting();
    scene.fault(Op::Enter, &[(0, FAIL)]);
    scene.nodes[1].calls(Op::Enter, 1, 1, SLOW);
    let mut entering = Box::pin(scene.enter(1, Enter::Try));
    assert!(poll(0, &mut entering).is_none());
    scene.forgets(10, 1);
    assert!(is_unavailable(finish(20, &mut entering)));
    // It is raised.
    let scene = lifting();
    scene.fault(Op::Enter, &[(0, FAIL)]);
    let token = scene.admitted(0, 1);
    scene.forgets(1, 1);
    assert!(scene.taken_now(1) > token);
}

#[test]
fn a_release_says_whether_the_lock_was_there() {
    let left =
        |scene: &Scene, ms| poll(ms, &mut Box::pin(scene.quorum.leave(&name(), TicketId(1))));
    let is = |left: Option<Result<bool>>, there| left.expect("at once").expect("enough") == there;
    let scene = Scene::new(3);
    assert!(is(left(&scene, 0), false));
    let token = scene.admitted(0, 1);
    assert!(is(left(&scene, 1), true));
    assert_eq!(scene.keep(1, token).expect("it answers"), Standing::Lost);
    assert!(is(left(&scene, 2), false));
    // It is on one of them only.
    scene.admitted(60, 1);
    scene.forgets(61, 0);
    scene.forgets(61, 1);
    assert!(is(left(&scene, 62), false));
    // Two answer, or one.
    scene.admitted(120, 1);
    scene.fault(Op::Leave, &[(0, FAIL)]);
    assert!(is(left(&scene, 121), true));
    scene.fault(Op::Leave, &[(1, FAIL)]);
    assert!(is_unavailable(left(&scene, 122)));
}

#[test]
fn a_loss_on_any_node_is_hinted_at() {
    let scene = Scene::new(3);
    let hints = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&hints);
    scene.quorum.on_loss_hint(Arc::new(move |id| {
        assert_eq!(id, TicketId(1));
        count.fetch_add(1, Ordering::Relaxed);
    }));
    scene.nodes.iter().for_each(|node| node.hint(TicketId(1)));
    assert_eq!(hints.load(Ordering::Relaxed), 3);
}

/// A holder is on a majority; what a few nodes have is on its way in or out.
#[test]
fn a_view_shows_what_a_majority_has() {
    let scene = Scene::new(3);
    scene.is_ahead(2);
    let note = |text: &str| Arc::from(text);
    let enter = |node: usize, id, note: &Arc<str>| {
        let (name, ticket) = (name(), ticket(id));
        at(0, scene.nodes[node].enter(&name, &ticket, note, Enter::Queue)).expect("it answers");
    };
    let look = || at(0, scene.quorum.snapshot(&name())).expect("it answers");
    let names = || at(0, scene.quorum.list("")).expect("it answers").len();
    assert_eq!((look().capacity, names()), (0, 0));
    enter(0, 1, &note("old"));
    enter(0, 2, &note(""));
    enter(1, 2, &note(""));
    assert_eq!((look().places.len(), names()), (0, 1), "each holds on one node only");
    at(0, scene.nodes[1].leave(&name(), TicketId(2))).expect("works");
    assert_eq!(names(), 0);
    enter(1, 1, &note("new"));
    enter(2, 1, &note("new"));
    let view = look();
    assert_eq!((view.capacity, names()), (1, 1));
    let places: Vec<_> = view.places.iter().map(|it| (it.id.0, it.admitted, &*it.note)).collect();
    assert_eq!(places, [(1, true, "new")]);
    assert!(view.places[0].seq.0 > WALL + 60_000_000, "the highest number is nearest the token");
    // With one node away, one that answers may be enough; with two away, none is.
    at(0, scene.nodes[1].leave(&name(), TicketId(1))).expect("works");
    scene.fault(Op::Snapshot, &[(0, FAIL)]);
    assert_eq!(look().places.len(), 1);
    scene.fault(Op::Snapshot, &[(1, FAIL)]);
    assert!(is_unavailable(Some(at(0, scene.quorum.snapshot(&name())))));
}
