//! Model checking: every reachable state of a small cluster, with the product's own transition
//! functions.
//!
//! [`rounds`] explores whole rounds of a few members, and of nodes that join and leave: views and
//! voters change, data moves, nodes die, restart or are thought dead, connections break. Its
//! machines are the product's `coordinator::Coordinator`.
//!
//! The search is exhaustive up to bounds that its [`rounds::Setup`] names; nothing is sampled. A
//! state is remembered by a 64-bit fingerprint, so one of `n` states is missed with a probability
//! of about `n² / 2⁶⁵`: less than one in a hundred thousand for ten million states.
//!
//! Beside forbidden states the model lists states that must be possible, so that a model that does
//! nothing fails. It also has planted bugs, rules that are broken on purpose, which the search must
//! find.

mod report;
pub mod rounds;

pub use report::{Finding, Report};

use std::time::Duration;

/// One search.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name in the report.
    pub name: &'static str,
    /// Bounds of the search.
    pub setup: rounds::Setup,
    /// Number of threads that search.
    pub threads: usize,
    /// Time after which the search is given up; the report says so.
    pub limit: Duration,
}

impl Config {
    /// The searches of the test suite: seconds each.
    #[must_use]
    pub fn short(threads: usize) -> Vec<Self> {
        Self::all(rounds::Setup::short(), threads, Duration::from_secs(600))
    }

    /// Larger searches: minutes each, some hours.
    #[must_use]
    pub fn long(threads: usize) -> Vec<Self> {
        Self::all(
            rounds::Setup::long(),
            threads,
            Duration::from_secs(4 * 3600),
        )
    }

    fn all(
        setups: Vec<(&'static str, rounds::Setup)>,
        threads: usize,
        limit: Duration,
    ) -> Vec<Self> {
        setups
            .into_iter()
            .map(|(name, setup)| Self {
                name,
                setup,
                threads,
                limit,
            })
            .collect()
    }
}

/// Explores every state within the bounds of `config`; a search ends at the first forbidden state.
#[must_use]
pub fn check(config: &Config) -> Report {
    report::search(config, rounds::Cluster::new(config.setup.clone()))
}
