//! Model checking: every reachable state of a small cluster, with the product's own transition functions.
//!
//! | module | explores | with |
//! |---|---|---|
//! | [`ballots`] | one decree of a few acceptors: prepare, promise, propose, accept, take over, crash | `ballot::{Acceptor, Proposer, Ballots}`, `View::is_quorum` |
//! | [`rounds`] | whole rounds of three members and a joiner: views change, data moves, nodes die or are thought dead | `coordinator::Coordinator` |
//!
//! Both are searched exhaustively up to bounds that their [`ballots::Setup`] and [`rounds::Setup`] name; nothing is sampled.
//! A state is remembered by a fingerprint of 64 bits, so that one of `n` states is missed with a chance of about `n² / 2⁶⁵`:
//! less than one in a hundred thousand for ten million states.
//!
//! Beside what must never happen each model lists what must be possible, so that a model which does nothing fails. And each
//! knows planted bugs: rules that the model breaks on purpose, which the search must find.

pub mod ballots;
mod report;
pub mod rounds;

pub use report::Report;

use std::time::Duration;

/// What is explored.
#[derive(Clone, Debug)]
pub enum Subject {
    /// The promise and accept rules alone.
    Ballots(ballots::Setup),
    /// The coordinators of a small cluster.
    Rounds(rounds::Setup),
}

/// One search.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the report calls it.
    pub name: &'static str,
    /// What is explored.
    pub subject: Subject,
    /// Threads that search.
    pub threads: usize,
    /// When the search is given up; the report says so.
    pub limit: Duration,
}

impl Config {
    /// The searches of the test suite: seconds each.
    #[must_use]
    pub fn short(threads: usize) -> Vec<Self> {
        let ballots = ballots::Setup::short().into_iter().map(|(name, setup)| (name, Subject::Ballots(setup)));
        let rounds = rounds::Setup::short().into_iter().map(|(name, setup)| (name, Subject::Rounds(setup)));
        Self::all(ballots.chain(rounds), threads, Duration::from_secs(600))
    }

    /// Larger ones: minutes each, hours some.
    #[must_use]
    pub fn long(threads: usize) -> Vec<Self> {
        let ballots = ballots::Setup::long().into_iter().map(|(name, setup)| (name, Subject::Ballots(setup)));
        let rounds = rounds::Setup::long().into_iter().map(|(name, setup)| (name, Subject::Rounds(setup)));
        Self::all(ballots.chain(rounds), threads, Duration::from_secs(4 * 3600))
    }

    fn all(subjects: impl Iterator<Item = (&'static str, Subject)>, threads: usize, limit: Duration) -> Vec<Self> {
        subjects.map(|(name, subject)| Self { name, subject, threads, limit }).collect()
    }
}

/// Explores every state within the bounds of `config`; a search that meets a state that must not be ends there.
#[must_use]
pub fn check(config: &Config) -> Report {
    match &config.subject {
        Subject::Ballots(setup) => report::search(config, ballots::Decree::new(setup.clone())),
        Subject::Rounds(setup) => report::search(config, rounds::Cluster::new(setup.clone())),
    }
}
