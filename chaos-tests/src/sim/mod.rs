//! Whole nodes in virtual time: every machine of every node with shells that do what the actors do, over a network that does what
//! QUIC does, values small enough to be computed again by an oracle. One seed is one run, the same every time.
//!
//! | file | does |
//! |---|---|
//! | `config`, `schedule` | what a run is like, and its faults: both follow from the seed |
//! | `world`, `event`, `clock` | processes and one queue of events |
//! | `node` | one process: machines, shells, a training thread |
//! | `network`, `sessions`, `delivery` | connections and what travels on them |
//! | `faults` | how faults are carried out |
//! | `watch` | the trace, judged while it is written |
//! | `search`, `shrink`, `coverage` | many seeds, the shortest schedule that fails, what was tried |
//!
//! A run has a safety phase with faults; then all faults stop, and everybody who lives must contribute again within a bounded time.

pub mod books;
mod clock;
pub mod config;
pub mod coverage;
mod delivery;
mod event;
mod faults;
pub mod mail;
pub mod network;
pub mod node;
pub mod random;
pub mod schedule;
pub mod search;
mod sessions;
pub mod shrink;
pub mod watch;
mod world;

pub use world::World;

use crate::invariants::{Verdict, Violation};
use config::Config;
use coverage::Coverage;
use slowmo_protocol::trace::Line;
use slowmo_protocol::trace::Timed;

/// What became of a run.
pub struct Report {
    /// What it was like.
    pub config: Config,
    /// Its faults.
    pub schedule: Vec<Timed>,
    /// The rule that was broken first.
    pub violation: Option<Violation>,
    /// What became of every rule.
    pub verdicts: Vec<(&'static str, Verdict)>,
    /// What it tried.
    pub coverage: Coverage,
    /// Decided rounds.
    pub rounds: u64,
    /// Events that were simulated.
    pub events: u64,
    /// Who lived in the end, and what it did.
    pub nodes: Vec<String>,
    /// The trace, if it was kept.
    pub trace: Option<Vec<Line>>,
}

/// How a run is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Keep the trace.
    pub keeps_trace: bool,
    /// Print every message to standard error.
    pub verbose: bool,
}

/// Runs one configuration with these faults.
#[must_use]
pub fn run(config: Config, schedule: Vec<Timed>, look: Look) -> Report {
    let until = config.horizon + config.recovers_within.0;
    let mut world = World::new(config, schedule);
    (world.watch.verbose, world.watch.trace) = (look.verbose, look.keeps_trace.then(Vec::new));
    world.run(until);
    // Whoever was stopped when the faults ended came back later.
    let quiet = world.watch.history().quiet().map_or(0, |quiet| quiet.0);
    world.run(until.max(quiet + world.config.recovers_within.0));
    let (rounds, now) = (world.watch.rounds, world.now);
    let nodes = world.living().map(|process| world.describe(process)).collect();
    let World { config, schedule, watch, coverage, events, .. } = world;
    let (verdicts, violation, trace) = watch.finish(now);
    Report { config, schedule, violation, verdicts, coverage, rounds, events, nodes, trace }
}
