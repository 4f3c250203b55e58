//! Many seeds, each run once or twice.

use super::{Report, seed};
use crate::invariants::{Verdict, Violation};
use slowmo_protocol::trace::Line;
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

/// Result of many seeds.
#[derive(Debug, Default)]
pub struct Found {
    /// Number of seeds run.
    pub runs: u64,
    /// Number of decided rounds.
    pub rounds: u64,
    /// Number of events that were judged.
    pub events: u64,
    /// For each rule: in how many runs it held, and in how many it was not shown.
    pub rules: BTreeMap<&'static str, (u64, u64)>,
    /// Seeds that broke a rule.
    pub failures: Vec<(u64, Violation)>,
    /// Seeds whose second run differed, and where the runs diverge.
    pub unequal: Vec<(u64, Parting)>,
}

/// The first line in which two runs of one seed differ.
#[derive(Clone, Debug)]
pub struct Parting {
    /// Index of the line, from 0.
    pub line: usize,
    /// The line of the first run; none if that run ends before.
    pub one: Option<Line>,
    /// The line of the second run.
    pub other: Option<Line>,
}

/// Runs all seeds, one after the other; `progress` is told of every one.
///
/// # Errors
/// A node or the executor cannot be started.
pub fn search(
    seeds: Range<u64>,
    nodes: &RangeInclusive<usize>,
    twice: bool,
    mut progress: impl FnMut(&Report),
) -> Result<Found, slowmo::SpawnError> {
    let mut found = Found::default();
    for at in seeds {
        let report = seed(at, nodes)?;
        found.take(at, &report);
        if twice && let Some(parting) = part(&report.trace, &seed(at, nodes)?.trace) {
            found.unequal.push((at, parting));
        }
        progress(&report);
    }
    Ok(found)
}

/// The line at which two traces diverge; `None` if they are equal.
#[must_use]
pub fn part(one: &[Line], other: &[Line]) -> Option<Parting> {
    let line = one
        .iter()
        .zip(other)
        .take_while(|(one, other)| same(one, other))
        .count();
    let parts = line < one.len().max(other.len());
    parts.then(|| Parting {
        line,
        one: one.get(line).cloned(),
        other: other.get(line).cloned(),
    })
}

/// Compares lines as text, in which NaN equals itself.
fn same(one: &Line, other: &Line) -> bool {
    one == other || format!("{one:?}") == format!("{other:?}")
}

impl Found {
    fn take(&mut self, seed: u64, report: &Report) {
        self.runs += 1;
        self.rounds += report.rounds;
        self.events += report.trace.len() as u64;
        for (name, verdict) in &report.verdicts {
            let (held, not_shown) = self.rules.entry(name).or_default();
            match verdict {
                Verdict::Held { .. } => *held += 1,
                Verdict::NotShown { .. } => *not_shown += 1,
                Verdict::Violated(_) => {}
            }
        }
        self.failures
            .extend(report.violation.clone().map(|violation| (seed, violation)));
    }
}
