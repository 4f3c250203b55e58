//! Whole clusters of real nodes in one process and in simulated time: the runtime as users get it,
//! its actors and the in-memory transport with its faults, on one thread whose clock is paused. One
//! seed drives configuration, faults and training, as in the simulation ([`crate::sim`]), which has
//! the same machines and other shells; here the shells are the product's.
//!
//! | file | does |
//! |---|---|
//! | `settings` | the nodes' configuration, derived from the simulation's |
//! | `world` | starting and ending nodes, carrying out faults, ending them |
//! | `training` | a node's training loop |
//! | `record` | the trace that the nodes write, judged while they write it |
//! | `search` | many seeds, each once or twice |
//!
//! A seed gives the same run every time as far as everything happens on this one thread: workers
//! are asynchronous, arithmetic that has threads of its own elsewhere runs in place, waiters are
//! woken in order. What remains outside: the order in which a supervisor stops the actors of a node
//! that ends, and everything random in tokio (its channels with several waiters, of which the nodes
//! here use none). `search` compares runs and reports where they diverge.
//!
//! Not supported: pauses of whole processes, slow and full disks, clocks that drift. These faults
//! are removed from a schedule.

mod record;
pub mod search;
mod settings;
mod training;
mod world;

use crate::invariants::{Verdict, Violation};
use crate::sim::config::Config;
use crate::sim::schedule::Schedule;
use slowmo_protocol::trace::{Fault, Line, Timed};
use std::ops::RangeInclusive;

/// Report of a run.
#[derive(Debug)]
pub struct Report {
    /// Configuration of the run.
    pub config: Config,
    /// Faults of the run.
    pub schedule: Vec<Timed>,
    /// The rule that was broken first.
    pub violation: Option<Violation>,
    /// Verdict on every rule.
    pub verdicts: Vec<(&'static str, Verdict)>,
    /// Number of decided rounds.
    pub rounds: u64,
    /// The trace of all nodes.
    pub trace: Vec<Line>,
    /// The final status of the nodes, in words.
    pub nodes: Vec<String>,
}

/// The run of `seed` with a number of nodes in this range.
///
/// # Errors
/// The executor cannot be built, or a node refuses its configuration.
pub fn seed(seed: u64, nodes: &RangeInclusive<usize>) -> Result<Report, slowmo::SpawnError> {
    let schedule = Schedule::from_seed(seed, nodes);
    let mut faults = schedule.known_faults();
    faults.retain(|timed| is_carried_out(&timed.fault));
    run(schedule.config, faults)
}

/// Runs one configuration with these faults.
///
/// # Errors
/// As [`seed`].
pub fn run(config: Config, schedule: Vec<Timed>) -> Result<Report, slowmo::SpawnError> {
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let executor = executor.map_err(|error| slowmo::SpawnError::System(error.to_string()))?;
    executor.block_on(world::run(config, schedule))
}

fn is_carried_out(fault: &Fault) -> bool {
    !matches!(
        fault,
        Fault::Pause { .. } | Fault::SlowDisk { .. } | Fault::FullDisk { .. } | Fault::Drift { .. }
    )
}
