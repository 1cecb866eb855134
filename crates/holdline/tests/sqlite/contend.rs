//! Processes that want the same lock all the time.

use crate::children::{ChildProcess, alone, numbers};

/// One time of holding, on the clock that all processes share.
struct Span {
    process: usize,
    token: u64,
    /// When its place in the line was certainly taken, and before when it was not.
    placed: u64,
    asked: u64,
    from: u64,
    until: u64,
}

fn spans(processes: usize, millis: u64) -> Vec<Span> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut child_processes: Vec<ChildProcess> =
        (0..processes).map(|_| ChildProcess::new(&file)).collect();
    for child_process in &mut child_processes {
        child_process.tell(&format!("contend job {millis}"));
    }
    let mut spans = Vec::new();
    for (process, child_process) in child_processes.iter_mut().enumerate() {
        let first = spans.len();
        loop {
            let report = child_process.report();
            let Some(span) = report.strip_prefix("span ") else { break };
            let [token, asked, placed, from, until] = numbers(span)[..] else { panic!("{span}") };
            spans.push(Span { process, token, placed, asked, from, until });
        }
        assert!(spans[first..].is_sorted_by_key(|span| span.token));
    }
    spans.sort_by_key(|span| span.token);
    spans
}

/// How often each process held while all were there.
fn shares(spans: &[Span], processes: usize) -> Vec<usize> {
    let of = |process| spans.iter().filter(move |span| span.process == process);
    let from = (0..processes).map(|one| of(one).next().unwrap().from).max().unwrap();
    let until = (0..processes).map(|one| of(one).next_back().unwrap().until).min().unwrap();
    let within = |span: &&Span| (from..until).contains(&span.from);
    (0..processes).map(|one| of(one).filter(within).count()).collect()
}

fn contend(processes: usize, millis: u64) {
    let _alone = alone();
    // How even the shares are depends on what else the machine does; who starves gets next to none.
    let fed = (0..3).any(|_| {
        let spans = spans(processes, millis);
        let mut latest = 0;
        for pair in spans.windows(2) {
            assert!(pair[0].token < pair[1].token, "a token was given twice");
            assert!(pair[0].until <= pair[1].from, "two processes held the lock at once");
        }
        for span in &spans {
            assert!(latest <= span.placed, "somebody who came later was admitted before");
            latest = latest.max(span.asked);
        }
        let shares = shares(&spans, processes);
        println!("{processes} processes for {millis} ms: shares {shares:?}");
        let (least, most) = (*shares.iter().min().unwrap(), *shares.iter().max().unwrap());
        most <= 10 * least
    });
    assert!(fed, "one of them starves");
}

#[test]
fn two_processes_take_turns() {
    contend(2, 1000);
}

#[test]
fn eight_processes_take_turns() {
    contend(8, 1500);
}
