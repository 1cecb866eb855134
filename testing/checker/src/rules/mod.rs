//! The rules, one file each. A rule is a function from the indexed history to a report.

mod r0_vacuity;
mod r11_deadlines;
mod r12_leases;
mod r1_exclusivity;
mod r2_fences;
mod r3_resource;
mod r4_owner_only;
mod r5_loss_told;
mod r6_refusals;
mod r7_liveness;
mod r8_handoff;
mod r9_fifo;
mod sweep;

use crate::index::Cx;
use crate::report::RuleReport;

/// Applies every rule.
pub(crate) fn all(cx: &Cx<'_>) -> Vec<RuleReport> {
    vec![
        r0_vacuity::check(cx),
        r1_exclusivity::check(cx),
        r2_fences::check(cx),
        r3_resource::fenced(cx),
        r3_resource::plain(cx),
        r4_owner_only::check(cx),
        r5_loss_told::check(cx),
        r6_refusals::check(cx),
        r7_liveness::check(cx),
        r8_handoff::check(cx),
        r9_fifo::check(cx),
        r11_deadlines::check(cx),
        r12_leases::check(cx),
    ]
}
