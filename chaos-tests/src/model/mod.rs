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

pub mod rounds;

pub use slowmo_models::check::Report;

use slowmo_models::check::Search;
use std::time::Duration;

/// One search.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name in the report.
    pub name: &'static str,
    /// Bounds of the search.
    pub setup: rounds::Setup,
    /// Time after which the search is given up; the report says so.
    pub limit: Duration,
}

impl Config {
    /// The searches of the test suite: seconds each.
    #[must_use]
    pub fn short() -> Vec<Self> {
        Self::all(rounds::Setup::short(), Duration::from_secs(600))
    }

    /// Larger searches: minutes each, some hours.
    #[must_use]
    pub fn long() -> Vec<Self> {
        Self::all(rounds::Setup::long(), Duration::from_secs(4 * 3600))
    }

    fn all(setups: Vec<(&'static str, rounds::Setup)>, limit: Duration) -> Vec<Self> {
        let config = |(name, setup)| Self { name, setup, limit };
        setups.into_iter().map(config).collect()
    }
}

/// Explores every state within the bounds of `config`; a search ends at the first forbidden state.
#[must_use]
pub fn check(config: &Config) -> Report {
    let search = Search {
        time: config.limit,
        ..Search::new(config.name)
    };
    slowmo_models::check::check(&search, |limit| {
        rounds::Cluster::new(config.setup.clone()).until(limit)
    })
}
