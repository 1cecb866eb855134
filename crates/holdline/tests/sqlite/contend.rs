//! Processes that want the same lock all the time.

use crate::children::{Puppet, numbers};

struct Span {
    token: u64,
    from: u64,
    until: u64,
}

fn contend(processes: usize, millis: u64) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut puppets: Vec<Puppet> = (0..processes).map(|_| Puppet::new(&file)).collect();
    for puppet in &mut puppets {
        puppet.tell(&format!("contend job {millis}"));
    }
    let mut spans = Vec::new();
    let mut shares = Vec::new();
    for puppet in &mut puppets {
        let mut own = Vec::new();
        loop {
            let report = puppet.report();
            let Some(span) = report.strip_prefix("span ") else { break };
            let span = numbers(span);
            own.push(Span { token: span[0], from: span[1], until: span[2] });
        }
        assert!(own.is_sorted_by_key(|span| span.token));
        shares.push(own.len());
        spans.extend(own);
    }
    spans.sort_by_key(|span| span.token);
    for pair in spans.windows(2) {
        assert!(pair[0].token < pair[1].token, "a token was given twice");
        assert!(pair[0].until <= pair[1].from, "two processes held the lock at once");
    }
    let (least, most) = (*shares.iter().min().unwrap(), *shares.iter().max().unwrap());
    println!("{processes} processes for {millis} ms: shares {shares:?}");
    assert!(least > 0 && 2 * most <= 3 * least, "shares are uneven: {shares:?}");
}

#[test]
fn two_processes_take_turns() {
    contend(2, 1500);
}

#[test]
fn eight_processes_take_turns() {
    contend(8, 2000);
}
