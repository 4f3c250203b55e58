//! Finds the shortest schedule that still fails: faults are left out as long as the same rule is
//! broken.

use super::schedule::Schedule;
use super::{Look, Report, run};

/// Maximum number of runs in a search for a shorter schedule.
const RUNS_MAX: usize = 400;

/// A failing run with as few faults as were found to be enough.
pub struct Shortest {
    /// Report of the run with only these faults.
    pub report: Report,
    /// Indices of these faults in the whole schedule, ascending.
    pub faults: Vec<usize>,
}

/// Leaves out faults that the violation of `report` does not need, first in halves, then one by
/// one.
#[must_use]
pub fn shrink(report: Report) -> Shortest {
    let mut faults: Vec<usize> = (0..report.schedule.faults.len()).collect();
    let Some(invariant) = report
        .violation
        .as_ref()
        .map(|violation| violation.invariant.clone())
    else {
        return Shortest { report, faults };
    };
    let whole: Schedule = report.schedule.clone();
    let fails = |faults: &[usize]| {
        let again = run(&whole.with(faults), Look::default());
        again
            .violation
            .as_ref()
            .is_some_and(|violation| violation.invariant == invariant)
            .then_some(again)
    };
    let mut report = report;
    let mut runs = 0;
    let mut size = faults.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < faults.len() && runs < RUNS_MAX {
            let mut fewer = faults.clone();
            fewer.drain(at..(at + size).min(fewer.len()));
            runs += 1;
            match fails(&fewer) {
                Some(again) => (report, faults) = (again, fewer),
                None => at += size,
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    Shortest { report, faults }
}
