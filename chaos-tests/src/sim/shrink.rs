//! The shortest schedule that still fails: faults are left out as long as the same rule is broken.

use super::config::Config;
use super::{Look, Report, run};
use slowmo_protocol::trace::Timed;

/// Runs that a search for a shorter schedule takes at most.
const RUNS_MAX: usize = 400;

/// Leaves out what is not needed for the violation of `report`, first in halves, then one by one.
#[must_use]
pub fn shrink(report: Report) -> Report {
    let Some(invariant) = report.violation.as_ref().map(|violation| violation.invariant.clone()) else { return report };
    let fails = |config: &Config, schedule: &[Timed]| {
        let again = run(config.clone(), schedule.to_vec(), Look::default());
        again.violation.as_ref().is_some_and(|violation| violation.invariant == invariant).then_some(again)
    };
    let (mut best, mut runs) = (report, 0);
    let mut size = best.schedule.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < best.schedule.len() && runs < RUNS_MAX {
            let mut shorter = best.schedule.clone();
            shorter.drain(at..(at + size).min(shorter.len()));
            runs += 1;
            match fails(&best.config, &shorter) {
                Some(again) => best = again,
                None => at += size,
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    best
}
