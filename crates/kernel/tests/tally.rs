//! The tally of a quorum, over every pattern of votes of up to seven stores.

use holdline_kernel::{Tally, Verdict, Vote};

const VOTES: [Vote; 3] = [Vote::Yes, Vote::No, Vote::Unknown];

/// The result by definition: met if a majority said yes, failed if a majority is no longer
/// possible, else open.
fn expected(stores: u32, votes: &[Vote]) -> Verdict {
    let yes = votes.iter().filter(|vote| **vote == Vote::Yes).count() as u32;
    let best = yes + (stores - votes.len() as u32);
    if 2 * yes > stores {
        Verdict::Met
    } else if 2 * best > stores {
        Verdict::Open
    } else {
        Verdict::Failed
    }
}

fn every_pattern(stores: u32, votes: &mut Vec<Vote>, tally: Tally, seen: &mut u32) {
    *seen += 1;
    if votes.len() as u32 == stores {
        assert_ne!(tally.verdict(), Verdict::Open, "all voted: {votes:?}");
        return;
    }
    for vote in VOTES {
        let mut tally = tally;
        let before = tally.verdict();
        votes.push(vote);
        let verdict = tally.count(vote);
        assert_eq!(verdict, expected(stores, votes), "{stores} stores, {votes:?}");
        assert_eq!(verdict, tally.verdict());
        assert!(before == Verdict::Open || verdict == before, "a verdict was taken back");
        every_pattern(stores, votes, tally, seen);
        votes.pop();
    }
}

#[test]
fn every_pattern_of_votes() {
    for stores in 1..=7 {
        let tally = Tally::new(stores);
        assert_eq!(tally.verdict(), Verdict::Open);
        let mut seen = 0;
        every_pattern(stores, &mut Vec::new(), tally, &mut seen);
        assert_eq!(seen, (3_u32.pow(stores + 1) - 1) / 2);
    }
}

/// Any two majorities share a store, and no smaller number would do.
#[test]
fn majorities_meet() {
    for stores in 1..=100 {
        let majority = Tally::new(stores).majority();
        assert!(2 * majority > stores);
        assert!(2 * (majority - 1) <= stores);
    }
}

#[test]
fn no_stores_decide_nothing() {
    assert_eq!(Tally::new(0).verdict(), Verdict::Failed);
}
