//! Runs one search and reports what it found.

use super::Config;
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the search.
    pub name: &'static str,
    /// Number of distinct states explored.
    pub states: usize,
    /// Number of steps taken; many lead to a state that is already known.
    pub steps: usize,
    /// Largest distance of a state from the initial states, in steps.
    pub depth: usize,
    /// Duration of the search.
    pub took: Duration,
    /// Whether every state within the bounds was explored.
    pub complete: bool,
    /// Forbidden states that were found, with the steps that lead there.
    pub violations: Vec<Finding>,
    /// Required states that were found, ascending.
    pub possible: Vec<&'static str>,
    /// Required states that were not found.
    pub impossible: Vec<&'static str>,
}

/// A state that has a property, and the steps that lead there.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The property.
    pub property: &'static str,
    /// The steps that lead there, one per line.
    pub steps: String,
}

impl Report {
    /// Whether all states were explored, no forbidden one was found and every required one was.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.complete && self.violations.is_empty() && self.impossible.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            states,
            steps,
            depth,
            took,
            ..
        } = self;
        let end = if self.complete { "" } else { ", not all" };
        write!(
            f,
            "{name}: {states} states{end}, {steps} steps, depth {depth}, {:.1} s",
            took.as_secs_f64()
        )?;
        self.impossible
            .iter()
            .try_for_each(|property| write!(f, "\n  never found: {property}"))?;
        self.violations
            .iter()
            .try_for_each(|Finding { property, steps }| {
                write!(f, "\n  violated: {property}\n{steps}")
            })
    }
}

/// Explores `model` with the settings of `config`.
pub(super) fn search<M>(config: &Config, model: M) -> Report
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let began = Instant::now();
    let properties: Vec<_> = model
        .properties()
        .iter()
        .map(|property| (property.name, property.expectation.clone()))
        .collect();
    let builder = model
        .checker()
        .threads(config.threads.max(1))
        .timeout(config.limit)
        .finish_when(HasDiscoveries::AnyFailures);
    let checker = builder.spawn_bfs().join();
    let found = checker.discoveries();
    let mut report = Report {
        name: config.name,
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
        complete: began.elapsed() < config.limit,
        violations: Vec::new(),
        possible: Vec::new(),
        impossible: Vec::new(),
    };
    for (property, expectation) in properties {
        match (found.get(property), expectation) {
            (Some(path), Expectation::Always | Expectation::Eventually) => {
                let steps = path
                    .clone()
                    .into_actions()
                    .iter()
                    .map(|action| format!("    {action:?}\n"))
                    .collect();
                report.violations.push(Finding { property, steps });
            }
            (Some(_), Expectation::Sometimes) => report.possible.push(property),
            (None, Expectation::Sometimes) => report.impossible.push(property),
            (None, _) => {}
        }
    }
    // A search that reached a forbidden state ended there.
    report.complete &= report.violations.is_empty();
    report.possible.sort_unstable();
    report
}
