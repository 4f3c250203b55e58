//! Runs one search and reports what it found and how far it got.
//!
//! A state is remembered by a 64-bit fingerprint, so one of `n` states is missed with a probability
//! of about `n² / 2⁶⁵`.

use stateright::{Checker, Expectation, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The order in which states are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Breadth first: finds a wrong state in as few steps as possible.
    Breadth,
    /// Depth first: needs little memory beside the fingerprints.
    Depth,
}

/// The condition that ends a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Ends when everything is explored, or any property fails.
    AnyFails,
    /// Ends when everything is explored, or this property fails.
    Fails(&'static str),
}

/// One search.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Name in the report.
    pub name: &'static str,
    /// The order in which states are visited.
    pub order: Order,
    /// The condition that ends the search.
    pub until: Until,
    /// Time after which the search is given up.
    pub time: Duration,
    /// Number of steps after which the search is given up.
    pub steps: usize,
}

impl Search {
    /// A breadth-first search of everything, for ten minutes at most.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            order: Order::Breadth,
            until: Until::AnyFails,
            time: Duration::from_secs(600),
            steps: usize::MAX,
        }
    }
}

/// Tells a model that its search is given up.
///
/// A model asks it in `within_boundary`, because a single-threaded search looks at no clock of its
/// own.
#[derive(Clone, Debug)]
pub struct Limit {
    until: Instant,
    passed: Arc<AtomicBool>,
}

impl Limit {
    /// A limit that passes after `time`.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Self {
            until: Instant::now() + time,
            passed: Arc::default(),
        }
    }

    /// Whether the search continues. States that are asked about after the limit are left out, and
    /// the report says that not everything was explored.
    #[must_use]
    pub fn allows(&self) -> bool {
        if Instant::now() < self.until {
            return true;
        }
        self.passed.store(true, Ordering::Relaxed);
        false
    }
}

/// How far a search got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every state within the bounds of the model was explored.
    Exhausted,
    /// Time or steps ran out first.
    Cut,
    /// The search ended at the first wrong state.
    Violated,
}

impl End {
    /// The word for it in the table.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Cut => "cut",
            Self::Violated => "violated",
        }
    }
}

/// A property that failed.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The property that failed.
    pub property: &'static str,
    /// The steps to the wrong state, in order.
    pub steps: Vec<String>,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the search.
    pub name: &'static str,
    /// Number of distinct states.
    pub states: usize,
    /// Number of steps taken; many lead to a state that is already known.
    pub steps: usize,
    /// Length of the longest path that was followed.
    pub depth: usize,
    /// Duration of the search.
    pub took: Duration,
    /// How far the search got.
    pub end: End,
    /// The properties that were checked, including those that failed.
    pub properties: Vec<&'static str>,
    /// Forbidden states that were found.
    pub violations: Vec<Finding>,
    /// Required states that were not found; filled only if the space was exhausted.
    pub impossible: Vec<&'static str>,
}

impl Report {
    /// Whether nothing wrong was found; this can also be true of a search that was cut.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations.is_empty() && self.impossible.is_empty()
    }

    /// Whether everything was explored and nothing wrong was found.
    #[must_use]
    pub fn proves(&self) -> bool {
        self.holds() && self.end == End::Exhausted
    }

    /// Whether `property` failed.
    #[must_use]
    pub fn violates(&self, property: &str) -> bool {
        self.violations
            .iter()
            .any(|finding| finding.property == property)
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
            end,
            ..
        } = self;
        write!(
            f,
            "{name}: {}, {states} states, {steps} steps, depth {depth}, {:.1} s",
            end.word(),
            took.as_secs_f64()
        )?;
        self.impossible
            .iter()
            .try_for_each(|property| write!(f, "\n  never found: {property}"))?;
        for Finding { property, steps } in &self.violations {
            write!(f, "\n  violated: {property}")?;
            steps
                .iter()
                .try_for_each(|step| write!(f, "\n    {step}"))?;
        }
        Ok(())
    }
}

/// Explores, on one thread, the model that `model` builds from the limit.
#[must_use]
pub fn check<M>(search: &Search, model: impl FnOnce(Limit) -> M) -> Report
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let limit = Limit::after(search.time);
    let model = model(limit.clone());
    let finish = match search.until {
        Until::AnyFails => HasDiscoveries::AnyFailures,
        Until::Fails(property) => HasDiscoveries::AnyOf(BTreeSet::from([property])),
    };
    let builder = model
        .checker()
        .threads(1)
        .target_state_count(search.steps)
        .finish_when(finish);
    match search.order {
        Order::Breadth => report(search, &limit, builder.spawn_bfs()),
        Order::Depth => report(search, &limit, builder.spawn_dfs()),
    }
}

fn report<M>(search: &Search, limit: &Limit, checker: impl Checker<M>) -> Report
where
    M: Model,
    M::State: Clone + Debug + Hash + PartialEq,
    M::Action: Clone + Debug + PartialEq,
{
    let began = Instant::now();
    let checker = checker.join();
    let found = checker.discoveries();
    let properties = checker.model().properties();
    let mut report = Report {
        name: search.name,
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
        end: End::Exhausted,
        properties: properties.iter().map(|property| property.name).collect(),
        violations: Vec::new(),
        impossible: Vec::new(),
    };
    for property in properties {
        match (found.get(property.name), property.expectation) {
            (Some(path), Expectation::Always | Expectation::Eventually) => {
                let steps = path
                    .clone()
                    .into_actions()
                    .iter()
                    .map(|action| format!("{action:?}"))
                    .collect();
                report.violations.push(Finding {
                    property: property.name,
                    steps,
                });
            }
            (None, Expectation::Sometimes) => report.impossible.push(property.name),
            (Some(_), Expectation::Sometimes) | (None, _) => {}
        }
    }
    if limit.passed.load(Ordering::Relaxed) || report.steps >= search.steps {
        report.end = End::Cut;
    }
    if !report.violations.is_empty() {
        report.end = End::Violated;
    }
    // A state missing from a part of the space may be in the rest.
    if report.end != End::Exhausted {
        report.impossible.clear();
    }
    report
}
