//! Runs one search and says what it found and how far it got.
//!
//! A state is remembered by a fingerprint of 64 bits, so that one of `n` states is missed with a
//! chance of about `n² / 2⁶⁵`.

use stateright::{Checker, Expectation, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// In which order states are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nearest first: the steps to a wrong state are as few as can be.
    Breadth,
    /// Farthest first: needs little memory beside the fingerprints.
    Depth,
}

/// When a search ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When everything is explored, or any property fails.
    AnyFails,
    /// When everything is explored, or this property fails.
    Fails(&'static str),
}

/// One search.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// What the report calls it.
    pub name: &'static str,
    /// In which order.
    pub order: Order,
    /// When it ends.
    pub until: Until,
    /// When it is given up.
    pub time: Duration,
    /// After how many steps it is given up.
    pub steps: usize,
}

impl Search {
    /// A search of everything, nearest first, for ten minutes at most.
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
/// A model asks it in `within_boundary`: one thread that searches looks at no clock of its own.
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

    /// Whether the search goes on. What is asked about after the limit is left out, and the report
    /// says that not all was explored.
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
    /// Time or steps ran out before.
    Cut,
    /// It ended at the first wrong state.
    Violated,
}

impl End {
    /// As the table says it.
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
    /// Which property.
    pub property: &'static str,
    /// The steps to the wrong state, in order.
    pub steps: Vec<String>,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The search's name.
    pub name: &'static str,
    /// States, each once.
    pub states: usize,
    /// Steps taken; many lead to a state that is known.
    pub steps: usize,
    /// The longest way that was followed.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// How far it got.
    pub end: End,
    /// The properties that were asked, those that failed included.
    pub properties: Vec<&'static str>,
    /// What must never be and was found.
    pub violations: Vec<Finding>,
    /// What must be possible and is not; known of an exhausted space only.
    pub impossible: Vec<&'static str>,
}

impl Report {
    /// Whether nothing wrong was found; a search that was cut may hold.
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

/// Explores the model that `model` makes of the limit, on one thread.
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
    // What was not found in a part of the space may be in the rest.
    if report.end != End::Exhausted {
        report.impossible.clear();
    }
    report
}
