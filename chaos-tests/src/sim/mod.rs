//! Whole nodes in virtual time: every machine of every node with shells that do what the actors do,
//! over a network that does what QUIC does, values small enough to be computed again by an oracle.
//! One schedule is one run, the same every time; schedules are drawn from seeds, and those that
//! failed once are kept as files.
//!
//! | file | does |
//! |---|---|
//! | `schedule`, `config` | what a run is like, and what is done to it: all that it follows from |
//! | `generator`, `swarm`, `file` | schedules drawn from seeds, schedules as files |
//! | `world`, `event`, `clock` | processes and one queue of events |
//! | `node` | one process: machines, shells, a training thread |
//! | `network`, `sessions`, `delivery` | connections and what travels on them |
//! | `faults`, `going_on` | how faults are carried out; whether those who live go on without the dead |
//! | `watch` | the trace, judged while it is written |
//! | `search`, `shrink` | many seeds, the shortest schedule that fails |
//! | `coverage`, `counters` | what was tried, and how often at least |
//!
//! A run has a safety phase with faults. Then all faults stop: who lives goes on without the dead,
//! who come back then, and everybody must contribute again within a bounded time.

pub mod books;
mod clock;
pub mod config;
pub mod counters;
pub mod coverage;
mod delivery;
mod event;
mod faults;
pub mod file;
pub mod generator;
mod going_on;
pub mod mail;
pub mod network;
pub mod node;
pub mod random;
pub mod schedule;
pub mod search;
mod sessions;
pub mod shrink;
mod swarm;
pub mod watch;
mod world;

pub use world::World;

use crate::invariants::{Verdict, Violation};
use coverage::Coverage;
use schedule::{Deed, Schedule};
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::trace::Line;

/// What became of a run.
pub struct Report {
    /// What it followed from.
    pub schedule: Schedule,
    /// What was to be done and could not be.
    pub excluded: Vec<(Instant, Deed)>,
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

/// How often it is looked whether a run is over, in microseconds.
const LOOK_EVERY: u64 = 250_000;

/// How a run is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Keep the trace.
    pub keeps_trace: bool,
    /// Print every message to standard error.
    pub verbose: bool,
}

/// Runs a schedule.
#[must_use]
pub fn run(schedule: &Schedule, look: Look) -> Report {
    let recovers_within = schedule.config.recovers_within.0;
    let goes_on_within = schedule.config.goes_on_within.map_or(0, |within| within.0);
    let until = schedule.config.horizon + goes_on_within + recovers_within;
    let mut world = World::new(schedule);
    world.watch.verbose = look.verbose;
    world.watch.trace = look.keeps_trace.then(Vec::new);
    match schedule.config.settles {
        Some(settles) => run_until_settled(&mut world, until, settles),
        None => world.run(until),
    }
    // Whoever was stopped when the faults ended came back later.
    let quiet = world.watch.history().quiet().map_or(0, |quiet| quiet.0);
    if !world.is_settled() {
        world.run(until.max(quiet + recovers_within));
    }
    let rounds = world.watch.rounds;
    let now = world.now;
    let nodes = world
        .living()
        .map(|process| world.describe(process))
        .collect();
    let World {
        watch,
        coverage,
        events,
        excluded,
        went_on,
        ..
    } = world;
    let (mut verdicts, violation, trace) = watch.finish(now);
    verdicts.extend(going_on::verdicts(went_on, violation.as_ref()));
    Report {
        schedule: schedule.clone(),
        excluded,
        violation,
        verdicts,
        coverage,
        rounds,
        events,
        nodes,
        trace,
    }
}

/// Runs until everybody who lives contributes again, and has had the time to fail.
fn run_until_settled(world: &mut World, until: u64, settles: Span) {
    while world.now < until && world.watch.violation().is_none() {
        world.run((world.now + LOOK_EVERY).min(until));
        let quiet = world.watch.history().quiet();
        if quiet.is_some_and(|quiet| world.now >= quiet.after(settles).0) && world.is_settled() {
            return;
        }
    }
}
