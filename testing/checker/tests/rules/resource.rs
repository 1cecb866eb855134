//! R3: the guarded resource.

use crate::{MS, event, fails, passes, undecided};
use holdline_checker::{Event, Expect, Op, Phase, Register, Rule};

fn write(ms: u64, reg: Register, fence: u64, base: Option<u64>, uid: u64) -> Event {
    let mut e = event(ms, "resource", Op::Write, Phase::Ok, uid).reg(reg).fence(fence).uid(uid);
    e.base = base;
    e
}

fn dump(reg: Register, uids: &[u64]) -> Event {
    event(900, "resource", Op::ResourceDump, Phase::Ok, 0).reg(reg).uids(uids.to_vec())
}

#[test]
fn r3_a_fenced_resource_takes_no_stale_token_and_loses_nothing() {
    let reg = Register::FencedReadWrite;
    let small = Expect::small();
    let good = vec![write(1, reg, 1, None, 10), write(2, reg, 2, Some(10), 11)];
    passes(Rule::R3, &[good.clone(), vec![dump(reg, &[10, 11])]], &small);
    fails(Rule::R3, &[good.clone(), vec![dump(reg, &[11])]], &small);
    undecided(Rule::R3, &[good], &small);
    let stale = vec![write(1, reg, 2, None, 10), write(2, reg, 1, Some(10), 11)];
    fails(Rule::R3, &[stale, vec![dump(reg, &[10, 11])]], &small);
    undecided(Rule::R3, &[], &Expect { resource: true, ..Expect::small() });
}

#[test]
fn r3_a_plain_resource_loses_nothing_in_a_calm_run() {
    let reg = Register::Plain;
    let lost = || [vec![write(1, reg, 1, None, 10), write(2, reg, 2, None, 11), dump(reg, &[11])]];
    passes(Rule::R3Plain, &lost(), &Expect::small());
    let calm = Expect { calm: true, ..Expect::small() };
    fails(Rule::R3Plain, &lost(), &calm);
    let kept = vec![write(1, reg, 1, None, 10), dump(reg, &[10])];
    passes(Rule::R3Plain, &[kept], &calm);
}

fn use_of(op: Op, reg: Register, fence: u64) -> Event {
    event(fence, "resource", op, Phase::Ok, 50).reg(reg).fence(fence)
}

/// In the order of these calls.
fn in_turn(events: &[Event]) -> Vec<Event> {
    (1..).zip(events).map(|(ms, event)| Event { t: ms * MS, ..event.clone() }).collect()
}

#[test]
fn r3_each_kind_of_access_raises_the_mark_of_a_fenced_register() {
    let reg = Register::FencedReadWrite;
    let small = Expect::small();
    let kept = dump(reg, &[10]);
    for op in [Op::Open, Op::Read, Op::Write] {
        let mut high = use_of(op, reg, 5);
        high.uid = (op == Op::Write).then_some(10);
        let late = write(0, reg, 4, None, 10);
        fails(Rule::R3, &[in_turn(&[high.clone(), late]), vec![kept.clone()]], &small);
        let same = write(0, reg, 5, None, 10);
        passes(Rule::R3, &[in_turn(&[high.clone(), same]), vec![kept.clone()]], &small);
        fails(Rule::R3, &[in_turn(&[high, use_of(Op::Read, reg, 4)]), vec![kept.clone()]], &small);
    }
    let mut refused = write(0, reg, 4, None, 11);
    refused.ph = Phase::Fail;
    passes(Rule::R3, &[in_turn(&[write(0, reg, 5, None, 10), refused]), vec![kept]], &small);
}

#[test]
fn r3_a_stale_token_does_not_lower_the_mark() {
    let reg = Register::FencedReadWrite;
    let writes = [5, 3, 4].map(|fence| write(0, reg, fence, None, fence));
    let report =
        fails(Rule::R3, &[in_turn(&writes), vec![dump(reg, &[3, 4, 5])]], &Expect::small());
    assert_eq!(report.rule(Rule::R3).findings.len(), 2, "{report}");
}

#[test]
fn r3_a_register_that_checks_writes_only_may_be_read_late_and_lose() {
    let reg = Register::FencedWrite;
    let small = Expect::small();
    let late_read = [write(0, reg, 5, None, 10), use_of(Op::Read, reg, 3)];
    passes(Rule::R3, &[in_turn(&late_read), vec![dump(reg, &[10])]], &small);
    let late_write = [write(0, reg, 5, None, 10), write(0, reg, 3, None, 11)];
    fails(Rule::R3, &[in_turn(&late_write), vec![dump(reg, &[10, 11])]], &small);
    let lost = [write(0, reg, 1, None, 10), write(0, reg, 2, None, 11)];
    passes(Rule::R3, &[in_turn(&lost), vec![dump(reg, &[11])]], &small);
}

#[test]
fn r3_a_plain_register_takes_any_token() {
    let plain = Register::Plain;
    let fenced = [write(0, Register::FencedReadWrite, 1, None, 9)];
    let dumped = vec![dump(Register::FencedReadWrite, &[9]), dump(plain, &[10, 11])];
    let late = [write(0, plain, 5, None, 10), write(0, plain, 3, None, 11)];
    passes(Rule::R3, &[in_turn(&fenced), in_turn(&late), dumped], &Expect::small());
}

#[test]
fn r3_what_is_kept_is_in_a_dump_of_the_same_register() {
    let reg = Register::FencedReadWrite;
    let small = Expect::small();
    let two = || in_turn(&[write(0, reg, 1, None, 10), write(0, reg, 2, Some(10), 11)]);
    passes(Rule::R3, &[two(), vec![dump(reg, &[10]), dump(reg, &[11])]], &small);
    fails(Rule::R3, &[two(), vec![dump(reg, &[10]), dump(reg, &[11]).lock("M")]], &small);
    fails(Rule::R3, &[two(), vec![dump(reg, &[10]), dump(Register::Plain, &[11])]], &small);
    // What was read need not be in it.
    let read = vec![use_of(Op::Read, reg, 3).uid(99)];
    passes(Rule::R3, &[two(), read, vec![dump(reg, &[10, 11])]], &small);
}

#[test]
fn r3_a_write_that_was_refused_is_none() {
    let mut refused = write(1, Register::FencedReadWrite, 4, None, 11);
    refused.ph = Phase::Fail;
    undecided(Rule::R3, &[vec![refused]], &Expect { resource: true, ..Expect::small() });
}
